"""One LoRA on disk: its layout, its scales and its low-rank factors, read module by module."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.fuse_lora.algorithms import LARGEST_ALPHA, fold_with_error
from nipstool.fuse_lora.names import Layout, Module, read_layout
from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.records import is_number, parse_json, shown
from nipstool.kit.tensors import TensorReader, open_tensors

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "pytorch_lora_weights.safetensors")
PICKLES = ("adapter_model.bin", "pytorch_lora_weights.bin")


@dataclass(frozen=True)
class Adapter:
    """An opened LoRA. Tensors are read when they are asked for."""

    label: str
    path: Path
    reader: TensorReader
    layout: Layout
    config: Mapping[str, Any] = field(default_factory=dict)
    config_path: Path | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the weights' file."""
        return self.reader.metadata

    @property
    def dtype(self) -> str:
        """The dtype most of the factors are stored in, as safetensors calls it."""
        names = [key for module in self.layout.modules for role, key in module.keys.items() if role != "alpha"]
        counts = Counter(self.reader.infos[name].dtype for name in names)
        return counts.most_common(1)[0][0] if counts else "F32"

    def shapes(self, module: Module) -> dict[str, tuple[int, ...]]:
        """role -> shape of a module's tensors."""
        return {role: self.reader.infos[key].shape for role, key in module.keys.items()}

    def alpha(self, module: Module) -> float | None:
        """The module's alpha, so that its scale is alpha / r; None where the file says nothing (scale 1)."""
        if "alpha" in module.keys:
            return _scalar(self.reader.read(module.keys["alpha"]), f"{self.label}: {module.keys['alpha']}")
        if module.algorithm != "lora":
            return None
        # PEFT matches its patterns against the model's own names, diffusers against those without the component
        name = module.name if "components" in self.config else module.stem.removeprefix("base_model.model.")
        return _configured_alpha(self.config, name, self.shapes(module)["down"][0])

    def factors(
        self, module: Module, *, device: torch.device | str = "cpu", rank: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The update B A of a module with its scale folded into B, in float64.

        B is [out, r] and A is [r, in * kernel]; B's rows stand in the canonical order. `rank` is the rank
        to stop at where the exact one of a LoHa or LoKr would be too large.
        """
        B, A, _ = self.folded(module, device=device, rank=rank)
        return B, A

    def folded(
        self, module: Module, *, device: torch.device | str = "cpu", rank: int | None = None
    ) -> tuple[Tensor, Tensor, float]:
        """`factors`, and the relative error of having stopped at `rank`: 0 where they are exact."""
        tensors = {
            role: self.reader.read(key).to(device) for role, key in module.keys.items() if role not in _ASIDE
        }
        B, A, error = fold_with_error(
            module.algorithm,
            tensors,
            self.alpha(module),
            rank=rank,
            name=f"{self.label}: {module.stem}",
        )
        return (swapped(B) if module.swap_halves else B), A, error

    def bias(self, module: Module, rows: int) -> Tensor | None:
        """The module's bias delta in float64, rows in the canonical order; None where it has none.

        PEFT's lora_B.bias is scaled like the factors, kohya's diff_b is not.

        Raises:
            DataError: it does not have `rows` finite entries.
        """
        key = module.keys.get("bias")
        if key is None:
            return None
        delta = self.reader.read(key).double().flatten()
        if len(delta) != rows or not bool(delta.isfinite().all()):
            raise DataError(f"{self.label}: {key}: expected {rows} finite numbers")
        alpha = self.alpha(module)
        if key.endswith(".bias") and alpha is not None:
            delta = delta * (alpha / self.shapes(module)["down"][0])
        return swapped(delta) if module.swap_halves else delta

    @property
    def base_model(self) -> str | None:
        """The base model the file names, if it does."""
        for key in ("ss_base_model_version", "modelspec.architecture"):
            if self.metadata.get(key):
                return self.metadata[key]
        return self.config.get("base_model_name_or_path") or None


_ASIDE = ("alpha", "bias", "dora_scale")


def swapped(rows: Tensor) -> Tensor:
    """Rows with their two halves exchanged: (shift, scale) as the original code has it, or back."""
    return rows.roll(len(rows) // 2, 0)


def _scalar(tensor: Tensor, name: str) -> float:
    if tensor.numel() != 1:
        raise DataError(f"{name}: expected one number, found shape {list(tensor.shape)}")
    value = float(tensor.double().reshape(()).item())
    if not abs(value) <= LARGEST_ALPHA:
        raise DataError(f"{name}: alpha is {value}")
    return value


def open_adapter(path: Path, label: str | None = None) -> Adapter:
    """Open a LoRA: a .safetensors file, or a folder as PEFT or diffusers write it.

    Raises:
        InputMissingError: nothing is there.
        DataError: it is no LoRA that can be read.
    """
    label = label or str(path)
    weights, config_path = _locate(path, label)
    config = _read_config(config_path) if config_path is not None else {}
    reader = _open_weights(weights)
    config = config or _embedded_config(reader.metadata, label)
    shapes = {name: tuple(info.shape) for name, info in reader.infos.items()}
    saved = config.get("modules_to_save") or ()
    layout = read_layout(shapes, reader.metadata, modules_to_save=saved, is_peft=config_path is not None)
    return Adapter(label, weights, reader, layout, config, config_path)


def _locate(path: Path, label: str) -> tuple[Path, Path | None]:
    """The weights file and, for PEFT, the adapter_config.json beside it."""
    if not path.is_dir():
        config = path.with_name(CONFIG)
        return path, config if path.name.startswith("adapter_model.") and config.is_file() else None
    for name in WEIGHTS + PICKLES:
        if (path / name).is_file():
            config = path / CONFIG
            return path / name, config if config.is_file() else None
    loose = sorted(path.glob("*.safetensors"))
    if len(loose) == 1:
        return loose[0], None
    raise InputMissingError(f"{label}: the folder holds none of {', '.join(WEIGHTS)}")


def _open_weights(path: Path) -> TensorReader:
    if path.suffix in (".bin", ".pt", ".pth", ".ckpt"):
        from nipstool.fuse_lora.pickled import open_pickled

        return open_pickled(path)
    return open_tensors(path)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: expected a JSON object: {error}") from error
    if not isinstance(config, dict):
        raise DataError(f"{path}: expected a JSON object, found {type(config).__name__}")
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise DataError(f"{path}: peft_type {kind} is not supported, expected LORA")
    _check_config(config, str(path))
    return config


def _check_config(config: Mapping[str, Any], where: str) -> None:
    """Refuse a LoraConfig whose entries are not of the kind that is expected of them."""
    for key in ("r", "lora_alpha"):
        if not isinstance(config.get(key, 1), int | float):
            raise DataError(f"{where}: {key} should be a number, found {config[key]!r}")
    for key in ("rank_pattern", "alpha_pattern"):
        if not isinstance(config.get(key) or {}, dict):
            raise DataError(f"{where}: {key} should be an object")
    saved = config.get("modules_to_save") or []
    if not isinstance(saved, list) or not all(isinstance(name, str) for name in saved):
        raise DataError(f"{where}: modules_to_save should be a list of names, found {saved!r}")


def _embedded_config(metadata: Mapping[str, str], label: str) -> dict[str, Any]:
    """The LoraConfig that diffusers keeps in the file's metadata, one per component."""
    text = metadata.get("lora_adapter_metadata")
    if not text:
        return {}
    try:
        flat = parse_json(text)
    except ValueError as error:
        raise DataError(f"{label}: the metadata lora_adapter_metadata is no JSON: {error}") from error
    where = f"{label}: the metadata lora_adapter_metadata"
    if not isinstance(flat, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(flat).__name__}")
    components: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        component, _, name = key.partition(".")
        components.setdefault(component, {})[name] = value
    for component in components.values():
        _check_config(component, where)
    return {"components": components}


def _configured_alpha(config: Mapping[str, Any], name: str, rank: int) -> float | None:
    """alpha such that alpha / rank is PEFT's scale, rank-stabilised or not, with its patterns."""
    if "components" in config:
        component, _, name = name.partition(".")
        config = config["components"].get(component, {})
    if "lora_alpha" not in config:
        return None
    alpha = _by_pattern(config.get("alpha_pattern"), name, config["lora_alpha"])
    if not is_number(alpha, LARGEST_ALPHA):
        raise DataError(f"{name}: the adapter's config gives the alpha {shown(alpha)}, expected a number")
    return alpha * math.sqrt(rank) if config.get("use_rslora") else alpha


def _by_pattern(patterns: Mapping[str, float] | None, name: str, default: float) -> float:
    """PEFT's rule: the first pattern that matches the end of the module's name."""
    for pattern, value in (patterns or {}).items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", name):
                return value
        except re.error as error:
            raise DataError(f"the pattern {pattern!r} in the adapter's config is no regular expression") from error
    return default


def open_checked(
    path: Path, label: str, stack: ExitStack, *, drop_dora: bool = False, allow_unknown: bool = False
) -> Adapter:
    """Open a LoRA that is to be used as a whole: refuse by name what cannot be, and what nobody can place.

    Raises:
        DataError: an algorithm we do not fuse, tensors nobody can place, spellings that contradict, no module.
    """
    adapter = open_adapter(path, label)
    stack.enter_context(adapter.reader)
    for what, key in adapter.layout.refused:
        if what == "DoRA" and drop_dora:
            continue
        hint = " (--drop-dora ignores its scales)" if what == "DoRA" else ""
        raise DataError(f"{label}: {what} is not supported, found {key}{hint}")
    if adapter.config.get("use_dora") and not drop_dora:
        raise DataError(f"{label}: DoRA is not supported, found use_dora (--drop-dora ignores its scales)")
    if adapter.layout.unknown and not allow_unknown:
        first, *others = adapter.layout.unknown
        more = f" and {len(others)} more" if others else ""
        raise DataError(f"{label}: cannot place the tensor {first}{more} (--allow-unknown leaves it out)")
    if not adapter.layout.modules:
        raise DataError(f"{label}: no LoRA module found in {len(adapter.reader.infos)} tensors")
    _check_duplicates(adapter)
    return adapter


def _check_duplicates(adapter: Adapter) -> None:
    """Two spellings of one module may stand in a file only if they say the same."""
    for kept, other in adapter.layout.duplicates:
        equal = set(kept.keys) == set(other.keys) and all(
            adapter.reader.read_bytes(kept.keys[role]) == adapter.reader.read_bytes(other.keys[role])
            for role in kept.keys
        )
        if not equal:
            raise DataError(f"{adapter.label}: {kept.stem} and {other.stem} are one module and differ")

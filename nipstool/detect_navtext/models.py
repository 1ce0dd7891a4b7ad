"""The OCR models: which files they are, and onnxruntime sessions for them."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from nipstool.kit.errors import DataError, InputMissingError, UnavailableError

if TYPE_CHECKING:
    import onnxruntime

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
ABOUT = "ocr.toml"


@dataclass(frozen=True)
class Models:
    """A text detector of the DB family, and a CTC recogniser, as ONNX files.

    Attributes:
        detector: takes (n, 3, h, w), sides multiples of 32; gives probabilities (n, maps, h, w), or smaller ones.
        recogniser: takes (n, 3, 48, w) and gives (n, t, classes); None where only detection is wanted.
        mean, std: of the detector's input, by channel in the order blue, green, red, of values 0 to 1.
        characters: file with a character a line; None where the recogniser's metadata hold them.
    """

    detector: Path
    recogniser: Path | None
    mean: tuple[float, float, float] = HALF[0]
    std: tuple[float, float, float] = HALF[1]
    characters: Path | None = None


def bundled() -> Models:
    """PP-OCRv6 small, which rapidocr's wheel holds; nothing of rapidocr is imported.

    Raises:
        UnavailableError: rapidocr, or a model in it, is not there.
    """
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or not spec.submodule_search_locations:
        raise UnavailableError(
            "the OCR models are those of the package rapidocr, which is missing: pip install rapidocr"
        )
    folder = Path(next(iter(spec.submodule_search_locations)), "models")
    found = [folder / f"PP-OCRv6_{task}_small.onnx" for task in ("det", "rec")]
    for path in found:
        if not path.is_file():
            raise UnavailableError(f"{path}: missing; expected in rapidocr 3.10 or newer; or use --ocr-models")
    return Models(found[0], found[1])


def in_folder(folder: str | Path) -> Models:
    """The models of a folder: `*det*.onnx`, `*rec*.onnx` and, beside them, `*keys*.txt` or `*dict*.txt`.

    A file `ocr.toml` may say more: detector, recogniser, characters (file names), mean, std (three numbers).
    Without it, PP-OCRv6 detectors take mean and std 0.5, all others ImageNet's.

    Raises:
        InputMissingError: the folder or one of the two models is not there.
        DataError: `ocr.toml` cannot be read, or says what it may not.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputMissingError(f"{folder}: no such folder; expected one with a *det*.onnx and a *rec*.onnx")
    about = _about(folder / ABOUT)
    detector = _one(folder, about.get("detector"), "*det*.onnx")
    recogniser = _one(folder, about.get("recogniser"), "*rec*.onnx")
    mean, std = HALF if "v6" in detector.name.lower() else IMAGENET
    given = about.get("characters")
    lists = [folder / given] if given else sorted([*folder.glob("*keys*.txt"), *folder.glob("*dict*.txt")])
    return Models(
        detector,
        recogniser,
        _three(about, "mean", mean, folder),
        _three(about, "std", std, folder),
        lists[0] if lists else None,
    )


def _about(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path}: is no TOML file: {error}") from error


def _three(
    about: dict[str, Any], key: str, default: tuple[float, float, float], folder: Path
) -> tuple[float, float, float]:
    value = about.get(key, default)
    if len(value) != 3 or not all(isinstance(v, int | float) for v in value) or (key == "std" and 0 in value):
        raise DataError(f"{folder / ABOUT}: {key} is {value!r}; expected three numbers")
    return (float(value[0]), float(value[1]), float(value[2]))


def _one(folder: Path, name: str | None, pattern: str) -> Path:
    found = [folder / name] if name else sorted(folder.glob(pattern))
    if not found or not found[0].is_file():
        raise InputMissingError(f"{folder}: holds no {name or pattern}; expected an ONNX model of that name")
    return found[0]


def silent_onnxruntime() -> ModuleType:
    """The module onnxruntime, imported so that it reports nothing to anybody.

    From 1.32 on it sends usage data and keeps a device number in the user's home unless this variable of the
    process says otherwise when it is loaded; one that the user has set stands.
    """
    setenv = getattr(ctypes.CDLL(None), "setenv", None)  # C's own: the library reads it, not Python
    if setenv is not None and "onnxruntime" not in sys.modules:
        setenv(b"ORT_DISABLE_TELEMETRY", b"1", 0)
    return importlib.import_module("onnxruntime")


def session(path: Path, *, threads: int = 1, device: str = "cpu") -> onnxruntime.InferenceSession:
    """An onnxruntime session whose weights hold no denormal numbers.

    A convolution with denormal float32 weights runs tens of times slower on x86, and the detector of PP-OCRv6
    has a quarter of a million of them: below 1.2e-38, they add nothing to any output.

    Args:
        device: `cpu`, or `cuda` where onnxruntime-gpu is installed.

    Raises:
        InputMissingError: no such file.
        DataError: it is no ONNX model that onnxruntime can load.
        UnavailableError: this onnxruntime knows no CUDA.
    """
    onnxruntime = silent_onnxruntime()
    if not path.is_file():
        raise InputMissingError(f"{path}: no such file; expected an ONNX model")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # the arena keeps what the largest picture needed, for ever
    options.enable_cpu_mem_arena = False
    providers = _providers(device, onnxruntime.get_available_providers())
    try:
        return onnxruntime.InferenceSession(_without_denormals(path), options, providers=providers)
    except Exception as error:  # its exceptions share no base but Exception
        raise DataError(f"{path}: is no ONNX model that onnxruntime can run: {str(error)[:200]}") from error


def _providers(device: str, available: list[str]) -> list[str]:
    if device.startswith("cuda"):
        if "CUDAExecutionProvider" not in available:
            raise UnavailableError(f"--device {device}: this onnxruntime has no CUDA; install onnxruntime-gpu")
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]
    return ["CPUExecutionProvider"]


def _without_denormals(path: Path) -> bytes | str:
    """The model's bytes with denormal weights set to zero; its path where there are none."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(path), load_external_data=False)
    changed = False
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        weights = numpy_helper.to_array(tensor)
        small = (np.abs(weights) < np.finfo(np.float32).tiny) & (weights != 0)
        if small.any():
            tensor.CopyFrom(numpy_helper.from_array(np.where(small, np.float32(0), weights), tensor.name))
            changed = True
    return model.SerializeToString() if changed else str(path)

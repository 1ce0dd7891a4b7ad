"""What a user asks of a training, checked, as settings. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nipstool.eeg_pretrain.config import PRESETS, RECIPES
from nipstool.kit.errors import UsageError
from nipstool.kit.runtime import float_dtype

if TYPE_CHECKING:
    from nipstool.eeg_pretrain.job import Settings

TERMS = ("detection", "onset", "hazard", "descriptors")
SPLITS = ("auto", "subject", "time")


@dataclass(frozen=True)
class Wishes:
    """Options of `train`; None leaves it to the preset."""

    preset: str = "tiny"
    context_s: float | None = None
    steps: int | None = None
    batch_tokens: int | None = None
    rate: float | None = None
    val_share: float | None = None
    validate_every: int | None = None
    split: str = "auto"
    patience: int = 0
    without: tuple[str, ...] = ()
    dtype: str = "float32"


def settings_of(wishes: Wishes, *, seed: int, device: str, text_model: str | None) -> Settings:
    """Raises UsageError where a wish cannot be met."""
    from nipstool.eeg_pretrain.job import Settings

    _one_of("--preset", wishes.preset, tuple(PRESETS))
    _one_of("--split", wishes.split, SPLITS)
    for term in wishes.without:
        _one_of("--without", term, TERMS)
    if wishes.rate is not None and not 0.0 < wishes.rate < 1.0:
        raise UsageError(f"--rate {wishes.rate:g}: expected a number between 0 and 1")
    if wishes.val_share is not None and not 0.0 < wishes.val_share < 1.0:
        raise UsageError(f"--val-share {wishes.val_share:g}: expected a share between 0 and 1")
    half = _one_of("--dtype", float_dtype(wishes.dtype) or "", ("float32", "bfloat16")) == "bfloat16"
    config = PRESETS[wishes.preset]
    recipe = replace(RECIPES[wishes.preset], split=wishes.split, patience=wishes.patience)
    for name in ("steps", "batch_tokens", "rate", "val_share", "validate_every"):
        if (value := getattr(wishes, name)) is not None:
            recipe = replace(recipe, **{name: value})
    recipe = replace(recipe, **dict.fromkeys(wishes.without, 0.0))
    if wishes.context_s is not None:
        tokens = round(wishes.context_s / config.token_s)
        if tokens < 8:
            raise UsageError(f"--context {wishes.context_s:g}: expected at least {8 * config.token_s:g} s")
        recipe = replace(recipe, context=tokens)
    return Settings(config, recipe, seed, device, half, text_model)


def _one_of(option: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise UsageError(f"{option} {value}: expected {', '.join(choices)}")
    return value

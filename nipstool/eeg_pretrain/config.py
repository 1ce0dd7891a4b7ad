"""The sizes of a model and what it is trained on: three presets, and nothing that a run could not repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from nipstool.kit.errors import DataError
from nipstool.kit.records import is_number

FORMAT = 1  # of a run's config.json and weights; a run of another format is named, not guessed at
NOTICE = "for research only, never for diagnosis"
HISTORY = 4  # patches that a token sees besides what the recurrence remembers: the current one and those before
DESCRIPTORS = ("delta", "theta", "alpha", "beta", "gamma", "line length", "power")
MODALITIES = ("eeg", "ecg", "spo2")
HORIZONS_S = (60.0, 300.0, 600.0, 1800.0, 3600.0)
DETECTORS = ("model", "line length", "power")  # of seizures: the network, and two rules to beat
TEXT_BUCKETS = 4096
USUAL_UV = 20.0
CLIP = 15.0  # running scales: what lies beyond is an artefact, and must not be all that is seen


@dataclass(frozen=True)
class Config:
    """What the weights belong to.

    Attributes:
        d: width of a token.
        layers, heads: of the mLSTM.
        latents: streams that read from all channels and are read by them.
        fs: sampling rate of the tokens' signal in Hz.
        patch: samples a token.
        context: tokens a training window.
        bilinear: rank of the next-patch prediction that is linear in the signal and gated by the token.
        text_width: of the vectors of --text-model; 0 is the model's own hashed n-grams.
        horizons_s: ends of the intervals of the time-to-seizure hazard.
    """

    d: int = 64
    layers: int = 2
    heads: int = 4
    latents: int = 2
    fs: float = 128.0
    patch: int = 32
    context: int = 64
    bilinear: int = 64
    text_width: int = 0
    horizons_s: tuple[float, ...] = HORIZONS_S

    @property
    def token_s(self) -> float:
        """Seconds a token."""
        return self.patch / self.fs


# What a run may say of itself, so that a damaged one does not ask for all memory.
LIMITS = {
    "d": (1, 4096),
    "layers": (1, 256),
    "heads": (1, 256),
    "latents": (1, 1024),
    "fs": (16, 20_000),
    "patch": (1, 8192),
    "context": (1, 1_000_000),
    "bilinear": (1, 4096),
    "text_width": (0, 65_536),
}

PRESETS = {
    "tiny": Config(),
    "small": Config(d=256, layers=8, latents=4, fs=256.0, patch=64, context=480),
    "base": Config(d=512, layers=16, heads=8, latents=8, fs=256.0, patch=64, context=2400),
}


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. Steps count: the same numbers give the same run, however fast the machine.

    Attributes:
        batch_tokens: channel tokens a step, over all ranks.
        weights of the loss: L = ntp + detection + onset + hazard + descriptors.
        val_share: of the subjects (or, with one split by time, of every recording) kept for validation.
        rereference: share of the windows in which unipolar channels become differences of random pairs of them.
        mirror: share of the windows in which left and right of the head are exchanged.
        patience: validations without a better loss before training stops; 0 never stops.
    """

    steps: int = 400
    batch_tokens: int = 8192
    rate: float = 3e-3
    warm_up: float = 0.05
    weight_decay: float = 0.05
    clip: float = 1.0
    ema: float = 0.99
    ntp: float = 1.0
    detection: float = 1.0
    onset: float = 0.2
    hazard: float = 0.2
    descriptors: float = 0.3
    channel_dropout: float = 0.8
    rereference: float = 0.5
    mirror: float = 0.5
    text_dropout: float = 0.2
    seizure_share: float = 0.5
    split: str = "auto"
    val_share: float = 0.2
    validate_every: int = 100
    patience: int = 0
    context: int = 0


RECIPES = {
    "tiny": Recipe(),
    "small": Recipe(steps=20_000, batch_tokens=65_536, rate=1e-3, ema=0.999, validate_every=500),
    "base": Recipe(steps=100_000, batch_tokens=262_144, rate=5e-4, ema=0.999, validate_every=1000),
}


def as_plain(value: Config | Recipe) -> dict[str, Any]:
    """For JSON."""
    return asdict(value)


def config_of(plain: Mapping[str, Any], told: str) -> Config:
    """The Config that JSON holds. Raises DataError, with the file's name `told`, where it holds something else."""
    known = {field.name for field in fields(Config)}
    if not isinstance(plain, Mapping) or set(plain) != known:
        raise DataError(f"{told}: its model has other settings than this version's ({', '.join(sorted(known))})")
    for name, (least, most) in LIMITS.items():
        whole = isinstance(plain[name], int) or name == "fs"
        if not whole or not is_number(plain[name]) or not least <= plain[name] <= most:
            raise DataError(f"{told}: {name} is {plain[name]!r}; expected a number from {least} to {most}")
    if plain["d"] % plain["heads"]:
        raise DataError(f"{told}: d is {plain['d']}, which {plain['heads']} heads do not divide")
    horizons = plain["horizons_s"]
    if not isinstance(horizons, list | tuple) or not horizons or not all(map(is_number, horizons)):
        raise DataError(f"{told}: horizons_s is {horizons!r}; expected a list of seconds")
    return Config(**{**plain, "horizons_s": tuple(horizons)})

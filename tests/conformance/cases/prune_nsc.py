"""The verbs of prune-nsc."""

from pathlib import Path

from tests.conformance.cases.case import Case
from tests.conformance.cases.language_model import some_model


def weights(path: Path) -> bytes:
    """The model in a run."""
    return (path / "model.safetensors").read_bytes()


CASES = [
    Case(
        "prune-nsc",
        None,
        ("model", "--ratio", "0.9", "--channels", "random"),
        some_model,
        inputs=("model/config.json", "model/model.safetensors"),
        output="smaller",
        folder=True,
        setting=("--ffn", "12", "16", "20"),
    ),
    Case(
        "prune-nsc",
        "plan",
        ("config.json", "--ratio", "0.9"),
        some_model,
        inputs=("config.json",),
        setting=("--snr", "0.5", "2", "3"),
    ),
    Case(
        "prune-nsc",
        "plan",
        ("config.json", "--ratio", "0.9"),
        some_model,
        inputs=("config.json",),
        output="plan.json",
        writes_stdout=True,
        setting=("--snr", "0.5", "2", "3"),
    ),
    Case(
        "prune-nsc",
        "search",
        ("space.toml", "--max-params", "4000"),
        some_model,
        inputs=("space.toml",),
        output="best.json",
        writes_stdout=True,
        setting=("--snr", "0.5", "2", "3"),
    ),
    Case(
        "prune-nsc",
        "score",
        ("config.json",),
        some_model,
        inputs=("config.json",),
        reads_stdin=True,
        setting=("--snr", "0.5", "2", "3"),
    ),
    Case(
        "prune-nsc",
        "search",
        ("space.toml", "--max-params", "4000"),
        some_model,
        inputs=("space.toml",),
        setting=("--snr", "0.5", "2", "3"),
    ),
]

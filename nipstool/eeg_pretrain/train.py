"""Training: a function of the recordings, the recipe and the seed, whatever interrupts it.

Which windows a step sees depends on seed and step alone, and everything else is in the checkpoint: a run that was
killed and resumed gives the same lines in the log and the same weights, to the last bit, as one that was not.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nipstool.eeg_pretrain import objectives, words
from nipstool.eeg_pretrain.batches import batch_of, texts_of
from nipstool.eeg_pretrain.config import Config, Recipe
from nipstool.eeg_pretrain.corpus import Corpus, Window
from nipstool.eeg_pretrain.model import Memory, Model, Outputs, Signals
from nipstool.eeg_pretrain.run_folder import CHECKPOINT
from nipstool.eeg_pretrain.start import initialise
from nipstool.eeg_pretrain.state_file import load_tensors, save_tensors
from nipstool.eeg_pretrain.targets import Targets
from nipstool.kit.distributed import Group
from nipstool.kit.errors import DataError, NipsError, UsageError
from nipstool.kit.progress import Progress, silent
from nipstool.kit.records import to_json

LOG = "log.ndjson"
# of a Trainer, kept in a checkpoint
COUNTERS = ("step", "skipped", "in_a_row", "without_better", "stopped", "validation")
MOST_VALIDATION = 96  # windows
MOST_SKIPPED = 50  # steps in a row without a finite gradient: the run has diverged
BETAS, EPS = (0.9, 0.95), 1e-5  # a smaller one makes steps of rounding errors
ALONE = Group()
TextReader = Callable[[list[Any]], Tensor]


@dataclass(frozen=True)
class Trained:
    """What came out: the averaged weights with the best validation loss, and how it went."""

    model: Model
    steps: int
    skipped: int
    stopped_early: bool
    validation: dict[str, float]


class Trainer:
    """Weights, their moving average, the optimiser and the counters of one run.

    Args:
        half: multiply in bfloat16.
        ranks: the processes that train together, each on its windows of every step.
    """

    def __init__(
        self,
        corpus: Corpus,
        config: Config,
        recipe: Recipe,
        seed: int,
        device: torch.device,
        half: bool,
        ranks: Group = ALONE,
    ):
        self.corpus, self.config, self.recipe, self.seed = corpus, config, recipe, seed
        self.device, self.half, self.ranks = device, half, ranks
        self.texts = [recording.text for recording in corpus.recordings]
        self.read_texts: TextReader = lambda texts: torch.from_numpy(words.numbers(texts))
        torch.manual_seed(seed)
        self.model = Model(config)
        initialise(self.model, corpus, recipe, seed)
        self.model.to(device)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        decayed = [p for p in self.parameters if p.ndim >= 2]
        others = [p for p in self.parameters if p.ndim < 2]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(
            groups, lr=recipe.rate, betas=BETAS, eps=EPS, weight_decay=recipe.weight_decay
        )
        self.step = self.skipped = self.in_a_row = self.without_better = 0
        self.best_loss = math.inf
        self.best: dict[str, Tensor] = {}
        self.validation: dict[str, float] = {}
        self.stopped = False

    def advance(self) -> dict[str, Any]:
        """One step; what the log says of it."""
        self.step += 1
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate()
        parts, loss = self._forward(self.corpus.draw(self.step, self.seed, self.recipe))
        self.optimiser.zero_grad(set_to_none=True)
        if loss.requires_grad:
            loss.backward()
        sum_gradients(self.parameters, self.ranks)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        total = sum(objectives.weights(self.recipe)[name] * value for name, value in parts.items())
        if math.isfinite(total) and bool(torch.isfinite(norm)):
            self.optimiser.step()
            self._follow()
            self.in_a_row = 0
        else:
            self._skip()
        line = {"step": self.step, "loss": total, **parts, "rate": self.rate(), "gradient": float(norm)}
        return {**line, "skipped": self.skipped}

    def rate(self) -> float:
        """Linear warm-up, then a cosine to a tenth."""
        recipe, k = self.recipe, self.step
        warm = max(1, round(recipe.warm_up * recipe.steps))
        if k <= warm:
            return recipe.rate * k / warm
        done = (k - warm) / max(1, recipe.steps - warm)
        return recipe.rate * (0.55 + 0.45 * math.cos(math.pi * min(1.0, done)))

    def _forward(self, groups: Sequence[Sequence[Window]]) -> tuple[dict[str, float], Tensor]:
        """The mean of every term over all ranks, and this rank's share of the weighted loss."""
        mine = [self.ranks.share(group) for group in groups]
        found = [self._terms(self.model, group) for group in mine if group]
        names = list(objectives.weights(self.recipe))
        zero = torch.zeros((), device=self.device)
        totals = torch.stack([sum((f[n].total for f in found), start=zero) for n in names])
        counts = torch.stack([sum((f[n].count for f in found), start=zero) for n in names])
        summed = totals.detach().clone()
        self.ranks.add([counts, summed])
        counts = counts.clamp(min=1)
        weights = torch.tensor(list(objectives.weights(self.recipe).values()), device=self.device)
        loss = (weights * totals / counts).sum()
        return dict(zip(names, (summed / counts).tolist(), strict=True)), loss

    def _terms(self, model: Model, group: Sequence[Window]) -> dict[str, objectives.Term]:
        outputs, signals, labels = self.outputs(model, group)
        return objectives.terms(model, outputs, signals, labels)

    def outputs(self, model: Model, group: Sequence[Window]) -> tuple[Outputs, Signals, objectives.Labels]:
        """What a model makes of windows of the same length and number of channels."""
        examples = [self.corpus.read(window) for window in group]
        signals, labels = batch_of(examples, self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            memory = self._memory(model, texts_of(examples, self.texts), signals)
            outputs, _ = model(signals, memory)
        return Outputs(*(part.float() for part in outputs)), signals, labels

    def _memory(self, model: Model, texts: list[Any], signals: Signals) -> Memory | None:
        if not any(texts):
            return None
        return model.begin(signals.x.shape[1], self.read_texts(texts).to(self.device))

    def _follow(self) -> None:
        """The average takes a step towards the weights; at first it is nearly the weights themselves."""
        keep = min(self.recipe.ema, (1.0 + self.step) / (10.0 + self.step))
        with torch.no_grad():
            for average, p in zip(self.average.parameters(), self.model.parameters(), strict=True):
                average.lerp_(p, 1.0 - keep)

    def _skip(self) -> None:
        self.skipped += 1
        self.in_a_row += 1
        self.optimiser.zero_grad(set_to_none=True)
        if self.in_a_row >= MOST_SKIPPED:
            raise NipsError(
                f"training step {self.step}: {MOST_SKIPPED} steps in a row had no finite gradient;"
                " a lower --rate may help"
            )

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """Loss and next-patch R2 of the average on held-out windows; keeps the best weights."""
        groups = self.corpus.fixed(self.corpus.validation, MOST_VALIDATION)
        names = list(objectives.weights(self.recipe))
        sums = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
        error = power = 0.0
        for group in groups:
            for at in range(0, len(group), 16):
                outputs, signals, labels = self.outputs(self.average, group[at : at + 16])
                for name, term in objectives.terms(self.average, outputs, signals, labels).items():
                    sums[0][name] += float(term.total)
                    sums[1][name] += float(term.count)
                e, p = squared_error(outputs, signals)
                error, power = error + e, power + p
        means = {name: sums[0][name] / max(1.0, sums[1][name]) for name in names}
        loss = sum(objectives.weights(self.recipe)[name] * means[name] for name in names)
        r2 = 1.0 - error / power if power else math.nan
        self.validation = {"loss": loss, "r2": r2, **means} if groups else {}
        self._judge(loss if groups else math.nan)
        return {"step": self.step, "validation": self.validation}

    def _judge(self, loss: float) -> None:
        if not loss >= self.best_loss:  # also where there is nothing to validate on
            self.best_loss, self.without_better = loss, 0
            self.best = {name: value.clone() for name, value in self.average.state_dict().items()}
        else:
            self.without_better += 1
        self.stopped = bool(self.recipe.patience) and self.without_better >= self.recipe.patience

    # --- on disk ---

    def save(self, folder: Path, log_bytes: int, settings: dict[str, Any]) -> None:
        """Replace the checkpoint."""
        tensors = {f"model.{n}": t for n, t in self.model.state_dict().items()}
        tensors |= {f"average.{n}": t for n, t in self.average.state_dict().items()}
        tensors |= {f"best.{n}": t for n, t in self.best.items()}
        for number, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": value for name, value in state.items()}
        about = {name: getattr(self, name) for name in COUNTERS}
        best = self.best_loss if math.isfinite(self.best_loss) else None
        save_tensors(folder / CHECKPOINT, tensors, {**about, "best_loss": best, "log": log_bytes, **settings})

    def load(self, folder: Path, told: str, settings: dict[str, Any]) -> int:
        """Go on from the checkpoint; returns how much of the log belongs to it."""
        tensors, about = load_tensors(folder / CHECKPOINT, told)
        for name, value in settings.items():
            if about.get(name) != value:
                raise UsageError(f"--resume {told}: was begun with other {name}: {about.get(name)}, now {value}")
        self.model.load_state_dict(_under(tensors, "model."))
        self.average.load_state_dict(_under(tensors, "average."))
        self.best = {name: value.to(self.device) for name, value in _under(tensors, "best.").items()}
        states: dict[int, dict[str, Tensor]] = {}
        for key, value in _under(tensors, "optimiser.").items():
            number, name = key.split(".")
            states.setdefault(int(number), {})[name] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": states})
        for name in COUNTERS:
            setattr(self, name, about[name])
        self.best_loss = math.inf if about["best_loss"] is None else about["best_loss"]
        return about["log"]


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def sum_gradients(parameters: Sequence[nn.Parameter], ranks: Group) -> None:
    """Every parameter's gradient becomes its sum over ranks, in one message; 0 where no rank computed one.

    One process does the same: a parameter without a gradient would be left out of the weight decay.
    """
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    if ranks.size == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    ranks.add([flat])
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def squared_error(outputs: Outputs, signals: Signals) -> tuple[float, float]:
    """Sums over all channels of (y - y^)^2 and y^2 in the signal's own unit, y the next patch of EEG."""
    both = signals.valid[:, :, :-1] & signals.valid[:, :, 1:] & (signals.kind == 0)[:, :, None]
    y = signals.x[:, :, 1:].double()
    guess = outputs.next_patch[:, :, :-1].double() * signals.scale[:, :, :-1, None]
    here = both[..., None]
    return float(((y - guess).square() * here).sum()), float((y.square() * here).sum())


def train(
    trainer: Trainer,
    folder: Path,
    settings: dict[str, Any],
    *,
    resume: bool,
    told: str,
    progress: Progress = silent,
) -> Trained:
    """Train to the end, with a log and checkpoints in `folder`.

    Raises UsageError where a checkpoint belongs to other settings, DataError where its log is cut, NipsError where
    the run diverges.
    """
    kept = trainer.load(folder, told, settings) if resume and (folder / CHECKPOINT).exists() else 0
    _check_log(folder / LOG, kept)
    log = _Log(folder / LOG, kept) if trainer.ranks.rank == 0 else None
    recipe = trainer.recipe
    while trainer.step < recipe.steps and not trainer.stopped:
        lines = [trainer.advance()]
        if trainer.step % recipe.validate_every == 0 or trainer.step == recipe.steps:
            lines.append(trainer.validate())
        if log is not None:
            log.write(lines)
        if log is not None and trainer.step % recipe.validate_every == 0 and trainer.step < recipe.steps:
            trainer.save(folder, log.size, settings)
        progress(trainer.step, recipe.steps)
    model = trainer.average
    if trainer.best:
        model.load_state_dict(trainer.best)
    return Trained(model, trainer.step, trainer.skipped, trainer.stopped, trainer.validation)


def _check_log(path: Path, kept: int) -> None:
    """On every rank, so that none waits for one that has stopped."""
    size = path.stat().st_size if path.exists() else 0
    if size < kept:
        raise DataError(
            f"{path}: holds {size} bytes; expected the {kept} of the checkpoint, or start anew without --resume"
        )


class _Log:
    """NDJSON, flushed line by line; what lies beyond `kept` bytes was written after the checkpoint."""

    def __init__(self, path: Path, kept: int):
        self._path = path
        with open(path, "ab") as file:
            file.truncate(kept)
        self.size = kept

    def write(self, lines: Sequence[dict[str, Any]]) -> None:
        """Append lines."""
        data = "".join(to_json(line) + "\n" for line in lines).encode()
        with open(self._path, "ab") as file:
            file.write(data)
        self.size += len(data)


def prior_shift(corpus: Corpus, recipe: Recipe, seed: int) -> float:
    """What to add to the detection logits: training windows hold more seizures than recordings do."""
    natural = _rate([(item.targets, item.first, item.last) for item in corpus.train])
    windows = [w for step in range(1, 9) for group in corpus.draw(step, seed, recipe) for w in group]
    drawn = _rate([(w.item.targets, w.first, w.last) for w in windows])
    if not (0.0 < natural < 1.0 and 0.0 < drawn < 1.0):
        return 0.0
    return math.log(natural / (1.0 - natural)) - math.log(drawn / (1.0 - drawn))


def _rate(stretches: Sequence[tuple[Targets, int, int]]) -> float:
    """The share of known time that is seizure."""
    seizure = sum(float((t.seizure[a:b] * t.known[a:b]).sum()) for t, a, b in stretches)
    return seizure / max(1.0, sum(float(t.known[a:b].sum()) for t, a, b in stretches))

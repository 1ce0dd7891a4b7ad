"""What is no text: textures beside lines, the hardest pixels of the loss, the courses of the starting weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from nipstool.detect_navtext import base, build, detector, learn, targets, textures, training
from nipstool.detect_navtext.boxes import shares_in
from nipstool.detect_navtext.dataset import Truth

SIDE = 96


def box(x: float, y: float, w: float, h: float) -> np.ndarray:
    return np.array([(x, y), (x + w, y), (x + w, y + h), (x, y + h)], np.float32)


@pytest.mark.parametrize("name", textures.TEXTURES)
def test_a_texture_is_the_same_from_the_same_numbers_and_another_from_others(name: str) -> None:
    one, again, other = (textures.TEXTURES[name](np.random.default_rng(seed), SIDE) for seed in (1, 1, 2))
    assert one.shape == (SIDE, SIDE, 3)
    assert np.isfinite(one).all()
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_every_kind_of_texture_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = set()

    def telling(name: str, make: textures.Texture) -> textures.Texture:
        return lambda random, side: (drawn.add(name), make(random, side))[1]

    kinds = {name: telling(name, make) for name, make in textures.TEXTURES.items()}
    monkeypatch.setattr(textures, "TEXTURES", kinds)
    random = np.random.default_rng(0)
    spread = [float(textures.texture(random, 32).std()) for _ in range(100)]
    assert drawn == set(kinds)
    assert np.median(spread) > 10  # most can be seen


def test_noise_has_the_power_it_says() -> None:
    random = np.random.default_rng(0)
    fine, coarse = (textures.noise(random, 256, 64, slope)[..., 0] for slope in (0.0, 2.0))
    steps = [np.abs(np.diff(one, axis=1)).mean() / one.std() for one in (fine, coarse)]
    assert steps[0] > 3 * steps[1]


def test_text_and_what_is_around_it_stays_or_shines_through() -> None:
    image = np.full((SIDE, SIDE, 3), 128, np.uint8)
    kept = np.zeros((SIDE, SIDE), bool)
    kept[30:50, 20:70] = True
    random, same, faint, changed = np.random.default_rng(0), 0, 0, []
    for _ in range(60):
        made = textures.amid(random, image, kept).astype(int)
        moved = np.abs(made - 128)[kept].max()
        same += moved == 0
        faint += 0 < moved <= 0.3 * 128 + 1
        changed.append(float((made != 128).any(axis=2)[~kept].mean()))
    assert same + faint == 60
    assert same > 40
    assert faint > 2
    assert np.mean(changed) > 0.4
    assert max(changed) > 0.95  # sometimes all of it


def test_clutter_changes_what_a_crop_shows_and_not_its_labels() -> None:
    image = np.full((300, 400, 3), 90, np.uint8)
    image[100:140, 100:300] = 220
    example = targets.Example(image, (Truth(box(100, 100, 200, 40), "nav"),))
    for seed in range(8):
        calm, maps = targets.crop(np.random.default_rng(seed), example, 128)
        full, again = targets.crop(np.random.default_rng(seed), example, 128, clutter=1.0)
        assert np.array_equal(maps, again)
        assert full.shape == calm.shape
        assert not np.array_equal(full, calm)


def test_the_hardest_pixels_without_text_count_once_more() -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 40, 40, generator=random)
    target, mask = torch.zeros(2, 40, 40), torch.ones(2, 40, 40)
    target[:, 4:8, 4:24] = 1
    target[:, 3, 4:24] = 0.3  # an outline's cells are half text: nobody can be sure there, so none is hard
    logits[:, 3] = 9.0
    more = learn.text_loss(logits, target, mask, 2.0) - learn.text_loss(logits, target, mask)
    losses = functional.softplus(logits)[target == 0].numpy()  # the cross-entropy of what is none
    hardest = np.sort(losses)[-3 * 160 :]
    assert more.item() == pytest.approx(2 * hardest.mean(), rel=1e-5)
    nothing = learn.text_loss(logits, target * 0, mask, 2.0) - learn.text_loss(logits, target * 0, mask)
    hardest = np.sort(functional.softplus(logits).numpy().ravel())[-32:]  # one in a hundred
    assert nothing.item() == pytest.approx(2 * hardest.mean(), rel=1e-5)


def test_the_mean_of_a_map_in_a_box() -> None:
    shares = np.zeros((50, 100), np.float32)
    shares[10:21, 20:81] = 0.5
    boxes = np.stack([box(40, 20, 120, 20), box(40, 60, 120, 20)])  # of a picture twice as large as the map
    assert shares_in(shares, boxes, 200, 100) == pytest.approx([0.5, 0.0], abs=1e-6)
    in_bytes = np.rint(shares * 255).astype(np.uint8)
    assert shares_in(in_bytes, boxes, 200, 100) == pytest.approx([0.5, 0.0], abs=2e-3)
    assert shares_in(shares, boxes[:0], 200, 100).shape == (0,)


def test_a_course_can_be_repeated_from_what_the_one_before_it_left(tmp_path: Path) -> None:
    build.write(build.rendered(4, 0, ()), tmp_path)
    courses = [learn.Course(1, 1, 64, rate=1e-2), learn.Course(2, 1, 64, rate=1e-2, clutter=1.0, hard=2.0)]
    first = base.base(tmp_path, courses[:1])
    network = detector.with_weights(first)
    examples = [targets.Example(i, p.truths) for p, i in training.read_split(tmp_path, "train")]
    learn.train(network, examples, courses[1])
    whole = base.base(tmp_path, courses)
    assert detector.base_bytes(network) == whole
    assert whole != first

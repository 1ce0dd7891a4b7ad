"""What the world is full of and what is no text: surfaces and things that a detector of text must pass by.

Each is drawn by chance: size, colours, contrast and slant differ every time. Nothing here holds a letter.
"""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

Random = np.random.Generator
Pixels = NDArray[np.float32]
Texture = Callable[[Random, int], Pixels]

MANY = 12  # colours of a picture's shapes


def texture(random: Random, side: int) -> NDArray[np.uint8]:
    """A square (side, side, 3) of one of the `TEXTURES`, turned at times and seen unevenly lit."""
    names = list(TEXTURES)
    image = TEXTURES[names[int(random.integers(len(names)))]](random, side)
    if random.random() < 0.3:
        image = turned(image, float(random.uniform(-45, 45)))
    light = cv2.resize(random.uniform(0.6, 1.2, (3, 3)).astype(np.float32), (side, side))
    image = image * light[..., None] + noise(random, side, 2) * random.uniform(0, 12)
    return np.clip(image, 0, 255).astype(np.uint8)


def amid(random: Random, image: NDArray[np.uint8], kept: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """A square picture with a texture wherever nothing is `kept`, or in a part of that, or faintly over all.

    Args:
        kept: (side, side), where text is, with some of its ground.
    """
    side = image.shape[0]
    made = texture(random, side)
    chance = random.random()
    if chance < 0.15:
        share = float(random.uniform(0.08, 0.3))
        return np.asarray(cv2.addWeighted(made, share, image, 1 - share, 0.0), np.uint8)
    part = np.zeros((side, side), np.uint8)
    if chance < 0.5:
        part[:] = 1
    else:
        for _ in range(int(random.integers(1, 4))):
            cv2.fillConvexPoly(part, _quadrangle(random, side), (1,))
    for _ in range(int(random.integers(0, 5))):  # bare panels: an edge around something makes no text
        ground, shape = colours(random, 1)[0], _quadrangle(random, side, 0.4)
        cv2.fillConvexPoly(made, shape, ground.tolist(), cv2.LINE_AA)
    return np.where((part.astype(bool) & ~kept)[..., None], made, image)


def _quadrangle(random: Random, side: int, share: float = 1.0) -> NDArray[np.int32]:
    """Four corners around a point, as a panel is seen: upright or nearly, up to `share` of the side wide."""
    half = random.uniform(0.05, 0.5, 2) * share * side
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * half * random.uniform(0.85, 1.15, (4, 2))
    return np.round(corners + random.uniform(0, side, 2)).astype(np.int32)


def turned(image: Pixels, degrees: float) -> Pixels:
    """A square turned about its middle, without empty corners."""
    side = image.shape[0]
    matrix = cv2.getRotationMatrix2D((side / 2, side / 2), degrees, 1.42)
    return np.asarray(cv2.warpAffine(image, matrix, (side, side)), np.float32)


def noise(random: Random, side: int, coarsest: int = 64, slope: float = 1.0) -> Pixels:
    """Grey noise (side, side, 1) of deviation about 1: octaves from `coarsest` pixels a grain down to one.

    An octave's amplitude falls as 1/f^slope.
    """
    total, power = np.zeros((side, side), np.float32), 0.0
    grain = coarsest
    while grain >= 1:
        cells = max(2, side // grain + 1)
        weight = float(grain) ** slope
        part = random.standard_normal((cells, cells), np.float32)
        total += weight * np.asarray(cv2.resize(part, (side, side), interpolation=cv2.INTER_LINEAR), np.float32)
        power += weight**2
        grain //= 2
    return total[..., None] / np.float32(np.sqrt(power))


def colours(random: Random, count: int) -> Pixels:
    """So many colours (count, 3) around one, mostly dull, from nearly alike to any."""
    middle = random.uniform(20, 235) + random.normal(0, random.choice([6.0, 20.0, 60.0]), 3)
    spread = random.choice([12.0, 35.0, 80.0])
    tint = random.normal(0, spread, (count, 1)) + random.normal(0, spread / 3, (count, 3))
    return np.clip(middle + tint, 0, 255).astype(np.float32)


def plain(random: Random, side: int) -> Pixels:
    """One colour, with a grain or clouds of 1/f noise."""
    image = np.broadcast_to(colours(random, 1)[0], (side, side, 3))
    clouds = noise(random, side, int(random.choice([2, 8, 64])), float(random.uniform(0, 1.3)))
    return (image + clouds * random.uniform(5, 45)).astype(np.float32)


def cells(random: Random, side: int) -> Pixels:
    """Bricks, tiles, paving, panels: a grid of cells, each row shifted or not, with joints."""
    high, aspect = int(random.integers(8, 60)), float(random.choice([1.0, 1.0, 2.0, 3.0, 0.5]))
    wide = max(6, round(high * aspect))
    shift = int(random.choice([0, wide // 2]))
    joint = max(1, round(high * random.uniform(0.03, 0.16)))
    palette = colours(random, MANY)
    image = np.empty((side, side, 3), np.float32)
    image[:] = colours(random, 1)[0]
    for row, top in enumerate(range(0, side, high)):
        for left in range(-(row % 2) * shift, side, wide):
            shade = palette[int(random.integers(MANY))]
            image[top : top + high - joint, max(0, left) : max(0, left + wide - joint)] = shade
    return image


def bars(random: Random, side: int) -> Pixels:
    """Railings, blinds, slats, stripes, stairs: bars side by side, some of them rounded by light."""
    step = float(random.uniform(4, 50))
    place = np.arange(side, dtype=np.float32) / step
    phase = place - np.floor(place)
    share = float(random.uniform(0.15, 0.85))
    cover = np.clip((share - phase) * step, 0, 1) * np.clip(phase * step, 0, 1)
    if random.random() < 0.4:
        cover = cover * np.sin(np.pi * np.clip(phase / share, 0, 1))
    back = plain(random, side) if random.random() < 0.5 else leaves(random, side)
    image = back + (colours(random, 1)[0] - back) * cover[None, :, None].astype(np.float32)
    return image.transpose(1, 0, 2).copy() if random.random() < 0.5 else image


def windows(random: Random, side: int) -> Pixels:
    """Windows in rows, shelves of boxes, drawers, lockers: framed things of a few kinds, side by side."""
    high = int(random.integers(14, 90))
    wide = max(8, round(high * random.uniform(0.4, 1.6)))
    image = plain(random, side)
    gap_x, gap_y = (int(random.integers(1, max(2, round(0.6 * size)))) for size in (wide, high))
    palette = colours(random, MANY)
    frame, bars_in = float(random.uniform(0, 255)), int(random.integers(0, 3))
    for top in range(int(random.integers(0, high)) - high, side, high + gap_y):
        for left in range(int(random.integers(0, wide)) - wide, side, wide + gap_x):
            shade = palette[int(random.integers(MANY))].tolist()
            box = (left, top), (left + wide, top + high)
            cv2.rectangle(image, *box, shade, -1)
            for bar in range(bars_in):
                x = left + wide * (bar + 1) // (bars_in + 1)
                cv2.line(image, (x, top), (x, top + high), (frame,) * 3, max(1, wide // 20))
            cv2.rectangle(image, *box, (frame,) * 3, max(1, high // 25))
    return image


def leaves(random: Random, side: int) -> Pixels:
    """Foliage: leaves or petals of a few greens, browns or any colour, one over the other."""
    image = plain(random, side)
    palette = colours(random, MANY)
    size, has_edges = float(np.exp(random.uniform(0.7, 3.6))), random.random() < 0.5
    for _ in range(int(min(900, 60 + 1.5 * (side / size) ** 2 / 4))):
        axes = (max(1, round(size * random.uniform(0.5, 1.5))), max(1, round(size * random.uniform(0.2, 0.7))))
        at = tuple(int(v) for v in random.integers(0, side, 2))
        shade = (palette[int(random.integers(MANY))] * random.uniform(0.5, 1.2)).tolist()
        slant = float(random.uniform(0, 180))
        cv2.ellipse(image, at, axes, slant, 0, 360, shade, -1)
        if has_edges:
            cv2.ellipse(image, at, axes, slant, 0, 360, [0.6 * one for one in shade], 1, cv2.LINE_AA)
    return image


def lumps(random: Random, side: int) -> Pixels:
    """Skin, petals, folds, fur, rock, clouds, camouflage: uneven things in slanting light, or blots of colour."""
    height = noise(random, side, int(random.choice([16, 64, 128])), float(random.uniform(0.8, 2.0)))
    slope = np.stack([np.asarray(one) for one in np.gradient(height[..., 0])], axis=-1)
    way = random.uniform(0, 2 * np.pi)
    light = (slope @ np.array([np.cos(way), np.sin(way)])) / (slope.std() + 1e-6)
    one, two = colours(random, 2)
    blots = (np.tanh(height * random.uniform(0.5, 8)) + 1) / 2
    return ((one + (two - one) * blots) * (1 + random.uniform(0.05, 0.4) * light[..., None])).astype(np.float32)


def strokes(random: Random, side: int) -> Pixels:
    """Twigs, grass, wires, scratches, hair: lines, straight and bent, in all directions or mostly one."""
    image = plain(random, side)
    palette = colours(random, MANY)
    along, spread = random.uniform(0, np.pi), random.choice([0.1, 0.5, 3.0])
    length, thick = float(random.uniform(8, 90)), int(random.integers(1, 5))
    for _ in range(int(random.integers(20, 250))):
        points = [random.uniform(0, side, 2)]
        for _ in range(int(random.integers(1, 4))):
            turn = along + random.normal(0, spread)
            points.append(points[-1] + length * random.uniform(0.3, 1) * np.array([np.cos(turn), np.sin(turn)]))
        shade = palette[int(random.integers(MANY))].tolist()
        cv2.polylines(image, [np.round(points).astype(np.int32)], False, shade, thick, cv2.LINE_AA)
    return image


def stones(random: Random, side: int) -> Pixels:
    """Gravel, cobbles, rubble, a crowd: the nearest of many points, darker towards the gaps."""
    seeds = np.full((side, side), 255, np.uint8)
    count = int((side / random.uniform(5, 40)) ** 2) + 4
    at = random.integers(0, side, (count, 2))
    seeds[at[:, 0], at[:, 1]] = 0
    far, nearest = cv2.distanceTransformWithLabels(seeds, cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL)
    shades = colours(random, MANY)[random.integers(0, MANY, int(nearest.max()) + 1)]
    light = np.clip(1.15 - far * random.uniform(0, 1.2) * np.sqrt(count) / side, 0.1, 1)
    return shades[np.asarray(nearest, np.int32)] * light[..., None]


def wood(random: Random, side: int) -> Pixels:
    """The grain of wood, ripples, folds of cloth: bent stripes without sharp edges, or with."""
    along, across = np.meshgrid(np.arange(side, dtype=np.float32), np.arange(side, dtype=np.float32))
    bend = noise(random, side, 64)[..., 0] * random.uniform(0.2, 2.0)
    wave = np.sin(2 * np.pi * (across + along * random.uniform(-0.2, 0.2)) / random.uniform(5, 40) + bend * 3)
    if random.random() < 0.4:
        wave = np.tanh(wave * 6)
    one, two = colours(random, 2)
    return (one + (two - one) * (wave[..., None] + 1) / 2).astype(np.float32)


def things(random: Random, side: int) -> Pixels:
    """Icons, lamps, buttons, handles, fruit: small shapes one by one or in rows on a calm ground."""
    image = plain(random, side) if random.random() < 0.5 else windows(random, side)
    palette = colours(random, MANY)
    size = int(random.integers(4, 40))
    in_rows = random.random() < 0.5
    step = int(size * random.uniform(1.6, 4))
    for number in range(int(random.integers(5, 60))):
        at = random.integers(0, side, 2)
        if in_rows:
            at = np.array([number * step % side, number * step // side * 2 * step + step // 2])
        draw_thing(random, image, at, size, palette[int(random.integers(MANY))])
    return image


def draw_thing(random: Random, image: Pixels, at: NDArray[np.integer], size: int, shade: Pixels) -> None:
    """A disc, a ring, a polygon, a box, or two of them one in the other."""
    centre, kind = (int(at[0]), int(at[1])), int(random.integers(4))
    inner = np.clip(shade + random.normal(0, 70, 3), 0, 255).tolist()
    if kind == 0:
        cv2.circle(image, centre, size // 2, shade.tolist(), -1, cv2.LINE_AA)
    elif kind == 1:
        cv2.circle(image, centre, size // 2, shade.tolist(), max(1, size // 8), cv2.LINE_AA)
    elif kind == 2:
        corners = np.round(at + random.uniform(-size / 2, size / 2, (int(random.integers(3, 9)), 2)))
        cv2.fillPoly(image, [corners.astype(np.int32)], shade.tolist(), cv2.LINE_AA)
    else:
        half = (size // 2, int(size * random.uniform(0.2, 0.8)))
        low, high = (centre[0] - half[0], centre[1] - half[1]), (centre[0] + half[0], centre[1] + half[1])
        cv2.rectangle(image, low, high, shade.tolist(), -1)
    if random.random() < 0.4:
        cv2.circle(image, centre, max(1, size // 5), inner, -1, cv2.LINE_AA)


def dead_leaves(random: Random, side: int) -> Pixels:
    """Things before things at all sizes: its statistics are those of photographs.

    Lee, Mumford, Huang, Occlusion Models for Natural Images (IJCV 2001): sizes r with a density of 1/r^3.
    """
    image = plain(random, side)
    palette = colours(random, MANY)
    least, most = 3.0, side / 3
    for _ in range(int(random.integers(80, 400))):
        share = random.random()
        size = 1 / np.sqrt(share / least**2 + (1 - share) / most**2)
        at = random.integers(0, side, 2)
        shade = palette[int(random.integers(MANY))]
        shade = np.clip(shade + random.normal(0, 25, 3), 0, 255).astype(np.float32)
        draw_thing(random, image, at, max(2, round(2 * size)), shade)
    if random.random() < 0.5:
        image = np.asarray(cv2.GaussianBlur(image, (0, 0), float(random.uniform(0.6, 2.5))), np.float32)
    return (image * (1 + random.uniform(0, 0.2) * noise(random, side))).astype(np.float32)


def weave(random: Random, side: int) -> Pixels:
    """Cloth, checks, nets and grids: two sets of bars across each other."""
    step, share = float(random.uniform(3, 40)), float(random.uniform(0.2, 0.7))
    one, two = ((np.arange(side) + random.integers(side)) % step < share * step for _ in range(2))
    shades = colours(random, 3)
    image = np.empty((side, side, 3), np.float32)
    image[:] = shades[0]
    image[:, one] = shades[1]
    mixed = 0.5 if random.random() < 0.5 else 1.0
    image[two] = mixed * shades[2] + (1 - mixed) * image[two]
    return image


TEXTURES: dict[str, Texture] = {
    made.__name__: made
    for made in (plain, cells, bars, windows, leaves, strokes, stones, wood, things, dead_leaves, weave, lumps)
}

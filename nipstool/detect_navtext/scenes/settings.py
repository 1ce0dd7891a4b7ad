"""The settings, and those of them that are open to all: shops, market, station, gates, parking, street.

`order`, 0 to 4, is the arrangement of the place; places of different folds have different ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from nipstool.detect_navtext.scenes import clutter
from nipstool.detect_navtext.scenes.boards import Board, Look, Row, beside, board, ground, plain
from nipstool.detect_navtext.scenes.halls import SIDES, corridor, directions, exit_sign, lobby, on_side, row
from nipstool.detect_navtext.scenes.space import Room, Stage
from nipstool.detect_navtext.scenes.style import BRIGHT, DARK, PALE, Maker

Setting = Callable[[Stage, Maker, Room], None]


def front(make: Maker) -> Board:
    """What stands above a shop: letters on a band, letters alone, or a lit panel."""
    alone = make.style.order == 1  # letters on the wall, which must then stand out from it
    dark = sum(make.style.wall) < 360 if alone else make.chance(0.6)
    ink, band = (PALE, (*DARK, *BRIGHT)) if dark else (DARK, PALE)
    look = Look(
        make.face(),
        make.colour(ink),
        None if alone else make.colour(band),
        "picture" if make.style.order == 3 and make.chance(0.3) else "flat",
        margin=make.between(0.4, 0.9),
    )
    rows = [Row(make.shop(), "nav", "store", make.between(1.4, 2.2))]
    if make.chance(0.2):
        rows.append(Row(make.say("shop_type"), "ignore", "other", 0.6))
    return board(make.random, rows, look)


def _shop(stage: Stage, make: Maker, at: tuple[float, float, float], wide: float, floor: float) -> None:
    """One shop on a wall that faces the camera; `at` is the middle of its fascia."""
    x, y, z = at
    name = front(make)
    tall = min(0.55, wide * 0.85 / name.aspect)
    stage.hang(_glass(make), (x, (y + floor) / 2 + 0.3, z), width=wide * 0.94, height=floor - y - 0.6)
    _window(stage, make, (x, y, z), wide, floor)
    if name.pixels[..., 3].min() == 255:
        red, green, blue = (int(v) for v in name.pixels[2, 2, :3])
        band = make.colour(((red, green, blue),))
        stage.hang(plain(20, 100, band), (x, y, z), width=wide * 0.96, height=tall * 1.25)
    lean = (0.0, -0.2, 0.15, 0.0, 0.25)[make.style.order] * wide * 0.5
    stage.hang(name, (x + lean * make.chance(0.7), y, z - 0.03), height=tall)
    if make.chance(0.25):
        text = [mark.text for mark in name.marks][:1]
        blade = board(make.random, [Row(text[0], "nav", "store")], make.style.sign)
        stage.hang(blade, (x + wide / 2, y + 0.75, z - 0.4), width=0.6)


def _glass(make: Maker) -> Board:
    """A shop window with what can be made out behind it, and a door in it."""
    look = Look(make.face(), ground=make.colour((*DARK, (90, 95, 100), (150, 160, 170))), pattern="picture")
    pixels = ground(make.random, 130, 200, look)
    pixels[..., :3] = pixels[..., :3] // 2 + np.array(make.colour(DARK), np.uint8) // 2
    for x in (0, make.count(50, 80), make.count(90, 130), 196):
        pixels[:, x : x + 3, :3] = make.colour(PALE)
    return Board(pixels)


def _window(stage: Stage, make: Maker, at: tuple[float, float, float], wide: float, floor: float) -> None:
    """What is seen in and on the window, from high to low."""
    x, y, z = at
    for _ in range(make.count(2, 6)):
        thing = (clutter.poster, clutter.poster, clutter.hours, clutter.notice, clutter.price_tag)[
            make.count(0, 4)
        ](make)
        spot = (x + make.between(-0.4, 0.4) * wide, make.between(y + 0.7, floor - 0.6), z - 0.02)
        stage.hang(thing, spot, width=make.between(0.4, 1.1))
    if make.chance(0.2):
        inner = board(
            make.random, [Row(make.shop(), "ignore", "other")], Look(make.face(), make.colour(PALE), None)
        )
        stage.hang(inner, (x, y + 0.75, z - 0.02), width=wide * 0.25)


def shops(stage: Stage, make: Maker, room: Room) -> None:
    """A row of shops; in some places a mall's signs hang before them."""
    wide, y = make.between(2.6, 4.5), room.floor - make.between(2.7, 3.2)
    x = -wide * 1.5 + make.between(-1, 1)
    for _ in range(4):
        _shop(stage, make, (x, y, room.back - 0.05), wide, room.floor)
        x += wide
    if make.chance(0.5):
        sign = directions(make) if make.style.order % 2 else make.sign([row(make, "facility"), row(make, "exit")])
        stage.hang(sign, (make.between(-2, 2), y - 0.4, room.back * 0.6), height=make.between(0.4, 0.7))
    if make.chance(0.4):
        stage.hang(
            clutter.poster(make),
            (make.between(-2, 2), room.floor - 0.8, room.back * 0.7),
            height=make.between(0.9, 1.5),
        )
    for _ in range(make.count(0, 3)):
        stage.hang(
            clutter.silhouette(make),
            (make.between(-3, 3), room.floor - 0.85, room.back * make.between(0.5, 0.9)),
            height=1.7,
        )


def market(stage: Stage, make: Maker, room: Room) -> None:
    """Shelves with packages on both sides, signs over the aisles, sections on the back wall."""
    section = make.sign([row(make, "section", size=2.0)])
    stage.hang(
        section,
        (make.between(-2, 2), room.ceiling + make.between(0.6, 1.0), room.back - 0.1),
        height=make.between(0.5, 0.8),
    )
    stage.hang(clutter.shelf(make, 4.0), (0, room.floor - 1.0, room.back - 0.1), width=4.0, height=2.0)
    for z in (room.back - 1.5, room.back * 0.65, room.back * 0.4):
        for side in SIDES:
            rack = clutter.shelf(make, 2.4)
            stage.hang(rack, (on_side(room, side), room.floor - 1.0, z), width=2.6, height=2.0, facing=side)
    depths = sorted((make.between(2.5, room.back - 0.5) for _ in range(make.count(1, 4))), reverse=True)
    for z in depths:
        x = make.between(-0.35, 0.35) * z
        if make.chance(0.75):
            stage.hang(aisle(make), (x, room.ceiling + make.between(0.3, 0.7), z), width=make.between(0.7, 1.3))
        else:
            stage.hang(
                clutter.poster(make), (x, room.ceiling + make.between(0.3, 0.9), z), width=make.between(0.5, 1.0)
            )
    if make.chance(0.4):
        stage.hang(clutter.poster(make), (make.between(-1, 1), room.floor - 0.6, room.back * 0.5), height=1.0)


def aisle(make: Maker) -> Board:
    """The number of an aisle and what is found in it: above it, beside it, a board of its own, or none."""
    look = replace(make.style.sign, icon=0.0)
    goods = [row(make, "product", "aisle", 0.8) for _ in range(make.count(2, 7))]
    number = Row(str(make.count(1, 40)), "nav", "aisle", 2.2)
    if make.style.order == 0:
        return board(make.random, [number, *goods], look)
    if make.style.order == 3:
        return board(make.random, goods, look)
    colour = look.ground or (200, 200, 200)
    listed, numbered = board(make.random, goods, look), board(make.random, [number], look)
    if make.style.order == 1:
        return beside([listed, numbered] if make.chance(0.5) else [numbered, listed], colour, gap=0)
    if make.style.order == 2:
        word = Row(f"{('Aisle', 'Gang', 'Allée', 'Pasillo')[make.count(0, 3)]} {number.text}", "nav", "aisle", 1.2)
        return board(make.random, [word, *goods], look)
    second = board(make.random, [row(make, "product", "aisle", 0.8) for _ in goods], look)
    return beside([listed, second], colour, gap=4)


def station(stage: Stage, make: Maker, room: Room) -> None:
    """Name plates and large advertisements on the wall, platform signs and ways out above."""
    back, step = room.back - 0.05, make.between(2.4, 3.5)
    name = row(make, "station", size=1.6)
    for i in range(-2, 3):
        x = i * step + make.between(-0.3, 0.3)
        if (i + make.style.order) % 2:
            stage.hang(
                make.sign([name]),
                (x, (-0.2, -0.7, 0.1, -0.4, -0.5)[make.style.order], back),
                width=make.between(1.2, 2.0),
            )
        else:
            stage.hang(clutter.poster(make), (x, make.between(-0.1, 0.3), back), height=make.between(1.2, 1.9))
    for _ in range(make.count(1, 3)):
        kind = make.count(0, 3)
        sign = (
            make.sign([row(make, "platform", size=1.6)])
            if kind < 2
            else directions(make, 1, 3)
            if kind == 2
            else exit_sign(make)
        )
        spot = (
            make.between(-0.3, 0.3) * room.back,
            room.ceiling + make.between(0.3, 0.7),
            room.back * make.between(0.45, 0.9),
        )
        stage.hang(sign, spot, height=make.between(0.3, 0.6))
    for _ in range(make.count(0, 2)):
        thing = (clutter.screen, clutter.notice, clutter.paper)[make.count(0, 2)](make)
        stage.hang(
            thing,
            (make.between(-0.3, 0.3) * room.back, make.between(-0.5, 0.4), room.back * 0.8),
            width=make.between(0.5, 1.0),
        )


def gates(stage: Stage, make: Maker, room: Room) -> None:
    """An airport: big signs under the ceiling, gates along the sides, advertisements and shops below."""
    for z in (room.back - 1, room.back * 0.7, room.back * 0.45):
        for side in SIDES:
            if make.chance(0.6):
                gate = make.sign([row(make, "gate", size=2.0)])
                stage.hang(
                    gate,
                    (on_side(room, side) * 0.93, -0.5, z),
                    height=0.5,
                    facing="front" if make.style.order < 3 else side,
                )
            if make.chance(0.8):
                stage.hang(
                    clutter.poster(make),
                    (on_side(room, side), 0.1, z - 0.9),
                    height=make.between(1.0, 1.6),
                    facing=side,
                )
    if make.chance(0.6):
        _shop(stage, make, (make.between(-1.5, 1.5), room.floor - 2.6, room.back - 0.1), 3.5, room.floor)
    for z in (room.back * 0.7, room.back * 0.4)[: make.count(1, 2)]:
        panels = [directions(make, 1, 2) for _ in range(make.count(1, 3))]
        sign = (
            beside(panels, make.style.sign.ground or (0, 0, 0)) if make.style.order % 2 else directions(make, 2, 4)
        )
        stage.hang(sign, (make.between(-1, 1), room.ceiling + 0.5, z), height=make.between(0.35, 0.7))
    for _ in range(make.count(0, 2)):
        stage.hang(
            clutter.silhouette(make), (make.between(-2, 2), room.floor - 0.85, room.back * 0.55), height=1.7
        )


def parking(stage: Stage, make: Maker, room: Room) -> None:
    """Levels and zones painted on the walls, cars with plates, tariffs."""
    paint = make.style.sign
    if make.style.order % 2:
        paint = replace(paint, ground=None, ink=make.colour(PALE if sum(make.style.wall) < 360 else DARK))
    level = board(make.random, [row(make, "floor", size=2.5)], paint)
    stage.hang(
        level, (make.between(-2, 2), make.between(-0.6, 0), room.back - 0.05), height=make.between(0.5, 0.9)
    )
    for z in (room.back * 0.9, room.back * 0.65, room.back * 0.45):
        x = make.between(-0.35, 0.35) * room.back
        stage.hang(
            plain(60, 100, make.colour((*DARK, *BRIGHT, *PALE))), (x, room.floor - 0.6, z), width=1.7, height=1.2
        )
        stage.hang(clutter.licence_plate(make), (x, room.floor - 0.45, z - 0.05), width=0.52)
        pillar = make.between(-0.3, 0.3) * room.back
        stage.hang(
            plain(100, 20, make.colour(PALE)), (pillar, 0.2, z - 0.5), width=0.5, height=room.floor - room.ceiling
        )
        zone = board(
            make.random, [Row(f"{'ABCDEFGH'[make.count(0, 7)]}{make.count(1, 30)}", "nav", "section", 1.4)], paint
        )
        stage.hang(zone, (pillar, make.between(-0.3, 0.3), z - 0.52), width=0.4)
    for _ in range(make.count(1, 3)):
        thing = (clutter.notice, clutter.notice, clutter.poster, clutter.paper)[make.count(0, 3)](make)
        side = SIDES[make.count(0, 1)]
        stage.hang(thing, (on_side(room, side), -0.1, room.back * make.between(0.4, 0.8)), width=0.8, facing=side)
    sign = exit_sign(make) if make.chance(0.5) else directions(make, 1, 2)
    stage.hang(sign, (make.between(-1, 1), room.ceiling + 0.3, room.back * 0.5), height=0.35)


def street(stage: Stage, make: Maker, room: Room) -> None:
    """Shops under a facade, street names on walls and posts, bills, no-parking signs, cars."""
    wide, y = make.between(3.5, 6.0), room.floor - make.between(3.0, 3.8)
    x = -wide + make.between(-1.5, 1.5)
    for _ in range(3):
        _shop(stage, make, (x, y, room.back - 0.05), wide, room.floor)
        x += wide
    if make.chance(0.4):
        stage.hang(
            clutter.poster(make), (make.between(-4, 4), y - 1.9, room.back - 0.06), width=make.between(1.5, 3.0)
        )
    name = make.plate([row(make, "street")])
    if make.style.order < 3:
        stage.hang(name, (make.between(-3, 3), y - 0.75, room.back - 0.07), width=make.between(0.7, 1.2))
    else:
        post = make.between(-0.25, 0.25) * room.back
        stage.hang(plain(100, 4, (90, 90, 90)), (post, room.floor - 1.4, room.back * 0.6), width=0.08, height=2.8)
        stage.hang(name, (post + 0.3, room.floor - 2.7, room.back * 0.6 - 0.02), width=make.between(0.8, 1.1))
    if make.chance(0.35):
        metro = make.sign([row(make, "station", size=1.2)])
        stage.hang(metro, (make.between(-2, 2), room.floor - 2.5, room.back * 0.7), width=1.6)
    if make.chance(0.6):
        at = make.between(-0.3, 0.3) * room.back
        stage.hang(clutter.notice(make), (at, room.floor - 1.9, room.back * 0.65), width=0.55)
    if make.chance(0.6):
        at = make.between(-0.3, 0.3) * room.back
        stage.hang(
            plain(60, 130, make.colour((*DARK, *BRIGHT, *PALE))),
            (at, room.floor - 0.6, room.back * 0.7),
            width=1.8,
            height=1.0,
        )
        stage.hang(clutter.licence_plate(make), (at, room.floor - 0.45, room.back * 0.7 - 0.05), width=0.52)


SETTINGS: dict[str, Setting] = {
    "corridor": corridor,
    "shops": shops,
    "market": market,
    "station": station,
    "lobby": lobby,
    "gates": gates,
    "parking": parking,
    "street": street,
}

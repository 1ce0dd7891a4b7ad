"""The settings inside a house, corridor and lobby, and the signs that all settings have.

`order`, 0 to 4, is the arrangement of the place; places of different folds have different ones.
"""

from __future__ import annotations

from dataclasses import replace

from nipstool.detect_navtext.scenes import clutter
from nipstool.detect_navtext.scenes.boards import Board, Look, Row, beside, board, plain, stacked
from nipstool.detect_navtext.scenes.space import Room, Stage
from nipstool.detect_navtext.scenes.style import DARK, PALE, Maker

SIDES = ("left", "right")


def row(make: Maker, sort: str, kind: str | None = None, size: float = 1.0, arrow: int | None = None) -> Row:
    """A row that leads the way."""
    return Row(make.say(sort), "nav", kind or sort, size, arrow)


def directions(make: Maker, least: int = 1, most: int = 4) -> Board:
    """A sign with arrows."""
    arrows = (0, 4, 6, 5, 7, 2)
    rows = [
        row(make, "place_to", "direction", arrow=arrows[make.count(0, 5)] if make.chance(0.85) else None)
        for _ in range(make.count(least, most))
    ]
    return make.sign(rows)


def exit_sign(make: Maker) -> Board:
    """White on green, or red on white, as law has it."""
    look = Look(make.face(), (250, 250, 250), (60, 140, 20), icon=0.9 if make.chance(0.5) else 0.0)
    if make.style.order in (1, 4):
        look = replace(look, ink=(30, 30, 200), ground=(245, 245, 245), border=0.06)
    arrow = make.count(0, 1) * 4 if make.chance(0.3) else None
    return board(make.random, [row(make, "exit", arrow=arrow)], look)


def on_side(room: Room, side: str) -> float:
    """Where the wall of a side is, a hand's breadth before it."""
    return room.left + 0.05 if side == "left" else room.right - 0.05


def door(make: Maker) -> Board:
    """A door leaf."""
    return plain(100, 45, make.colour((*DARK, *PALE)))


def scatter(stage: Stage, make: Maker, room: Room) -> None:
    """Clutter on the walls, before anything else is hung."""
    for _ in range(make.count(3, 8)):
        side, high = ("left", "right", "front")[make.count(0, 2)], make.between(-0.8, 0.7)
        z = room.back * make.between(0.3, 0.95)
        at = (
            (make.between(-0.7, 0.7) * z, high, room.back - 0.02)
            if side == "front"
            else (on_side(room, side), high, z)
        )
        stage.hang(clutter.anything(make), at, width=make.between(0.3, 1.2), facing=side)


def corridor(stage: Stage, make: Maker, room: Room) -> None:
    """Doors with plates on both sides, posters and papers between them, signs under the ceiling."""
    stage.hang(door(make), (0, room.floor - 1.05, room.back - 0.05), width=1.1, height=2.1)
    if make.chance(0.5):
        stage.hang(
            clutter.anything(make), (make.between(0.9, 1.6), 0, room.back - 0.06), width=make.between(0.4, 0.7)
        )
    if make.chance(0.5):
        floor = make.sign([row(make, "floor", size=2.0)])
        stage.hang(floor, (make.between(-1.5, -0.9), make.between(-0.5, 0.2), room.back - 0.07), width=0.8)
    for z in range(int(room.back) - 1, 1, -2):
        for side in SIDES:
            _doorway(stage, make, room, side, z + make.between(-0.3, 0.3))
    for z in (room.back * 0.55, room.back * 0.35)[: make.count(0, 2)]:
        sign = directions(make) if make.chance(0.6) else exit_sign(make)
        stage.hang(
            sign,
            (make.between(-0.4, 0.4), room.ceiling + make.between(0.15, 0.4), z),
            height=make.between(0.2, 0.4),
        )


def _doorway(stage: Stage, make: Maker, room: Room, side: str, z: float) -> None:
    x = on_side(room, side)
    stage.hang(door(make), (x, room.floor - 1.0, z), width=0.95, height=2.0, facing=side)
    rows = [row(make, "room", size=make.between(1.0, 1.6))]
    if make.chance(0.5):
        rows += [row(make, "occupant", "room", 0.7) for _ in range(make.count(1, 2))]
    if make.chance(0.15):
        rows = [row(make, "facility")]
    plate = make.plate(rows)
    # beside the door, above it, on it, high beside it, or sticking out of the wall
    spots = ((0.0, 0.75, 0.0), (-1.0, 0.0, 0.0), (-0.25, 0.0, 0.0), (-0.35, -0.75, 0.0), (-0.7, 0.6, 0.28))
    up, along, out = spots[make.style.order]
    inward = out if side == "left" else -out
    facing = "front" if out else side
    stage.hang(plate, (x + inward, up + 0.05, z + along), height=make.between(0.16, 0.3), facing=facing)
    if make.chance(0.25):
        stage.hang(clutter.notice(make), (x, make.between(-0.1, 0.3), z), width=0.35, facing=side)
    if make.chance(0.5):
        thing = clutter.notice_board(make) if make.chance(0.3) else clutter.anything(make)
        stage.hang(thing, (x, make.between(-0.3, 0.2), z - 1.0), width=make.between(0.4, 0.8), facing=side)


def lobby(stage: Stage, make: Maker, room: Room) -> None:
    """Lifts with their floor, a directory, a desk, posters and a screen."""
    back = room.back - 0.05
    left = make.between(-2.5, -1.2)
    for x in (left + 1.6, left + 2.8):
        stage.hang(plain(100, 55, make.colour(PALE)), (x, room.floor - 1.1, back), width=1.0, height=2.2)
    stage.hang(
        directory(make),
        (left if make.style.order % 2 else left + 4.6, -0.1, back - 0.01),
        width=make.between(0.9, 1.5),
    )
    floor = make.sign([row(make, "floor", size=2.2)])
    stage.hang(floor, (left + 2.2, (-1.0, -0.3, -0.95, 0.0, -0.6)[make.style.order], back - 0.02), height=0.45)
    if make.chance(0.7):
        stage.hang(make.sign([row(make, "facility")]), (left + 2.2, room.ceiling + 0.3, back - 0.5), height=0.25)
    for side in SIDES:
        for z in (room.back * 0.8, room.back * 0.55):
            if make.chance(0.9):
                thing = clutter.screen(make) if make.chance(0.2) else clutter.poster(make)
                stage.hang(thing, (on_side(room, side), -0.1, z), width=make.between(0.7, 1.2), facing=side)
    if make.chance(0.6):
        stage.hang(clutter.notice(make), (left + make.between(0.5, 4), 0.4, back - 0.03), width=0.4)
    if make.chance(0.5):
        stage.hang(directions(make), (make.between(-1, 1), room.ceiling + 0.35, room.back * 0.6), height=0.5)


def directory(make: Maker) -> Board:
    """Floors on the left, what is there on the right."""
    count = make.count(3, 7)
    look = replace(make.style.sign, align=0.0, icon=0.0, margin=0.5)
    floors = [Row(f"{count - i}", "nav", "directory") for i in range(count)]
    sorts = ("occupant", "section", "place_to", "facility")
    names = [row(make, sorts[make.count(0, 3)], "directory", 1.0) for _ in range(count)]
    sides = [board(make.random, [replace(r, text=r.text + " ") for r in rows], look) for rows in (floors, names)]
    table = beside(sides, look.ground or (0, 0, 0), gap=0)
    if make.chance(0.4):
        head = board(make.random, [Row("Directory", "nav", "directory", 1.2)], look)
        return stacked([table, head], look.ground or (0, 0, 0), gap=0) if make.chance(0.1) else table
    return table

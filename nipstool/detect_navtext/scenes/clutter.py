"""What else hangs and stands about with text on it: posters, notices, price tags, packages, plates, screens.

Its lines are `other`; where even a reader would not be sure, `ignore`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nipstool.detect_navtext.scenes.boards import Board, Look, Row, beside, board, paste, plain, stacked
from nipstool.detect_navtext.scenes.style import BRIGHT, DARK, PALE, Maker
from nipstool.detect_navtext.scenes.words import cased, pick, word


def other(text: str, size: float = 1.0) -> Row:
    """A row that leads nowhere."""
    return Row(text, "other", "other", size)


def poster(make: Maker) -> Board:
    """An advertisement: a picture or a colour, a slogan, perhaps a brand, a price and small print."""
    rows = [other(cased(make.random, make.say("advert")), make.between(1.0, 2.6))]
    if make.chance(0.5):
        rows.append(other(make.shop(), make.between(0.5, 1.3)))
    if make.chance(0.4):
        rows.append(other(make.say("price"), make.between(0.8, 2.4)))
    if make.chance(0.3):
        rows.append(other(f"{make.say('adjective')} {make.say('product')}", make.between(0.6, 1.2)))
    rows += [other(make.say("small_print"), make.between(0.3, 0.5)) for _ in range(make.count(0, 3))]
    make.random.shuffle(rows[1:])
    dark = make.chance(0.6)
    look = Look(
        make.face(),
        ink=make.colour(PALE if dark else DARK),
        ground=make.colour((*BRIGHT, *DARK) if dark else PALE),
        pattern="picture" if make.chance(0.55) else "flat",
        align=float(make.count(0, 2)) / 2,
        margin=make.between(0.5, 1.5),
        leading=make.between(0.3, 2.2),
    )
    return board(make.random, rows, look, faces=make.style.faces)


def notice(make: Maker) -> Board:
    """A warning or a rule on a plain plate, in the house's own style as often as not."""
    rows = [other(cased(make.random, make.say("notice")), make.between(0.8, 1.4))]
    rows += [other(make.say("notice"), make.between(0.5, 0.9)) for _ in range(make.count(0, 2))]
    if make.chance(0.5):
        return board(make.random, rows, make.style.plate)
    look = Look(make.face(), make.colour(DARK), make.colour((*PALE, *BRIGHT)), border=make.between(0, 0.15))
    return board(make.random, rows, look)


def paper(make: Maker) -> Board:
    """A sheet on a notice board: a heading, and lines too many to read in passing."""
    rows = [other(make.say("small_print"), make.between(0.7, 1.3))]
    rows += [other(make.say("small_print"), make.between(0.35, 0.5)) for _ in range(make.count(2, 7))]
    look = Look(make.face(), (40, 40, 40), make.colour(PALE), align=0.0, leading=0.4)
    return board(make.random, rows, look)


def hours(make: Maker) -> Board:
    """Opening hours and the like on glass."""
    rows = [other(make.say("small_print"), make.between(0.4, 0.6)) for _ in range(make.count(2, 4))]
    return board(make.random, rows, Look(make.face(), make.colour(PALE), None))


def price_tag(make: Maker) -> Board:
    """A tag on the edge of a shelf."""
    rows = [other(make.say("price"), make.between(1.0, 1.5))]
    if make.chance(0.6):
        rows.insert(make.count(0, 1), other(f"{make.say('adjective')} {make.say('product')}", 0.45))
    ground = ((245, 245, 245), (60, 220, 250), (60, 60, 220))[make.count(0, 2)]
    ink = (245, 245, 245) if ground == (60, 60, 220) else (30, 30, 30)
    return board(make.random, rows, Look(make.face(), ink, ground, margin=0.3, leading=0.3))


def package(make: Maker) -> Board:
    """A packet: a brand, what is in it, and small print."""
    brand = make.shop() if make.chance(0.5) else word(make.random).title()
    rows = [other(cased(make.random, brand), make.between(1.0, 1.8))]
    if make.chance(0.8):
        rows.append(other(make.say("product"), make.between(0.7, 1.3)))
    if make.chance(0.4):
        rows.append(other(make.say("adjective"), make.between(0.5, 0.9)))
    rows += [other(make.say("package_small"), 0.35) for _ in range(make.count(0, 2))]
    dark = make.chance(0.6)
    look = Look(
        make.face(),
        ink=make.colour(PALE if dark else DARK),
        ground=make.colour((*BRIGHT, *DARK) if dark else PALE),
        pattern="picture" if make.chance(0.5) else "flat",
        margin=make.between(0.4, 1.0),
        leading=make.between(0.3, 1.6),
    )
    made = board(make.random, rows, look, faces=make.style.faces)
    height, width = made.pixels.shape[:2]
    tall = round(width * make.between(0.9, 1.7))
    if tall <= height:
        return made
    body = Board(board(make.random, [other(" ")], look).pixels)
    parent = paste(plain(tall, width, look.ground or (0, 0, 0)), body, 0, 0, width, tall)
    return paste(parent, made, 0, make.count(0, tall - height), width, height)


def shelf(make: Maker, metres: float, levels: int = 4) -> Board:
    """A rack of packages with tags on the edges; 160 pixels a metre and level."""
    width, boards = round(metres * 220), []
    goods = [package(make) for _ in range(make.count(8, 14))]
    tags = [price_tag(make) for _ in range(10)]
    for _ in range(levels):
        boards += [_level(make, width, goods), _edge(make, width, tags)]
    return stacked(boards, make.colour(PALE), gap=0)


def _level(make: Maker, width: int, goods: Sequence[Board]) -> Board:
    height = 75
    row, left = plain(height, width, (40, 45, 50)), 2
    while left < width - 12:
        item = goods[make.count(0, len(goods) - 1)]
        wide = max(14, round(height * item.aspect * 0.9))
        for _ in range(make.count(1, 3)):
            if left + wide > width - 2:
                left = width
                break
            row = paste(row, item, left, 6, wide, height - 6)
            left += wide + make.count(1, 6)
    return row


def _edge(make: Maker, width: int, tags: Sequence[Board]) -> Board:
    edge = plain(16, width, make.colour(PALE))
    for left in range(make.count(5, 30), width - 40, make.count(45, 90)):
        tag = tags[make.count(0, len(tags) - 1)]
        edge = paste(edge, tag, left, 1, min(38, round(14 * tag.aspect)), 14)
    return edge


def licence_plate(make: Maker) -> Board:
    """A car's plate."""
    code = "".join(pick(make.random, "ABCDEFGHKLMNPRSTUVXYZ") for _ in range(make.count(2, 3)))
    look = Look(make.face(), (30, 30, 30), (240, 240, 240), border=0.08, margin=0.35)
    return board(make.random, [other(f"{code} {make.count(100, 9999)}")], look)


def screen(make: Maker) -> Board:
    """A display with departures or news: moving text, which a reader may or may not call a sign."""
    rows = [
        Row(f"{make.count(5, 23)}:{make.count(10, 59)} {make.say('city')}", "ignore", "other", 0.6)
        for _ in range(make.count(3, 6))
    ]
    look = Look(make.face(), make.colour(((70, 200, 250), (240, 240, 240))), (25, 20, 15), align=0.0)
    return board(make.random, rows, look)


def notice_board(make: Maker) -> Board:
    """Papers side by side on cork."""
    papers = [paper(make) if make.chance(0.7) else poster(make) for _ in range(make.count(2, 4))]
    return beside(papers, (110, 150, 190), gap=20)


def silhouette(make: Maker) -> Board:
    """A person or a thing that stands in the way, without text."""
    colour = make.colour(DARK)
    pixels = np.zeros((100, 40, 4), np.uint8)
    pixels[..., :3] = colour
    rows = np.arange(100)[:, None]
    columns = np.abs(np.arange(40)[None] - 19.5)
    pixels[..., 3] = 255 * (
        (columns < 17 - np.maximum(0, rows - 30) * 0.1) & (rows > 22) | (columns**2 + (rows - 11.0) ** 2 < 100)
    )
    return Board(pixels)


def anything(make: Maker) -> Board:
    """Some clutter."""
    makers: Sequence = (poster, poster, notice, notice, paper, price_tag)
    return makers[make.count(0, len(makers) - 1)](make)

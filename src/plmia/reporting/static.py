"""Figures as files: SVG always, PNG where Pillow is installed."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from html import escape
from itertools import pairwise
from typing import Any

from plmia.reporting.content import writable
from plmia.reporting.plots import Figure
from plmia.reporting.scene import Area, Box, Mark, Place, Scene, Stroke, Text, lay_out
from plmia.reporting.theme import LIGHT, in_theme, rgb

_LIGHT = in_theme(LIGHT)
FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
# Twice the size on the page; drawn twice as large again and reduced, which smooths every edge.
PNG_SCALE, OVERSAMPLING = 2, 2
# The font that comes with Pillow has no such characters.
_ASCII = str.maketrans({"−": "-", "\u00a0": " ", "…": "..."})


def svg(figure: Figure, colour: Callable[[str], str] = _LIGHT, *, paper: bool = True) -> str:
    """Return the figure as SVG.

    Parameters
    ----------
    figure : Figure
        What to draw.
    colour : callable
        From a colour's name to CSS.
    paper : bool
        Whether to fill the background.
    """
    scene = lay_out(figure)
    # A box that several marks share is clipped once; names are unique in a page of many figures.
    clipped = dict.fromkeys(mark.box for mark in scene.marks if not isinstance(mark, Text) and mark.box)
    boxes = {box: f"{figure.name}-{i}" for i, box in enumerate(clipped)}
    clips = "".join(f'<clipPath id="clip-{name}"><rect {_rectangle(box)}/></clipPath>' for box, name in boxes.items())
    ground = f'<rect width="100%" height="100%" fill="{colour("@paper")}"/>' if paper else ""
    body = "".join(_svg_mark(mark, colour, boxes) for mark in scene.marks)
    return writable(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {scene.width} {scene.height}" role="img" '
        f'aria-label="{escape(figure.alt)}" font-family="{FONT}"><title>{escape(figure.title)}</title>'
        f"<defs>{clips}</defs>{ground}{body}</svg>"
    )


def _rectangle(box: Box) -> str:
    left, top, right, bottom = box
    return f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"'


def _svg_mark(mark: Mark, colour: Callable[[str], str], boxes: dict[Box, str]) -> str:
    if isinstance(mark, Text):
        x, y = mark.place
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if mark.upright else ""
        return (
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{mark.size}" text-anchor="{mark.anchor}" '
            f'fill="{colour(mark.colour)}"{turn}>{escape(mark.text)}</text>'
        )
    clip = f' clip-path="url(#clip-{boxes[mark.box]})"' if mark.box else ""
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in mark.places)
    if isinstance(mark, Stroke):
        dash = f' stroke-dasharray="{",".join(map(str, mark.dash))}"' if mark.dash else ""
        return (
            f'<polyline points="{places}" fill="none" stroke="{colour(mark.colour)}" stroke-width="{mark.width:g}" '
            f'stroke-linejoin="round"{dash}{clip}/>'
        )
    if mark.hollow:
        return f'<polygon points="{places}" fill="none" stroke="{colour(mark.colour)}" stroke-width="2"{clip}/>'
    opacity = f' fill-opacity="{mark.opacity:g}"' if mark.opacity < 1 else ""
    return f'<polygon points="{places}" fill="{colour(mark.colour)}"{opacity}{clip}/>'


def png(figure: Figure) -> bytes | None:
    """Return the figure as PNG; None where Pillow (the extra `images`) is not installed."""
    try:
        from PIL import Image, ImageFont
    except ImportError:
        return None
    scene = lay_out(figure)
    scale = PNG_SCALE * OVERSAMPLING
    sheet = Image.new("RGB", (scene.width * scale, scene.height * scale), LIGHT["paper"])
    sizes = {mark.size for mark in scene.marks if isinstance(mark, Text)}
    fonts = {size: ImageFont.load_default(size * scale) for size in sizes}
    for mark in scene.marks:
        if isinstance(mark, Text):
            _draw_text(sheet, mark, fonts[mark.size], scale)
        else:
            _draw_shape(sheet, mark, scene, scale)
    small = sheet.resize((scene.width * PNG_SCALE, scene.height * PNG_SCALE), Image.Resampling.BOX)
    file = io.BytesIO()
    small.save(file, "PNG", optimize=False)
    return file.getvalue()


def _draw_text(sheet: Any, mark: Text, font: Any, scale: int) -> None:
    from PIL import Image, ImageDraw

    x, y = (scale * part for part in mark.place)
    # One line, whatever the text holds: Pillow refuses anchors for several, and characters that cannot be encoded.
    text = " ".join(writable(mark.text).translate(_ASCII).split())
    paint = rgb(LIGHT[mark.colour[1:]])
    # The anchors of Pillow: left, middle or right of the base line.
    anchor = {"start": "ls", "middle": "ms", "end": "rs"}[mark.anchor]
    if not mark.upright:
        ImageDraw.Draw(sheet).text((x, y), text, paint, font, anchor)
        return
    length, height = int(font.getlength(text)) + 4, 2 * mark.size * scale
    strip = Image.new("L", (length, height), 0)
    ImageDraw.Draw(strip).text((length / 2, 0.75 * height), text, 255, font, "ms")
    turned = strip.rotate(90, expand=True)
    sheet.paste(paint, (int(x - 0.75 * height), int(y - length / 2)), turned)


def _draw_shape(sheet: Any, mark: Stroke | Area, scene: Scene, scale: int) -> None:
    from PIL import Image, ImageDraw

    name, _, strength = mark.colour[1:].partition("/")
    paint = rgb(LIGHT[name])
    opacity = (mark.opacity if isinstance(mark, Area) else 1.0) * float(strength or 1)
    left, top, right, bottom = _bounds(mark, scene)
    origin = int(scale * left), int(scale * top)
    size = int(scale * (right - left)) + 1, int(scale * (bottom - top)) + 1
    mask = Image.new("L", size, 0)
    draw = ImageDraw.Draw(mask)
    places = [(scale * x - origin[0], scale * y - origin[1]) for x, y in mark.places]
    full = round(255 * opacity)
    if isinstance(mark, Area) and not mark.hollow:
        draw.polygon(places, full)
    elif isinstance(mark, Area):
        draw.line([*places, places[0], places[1]], full, 2 * scale, "curve")
    else:
        for piece in dashed(places, tuple(scale * part for part in mark.dash)):
            draw.line(piece, full, max(1, round(scale * mark.width)), "curve")
    sheet.paste(paint, origin, mask)


def _bounds(mark: Stroke | Area, scene: Scene) -> Box:
    """The part of the paper that a mark may touch."""
    xs, ys = zip(*mark.places, strict=True)
    room = (mark.width if isinstance(mark, Stroke) else 2) + 1
    left, top, right, bottom = mark.box or (0, 0, scene.width, scene.height)
    # A box clips exactly; a mark that lies outside of it leaves one empty pixel.
    left, top = min(max(left, min(xs) - room), right), min(max(top, min(ys) - room), bottom)
    return left, top, max(left, min(right, max(xs) + room)), max(top, min(bottom, max(ys) + room))


def dashed(places: list[Place], pattern: tuple[float, ...]) -> Iterable[list[Place]]:
    """Cut a line into the dashes of a pattern (drawn, left out, drawn, ...); all of it where there is none."""
    if not pattern:
        return [places]
    pieces: list[list[Place]] = [[places[0]]]
    part, left = 0, pattern[0]
    for (x0, y0), (x1, y1) in pairwise(places):
        length, done = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 0.0
        while length - done > left:
            done += left
            at = (x0 + (x1 - x0) * done / length, y0 + (y1 - y0) * done / length)
            part = (part + 1) % len(pattern)
            left = pattern[part]
            if part % 2:
                pieces[-1].append(at)
            else:
                pieces.append([at])
        left -= length - done
        if part % 2 == 0:
            pieces[-1].append((x1, y1))
    return [piece for piece in pieces if len(piece) > 1]

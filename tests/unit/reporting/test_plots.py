"""Figures without a browser: places in the picture, SVG, thumbnails, and colours that readers can distinguish."""

from __future__ import annotations

import io
import json
import math
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest

from plmia.data.dataset import LabelledData
from plmia.reporting import Extras
from plmia.reporting.content import MAX_FEATURES, encode_png, previews
from plmia.reporting.drawing import (
    DARK,
    LIGHT,
    SERIES,
    Axis,
    Figure,
    Spec,
    Theme,
    apart,
    apply_colours,
    band,
    bars,
    error_bars,
    escaped,
    in_theme,
    line,
    linear_axis,
    log_percent_axis,
    points,
    rgb,
    round_ticks,
    series,
    shortened,
    svg,
    vertical_line,
)

SVG = "{http://www.w3.org/2000/svg}"


def figure(data: list[Spec], **layout: Any) -> Figure:
    axes = {"xaxis": linear_axis("across", 0, 10).to_json(), "yaxis": log_percent_axis("up", 0.01).to_json()}
    return Figure("name", "A title", "A caption.", "What it <shows>.", data, axes | layout, 300)


def drawn(data: list[Spec]) -> ElementTree.Element:
    return ElementTree.fromstring(svg(figure(data)))


def marks(data: list[Spec], kind: str, colour: str) -> list[list[tuple[float, float]]]:
    """Corners of the marks of one kind and colour inside the axes."""
    shapes = [
        mark for mark in drawn(data).iter(f"{SVG}{kind}") if LIGHT[colour] in (mark.get("stroke"), mark.get("fill"))
    ]
    inside = [mark.get("points", "") for mark in shapes if mark.get("clip-path") == "url(#clip-name)"]
    return [[(float(x), float(y)) for x, y in (place.split(",") for place in text.split())] for text in inside]


def box(data: list[Spec]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the axes."""
    (rectangle,) = drawn(data).iter(f"{SVG}clipPath")
    left, top, width, height = (float(rectangle[0].get(key, "")) for key in ("x", "y", "width", "height"))
    return left, top, left + width, top + height


def test_places_are_linear_or_logarithmic_within_the_axes() -> None:
    data = [line("a", [0, 5, 10], [0.01, 0.1, 1], "@blue")]
    left, top, right, bottom = box(data)
    expected = [(left, bottom), ((left + right) / 2, (top + bottom) / 2), (right, top)]
    assert np.allclose(marks(data, "polyline", "blue"), [expected], atol=0.2)


def test_a_line_breaks_where_a_value_is_missing_or_has_no_logarithm() -> None:
    y = [0.1, 0.2, None, 0.3, 0.4, 0.0, 0.5, 0.6]
    trace = line("a", range(8), [math.nan if v is None else v for v in y], "@blue")
    assert [len(places) for places in marks([trace], "polyline", "blue")] == [2, 2, 2]


def test_steps_go_across_first() -> None:
    ((_, y0), (x1, y1), (x2, y2)) = marks([line("a", [0, 10], [0.01, 1], "@blue", shape="hv")], "polyline", "blue")[0]
    assert (y1, x1) == (y0, x2)
    assert y2 < y0


def test_hidden_series_are_not_drawn_and_a_single_one_has_no_legend() -> None:
    hidden = line("hidden", [0, 1], [0.1, 0.2], "@green", visible=False)
    data = [line("a", [0, 1], [0.1, 0.2], "@blue"), hidden]
    assert LIGHT["green"] not in svg(figure(data))
    assert "a" not in [text.text for text in drawn(data).iter(f"{SVG}text")]


def test_error_bars_reach_from_low_to_high() -> None:
    data = [points("a", [5], [0.1], "@blue", error_x=error_bars([5], [2], [9], "@blue"))]
    left, _, right, _ = box(data)
    ((start, _), (end, _)) = marks(data, "polyline", "blue")[0]
    assert (start, end) == pytest.approx((left + 0.2 * (right - left), left + 0.9 * (right - left)), abs=0.2)


def test_every_kind_of_mark_is_valid_svg_and_says_what_it_shows() -> None:
    data = [
        band("band", [0, 5, 10], [0.1, 0.1, 0.1], [0.2, 0.3, 0.2], "@blue"),
        bars("bars <&>", [1, 2], [0.5, 0.25], 1, "@orange"),
        points("points", [1, 2], [0.5, 0.25], "@green", "x", hollow=True),
        line("line", [0, 10], [0.1, 0.9], "@ink", dash="dashdot"),
    ]
    picture = svg(figure(data, shapes=[vertical_line(3, "@soft")]))
    root = ElementTree.fromstring(picture)
    assert root.get("aria-label") == "What it <shows>."
    assert root.findtext(f"{SVG}title") == "A title"
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"across", "up", "bars <&>", "100 %"} <= set(texts)
    assert "@" not in picture
    ids = [clip.get("id") for clip in root.iter(f"{SVG}clipPath")]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (-3.1, 3.1, [-3, -2, -1, 0, 1, 2, 3]), (0, 0.03, None)],
)
def test_ticks_are_round_and_inside(low: float, high: float, expected: list[float] | None) -> None:
    ticks = round_ticks(low, high, 6)
    assert expected is None or ticks == pytest.approx(expected)
    assert all(low <= tick <= high for tick in ticks)


def test_labels_of_axes() -> None:
    axis = log_percent_axis("x", 1e-4)
    assert axis.labels == ["0.01 %", "0.1 %", "1 %", "10 %", "100 %"]
    assert linear_axis("x", -1, 1, about=4).labels == ["−1.0", "−0.5", "0.0", "0.5", "1.0"]
    assert Axis("<t>", 0, 1, [0], ["a\n<b>"]).to_json()["ticktext"] == ["a<br>&lt;b&gt;"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 0.0, (-0.5, 0.5)),
        (7.0, 7.0 + 1e-12, (6.5, 7.5)),
        (5e-324, 1e-310, (-0.5, 0.5)),
        (0.0, 1e-30, (0.0, 1e-30)),
        (1e30, 1e30, (1e30 - 1e24, 1e30 + 1e24)),
        (-math.inf, math.inf, (-1e300, 1e300)),
        (2.0, 2.0 + 1e-8, (2.0, 2.0 + 1e-8)),
    ],
)
def test_equal_ends_are_moved_apart(low: float, high: float, expected: tuple[float, float]) -> None:
    assert apart(low, high) == pytest.approx(expected, rel=1e-12, abs=0)


def test_every_axis_has_a_width() -> None:
    assert Axis("x", 2.0, 2.0, [2.0], ["2"]).to_json()["range"] == [1.5, 2.5]
    assert Axis("x", 100.0, 100.0, [100.0], ["100"], log=True).to_json()["range"] == [1.5, 2.5]
    start, end = Axis("x", 1e12, 1e12 + 5000, [], []).to_json()["range"]
    assert (start, end) == (1e12, 1e12 + 5000), "not lost by rounding"


def test_labels_of_large_and_small_numbers_are_short_and_differ() -> None:
    assert linear_axis("x", -1e-30, 1e-30, about=2).labels == ["−1e−30", "0", "1e−30"]
    assert linear_axis("x", 0, 1e30, about=5).labels == ["0", "2e+29", "4e+29", "6e+29", "8e+29", "1e+30"]
    assert linear_axis("x", 0, 4_000_000, about=2).labels == ["0", "2,000,000", "4,000,000"]


def test_traces_without_a_finite_value_are_drawn_as_nothing() -> None:
    nothing = [math.nan] * 3
    data = [
        band("band", [1, 2, 3], nothing, nothing, "@blue"),
        line("line", [1, 2, 3], nothing, "@green"),
        points("points", nothing, [0.1, 0.2, 0.3], "@wine", error_x=error_bars(nothing, nothing, nothing, "@wine")),
        bars("bars", [1, 2, 3], nothing, 1, "@orange"),
        line("empty", [], [], "@sky"),
    ]
    assert not any(mark.get("clip-path") for mark in drawn(data).iter())


def test_texts_that_cannot_be_encoded_are_drawn_all_the_same() -> None:
    data = [line("a\ud800\x00", [0, 1], [0.1, 0.2], "@blue"), line("b\nc", [0, 1], [0.1, 0.2], "@green")]
    picture = svg(figure(data))
    texts = {text.text for text in ElementTree.fromstring(picture.encode()).iter(f"{SVG}text")}
    assert {"a\ufffd\ufffd", "b\nc"} <= texts


def test_texts_are_shortened_and_escaped() -> None:
    assert shortened("a\n  b", 10) == "a b"
    assert shortened("0123456789", 5) == "0123…"
    assert escaped("<a> & b") == "&lt;a&gt; &amp; b"


def luminance(colour: str) -> float:
    parts = [value / 255 for value in rgb(colour)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_marks_stand_out_from_the_paper(theme: Theme) -> None:
    for ground in ("paper", "panel"):
        assert min(contrast(theme[name], theme[ground]) for name in ("ink", "soft")) >= 4.5
    for name in (*SERIES, "@grey", "@edge"):
        assert contrast(theme[name[1:]], theme["paper"]) >= 3, name


def test_series_differ_and_colours_are_put_in() -> None:
    assert len({series(k)[:2] for k in range(45)}) == 45
    assert len({series(k)[0] for k in range(9)}) == 9
    colour = in_theme({"blue": "#0102ff"})
    assert apply_colours({"a": ["@blue", "@blue/0.5", "x", 1]}, colour) == {
        "a": ["#0102ff", "rgba(1,2,255,0.5)", "x", 1]
    }


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 1), (3, 5, 3), (3, 5, 4)])
def test_thumbnails_keep_every_pixel(shape: tuple[int, ...]) -> None:
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is an extra")
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    found = np.asarray(image_module.open(io.BytesIO(encode_png(pixels))))
    expected = pixels if pixels.ndim == 2 else pixels[:, :, 0] if shape[2] == 1 else pixels[:, :, :3]
    assert np.array_equal(found, expected)


def test_previews_of_images_texts_and_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    images = Extras(LabelledData(rng.random((80, 9, 9)), y))
    shown = previews(images, list(range(80)))
    assert len(shown) == 80
    assert all(one["image"].startswith("data:image/png;base64,") for one in shown)

    texts = Extras(texts=[f"text {i} " + "x" * 500 for i in range(80)])
    assert previews(texts, [7])[0]["text"].startswith("text 7 xxx")
    assert len(previews(texts, [7])[0]["text"]) == 160

    X = rng.normal(size=(80, 12))
    X[5, 3], X[:, 4] = 40.0, 1.0
    named = Extras(LabelledData(X, y, feature_names=[f"f{k}" for k in range(12)]))
    text = previews(named, [5])[0]["text"]
    assert text.startswith("f3 = 40 (+")
    assert text.count(" sd)") == MAX_FEATURES
    assert "f4 " not in text
    assert previews(Extras(), [0, 1]) == []

    room = sum(len(json.dumps(part["image"])) for part in shown[:7])
    monkeypatch.setattr("plmia.reporting.content.MAX_CHARACTERS", room)
    assert previews(images, list(range(80))) == shown[:7]
    assert previews(Extras(texts=["ä" * 100] * 80), range(80)) == [{"text": "ä" * 100}] * (room // 602)


def test_previews_of_mixed_tables_show_what_is_rare() -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "age": rng.normal(50, 10, 400),
            "ward": ["ICU", None, *["A", "B"] * 199],
            "seen": pandas.to_datetime("2020-01-01") + pandas.to_timedelta(rng.integers(0, 9, 400), unit="D"),
            "smoker": [True] + [False] * 399,
            "empty": [None] * 400,
        }
    )
    frame.loc[1, "age"] = np.nan
    frame.loc[2, "seen"] = pandas.Timestamp("2031-05-01")
    one, two, three = (
        preview["text"] for preview in previews(Extras(LabelledData(frame, np.arange(400) % 2)), [0, 1, 2])
    )
    assert one.startswith("smoker = 1 (+20.0 sd), ward = ICU (0.25 % of records)")
    assert "age missing" in two
    assert "ward missing" in two
    assert three.startswith("seen = 2031-05-01 (+")
    assert "nan" not in one + two + three


def test_an_area_is_clipped_to_the_axes() -> None:
    data = [band("b", [-5, 15], [0.01, 0.01], [1, 1], "@blue")]
    (area,) = marks(data, "polygon", "blue")
    assert area[0][0] < box(data)[0]

"""Views against a naive picture of them: pad, cut, mirror; their names; what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmia.data.dataset import LabelledData
from plmia.errors import RecipeError
from plmia.training.views import VIEW_SETS, View, check_views, default_views, parse_views

IMAGES = np.arange(2 * 5 * 6 * 3, dtype=np.uint8).reshape(2, 5, 6, 3)
TABLE = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)

pixel_views = st.builds(View, st.booleans(), st.integers(-4, 4), st.integers(-5, 5))
noise_views = st.builds(View, scale=st.floats(1e-300, 1e300, allow_subnormal=False), seed=st.integers(0, 10**18 - 1))


def naive(images: Any, view: View) -> Any:
    """Mirror, pad by reflection on all sides, cut the window that lies DY above and DX to the left."""
    shown = []
    for image in images:
        height, width = image.shape[:2]
        mirrored = image[:, ::-1] if view.mirror else image
        padded = np.pad(
            mirrored, [(abs(view.dy),) * 2, (abs(view.dx),) * 2] + [(0, 0)] * (image.ndim - 2), mode="reflect"
        )
        top, left = abs(view.dy) - view.dy, abs(view.dx) - view.dx
        shown.append(padded[top : top + height, left : left + width])
    return np.stack(shown)


@given(pixel_views)
def test_images_are_shown_as_by_padding_and_cutting(view: View) -> None:
    for images in (IMAGES, IMAGES[..., 0], IMAGES.astype(np.float32)):
        shown = view.apply(images)
        assert shown.dtype == images.dtype
        np.testing.assert_array_equal(shown, naive(images, view))


@given(pixel_views)
def test_rows_and_columns_give_the_view_on_arrays(view: View) -> None:
    rows, columns = view.indices(5, 6)
    assert rows.min() >= 0
    assert columns.min() >= 0
    np.testing.assert_array_equal(IMAGES[:, rows][:, :, columns], view.apply(IMAGES))


def test_rows_and_columns_give_the_view_on_tensors() -> None:
    torch = pytest.importorskip("torch")
    for view in VIEW_SETS["rmia18"]:
        rows, columns = view.indices(5, 6)
        shown = torch.from_numpy(IMAGES)[:, rows][:, :, columns]
        np.testing.assert_array_equal(shown.numpy(), view.apply(IMAGES))


def test_down_is_down_and_right_is_right() -> None:
    image = np.array([[[1, 2, 3], [4, 5, 6], [7, 8, 9]]])
    assert View(dy=1).apply(image).tolist() == [[[4, 5, 6], [1, 2, 3], [4, 5, 6]]]
    assert View(dx=1).apply(image).tolist() == [[[2, 1, 2], [5, 4, 5], [8, 7, 8]]]
    assert View(mirror=True).apply(image).tolist() == [[[3, 2, 1], [6, 5, 4], [9, 8, 7]]]
    assert View(mirror=True, dx=1).apply(image).tolist() == [[[2, 3, 2], [5, 6, 5], [8, 9, 8]]]


def test_the_identity_copies_nothing() -> None:
    assert View().apply(IMAGES) is IMAGES
    assert View().apply(TABLE) is TABLE


def test_noise_is_one_gaussian_displacement_for_all_rows() -> None:
    view = View(scale=0.5, seed=3)
    moved = view.apply(TABLE) - TABLE
    np.testing.assert_allclose(moved, np.tile(view.offset(4), (7, 1)), atol=1e-6)
    np.testing.assert_array_equal(view.apply(TABLE)[2:5], view.apply(TABLE[2:5]))
    assert not np.allclose(view.offset(4), View(scale=0.5, seed=4).offset(4))
    np.testing.assert_allclose(View(scale=1.0, seed=3).offset(4), 2 * view.offset(4), rtol=1e-6)
    many = view.offset(100_000)
    assert abs(many.mean()) < 4 * 0.5 / np.sqrt(100_000)
    assert abs(many.std() / 0.5 - 1) < 4 / np.sqrt(2 * 100_000)


@pytest.mark.parametrize(
    ("dtype", "shown"), [("uint8", "float32"), ("bool", "float32"), ("float16", "float16"), ("float64", "float64")]
)
def test_noise_makes_floats(dtype: str, shown: str) -> None:
    table = np.ones((3, 2), dtype)
    moved = View(scale=0.1).apply(table)
    assert moved.dtype == np.dtype(shown)
    assert (moved != 1).all()
    assert View(scale=0.1).offset(2).dtype == np.float32
    assert not View().offset(2).any()


@given(pixel_views | noise_views)
def test_a_view_is_its_text(view: View) -> None:
    assert View.parse(str(view)) == view
    assert parse_views(str(view)) == (view,)


@pytest.mark.parametrize(
    ("text", "view"),
    [
        ("identity", View()),
        ("mirror", View(mirror=True)),
        ("shift:2,-1", View(dy=2, dx=-1)),
        ("mirror+shift:0,1", View(mirror=True, dx=1)),
        ("shift:0,0", View()),
        ("noise:0.01", View(scale=0.01)),
        ("noise:1e-3,7", View(scale=0.001, seed=7)),
    ],
)
def test_texts_of_views(text: str, view: View) -> None:
    assert View.parse(text) == view


def test_named_sets() -> None:
    assert parse_views("one") == (View(),)
    assert parse_views("mirror2") == (View(), View(mirror=True))
    assert parse_views("cifar4") == (View(), View(mirror=True), View(dy=2), View(dy=-2))
    rmia = parse_views("rmia18")
    assert rmia[0] == View()
    assert set(rmia) == {View(m, dy, dx) for m in (False, True) for dy in (-1, 0, 1) for dx in (-1, 0, 1)}
    assert len(rmia) == 18
    assert parse_views("shift9") == tuple(view for view in rmia if not view.mirror)
    different = {view.apply(IMAGES).tobytes() for view in rmia}
    assert len(different) == 18


@pytest.mark.parametrize(
    "text",
    [
        "identity;mirror;shift:1,-2;noise:0.5,3",
        "identity mirror shift:1,-2 noise:0.5,3",
        "identity,mirror,shift:1,-2,noise:0.5,3",
        " mirror2 ;\tshift:1,-2;  noise:0.5,3; ",
        "identity, mirror; shift:1,-2\nnoise:0.5,3",
    ],
)
def test_lists_of_views(text: str) -> None:
    assert parse_views(text) == (View(), View(mirror=True), View(dy=1, dx=-2), View(scale=0.5, seed=3))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no view in ''", "rmia18"]),
        (" ; ", ["no view in"]),
        ("rmia81", ["'rmia81'", "did you mean 'rmia18'?"]),
        ("Mirror", ["'Mirror'", "did you mean 'mirror'?"]),
        ("identity;miror", ["'miror'", "did you mean 'mirror'?"]),
        ("shft:1,2", ["'shft:1,2'", "did you mean 'shift'?"]),
        ("shift:1", ["'shift:1'", "shift:DY,DX"]),
        ("shift:1.5,0", ["'shift:1.5,0'", "shift:DY,DX"]),
        ("shift:1,2+mirror", ["'shift:1,2+mirror'", "mirror+shift:DY,DX"]),
        ("mirror+", ["'mirror+'"]),
        ("mirrorshift:1,2", ["'mirrorshift:1,2'", "did you mean 'mirror+shift'?"]),
        ("noise", ["'noise'", "noise:SCALE,SEED"]),
        ("noise:0", ["scale 0", "above 0"]),
        ("noise:-1", ["scale -1", "above 0"]),
        ("noise:1e999", ["scale 1e999", "above 0"]),
        ("noise:nan", ["'noise:nan'"]),
        ("noise:1.2.3", ["'noise:1.2.3'"]),
        ("noise:1,-3", ["'noise:1,-3'"]),
        ("mirror2;mirror", ["mirror appears twice", "once"]),
        ("xyzzy", ["there is no view 'xyzzy'", "one, mirror2, cifar4, shift9, rmia18"]),
    ],
)
def test_texts_that_are_no_views(text: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as error:
        parse_views(text)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"scale": -1.0},
        {"scale": np.inf},
        {"scale": np.nan},
        {"seed": 1},
        {"scale": 1.0, "seed": -1},
        {"scale": 1.0, "dy": 1},
    ],
)
def test_views_that_make_no_sense(fields: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        View(**fields)


@pytest.mark.parametrize("view", [View(mirror=True), View(dy=1), View(dx=-1)])
def test_pixels_of_a_table_are_refused(view: View) -> None:
    data = LabelledData(TABLE, np.array([0, 1, 0, 1, 0, 1, 0]))
    for refuse in (lambda: view.apply(TABLE), lambda: view.check(data), lambda: check_views([View(), view], data)):
        with pytest.raises(RecipeError, match=r"for images.*\[7, 4\]"):
            refuse()
    check_views([View(), View(scale=0.1)], data)


def test_noise_on_images_is_refused() -> None:
    view = View(scale=0.1)
    for refuse in (lambda: view.apply(IMAGES), lambda: view.indices(5, 6)):
        with pytest.raises(RecipeError, match="is for tables"):
            refuse()


@pytest.mark.parametrize(
    ("view", "length"), [(View(dy=5), 5), (View(dy=-5), 5), (View(dx=6), 6), (View(True, 0, -9), 6)]
)
def test_shifts_out_of_the_image_are_refused(view: View, length: int) -> None:
    with pytest.raises(RecipeError, match=f"have {length}.*at most {length - 1}"):
        view.apply(IMAGES)
    with pytest.raises(RecipeError, match=f"have {length}.*at most {length - 1}"):
        view.check(LabelledData(np.repeat(IMAGES, 2, axis=0), np.array([0, 0, 1, 1])))


def test_default_views_fit_their_data() -> None:
    y = np.array([0, 0, 1, 1])
    colour = LabelledData(np.repeat(IMAGES, 2, axis=0), y)
    grey = [LabelledData(colour.X[..., 0], y), LabelledData(colour.X[..., :1], y)]
    table, line = LabelledData(TABLE[:4], y), LabelledData(colour.X[:, :1], y)
    assert default_views(colour) == VIEW_SETS["rmia18"]
    assert [default_views(data) for data in grey] == [VIEW_SETS["shift9"]] * 2
    assert [default_views(data) for data in (table, line)] == [VIEW_SETS["one"]] * 2
    for data in (colour, *grey, table, line):
        check_views(default_views(data), data)

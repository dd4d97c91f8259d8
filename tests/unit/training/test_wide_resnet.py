"""Wide-ResNets: they learn images by heart, repeat themselves bit for bit, and see every view."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

if os.environ.get("CI") != "true":
    pytest.importorskip("torch", reason="torch is not installed: pip install 'plmia[torch]'")

import torch

from plmia.data.dataset import LabelledData
from plmia.errors import RecipeError, TrainingError
from plmia.training.recipes.torch_device import cosine
from plmia.training.recipes.wide_resnet import Images, Program, WideResNet, _moved, _Net
from plmia.training.views import VIEW_SETS, View

TINY = WideResNet(depth=10, width=1, epochs=2, batch=8, device="cpu")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pictures(n: int = 24, shape: tuple[int, ...] = (8, 8, 3), dtype: str = "uint8") -> LabelledData:
    rng = np.random.default_rng(0)
    return LabelledData(rng.integers(0, 256, (n, *shape)).astype(dtype), np.arange(n) % 3)


def first_half(data: LabelledData) -> npt.NDArray[np.bool_]:
    return np.arange(data.n_points)[None] < data.n_points // 2


@pytest.mark.parametrize(
    ("shape", "dtype", "augment"),
    [((8, 8, 3), "uint8", False), ((9, 11), "uint8", False), ((8, 8), "float32", False), ((8, 8, 3), "uint8", True)],
)
def test_it_learns_images_by_heart(shape: tuple[int, ...], dtype: str, augment: bool) -> None:
    data = pictures(24, shape, dtype)
    recipe = replace(TINY, epochs=120 if augment else 40, augment=augment)
    (model,) = recipe.train(data, first_half(data), [0], [View()])
    assert model.train_accuracy > 0.95
    assert model.test_accuracy < 0.9
    assert model.conf.shape == (24, 1)
    assert model.conf.dtype == np.float32
    assert len(model.losses) == recipe.epochs
    assert model.losses[-1] < 0.3 * model.losses[0]
    assert not model.diverged


def test_a_seed_gives_the_same_bits_and_another_seed_others() -> None:
    data = pictures()
    members = np.repeat(first_half(data), 3, axis=0)
    for recipe in (TINY, replace(TINY, augment=True)):
        first, second, third = recipe.train(data, members, [1, 1, 2], [View()])
        np.testing.assert_array_equal(first.conf, second.conf)
        assert first.losses == second.losses
        assert not np.array_equal(first.conf, third.conf)


def test_a_program_used_again_starts_anew() -> None:
    data = pictures()
    images, members = Images.load(data, CPU), np.flatnonzero(first_half(data)[0])
    used, fresh = TINY.program(images, 12), TINY.program(images, 12)
    used.fit(images, members, np.random.default_rng(9))
    for program in (used, fresh):
        program.fit(images, members, np.random.default_rng(1))
    np.testing.assert_array_equal(used.query(images, [View()])[0], fresh.query(images, [View()])[0])


def test_views_are_what_the_model_is_shown() -> None:
    data, views = pictures(), VIEW_SETS["rmia18"]
    program = TINY.program(images := Images.load(data, CPU), 12)
    program.fit(images, np.arange(12), np.random.default_rng(0))
    conf, right = program.query(images, views)
    for i, view in enumerate(views):
        moved = Images.load(replace(data, X=view.apply(data.X)), CPU)
        alone, _ = program.query(moved, [View()])
        np.testing.assert_allclose(conf[:, i], alone[:, 0], rtol=1e-5, atol=1e-6)
    assert all(not np.allclose(conf[:, 0], conf[:, i]) for i in range(1, 18))
    (model,) = TINY.train(data, first_half(data), [0], views)
    np.testing.assert_array_equal(model.conf, conf)
    assert (model.train_accuracy, model.test_accuracy) == (right[:12].mean(), right[12:].mean())


def test_answers_do_not_depend_on_what_else_is_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pictures()
    program = TINY.program(images := Images.load(data, CPU), 12)
    program.fit(images, np.arange(12), np.random.default_rng(0))
    conf, right = program.query(images, [View(), View(mirror=True)])
    monkeypatch.setattr("plmia.training.recipes.wide_resnet._QUERY_ROWS", {"cpu": 7})  # the last batch is not full
    in_parts, right_in_parts = program.query(images, [View(), View(mirror=True)])
    np.testing.assert_allclose(in_parts, conf, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(right_in_parts, right)


def test_confidences_are_exact() -> None:
    data = pictures()
    program = TINY.program(images := Images.load(data, CPU), 12)
    program.fit(images, np.arange(12), np.random.default_rng(0))
    with torch.no_grad():
        program.net.head.weight.mul_(1e3)  # very sure
    conf, _ = program.query(images, [View()])
    with torch.no_grad():
        logits = program.net(images.pixels).double()
    log_p = torch.log_softmax(logits, dim=1)
    others = log_p.scatter(1, images.labels[:, None], -torch.inf).logsumexp(1)
    exact = log_p.gather(1, images.labels[:, None])[:, 0] - others
    assert exact.abs().max() > 100
    np.testing.assert_allclose(conf[:, 0], exact.numpy(), rtol=1e-4)


def test_pixels_are_standardised_by_channel() -> None:
    data = pictures(shape=(8, 8, 3))
    data.X[..., 1] = 7
    images = Images.load(data, CPU)
    flat = data.X.reshape(-1, 3).astype(float)
    np.testing.assert_allclose(images.mean.flatten(), flat.mean(0), rtol=1e-6)
    np.testing.assert_allclose(images.deviation.flatten(), [flat[:, 0].std(), 1, flat[:, 2].std()], rtol=1e-6)
    assert images.pixels.dtype == torch.uint8


def test_every_batch_is_full_and_every_member_is_seen_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pictures(40)
    data.X[:, 0, 0, 0] = np.arange(40)
    images = Images.load(data, CPU)
    program = replace(TINY, epochs=16).program(images, 21)
    seen, rates = [], []

    def look() -> None:
        seen.append(program.pixels[:, 0, 0, 0].tolist())
        rates.append(program.optimizer.param_groups[0]["lr"])
        assert program.labels.tolist() == [point % 3 for point in seen[-1]]

    monkeypatch.setattr(program, "run", look)
    program.fit(images, np.arange(21), np.random.default_rng(0))
    assert len(seen) == 16 * 21 // 8
    assert all(len(batch) == 8 for batch in seen)
    np.testing.assert_array_equal(np.bincount(np.concatenate(seen), minlength=40), [16] * 21 + [0] * 19)
    np.testing.assert_allclose(rates, [0.1 * cosine(step, 42, 0.01) for step in range(42)])


def test_a_subset_smaller_than_a_batch_is_one_batch() -> None:
    data = pictures()
    (model,) = replace(TINY, batch=256).train(data, np.arange(24)[None] < 5, [0], [View()])
    assert len(model.losses) == 2
    assert np.isfinite(model.conf).all()


def test_without_a_compiler_steps_are_recorded_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    program = TINY.program(Images.load(pictures(), CPU), 12)

    def record(step: Callable[[], None]) -> Callable[[], None]:
        if program.forward is not program.net:
            raise RuntimeError("Failed to find C compiler\nSet CC")
        return step

    monkeypatch.setattr("plmia.training.recipes.torch_device.captured", record)
    monkeypatch.setattr(torch, "compile", lambda net, **_: lambda pixels: net(pixels))
    with pytest.warns(UserWarning, match=r"torch.compile.*Failed to find C compiler"):
        assert program._recorded(compiled=True) == program.step
    assert program.forward is program.net


def test_the_learning_rate_rises_then_falls_to_zero() -> None:
    rates = [cosine(step, 200, 0.05) for step in range(200)]
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 10)
    assert rates[10] == 1.0
    assert (np.diff(rates[10:]) < 0).all()
    assert 0 < rates[-1] < 1e-3
    assert cosine(100, 200) == pytest.approx(0.5)


def test_augmentation_crops_the_reflected_image_and_mirrors_it() -> None:
    image = np.arange(8 * 10).reshape(8, 10)
    padded = np.pad(image, 4, mode="reflect")
    rows, columns = _moved(400, (8, 10), np.random.default_rng(0))
    crops = [padded[dy : dy + 8, dx : dx + 10] for dy in range(9) for dx in range(9)]
    allowed = {crop.tobytes() for crop in [*crops, *(np.ascontiguousarray(crop[:, ::-1]) for crop in crops)]}
    found = [image[r][:, c].tobytes() for r, c in zip(rows, columns, strict=True)]
    assert set(found) <= allowed
    assert len(set(found)) > 130  # of 162
    assert image.tobytes() in allowed


def test_the_network_is_the_published_one() -> None:
    net = _Net(28, 2, 3, 10)
    assert sum(parameter.numel() for parameter in net.parameters()) == 1_467_610
    convolutions = [module for module in net.modules() if isinstance(module, torch.nn.Conv2d)]
    assert sum(module.kernel_size == (3, 3) for module in convolutions) + 3 == 28  # and two shortcuts, and the head
    assert net(torch.zeros((2, 32, 32, 3), dtype=torch.uint8)).shape == (2, 10)


def test_weights_rebuild_the_model() -> None:
    data = pictures()
    (model,) = TINY.train(data, first_half(data), [0], [View()], keep_weights=True)
    assert model.weights is not None
    other = Program(TINY, (8, 8, 8, 3), torch.uint8, 3, CPU, compiled=False)
    other.net.load_state_dict({name: torch.from_numpy(value) for name, value in model.weights.items()})
    conf, _ = other.query(Images.load(data, CPU), [View()])
    np.testing.assert_allclose(conf, model.conf, rtol=1e-5)


def test_json_holds_what_decides_and_nothing_else() -> None:
    recipe = WideResNet(depth=16, augment=True, device="cpu", compiled=False)
    values = json.loads(json.dumps(recipe.to_json()))
    assert values.pop("recipe") == "wide-resnet"
    assert WideResNet(**values) == recipe
    assert WideResNet(**values).to_json() == recipe.to_json()
    assert "device" not in values
    assert replace(recipe, epochs=3) != recipe
    # The paper's protocol.
    paper = WideResNet().to_json()
    assert (paper["depth"], paper["width"], paper["epochs"], paper["batch"]) == (28, 2, 100, 256)
    assert (paper["lr"], paper["momentum"], paper["weight_decay"], paper["warmup"]) == (0.1, 0.9, 5e-4, 0.01)
    assert not paper["augment"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 27}, "depth 27.*10, 16"),
        ({"depth": 4}, "depth 4"),
        ({"width": 0}, "width"),
        ({"epochs": 0}, "epochs"),
        ({"batch": 0}, "batch"),
        ({"lr": -1.0}, "lr above 0"),
        ({"warmup": 1.0}, "warmup"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        WideResNet(**options)  # type: ignore[arg-type]


def test_data_that_do_not_fit_are_named() -> None:
    TINY.check(pictures())
    with pytest.raises(RecipeError, match=r"\[6, 4\].*mlp"):
        TINY.check(LabelledData(np.zeros((6, 4)), np.arange(6) % 2))
    with pytest.raises(RecipeError, match=r"8 x 8 pixels.* 8 x 7"):
        TINY.check(pictures(shape=(8, 7)))
    with pytest.raises(RecipeError, match="noise"):
        TINY.train(pictures(), first_half(pictures()), [0], [View(scale=0.1)])
    with pytest.raises(RecipeError, match=r"\bno records\b"):
        TINY.train(pictures(), np.zeros((1, 24), bool), [0], [View()])


def test_lack_of_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB\nmore")

    monkeypatch.setattr(Program, "fit", fail)
    with pytest.raises(TrainingError, match=r"one model \(CUDA out of memory. Tried to allocate 1 GiB\)"):
        TINY.train(pictures(), first_half(pictures()), [0], [View()])


def test_what_is_done_to_the_data_is_said() -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8)).astype(np.uint8)
    (note,) = WideResNet().notes(LabelledData(images, np.arange(40) % 2))
    assert (note.code, note.severity) == ("recipe-preprocessing", "info")
    deep = 2**30 + images.astype(np.int64)  # 16-bit images and the like are whole in 32-bit floats, these are not
    (note,) = WideResNet().notes(LabelledData(deep, np.arange(40) % 2))
    assert note.severity == "caution"


@pytest.mark.parametrize(
    ("depth", "width", "shape"), [(10, 1, (8, 8, 3)), (16, 2, (9, 11)), (28, 2, (32, 32, 3)), (10, 3, (13, 8, 1))]
)
def test_operations_are_three_forward_passes_as_torch_counts_them(
    depth: int, width: int, shape: tuple[int, ...]
) -> None:
    counter = pytest.importorskip("torch.utils.flop_counter")
    data, recipe = pictures(24, shape), replace(TINY, depth=depth, width=width)
    net = _Net(depth, width, (*shape, 1)[2], 3).eval()
    with counter.FlopCounterMode(display=False) as counted, torch.no_grad():
        net(torch.zeros((2, *shape[:2], (*shape, 1)[2])))
    one = counted.get_total_flops() / 2
    assert recipe.operations(data, 12) == 3 * 24 * one  # two epochs of 12 are three batches of 8
    assert recipe.operations(data, 13) == 3 * 24 * one  # the rest after the last full batch is dropped
    assert recipe.operations(data, 4) == 3 * 8 * one

"""A Chromium without a screen, and reports for it to open."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmia.attacks.attack import ATTACKS
from plmia.data.dataset import LabelledData
from plmia.data.designs import MembershipDesign
from plmia.evaluation.targets import Setup
from plmia.reporting import Extras, write_report
from plmia.results.folder import run_attacks
from plmia.results.further import Further, columns_from
from plmia.signals.signals import Signals

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
# Seconds: on a busy machine, a browser shows no frame for a long time, and draws only what it shows.
PATIENCE = 120
HOSTILE = "</script><script>window.hacked = 1</script>"


def missing(what: str) -> None:
    """Skip on a developer's machine; under CI a browser test that does not run is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}: CI must run the browser tests")
    pytest.skip(f"{what}: the report is not tried in a browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        missing("there is no chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, headless=True, args=ARGUMENTS)
        yield chromium
        chromium.close()


@dataclass
class Opened:
    """A report that is open, and what it did: requests, messages of the console, errors and dialogs."""

    page: Any
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def draw_all(self) -> None:
        """Scroll to each figure until it is drawn."""
        for k in range(self.page.locator("figure[data-figure]").count()):
            figure = f"document.querySelectorAll('figure[data-figure]')[{k}]"
            scroll = f"{figure}.scrollIntoView({{ behavior: 'instant', block: 'center' }})"
            self.until(f"({scroll}, {figure}.dataset.drawn)")

    def until(self, expression: str) -> None:
        """Wait until an expression holds; the page's policy lets Playwright's own polling evaluate nothing."""
        deadline = time.monotonic() + PATIENCE
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, (expression, self.messages)
            self.page.wait_for_timeout(20)


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Open a report: ``opened(path, width=1280, scheme="light", **options of the browser context)``."""
    contexts = []

    def show(path: Path, width: int = 1280, scheme: str = "light", **options: Any) -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        context.set_default_timeout(1000 * PATIENCE)
        contexts.append(context)
        result = Opened(context.new_page())
        result.page.on("request", lambda request: result.requests.append(request.url))
        result.page.on("console", lambda message: result.messages.append(message.text))
        result.page.on("pageerror", lambda error: result.messages.append(str(error)))
        result.page.on("dialog", lambda dialog: result.messages.append(dialog.message))
        result.page.goto(path.as_uri())
        return result

    yield show
    for context in contexts:
        context.close()


def simulated(seed: int, models: int, points: int, classes: int) -> Signals:
    """Signals that leak, in complementary pairs of models."""
    rng = np.random.default_rng(seed)
    half = rng.random(((models + 1) // 2, points)) < 0.5
    membership = np.stack([half, ~half], axis=1).reshape(-1, points)[:models]
    values = rng.normal(size=(points, 1)) + rng.normal(size=(models, points, 1)) + 1.5 * membership[:, :, None]
    return Signals(values.astype(np.float32), MembershipDesign(membership), rng.integers(0, classes, points))


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Signals]:
    """Return a folder with the results of all attacks on simulated signals, and the signals."""
    folder = tmp_path_factory.mktemp("results")
    signals = simulated(0, 18, 1500, 4)
    run_attacks(signals, list(ATTACKS.values()), [0], Setup(population=300), folder)
    return folder, signals


@pytest.fixture(scope="session")
def hostile(results: tuple[Path, Signals], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a report whose class names and texts try to run scripts."""
    folder, signals = results
    copy = tmp_path_factory.mktemp("hostile") / "run"
    shutil.copytree(folder, copy)
    names = ["plain", HOSTILE, "<img src=x onerror='window.hacked = 1'>", "a & b <b>bold</b>"]
    texts = [f"text {i} {HOSTILE} &amp; <b>{i}</b>" for i in range(signals.n_points)]
    return write_report(copy, Extras(texts=texts, class_names=names, signals=signals), show_records=True)


@pytest.fixture(scope="session")
def pictures(results: tuple[Path, Signals], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a report on images, without signals."""
    folder, signals = results
    copy = tmp_path_factory.mktemp("pictures") / "run"
    shutil.copytree(folder, copy)
    X = np.random.default_rng(1).integers(0, 256, (signals.n_points, 8, 8, 3), dtype=np.uint8)
    assert signals.labels is not None
    data = LabelledData(X, signals.labels.astype(np.int64), name="noise")
    return write_report(copy, Extras(data=data), show_records=True)


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a report on people, in subgroups whose names try to run scripts, over several trainings."""
    folder, rng = tmp_path_factory.mktemp("people"), np.random.default_rng(2)
    groups = rng.permutation(np.repeat(np.arange(800), 2))
    half = (rng.random((4, 800)) < 0.5)[:, groups]
    membership = np.stack([half, ~half], axis=1).reshape(-1, len(groups))
    values = rng.normal(size=(8, len(groups), 1)) + 1.5 * membership[:, :, None]
    signals = Signals(values.astype(np.float32), MembershipDesign(membership), groups=groups)
    ward = np.array(["east", HOSTILE])[(groups % 3 == 0).astype(int)]
    further = Further(columns_from({f"ward {HOSTILE}": ward}, len(groups)), trainings=4)
    run_attacks(signals, [ATTACKS["rmia"]], [0], Setup(population=150), folder, further=further, show_records=True)
    return write_report(folder, Extras(signals=signals), show_records=True)

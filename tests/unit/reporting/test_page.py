"""What the report says: its numbers are those of the results, its page is safe, whole and always the same."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmia.attacks.attack import ATTACKS
from plmia.data.dataset import LabelledData
from plmia.errors import DataError, OutputError, SignalsError, percent, round_percent
from plmia.evaluation.metrics import clopper_pearson
from plmia.evaluation.targets import Setup
from plmia.reporting import Extras, figures, plots, read_extras, write_report
from plmia.reporting.content import Content, read_content
from plmia.reporting.drawing import Absent, Figure, linear_axis, rounded
from plmia.reporting.page import asset, in_script, policy, unbroken
from plmia.reporting.page_text import (
    audited,
    check_notes,
    named_cell,
    next_step,
    style_class,
    tiles,
    tpr_cell,
    verdict_text,
    warnings,
)
from plmia.reporting.plots import (
    EDGE,
    Rate,
    accuracies_figure,
    chosen_places,
    classes_figure,
    false_positives_figure,
    losses_figure,
    p_values_figure,
    record_figures,
    references_figure,
    roc_figure,
    scores_figure,
    thinned,
    tpr_figure,
    trends_figure,
)
from plmia.results.folder import run_attacks
from plmia.results.result import About, RunResult, SignalsAbout
from plmia.results.saved import seal
from plmia.results.wording import Grade, Status
from plmia.signals.signals import Signals
from plmia.training.records import TrainingRecord

NAMES = ("attack-r", "lira", "pl-mia", "rmia")
# Files of a run that judges records, on few trainings.
OWN_PARTS = ("scores.npz", "records.csv", "metrics.json")


@pytest.fixture(scope="module")
def signals(simulate_signals: Callable[..., Signals]) -> Signals:
    return simulate_signals(0, models=18, points=3000)


@pytest.fixture(scope="module")
def folder(signals: Signals, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results")
    about = About(SignalsAbout(18, 3000, 1, "ab" * 32), "online", (0, 3), 7, plmia="1.2.3")
    run_attacks(signals, [ATTACKS[name] for name in NAMES], [0, 3], Setup(population=150), path, about)
    return path


@pytest.fixture(scope="module")
def content(folder: Path, signals: Signals) -> Content:
    return read_content(folder, Extras(signals=signals), "pl-mia", 3)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """Return the results in a folder of the test's own."""
    shutil.copytree(folder, tmp_path / "run")
    return tmp_path / "run"


def edited(folder: Path, change: Callable[[dict[str, Any]], None]) -> Content:
    """Results as a run that found something else would have written them."""
    path = folder / "metrics.json"
    metrics = json.loads(path.read_text(encoding="utf-8"))
    change(metrics)
    parts = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("scores.npz", "records.csv")}
    path.write_text(json.dumps(seal(RunResult.from_json(metrics), parts).to_json()), encoding="utf-8")
    return read_content(folder)


def rewritten(folder: Path, rename: Callable[[str], str | None]) -> None:
    """Give the arrays of scores.npz other names, or leave them out."""
    with np.load(folder / "scores.npz") as archive:
        arrays = {new: archive[name] for name in archive.files if (new := rename(name)) is not None}
    np.savez(folder / "scores.npz", **arrays)


def drawn(figure: Figure | Absent) -> Figure:
    assert isinstance(figure, Figure), figure
    return figure


def traces(figure: Figure | Absent) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in drawn(figure).data}


def test_the_verdict_chooses_attack_and_the_first_target(folder: Path) -> None:
    content = read_content(folder)
    assert (content.attack, content.target) == (content.verdict.attack, 0)


@pytest.mark.parametrize(("attack", "target", "word"), [("nothing", None, "'nothing'"), (None, 5, "target 5")])
def test_what_was_not_run_is_refused(folder: Path, attack: str | None, target: int | None, word: str) -> None:
    with pytest.raises(OutputError, match=word):
        read_content(folder, attack=attack, target=target)


def test_foreign_data_and_signals_are_refused(copied: Path, simulate_signals: Callable[..., Signals]) -> None:
    few = LabelledData(np.zeros((10, 2)), np.arange(10) % 2)
    with pytest.raises(DataError, match=r"10 .* 3000"):
        read_content(copied, Extras(few))
    with pytest.raises(DataError, match="2 texts"):
        read_content(copied, Extras(texts=["a", "b"]))
    with pytest.raises(SignalsError, match=r"18 models and 50 .* 18 models and 3000"):
        read_content(copied, Extras(signals=simulate_signals(0, models=18, points=50)))
    with pytest.raises(SignalsError, match=r"16 models and 3000 .* 18 models"):
        read_content(copied, Extras(signals=simulate_signals(0, models=16, points=3000)))
    with pytest.raises(SignalsError, match="target 0"):
        read_content(copied, Extras(signals=simulate_signals(1, models=18, points=3000)))
    edited(copied, lambda metrics: metrics["about"].update(audit={"data": "0" * 64}))
    other = LabelledData(np.zeros((3000, 2)), np.arange(3000) % 2)
    with pytest.raises(DataError, match="000000000000"):
        read_content(copied, Extras(other))


def test_the_roc_is_thinned_but_exact(content: Content) -> None:
    roc = content.saved.roc("pl-mia", 3)
    x, y = thinned(roc, 40)
    assert len(x) <= 40
    for rate, found in zip(x, y, strict=True):
        assert found == roc.tpr_at(rate).tpr
    assert (x[0], x[-1], y[-1]) == (1 / roc.n_non_members, 1, 1)


def test_the_roc_shows_all_attacks_and_one_band(content: Content) -> None:
    figure = drawn(roc_figure(content))
    names = traces(figure)
    assert {"chance", *NAMES} <= set(names)
    assert [trace["name"] for trace in figure.data if trace.get("fill") and trace.get("visible") is not False] == [
        "pl-mia, 95 % band"
    ]
    assert [trace["name"] for trace in figure.data[-2:]] == ["pl-mia", "the verdict and its interval"]
    assert all(y is None or y > 0 for trace in figure.data for y in trace["y"])
    assert percent(content.entry().tpr[0.01].tpr) in figure.alt


def test_rates_are_those_of_the_json(content: Content) -> None:
    figure = tpr_figure(content)
    trace = traces(figure)["at 1 % FPR"]
    for name, at, x, low in zip(NAMES, trace["y"], trace["x"], trace["error_x"]["arrayminus"], strict=True):
        entry = content.result.attacks[name].tpr[0.01]
        assert entry.interval is not None
        assert round(len(NAMES) - 1 - at) == NAMES.index(name)
        edge = EDGE * 10 ** figure.layout["xaxis"]["range"][0]  # where 0 is drawn
        assert x == pytest.approx(max(entry.mean, edge), rel=1e-4)
        assert x - low == pytest.approx(max(entry.interval.low, edge), rel=2e-3)
    assert "at 0.01 % FPR" not in traces(figure), "not resolved by so few"


def test_rates_of_0_have_a_place_of_their_own_below_chance(content: Content, monkeypatch: pytest.MonkeyPatch) -> None:
    for low in (0.0, 0.02):
        monkeypatch.setattr(plots, "rate_at", lambda _, fpr, low=low: Rate(0.2, low, 0.5) if fpr == 0.01 else None)
        figure = tpr_figure(content)
        trace, axis = traces(figure)["at 1 % FPR"], figure.layout["xaxis"]
        ends = np.subtract(trace["x"], trace["error_x"]["arrayminus"])
        assert ("0" in axis["ticktext"]) == (low == 0)
        assert ends == pytest.approx(low or axis["tickvals"][0], rel=1e-3)
        assert ends[0] < 0.5 * 0.01 or low > 0
        assert 10 ** axis["range"][0] < ends[0]


def test_histograms_of_scores_hold_everyone(content: Content) -> None:
    found = traces(scores_figure(content))
    assert sum(found["members"]["y"]) == pytest.approx(1, abs=1e-3)
    assert sum(found["non-members"]["y"]) == pytest.approx(1, abs=1e-3)


def test_classes_are_counted_like_a_loop_would(content: Content) -> None:
    figure = drawn(classes_figure(content))
    labels = content.saved.labels
    assert labels is not None
    for kind, inside in (("members", True), ("non-members", False)):
        expected = {}
        for c in range(3):
            flagged = [
                content.scores.log10_p_conformal[q] <= np.log10(content.level)
                for q, member in zip(content.queries, content.members, strict=True)
                if labels[q] == c and member == inside
            ]
            low, high = clopper_pearson(sum(flagged), len(flagged))
            expected[f"class {c}"] = (
                f"{sum(flagged):,} of {len(flagged):,} {kind} flagged ({percent(low)} to {percent(high)})"
            )
        texts = dict(text.split(": ", 1) for text in traces(figure)[kind]["text"])
        assert texts == expected


@pytest.mark.parametrize(("population", "level"), [(62, 0.05), (12, 0.1), (5, None)])
def test_classes_are_compared_at_a_rate_that_the_population_resolves(
    population: int, level: float | None, simulate_signals: Callable[..., Signals], tmp_path: Path
) -> None:
    signals = simulate_signals(0, models=18, points=600, shift=4.0)
    about = About(SignalsAbout(18, 600, 1, "ab" * 32), "online", (0,), 7, plmia="1.2.3")
    run_attacks(signals, [ATTACKS["lira"]], [0], Setup(population=population), tmp_path, about)
    figure = classes_figure(read_content(tmp_path))
    if level is None:
        assert isinstance(figure, Absent)
    else:
        assert f"false-positive rate of {round_percent(level)} (dotted)" in drawn(figure).caption
        assert f"population ({population})" in drawn(figure).caption
        assert max(traces(figure)["members"]["x"]) > 0.2


def test_checks_show_what_the_json_holds(content: Content) -> None:
    found = content.entry().diagnostics.pairwise_p
    assert found is not None
    members = traces(p_values_figure(content))["members"]
    assert members["y"] == pytest.approx(20 * np.array(found.members) / sum(found.members), rel=1e-4)
    analytic = traces(false_positives_figure(content))["analytic (the paper's)"]
    decisions = content.entry().decisions["analytic"].values()
    assert analytic["y"] == pytest.approx([d.fpr_realised for d in decisions], rel=1e-4)
    assert "analytic" in drawn(false_positives_figure(content)).alt


def test_power_is_shown_with_its_extrapolation(content: Content) -> None:
    found = content.result.diagnostics.references
    assert found is not None
    data = drawn(references_figure(content)).data
    assert data[1]["y"] == pytest.approx(found.curves[0].mean, rel=1e-4)
    dashed = [trace for trace in data if trace.get("line", {}).get("dash") == "dash"]
    assert dashed[0]["x"][-1] == 8 * found.n_references
    assert dashed[0]["y"][1] == pytest.approx(found.curves[0].times(2), rel=1e-4)


def test_training_is_shown_where_there_was_some(content: Content, copied: Path) -> None:
    assert isinstance(losses_figure(content), Absent)
    assert isinstance(accuracies_figure(content), Absent)
    rng = np.random.default_rng(0)
    training = {
        model: TrainingRecord(
            losses=tuple(np.exp(-np.arange(30) / 5 + rng.normal()).tolist()), train_accuracy=0.9, test_accuracy=0.8
        )
        for model in range(6)
    } | {6: TrainingRecord()}
    trained = Content(content.saved, "pl-mia", 3, content.extras, training)
    for strange in ((0.0, 0.0), (-1.0, -2.0), (1.7e308, 1.0), (5e-324, 1.0), (None, 1.0)):
        alike = dict.fromkeys(training, TrainingRecord(losses=strange))
        figure = losses_figure(Content(content.saved, content.attack, content.target, training=alike))
        assert isinstance(figure, Absent) == (max(value or 0.0 for value in strange) <= 0)
    found = traces(losses_figure(trained))
    assert found["target 3"]["y"][0] == pytest.approx(training[3].losses[0], rel=1e-4)
    assert traces(accuracies_figure(trained))["target, on training records"]["x"] == [0.9]


@pytest.mark.parametrize(
    ("losses", "reach"),
    [
        ([0.0, 0.0, 0.0], None),
        ([None, None, None], None),
        ([1.0, 0.5, 0.0], (0.5, 1.0)),
        ([2.0, None, 0.25], (0.25, 2.0)),
        ([0.5, 0.5, 0.5], (0.5, 0.5)),
        ([1.0, 1e-30, 1e-250], (1e-250, 1.0)),
    ],
)
def test_losses_of_0_and_losses_that_are_not_finite_leave_gaps(
    content: Content, losses: list[float | None], reach: tuple[float, float] | None
) -> None:
    training = dict.fromkeys(range(6), TrainingRecord(losses=tuple(losses)))
    figure = losses_figure(Content(content.saved, "pl-mia", 3, content.extras, training))
    if reach is None:
        assert isinstance(figure, Absent)
        return
    figure = drawn(figure)
    low, high = (10**end for end in figure.layout["yaxis"]["range"])
    assert low < reach[0] <= reach[1] < high
    assert 1 <= sum(low <= tick <= high for tick in figure.layout["yaxis"]["tickvals"]) <= 12
    assert traces(figure)["target 3"]["y"] == losses
    json.dumps(figure.to_json(), allow_nan=False)
    assert figure.svg.startswith("<svg")


def test_accuracies_that_are_not_numbers_are_left_out(content: Content) -> None:
    records: dict[int, dict[str, Any]] = {k: {"train_accuracy": 0.9, "test_accuracy": 0.8} for k in range(4)}
    records |= {4: {"train_accuracy": 1.0, "test_accuracy": float("nan")}, 5: {"train_accuracy": None}}
    training = {model: TrainingRecord.from_json(record) for model, record in records.items()}
    figure = drawn(accuracies_figure(Content(content.saved, "pl-mia", 3, content.extras, training)))
    assert len(traces(figure)["references, on training records"]["x"]) == 3
    json.dumps(figure.to_json(), allow_nan=False)


def test_signals_of_records_are_those_of_the_references(content: Content, signals: Signals) -> None:
    figures = record_figures(content)
    assert len(figures) == 6
    point = int(content.table.index[0])
    inside = signals.design.matrix[:, point].copy()
    # Models 2 and 3 are complements of each other, so target 3 has neither of them as a reference.
    inside[[2, 3]] = False
    assert f"IN ({inside.sum()})" in traces(figures[0])
    assert f"Record {point}, class" in figures[0].title
    assert drawn(figures[0]).layout["shapes"][0]["x0"] == pytest.approx(float(signals.values[3, point, 0]))
    absent = record_figures(Content(content.saved, "pl-mia", 3))
    assert isinstance(absent[0], Absent)
    assert "--signals" in absent[0].reason


@pytest.mark.parametrize(("n", "places"), [(1, [0]), (2, [0, 1]), (100, [0, 1, 2, 24, 49, 74])])
def test_records_are_chosen_once_each(n: int, places: list[int]) -> None:
    assert chosen_places(n) == places


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("knots", [1, 4])
def test_trends_of_empirical_bayes_are_drawn(content: Content, copied: Path, knots: int, pooled: bool) -> None:
    fit = {
        "knots": {"at": list(range(knots)), "low": -2.0, "high": 5.0},
        "spread": {"level": [[[4.0]] * knots, [[9.0]] * knots], "covariance": [[0.2, 0.0], [0.0, 0.2]]},
        "shift": {"lines": [[[1.0, 2.0][: min(knots, 2)]]] * knots, "spread": [[0.25]] * knots},
        "n_points": 1200,
        "coordinates": {"bend": None if knots == 1 else 3.0, "rotation": [[1.0]] if knots == 1 else [[0.7], [0.7]]},
        "pooled": pooled,
    }
    figure = trends_figure(content)
    assert isinstance(figure, Absent)
    assert "pl-mia-eb" in figure.reason

    def add(metrics: dict[str, Any]) -> None:
        metrics["attacks"]["pl-mia-eb"] = metrics["attacks"].pop("lira")
        metrics["verdict"]["attack"] = "pl-mia"
        for entry in metrics["attacks"]["pl-mia-eb"]["per_target"]:
            entry["diagnostics"]["fit"] = fit

    rewritten(copied, lambda name: name.replace("lira/", "pl-mia-eb/"))
    figure = drawn(trends_figure(edited(copied, add)))
    title = figure.layout["xaxis"]["title"]["text"]
    bent = "Centre of the first coordinate of the signals, bent by asinh(conf / 3)"
    if pooled:
        assert title == "Centre of the signal of the views' mean probability" + bent[bent.index(",") :] * (knots > 1)
        assert "the views' mean probability" in figure.caption
    else:
        assert title == ("Centre of the signal" if knots == 1 else bent)
        assert ("times sqrt(views)" in figure.caption) == (knots > 1)
    found = traces(figure)
    assert found["deviation, IN"]["y"] == [2.0] * max(2, knots)
    assert found["deviation, OUT"]["y"] == [3.0] * max(2, knots)
    shift = found["shift, IN minus OUT"]
    assert shift["y"] == (pytest.approx([0, 2 / 3, 4 / 3, 2], abs=1e-4) if knots > 1 else [1.0, 1.0])
    assert shift["xaxis"] == "x2"


@pytest.mark.parametrize("points", [16, 40, 120])
def test_of_the_smallest_audits_every_figure_has_axes(points: int, simulate_signals: Any, tmp_path: Path) -> None:
    signals = simulate_signals(points, models=6, points=points)
    run_attacks(signals, list(ATTACKS.values()), [0], Setup(), tmp_path, may_skip=True)
    write_report(tmp_path, Extras(signals=signals))
    for figure in figures(tmp_path, Extras(signals=signals)).values():
        for axis in (part for key, part in figure.layout.items() if re.match(r"[xy]axis", key)):
            assert axis["range"][1] > axis["range"][0], (figure.name, axis)
            assert len(axis["tickvals"]) > 1, (figure.name, axis)


def test_one_evaluated_non_member_is_reported(simulate_signals: Any, tmp_path: Path) -> None:
    signals = simulate_signals(1, models=10, points=60)
    left = int((~signals.design.matrix[0]).sum()) - 1
    run_attacks(signals, list(ATTACKS.values()), [0], Setup(population=left), tmp_path, may_skip=True)
    page = write_report(tmp_path, Extras(signals=signals)).read_text(encoding="utf-8")
    found = figures(tmp_path, Extras(signals=signals))
    assert "roc" not in found, "one non-member has no curve"
    assert {"tpr", "scores", "fpr", "record-1"} <= found.keys()
    absent = roc_figure(read_content(tmp_path))
    assert isinstance(absent, Absent)
    assert absent.reason in page


def test_answers_that_differ_by_rounding_are_drawn_apart(content: Content, signals: Signals) -> None:
    # A Gaussian process far from what it trained on: all answers are alike up to the last digits.
    rng = np.random.default_rng(0)
    close = -np.log(2) + 1e-8 * rng.integers(0, 4, signals.values.shape)
    unsure = Content(content.saved, "pl-mia", 3, Extras(signals=Signals(close, signals.design, signals.labels)))
    for figure in map(drawn, record_figures(unsure)):
        low, high = figure.layout["xaxis"]["range"]
        assert 3e-8 < high - low < 4e-8
        assert low < figure.layout["shapes"][0]["x0"] < high
        assert len(set(figure.layout["xaxis"]["ticktext"])) > 2
        assert sum(y > 0 for y in figure.data[0]["y"]) > 1, "several bars"
        assert np.diff(figure.data[0]["x"]) == pytest.approx(figure.data[0]["width"], rel=1e-2)


def test_the_first_screen_says_what_the_json_says(content: Content) -> None:
    verdict = content.verdict
    shown = {tile.head.split()[0]: tile.value for tile in tiles(content)}
    assert verdict.fpr is not None
    assert shown["Members"] == percent(verdict.tpr)
    if verdict.unnamed is None:
        assert shown["Records"].replace(",", "") in (f"{verdict.exposed:.0f}", f"{verdict.exposed:.1f}")
    else:
        assert shown["Records"] == "none possible"
    assert shown["Area"] == percent(content.result.attacks[verdict.auc_attack].auc.mean)
    assert "for all attacks at once" in tiles(content)[0].note
    facts = dict(audited(content))
    assert facts["Signals, SHA-256"] == "ab" * 32
    assert facts["Seed"] == "7"
    assert facts["Versions"] == "plmia 1.2.3"
    assert "3,000 records of 3 classes" in facts["Data"]
    said = warnings(content)
    kinds = [kind for kind, _ in said]
    assert kinds == sorted(kinds, reverse=True), "warnings first"
    assert [kind for kind, note in said if note.code == "population-size"] == ["note"]
    assert not any(note.code == "combined-p-value" for _, note in said), "nothing needs to be done: see the checks"
    assert len(check_notes(content)) == 1
    assert len({note.text for _, note in said}) == len(said)


def test_the_table_of_attacks_has_the_numbers_of_the_results(copied: Path) -> None:
    page = unescape(write_report(copied).read_text(encoding="utf-8"))
    section = page.partition('<section id="leak"')[2].partition("</section>")[0]
    rows = dict(re.findall(r'<tr[^>]*><th scope="row">(.*?)</th>(.*?)</tr>', section, re.DOTALL))
    assert tuple(rows) == NAMES
    for name, attack in read_content(copied).result.attacks.items():
        cells = [cell.partition("<small>")[0] for cell in re.findall(r"<td.*?>(.*?)</td>", rows[name])]
        assert cells[:2] == [unbroken(percent(attack.auc.mean)), unbroken(tpr_cell(attack, 0.01)[0])]
        assert cells[5:7] == [named_cell(attack, 0.05), f"{attack.epsilon.low:.2f}"]


def test_copies_in_the_data_are_told(folder: Path) -> None:
    X = np.arange(6000.0).reshape(3000, 2)
    X[5] = X[6]
    data = LabelledData(X, np.arange(3000) % 2)
    (note,) = (note for _, note in warnings(read_content(folder, Extras(data))) if note.code == "split-copies")
    assert note.text.startswith("2 records")


@pytest.mark.parametrize(
    ("found", "grade", "style"),
    [
        ("leak", "severe", "leak severe"),
        ("leak", "moderate", "leak moderate"),
        ("leak", "barely measurable", "leak barely"),
        ("no_leak_shown", None, "none"),
        ("inconclusive", None, "doubtful"),
        ("invalid", None, "invalid"),
    ],
)
def test_only_a_clean_audit_is_green(content: Content, found: Status, grade: Grade | None, style: str) -> None:
    assert style_class(replace(content.verdict, status=found, grade=grade)) == style
    rules = [line for line in asset("style.css").splitlines() if line.startswith("main>section.verdict.")]
    green = {rule.partition("{")[0].removeprefix("main>section.verdict.") for rule in rules if "green" in rule}
    assert (style in green) == (found == "no_leak_shown")


def test_the_page_is_the_same_every_time_and_figures_lie_beside_it(copied: Path, signals: Signals) -> None:
    (copied / "figures").mkdir()
    (copied / "figures" / "old.svg").write_text("of an earlier report", encoding="utf-8")
    (copied / "figures" / "notes.txt").write_text("of the user", encoding="utf-8")

    def everything() -> dict[str, bytes]:
        paths = [copied / "report.html", *sorted((copied / "figures").iterdir())]
        return {path.name: path.read_bytes() for path in paths}

    assert write_report(copied, Extras(signals=signals)) == copied / "report.html"
    first = everything()
    write_report(copied, Extras(signals=signals))
    assert everything() == first
    assert "old.svg" not in first
    assert {"notes.txt", "roc.svg", "roc.json", "record-1.svg"} <= first.keys()
    spec = json.loads(first["roc.json"])
    assert spec["data"][-1]["marker"]["color"].startswith("#")
    assert len(first["report.html"]) < 6_000_000
    assert {path.name for path in copied.iterdir()} == {*OWN_PARTS, "figures", "report.html"}


def test_the_page_holds_only_its_own_scripts(copied: Path) -> None:
    text = write_report(copied).read_text(encoding="utf-8")
    wanted = [asset("plotly-basic.min.js"), asset("report.js")]
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert scripts == wanted
    allowed = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in wanted]
    assert unescape(policy(wanted)).split("script-src ")[1].split(";")[0].split() == allowed
    assert "</script" not in in_script({"a": "</script><!--", "b": "\u2028&"})
    assert json.loads(in_script({"a": "</script>", "b": "\u2028&"})) == {"a": "</script>", "b": "\u2028&"}


def test_contents_of_records_are_shown_on_request_only(copied: Path) -> None:
    texts = [f"secret {i}" for i in range(3000)]
    groups = np.repeat(np.arange(1500), 2) + 70_000
    data = LabelledData(np.full((3000, 2), 0.12345) * np.arange(3000)[:, None], np.arange(3000) % 2, groups)
    images = LabelledData(np.arange(12_000.0).reshape(3000, 2, 2), np.arange(3000) % 2)
    for extras, shown in (
        (Extras(texts=texts), '"text":"secret'),
        (Extras(data), '"text":"feature'),
        (Extras(data), '"group":[7'),
        (Extras(images), "data:image/png;base64"),
    ):
        assert shown in write_report(copied, extras, show_records=True).read_text(encoding="utf-8")
        page = write_report(copied, extras).read_text(encoding="utf-8")
        assert shown not in page
        assert '"group":null' in page
        assert "--show-records" in page


def test_the_page_says_that_it_names_members(copied: Path) -> None:
    banner = "this page names members of the training data"
    assert banner in write_report(copied).read_text(encoding="utf-8")
    assert banner in write_report(copied, show_records=True).read_text(encoding="utf-8")


def test_a_report_without_labels_or_diagnostics_says_what_is_missing(copied: Path) -> None:
    def strip(metrics: dict[str, Any]) -> None:
        metrics.pop("diagnostics")
        for attack in metrics["attacks"].values():
            for entry in attack["per_target"]:
                entry["diagnostics"].pop("pairwise_p")

    rewritten(copied, lambda name: None if name == "labels" else name)
    edited(copied, strip)
    page = write_report(copied).read_text(encoding="utf-8")
    for words in ("no labels", "no pairwise p-values", "`plmia plan`", "--signals FILE", "no training records"):
        assert words in page, words
    assert not (copied / "figures" / "classes.svg").exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(copied: Path) -> None:
    (copied / "figures").write_text("in the way", encoding="utf-8")
    with pytest.raises(OutputError, match="cannot write the report"):
        write_report(copied)


def test_numbers_in_words() -> None:
    assert rounded([1.234567, float("nan"), float("inf")]) == [1.2346, None, None]


def test_no_line_breaks_before_a_percent_sign(copied: Path) -> None:
    assert unbroken("1.2 % of %{x} at 5 %") == "1.2\u00a0% of %{x} at 5\u00a0%"
    body, _, scripts = write_report(copied).read_text(encoding="utf-8").partition('id="drawn">')
    figures = scripts.partition("</script>")[0]
    for text in (body.partition("</style>")[2], figures):
        assert re.search(r"\d\u00a0%|\d&nbsp;%", text)
    assert not re.search(r"\d %", figures)
    assert not re.search(r"\d %", re.sub(r"<svg.*?</svg>", "", body.partition("</style>")[2], flags=re.DOTALL))


def test_an_axis_of_one_value_reaches_half_a_unit_to_both_sides() -> None:
    axis = linear_axis("x", 3.0, 3.0 + 1e-14)
    assert axis.to_json()["range"] == [2.5, 3.5]
    assert "3.0" in axis.labels


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"class_names": ["a", "b"]}, r"class_names .* 2 .* 3 classes"),
        ({"feature_names": ["a"]}, r"feature_names .* 1 .* 2 features"),
        ({"texts": ["a"]}, r"texts .* 1 .* 9 records"),
    ],
)
def test_names_of_the_wrong_length_are_refused(tmp_path: Path, names: dict[str, list[str]], words: str) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, X=np.arange(18.0).reshape(9, 2), y=np.arange(9) % 3, **{k: np.array(v) for k, v in names.items()})
    with pytest.raises(DataError, match=words):
        read_extras(path)


def test_class_names_must_reach_all_labels_of_the_results(folder: Path) -> None:
    with pytest.raises(DataError, match=r"class_names has 2 .* labels up to 2"):
        read_content(folder, Extras(class_names=["a", "b"]))


def test_texts_are_checked_by_the_data_beside_them(copied: Path, tmp_path: Path) -> None:
    X, y = np.arange(6000.0).reshape(3000, 2), np.arange(3000) % 3
    texts, path = np.array([f"text {i}" for i in range(3000)]), tmp_path / "data.npz"
    digest = LabelledData(X, y).digest
    edited(copied, lambda metrics: metrics["about"].update(audit={"data": digest}))
    np.savez(path, X=X, y=y, texts=texts)
    said = "The texts were not checked against the audited data"
    assert said not in write_report(copied, read_extras(path), show_records=True).read_text(encoding="utf-8")
    np.savez(path, texts=texts)
    assert said in write_report(copied, read_extras(path), show_records=True).read_text(encoding="utf-8")
    assert said not in write_report(copied, read_extras(path), show_records=False).read_text(encoding="utf-8")
    np.savez(path, X=X + 1, y=y, texts=texts)
    with pytest.raises(DataError, match="digest"):
        write_report(copied, read_extras(path))


def test_the_accuracy_on_the_first_screen_is_the_targets_own(copied: Path) -> None:
    accuracy = {
        "measure": "accuracy",
        "target": {"members": 1.0, "non_members": 0.4},
        "references": {"members": 0.8, "non_members": 0.6},
    }
    facts = dict(audited(edited(copied, lambda metrics: metrics["about"].update(accuracy=accuracy))))
    assert facts["Target's accuracy"] == "100.0 % on members, 40.0 % on non-members"
    assert facts["References' accuracy"] == "80.0 % on members, 60.0 % on non-members"


def test_a_title_of_your_own_replaces_the_first_line(copied: Path) -> None:
    page = write_report(copied, Extras(title="Ward 7 <b>")).read_text(encoding="utf-8")
    assert "<h1>Ward 7 &lt;b&gt;</h1>" in page
    assert "<title>Ward 7 &lt;b&gt;: " in page


def test_class_names_of_the_results_are_used_without_data(copied: Path) -> None:
    edited(copied, lambda metrics: metrics["about"].update(class_names=["well", "ill", "so-so"]))
    content = read_content(copied, Extras())
    assert [content.class_name(c) for c in range(3)] == ["well", "ill", "so-so"]
    assert read_content(copied, Extras(class_names=["a", "b", "c"])).class_name(1) == "b"


def test_groups_are_shown_by_their_names(copied: Path) -> None:
    names = [f"patient {k}" for k in range(1500)]
    data = LabelledData(np.zeros((3000, 2)), np.arange(3000) % 2, np.repeat(names, 2))
    assert '"group":["patient' in write_report(copied, Extras(data), show_records=True).read_text(encoding="utf-8")
    assert "patient" not in write_report(copied, Extras(data)).read_text(encoding="utf-8")


def test_a_target_that_was_given_is_called_so(copied: Path) -> None:
    assert "did not train" not in dict(audited(read_content(copied)))["Target"]
    content = edited(copied, lambda metrics: metrics["about"].update(audit={"target": "ab" * 32}))
    assert dict(audited(content))["Target"].startswith("an existing model that this audit did not train; ")


@pytest.mark.parametrize(("others", "advised"), [(0.6, True), (0.795, False), (0.85, False)])
def test_less_fit_is_advised_only_where_there_is_more_fit(content: Content, others: float, advised: bool) -> None:
    training = {3: TrainingRecord(train_accuracy=0.8, test_accuracy=others)}
    assert content.verdict.leak_shown
    said = next_step(Content(content.saved, "pl-mia", 3, content.extras, training))
    assert ("overfitting" in said) == advised
    assert "plmia compare" in said
    assert "overfitting" in next_step(content), "nothing is known of these models"


def test_the_verdict_does_not_repeat_its_heading(content: Content) -> None:
    text = "A leak was shown (severe): members. With 3.3 %."
    verdict = replace(content.verdict, headline="A leak was shown (severe)", text=text)
    assert verdict_text(verdict) == "Members. With 3.3 %."


def test_an_attack_that_finds_less_than_guessing_is_healthy(content: Content) -> None:
    assert "Healthy: no interval lies entirely to the right of its dotted line." in tpr_figure(content).caption


def test_the_roc_marks_the_verdict_and_names_tied_attacks(content: Content) -> None:
    figure = drawn(roc_figure(content))
    trace, verdict = figure.data[-1], content.verdict
    assert trace["x"] == [verdict.fpr]
    assert verdict.interval is not None
    assert trace["y"][0] + trace["error_y"]["array"][0] == pytest.approx(verdict.interval.high, rel=1e-3)
    assert "as for attack-r" in figure.caption, "it counts votes of sixteen references"


def test_error_bars_are_within_the_axes(content: Content) -> None:
    figure = drawn(references_figure(content))
    for trace in figure.data:
        if "error_y" in trace:
            low, high = figure.layout[trace["yaxis"].replace("y", "yaxis")]["range"]
            for y, more, less in zip(
                trace["y"], trace["error_y"]["array"], trace["error_y"]["arrayminus"], strict=True
            ):
                assert low - 1e-4 <= y - less <= y + more <= high + 1e-4


def test_figures_are_objects_that_a_notebook_shows(folder: Path) -> None:
    found = figures(folder, attack="pl-mia", target=3)
    assert {"roc", "tpr", "scores", "classes", "fpr"} <= found.keys()
    assert "record-1" not in found, "the signals are not at hand"
    roc = found["roc"]
    assert roc.spec.keys() == {"data", "layout"}
    assert roc.spec["data"][-1]["marker"]["color"].startswith("#")
    assert roc.svg == roc._repr_svg_()
    assert roc.svg.startswith("<svg")
    assert roc.svg in roc._repr_html_()
    assert roc.title in roc._repr_html_()


UNWRITABLE = ("\ud800", "a\x00b", "esc\x1b[31m", "\udcff.png", "\ufffe")


def test_texts_that_cannot_be_written_are_replaced_and_told(tmp_path: Path) -> None:
    # No character at all, which NumPy reads without a word.
    beyond = np.array([0x110000, ord("x")], np.uint32).view("<U2")
    names = np.concatenate([np.array([*UNWRITABLE, "tab\tand\nline ä 😀"]), beyond])
    np.savez(tmp_path / "data.npz", texts=names, class_names=np.array(["well", "ill"]))
    extras = read_extras(tmp_path / "data.npz")
    shown = ["\ufffd", "a\ufffdb", "esc\ufffd[31m", "\ufffd.png", "\ufffd", "tab\tand\nline ä 😀", "\ufffdx"]
    assert extras.texts == tuple(shown)
    assert extras.class_names == ("well", "ill")
    (note,) = extras.notes
    assert (note.code, note.severity) == ("texts-replaced", "info")
    assert "6 of 7 texts" in note.text


def test_a_report_is_written_whatever_texts_are_given_in_python(copied: Path) -> None:
    names = ["\ud800", "a\x00\x1b\nb", "=c</script>"]
    page = write_report(copied, Extras(texts=["\udfff"] * 3000, class_names=names)).read_text(encoding="utf-8")
    assert "\ufffd" in page
    root = ElementTree.parse(copied / "figures" / "classes.svg").getroot()
    texts = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"\ufffd", "a\ufffd\ufffd b", "=c</script>"} <= texts
    csv = (copied / "figures" / "attacks.csv").read_text(encoding="utf-8")
    assert csv.splitlines()[1].startswith("attack-r,")

"""The experiments' own machinery: the paper's numbers, rows side by side, targets and references, verdicts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from plmia.attacks.calibration import BinaryVote
from plmia.attacks.theory import Hypothesis, blr_law, gaussian_tpr, glr_law
from plmia.errors import ReferencesError, SignalsError, StoreError
from plmia.signals.store import SignalStore

Write = Callable[..., Path]
ITEMS = 18


def part(name: str) -> ModuleType:
    return import_module(f"experiments.{name}")


outcome, setting, measure = part("outcome"), part("setting"), part("measure")


# The paper's numbers -------------------------------------------------------------------------------------------------


def test_every_script_is_listed() -> None:
    text = (setting.HERE / "README.md").read_text(encoding="utf-8")
    scripts = [path for path in setting.HERE.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")]
    assert len(scripts) > 10
    assert [path.name for path in scripts if f"`{path.name}`" not in text] == []


def test_every_item_of_the_paper_has_a_script_and_a_claim() -> None:
    paper = outcome.paper_numbers()
    assert len(paper) == ITEMS
    for item, entry in paper.items():
        assert callable(part(item.replace("-", "_")).run)
        assert entry["claims"]
        for row in entry["rows"]:
            assert len(row["keys"]) == len(entry["keys"])
            assert set(row["cells"]) <= set(entry["metrics"])
        assert len({tuple(row["keys"]) for row in entry["rows"]}) == len(entry["rows"])


def test_the_numbers_stand_in_the_paper(repository: Path) -> None:
    path = repository.parent / "shared" / "paper.tex"
    if not path.is_file():
        pytest.skip("the paper's source is not beside the repository")
    tex = path.read_text(encoding="utf-8")
    for entry in outcome.paper_numbers().values():
        assert f"\\label{{{entry['label']}}}" in tex
        cells = [cell for row in entry["rows"] for cell in row["cells"].values() if not isinstance(cell, str)]
        for number in np.ravel([c for cell in cells for c in (cell if isinstance(cell, list) else [cell])]):
            assert f"{number:.2f}" in tex or f"{number:.1f}" in tex


def test_every_figure_and_table_of_the_paper_is_there(repository: Path) -> None:
    path = repository.parent / "shared" / "paper.tex"
    if not path.is_file():
        pytest.skip("the paper's source is not beside the repository")
    tex = path.read_text(encoding="utf-8")
    labels = {entry["label"] for entry in outcome.paper_numbers().values()}
    begun = sum(tex.count(f"\\begin{{{kind}}}") for kind in ("table", "table*", "figure", "figure*"))
    assert begun == ITEMS == len(labels)


# Rows side by side ---------------------------------------------------------------------------------------------------


def test_value_over_targets() -> None:
    value = outcome.Value.over([1.0, 2.0, 6.0])
    assert (value.mean, value.n) == (3.0, 3)
    assert value.std == pytest.approx(np.std([1, 2, 6], ddof=1), abs=1e-4)
    assert value.to_json()["values"] == [1.0, 2.0, 6.0], "paired intervals can be computed from the JSON"
    assert outcome.Value.over([1.0]).std is None
    assert outcome.Value.over([1.0]).to_json() == {"mean": 1.0, "std": None, "n": 1}
    assert outcome.Value.over([1.0, None]) is None
    assert str(outcome.Value(1.234, 0.5)) == "1.23 ± 0.50"


def test_rows_of_ours_and_the_paper_side_by_side(tmp_path: Path) -> None:
    ours = {
        ("Location-30", "mine"): {"AUC": outcome.Value(70.0, 1.0, 3)},
        ("Purchase-100", "rmia"): {"AUC": outcome.Value(80.0), "TPR@0%": None},
        ("Purchase-100", "new"): {"AUC": outcome.Value(81.0)},
    }
    claim = outcome.Claim("best", outcome.HOLDS, "Because.")
    contents = outcome.Outcome("table-s5", (), ours, ("TPR@1%",), (), (claim,)).write(tmp_path, "plmia reproduce")
    rows = {tuple(row["keys"]): row for row in contents["rows"]}
    assert list(rows)[-1] == ("Location-30", "mine")
    assert list(rows).index(("Purchase-100", "new")) == 3, "behind the last row of its group"
    assert rows["Purchase-100", "pl-mia"]["ours"] is None
    assert rows["Purchase-100", "rmia"]["paper"]["AUC"]["mean"] == 83.71
    assert contents == json.loads((tmp_path / "table-s5.json").read_text(encoding="utf-8"))
    lines = (tmp_path / "table-s5.md").read_text(encoding="utf-8").splitlines()
    header = next(line for line in lines if line.startswith("| data"))
    assert "| AUC, ours | AUC, paper |" in header
    assert header.endswith("| TPR@1% |")
    (missing,) = [line for line in lines if line.startswith("| Purchase-100 | pl-mia |")]
    assert missing.count("not run here") == 3
    assert "84.23 ± 0.33" in missing
    (given,) = [line for line in lines if line.startswith("| Purchase-100 | rmia |")]
    assert "| 80.00 | 83.71 ± 0.30 |" in given
    assert "–" in given, "an unresolved rate is not a number"
    assert any(line.startswith("- **holds**: PL-MIA is above LiRA") for line in lines)


def test_a_claim_says_on_which_data_it_was_judged() -> None:
    claim = outcome.Claim("best", outcome.HOLDS, "Because.", "Adult")
    assert claim.to_json({"best": "It is best."})["claim"] == "It is best. [Adult]"
    assert outcome.Claim("New.", outcome.HOLDS, "Because.").to_json({})["claim"] == "New."


# Settings ------------------------------------------------------------------------------------------------------------


def test_targets_and_references_come_from_whole_pairs(signals_file: Write) -> None:
    source = setting.Setting(signals=signals_file(models=16), targets=3).source("any")
    assert source.targets == (0, 2, 4)
    assert source.references == 14
    for result in measure.results(source, measure.attacks_called("pl-mia")):
        pair = result.target - result.target % 2
        assert len(result.references) == 14
        assert not {pair, pair + 1} & set(result.references.tolist())


def test_a_single_target_beside_pairs_leaves_all_of_them(signals_file: Write, simulate: Callable[..., Any]) -> None:
    arrays = simulate(3, models=17)
    order = [16, *range(16)]
    path = signals_file(replace={"signals": arrays["signals"][order], "membership": arrays["membership"][order]})
    assert setting.Setting(signals=path, targets=1).source("any").references == 16
    several = setting.Setting(signals=path, targets=2).source("any")
    assert (several.targets, several.references) == ((0, 1), 14)


def test_models_that_a_design_was_settled_on_are_references_only(signals_file: Write, tmp_path: Path) -> None:
    path = signals_file(models=16)
    beside = path.with_suffix(".json")
    beside.write_text(json.dumps({"data": "any", "first_target": 5}), encoding="utf-8")
    source = setting.Setting(signals=path, targets=3).source("any")
    assert source.targets == (6, 8, 10), "the split of 4 and 5 has a model before the first target"
    assert source.references == 14
    used = next(iter(measure.results(source, measure.attacks_called("pl-mia")))).references
    assert {0, 1, 2, 3, 4, 5} < set(used.tolist())
    other = signals_file(name="other.npz", models=16)
    other.with_suffix(".json").write_text(json.dumps({"first_target": 16}), encoding="utf-8")
    with pytest.raises(SignalsError, match="no model from number 16 on can be a target"):
        setting.Setting(signals=other).source("any")


def test_committed_results_report_no_target_that_a_design_was_settled_on() -> None:
    first = {whole.data: whole.first_target for whole in part("whole").WHOLE.values()}
    seen = set()
    for path in setting.HERE.glob("results/**/*.json"):
        for run in json.loads(path.read_text(encoding="utf-8"))["run"]:
            seen.add(run["data"])
            assert min(run["targets"]) >= run["first_target"], path
            assert run["first_target"] == first[run["data"]] or "cut" in run, path
    # Too few models for the paper's items so far; test_protocols.py has its targets.
    assert seen == set(first) - {"CIFAR-100, JPEG 75"}


def test_whole_signals_are_trained_once_and_say_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, rng, y = part("whole"), np.random.default_rng(0), np.arange(160) % 3
    np.savez(tmp_path / "small.npz", X=rng.normal(y[:, None], 1.0, (160, 4)).astype(np.float32), y=y)
    tree = "sklearn:DecisionTreeClassifier?max_depth=4"
    monkeypatch.setattr(whole, "WHOLE", {"a": whole.Whole("Small", ("small.npz",), tree, 8, 3, (0,))})
    for _ in range(2):
        assert whole.main(tmp_path, tmp_path / "full", []) == 0
    source = setting.Setting(signals=tmp_path / "full", targets=2).source("a")
    assert (source.data, source.signals.n_models, source.targets, source.references) == ("Small", 8, (4, 6), 6)
    with pytest.raises(SystemExit, match="there are no signals called b: there are a"):
        whole.main(tmp_path, tmp_path / "full", ["b"])


def _jpegs(path: Path, files: int = 16) -> list[Any]:
    """Write an npz of small JPEG images with two labels; return what Pillow reads back from each."""
    pillow = pytest.importorskip("PIL.Image")
    rng, joined = np.random.default_rng(0), []
    for i in range(files):
        file = BytesIO()
        pillow.fromarray(rng.integers(0, 100 + 155 * (i % 2), (8, 8, 3), dtype=np.uint8)).save(file, "JPEG")
        joined.append(file.getvalue())
    offsets = np.cumsum([0, *map(len, joined)])
    np.savez(path, buf=np.frombuffer(b"".join(joined), np.uint8), off=offsets, y=np.arange(files, dtype=np.uint8) % 2)
    return [np.asarray(pillow.open(BytesIO(file))) for file in joined]


def test_whole_signals_without_data_are_skipped_and_the_others_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, rng, y = part("whole"), np.random.default_rng(0), np.arange(160) % 3
    np.savez(tmp_path / "small.npz", X=rng.normal(y[:, None], 1.0, (160, 4)).astype(np.float32), y=y)
    tree = "sklearn:DecisionTreeClassifier?max_depth=4"
    both = {"a": whole.Whole("Gone", ("a.npz", "a.tgz"), tree, 4), "b": whole.Whole("B", ("small.npz",), tree, 4)}
    monkeypatch.setattr(whole, "WHOLE", both)
    assert whole.main(tmp_path, tmp_path / "full", []) == 1
    assert f"a is skipped: there is no a.npz or a.tgz in {tmp_path}\n" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "full").iterdir()) == ["b", "b.json"]


def test_references_are_limited_and_even(signals_file: Write) -> None:
    path = signals_file(models=16)
    with pytest.raises(ReferencesError, match=r"7 references .*: use 8"):
        setting.Setting(signals=path, references=7)
    assert setting.Setting(signals=path, references=6).source("any").references == 6
    assert setting.Setting(signals=path, references=98).source("any").references == 14
    assert setting.Setting(signals=path).source("any").budgets((4, 8, 64)) == [4, 8, 14]


def test_a_path_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SignalsError, match=r"nowhere .*docs/reproduction.md.*--data"):
        setting.Setting(signals=tmp_path / "nowhere").source("any")


def test_a_file_and_the_folder_of_an_audit_are_read_alike(signals_file: Write, tmp_path: Path) -> None:
    path = signals_file(models=17)
    signals = setting.read_named(path, "any")[0]
    full = tmp_path / "full"
    full.mkdir()
    (full / "a.npz").write_bytes(path.read_bytes())
    store = SignalStore.create(full / "b" / "signals", {}, signals.design, ["plain"] * signals.n_views)
    store.append(range(17), signals.values.astype(np.float32), [{} for _ in range(17)])
    for name in "ab":
        (full / f"{name}.json").write_text(json.dumps({"data": name, "leave_out": [16]}), encoding="utf-8")
    assert len(setting.Setting(signals=full).sources("a", "b")) == 2
    for name in "ab":
        for asked in (full, full / name, full / f"{name}.npz"):
            source = setting.Setting(signals=asked).source(name)
            assert (source.data, source.signals.n_models) == (name, 16)
            assert "leave_out" not in source.to_json()
            assert np.allclose(source.signals.values, signals.values[:16], atol=0.01)
        assert len(setting.Setting(signals=full / name).sources("a", "b")) == 1


def test_a_store_with_unfinished_models_is_no_source_unless_they_do_not_count(
    signals_file: Write, tmp_path: Path
) -> None:
    signals = setting.read_named(signals_file(models=17), "any")[0]
    store = SignalStore.create(tmp_path / "full" / "a", {}, signals.design, ["plain"])
    store.append(range(1, 17), signals.values[1:].astype(np.float32), [{} for _ in range(16)])
    with pytest.raises(StoreError, match=r"model 0 .* is not finished"):
        setting.Setting(signals=tmp_path / "full").source("a")
    (tmp_path / "full" / "a.json").write_text(json.dumps({"leave_out": [0]}), encoding="utf-8")
    source = setting.Setting(signals=tmp_path / "full").source("a")
    assert source.signals.models == tuple(range(16)), "numbered anew, as in a file that was cut"
    np.testing.assert_array_equal(source.signals.design.matrix, signals.design.matrix[1:])


def test_two_trainings_are_compared_on_targets_with_the_same_members(
    signals_file: Write, simulate: Callable[..., Any]
) -> None:
    some, no_leak = simulate(3, models=20, points=600, shift=0.9), simulate(3, models=20, points=600, shift=0.0)
    fewer = {name: no_leak[name][4:16] for name in ("signals", "membership")}
    every = setting.Setting(signals=signals_file(name="a.npz", replace=some), targets=9).source("any")
    other = setting.Setting(signals=signals_file(name="b.npz", replace=no_leak | fewer), targets=4).source("any")
    table_s1 = part("table_s1")
    a, b = (replace(source, about={"data": "CIFAR-10"}) for source in table_s1._same_targets(other, every))
    assert (a.targets, b.targets) == ((0, 2, 4, 6), (4, 6, 8, 10))
    assert a.references == b.references == 10
    measured = [measure.measure(source, measure.attacks_called("rmia", "pl-mia")) for source in (a, b)]
    claim = table_s1._levels(a, *measured)
    assert "4 targets of the same members" in claim.because
    assert claim.verdict == outcome.FAILS, "what does not leak is farther from the paper"
    assert table_s1._levels(b, *reversed(measured)).verdict == outcome.HOLDS


def _trainings_of_cifar_100(write: Write, simulate: Callable[..., Any]) -> None:
    """Signals of three trainings, as `kept.py` writes them: 8, 20 and 4 models of the same design."""
    order = [20, *range(19)]
    for name, models, epochs, augment, accuracy in (
        ("cifar100_wrn_plain", 8, 100, False, 0.465),
        ("cifar100_wrn", 20, 100, True, 0.658),
        ("cifar100_wrn_long", 4, 200, True, 0.677),
    ):
        arrays = simulate(3, models=21, points=800, shift=1.0 + augment)
        some = {key: arrays[key][order][:models] for key in ("signals", "membership")}
        path = write(name=f"{name}.npz", replace=arrays | some)
        about = {"data": f"CIFAR-100{', training' * (name != 'cifar100_wrn')}", "first_target": 1, "epochs": epochs}
        about |= {"recipe": {"augment": augment}, "train_accuracy": 1.0, "test_accuracy": accuracy}
        path.with_suffix(".json").write_text(json.dumps(about), encoding="utf-8")


def test_the_protocol_on_cifar_100_is_judged_by_its_own_claim(
    signals_file: Write, simulate: Callable[..., Any], tmp_path: Path
) -> None:
    _trainings_of_cifar_100(signals_file, simulate)
    found = part("table_s1").run(setting.Setting(signals=tmp_path / "cifar100_wrn"))
    assert [source.signals.n_models for source in found.sources] == [8, 20, 4]
    assert [(source.targets, source.references) for source in found.sources][::2] == [((1, 3, 5, 7), 4), ((3,), 2)]
    protocol, levels = found.to_json()["claims"]
    assert "67.1 % test accuracy on CIFAR-100" in protocol["claim"]
    assert protocol["verdict"] == outcome.FAILS
    assert "46.5 % on the half" in protocol["because"]
    assert "rmia, 89.54 in the paper with as many references" in levels["because"]
    rows = {tuple(row["keys"]): row for row in found.to_json()["rows"]}
    assert rows[("CIFAR-100",)]["ours"]["test accuracy"]["mean"] == 46.5
    assert rows[("CIFAR-100",)]["paper"]["test accuracy"]["mean"] == 67.1
    assert rows[("CIFAR-100, 200 epochs, augmented",)]["ours"]["AUC, pl-mia"] == "refused"
    assert any("4, 16, 2 references per target" in note for note in found.notes)
    (tmp_path / "cifar100_wrn_plain.npz").unlink()
    (claim,) = part("table_s1").run(setting.Setting(signals=tmp_path / "cifar100_wrn.npz")).claims
    assert (claim.name, claim.verdict) == ("protocol-cifar-100", outcome.UNDECIDED)
    assert "That protocol was not run here" in claim.because


def test_numbers_of_the_paper_on_other_data_do_not_stand_beside_ours(signals_file: Write) -> None:
    path = signals_file(models=12, points=400)
    for data, rows in (("CIFAR-10", 16), ("CIFAR-10, no augmentation", 16), (None, 16), ("CIFAR-100", 0)):
        assert len(outcome.paper_rows("table-5", data)) == rows
        assert len(outcome.paper_rows("table-2", data)) > 0, "its rows name their data"
    path.with_suffix(".json").write_text(json.dumps({"data": "CIFAR-100"}), encoding="utf-8")
    for item in ("table_5", "table_s3"):
        contents = part(item).run(setting.Setting(signals=path, targets=2, quick=True)).to_json()
        assert {row["paper"] is None and row["ours"] is not None for row in contents["rows"]} == {True}
        assert "paper" not in outcome.table(contents)
        assert contents["notes"][0] == "The paper: CIFAR-10 only, so its numbers are not shown beside these."


def test_the_page_links_to_rows_of_other_sections() -> None:
    page = part("write_docs").page()
    for item in ("table-2", "table-3", "table-4", "table-s1"):
        section = page.partition(f'<a id="{item}"></a>')[2].partition("<a id=")[0]
        cells = [line for line in section.splitlines() if line.startswith("| CIFAR-100 |")]
        assert cells, item
        assert all(f"[cifar-100](#cifar-100-{item})" in line and setting.NOT_RUN not in line for line in cells)
        assert f'<a id="cifar-100-{item}"></a>' in page
    for anchor in set(re.findall(r"\]\(#([^)]+)\)", page)):
        assert f'<a id="{anchor}"></a>' in page, anchor


def test_models_are_trained_once_and_more_are_added(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(160) % 3
    np.savez(tmp_path / "small.npz", X=rng.normal(y[:, None], 1.0, (160, 4)).astype(np.float32), y=y)
    asked = setting.Setting(
        4, 2, tmp_path / "small.npz", "sklearn:DecisionTreeClassifier?max_depth=4", None, False, 0, tmp_path / "runs"
    )
    source = asked.source("location_mlp")
    assert (source.signals.n_models, source.references, source.data) == (7, 4, "small")
    records = sorted((tmp_path / "runs").rglob("records/*.json"))
    times = [record.stat().st_mtime_ns for record in records]
    assert np.array_equal(asked.source("location_mlp").signals.values, source.signals.values)
    more = setting.Setting(8, 2, asked.data, asked.recipe, None, False, 0, asked.runs).source("location_mlp")
    assert more.references == 8
    assert np.array_equal(more.signals.values[:7], source.signals.values)
    assert [record.stat().st_mtime_ns for record in records] == times


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("Purchase-100 train", "Purchase-100"),
        ("CIFAR-100 train", "CIFAR-100"),
        ("CINIC-10 valid", "CINIC-10"),
        ("purchase100", "Purchase-100"),
        ("purchase100.npz", "Purchase-100"),
        ("cifar10", "CIFAR-10"),
        ("location30", "Location-30"),
        ("adult", "Adult"),
        ("covertype20k", "Covertype"),
        ("fashion_mnist", "Fashion-MNIST"),
        ("My own train", "My own train"),
        ("small.npz", "small.npz"),
    ],
)
def test_data_are_spelled_as_in_the_paper(name: str, spelled: str) -> None:
    assert setting.spelled(name) == spelled


@pytest.mark.parametrize(("item", "data"), [("table-s5", "purchase100"), ("table-2", "cifar100")])
def test_models_trained_on_the_papers_data_stand_in_its_rows(item: str, data: str, tmp_path: Path) -> None:
    rng, y = np.random.default_rng(0), np.arange(240) % 3
    np.savez(tmp_path / f"{data}.npz", X=rng.normal(y[:, None], 1.0, (240, 4)).astype(np.float32), y=y)
    tree = "sklearn:DecisionTreeClassifier?max_depth=4"
    asked = setting.Setting(8, 2, tmp_path / f"{data}.npz", tree, runs=tmp_path / "runs")
    found = part(item.replace("-", "_")).run(asked)
    (name,) = {source.data for source in found.sources}
    contents = found.to_json()
    of_paper = [row for row in contents["rows"] if row["keys"][0] == name and row["paper"] is not None]
    assert len(of_paper) == sum(row["keys"][0] == name for row in outcome.paper_item(item)["rows"]) > 0
    assert all(row["ours"] is not None for row in of_paper)
    lines = [line for line in outcome.table(contents).splitlines() if line.startswith(f"| {name} |")]
    assert not any(setting.NOT_RUN in line for line in lines)


@pytest.mark.parametrize(("recipe", "depth"), [({"depth": 5}, "5"), (None, "–")])
def test_one_file_of_trees_is_of_one_depth(
    recipe: dict[str, int] | None, depth: str, signals_file: Write, tmp_path: Path
) -> None:
    path = signals_file(models=16)
    path.with_suffix(".json").write_text(json.dumps({"data": "Any", "recipe": recipe}), encoding="utf-8")
    asked = setting.Setting(signals=path, targets=4)
    table, figure = part("table_6").run(asked), part("figure_5").run(asked)
    assert {keys[:2] for keys in table.ours} == {("Any", depth)}
    assert {keys[0] for keys in figure.ours} == {depth}
    assert len(table.sources) == len(figure.sources) == 1
    first, best = table.claims
    assert (first.name, first.verdict) == ("depth", outcome.UNDECIDED)
    assert "one depth alone" in first.because
    assert ("depth 5" in best.because) == (depth == "5")


def test_views_are_added_from_both_halves() -> None:
    assert setting.view_order(18)[:4].tolist() == [0, 9, 1, 10]
    for n in (1, 2, 3, 4, 18):
        assert sorted(setting.view_order(n).tolist()) == list(range(n))


# Measures ------------------------------------------------------------------------------------------------------------


def test_metrics_in_percent_against_loops() -> None:
    rng = np.random.default_rng(1)
    members = rng.random(300) < 0.5
    scores, log10_p = np.round(rng.normal(members, 1.0), 1), np.log10(rng.random(300))
    found = measure.metrics_of(scores, members, log10_p)
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[members] for b in scores[~members]]
    assert found["AUC"] == pytest.approx(100 * np.mean(pairs))
    top = max(scores[~members])
    assert found["TPR@0%"] == pytest.approx(100 * np.mean([s > top for s in scores[members]]))
    assert found["TPR@0.1%"] is None, "150 non-members do not resolve 0.1 %"
    assert found[measure.CONFORMAL] == pytest.approx(100 * np.mean(log10_p[~members] <= -2))


def _measured(values: list[float]) -> Any:
    found = measure.Measured()
    for value in values:
        found.add({"AUC": value})
    return found


def test_verdicts_follow_the_interval() -> None:
    base = _measured([70.0, 71.0, 72.0, 70.5])
    above = measure.difference(_measured([71.0, 72.1, 72.9, 71.5]), base, "AUC")
    level = measure.difference(_measured([71.0, 70.0, 73.0, 69.5]), base, "AUC")
    below = measure.difference(base, _measured([71.0, 72.1, 72.9, 71.5]), "AUC")
    assert measure.verdict_above([above]) == outcome.HOLDS
    assert measure.verdict_above([above, below]) == measure.verdict_above([above, level, below]) == outcome.PARTLY
    assert measure.verdict_above([above, level]) == outcome.SO_FAR, "nothing speaks against it"
    assert measure.verdict_above([level]) == outcome.UNDECIDED
    assert measure.verdict_above([level, below]) == outcome.FAILS
    assert measure.verdict_above([None]) == measure.judged([]) == outcome.UNDECIDED
    assert (measure.sign(below), measure.sign(below, margin=2.0), measure.sign(below, margin=0.5)) == (-1, 1, -1)
    assert measure.difference(base, _measured([1.0]), "AUC") is None
    assert "+1.00" in measure.in_words("AUC", above)
    two = measure.difference(_measured([71.0, 72.0]), _measured([70.0, 71.01]), "AUC")
    assert measure.verdict_above([two]) == outcome.UNDECIDED, "two targets may agree by chance"
    assert "too few targets" in measure.in_words("AUC", two)
    one = measure.difference(_measured([71.0]), _measured([70.0]), "AUC")
    assert measure.in_words("AUC", one) == "AUC: 71.00 against 70.00 (+1.00, too few targets)"
    assert measure.verdict_above([one]) == outcome.UNDECIDED
    unresolved = measure.difference(measure.Measured({"AUC": [None, None]}), _measured([70.0, 71.0]), "AUC")
    assert measure.in_words("AUC", unresolved) == "AUC: not resolved"


def _attacks(**values: list[float]) -> dict[str, Any]:
    """Attacks with the same values in every metric."""
    metrics = ("AUC", "TPR@1%", "TPR@0.1%", "TPR@0.01%", "TPR@0%")
    return {name.replace("_", "-"): measure.Measured(dict.fromkeys(metrics, v)) for name, v in values.items()}


LOW, MIDDLE, HIGH = [5.0, 5.1, 5.2, 5.3], [5.8, 5.9, 6.0, 6.1], [6.0, 6.1, 6.3, 6.4]


def test_strongest_offline_is_above_all_the_others() -> None:
    claim = part("table_2")._offline
    names = ("attack_p", "attack_r", "lira", "rmia")
    weak = dict.fromkeys(names, LOW)
    assert claim(_attacks(pl_mia=HIGH, **weak)).verdict == outcome.HOLDS
    mixed = claim(_attacks(pl_mia=MIDDLE, **weak | {"lira": HIGH}))
    assert mixed.verdict == outcome.PARTLY, "lira is above it, though it is near in AUC"
    assert "AUC against lira, the best of the others" in mixed.because
    far = [value + 5 for value in HIGH]
    assert claim(_attacks(pl_mia=MIDDLE, **weak | {"rmia": far})).verdict == outcome.FAILS, "above some is not enough"


def test_what_is_the_same_as_lira_is_not_above_it() -> None:
    claim = part("table_2")._above_lira
    assert claim(_attacks(pl_mia=HIGH, lira=HIGH, lira_fixed=LOW)).verdict == outcome.PARTLY
    assert claim(_attacks(pl_mia=HIGH, lira=LOW, lira_fixed=LOW)).verdict == outcome.HOLDS
    references = part("figure_2")._on_references
    few = _attacks(pl_mia=LOW, lira=LOW, lira_fixed=MIDDLE, rmia=MIDDLE, pl_mia_eb=MIDDLE)
    more = [value + 5 for value in HIGH]
    many = _attacks(pl_mia=more, lira=more, lira_fixed=HIGH, rmia=HIGH, pl_mia_eb=HIGH)
    assert references({4: few, 64: many}).verdict == outcome.PARTLY
    assert references({4: few, 64: many | _attacks(lira=HIGH)}).verdict == outcome.HOLDS


def test_ours_is_judged_on_all_comparisons() -> None:
    beyond = part("table_2").beyond
    level = [5.9, 5.7, 6.1, 6.0]
    below = _attacks(pl_mia_eb=MIDDLE, pl_mia=HIGH, rmia=level)
    assert beyond({"online": below, "offline": below}).verdict == outcome.FAILS, "below one, open against the other"
    above = _attacks(pl_mia_eb=MIDDLE, pl_mia=LOW, rmia=level)
    assert beyond({"online": above, "offline": above}).verdict == outcome.SO_FAR


def test_equal_power_is_judged_at_each_rate() -> None:
    claim = part("table_3")._theorem
    slightly = [value - 0.1 for value in HIGH]
    assert claim(_attacks(pl_mia_plus=slightly, lira=HIGH)).verdict == outcome.HOLDS
    coarse = _attacks(pl_mia_plus=slightly)["pl-mia-plus"]
    coarse.values["TPR@0.01%"] = LOW
    assert claim({"pl-mia-plus": coarse} | _attacks(lira=HIGH)).verdict == outcome.PARTLY


def test_a_small_population_has_no_conformal_rate() -> None:
    scores, members = np.arange(200.0), np.arange(200) % 2 == 0
    p_values = np.full(200, -3.0)
    assert measure.metrics_of(scores, members, p_values, 98)[measure.CONFORMAL] is None
    assert measure.metrics_of(scores, members, p_values, 99)[measure.CONFORMAL] == 100


def test_points_that_differ_break_the_analytic_threshold(signals_file: Write) -> None:
    """With one law for all points nothing is amiss; the paper's model says nothing of points being alike."""
    source = setting.Setting(signals=signals_file(models=34, points=4000), targets=1).source("any")
    figure = part("figure_4")
    rates: dict[str, dict[float, list[float]]] = {}
    for seed in range(6):
        figure._simulated(rates, np.random.default_rng(seed), 1.0, "alike")
    (result,) = measure.results(source, measure.attacks_called("pl-mia"))
    outside = result.truth.queries[~result.truth.members[result.truth.queries]]
    figure._without_lowest(rates, result, outside)
    for seed in range(6):
        figure._fitted(rates, result, outside, np.random.default_rng(seed))
    assert np.median(rates["alike"][0.01]) < 2
    assert np.median(rates[figure.FITTED][0.01]) > 50
    assert rates["pl-mia, analytic, without the lowest 20 % of Z"][0.01][0] < 5


def _few(budgets: dict[int, dict[str, list[float]]], metrics: tuple[str, ...]) -> dict[int, dict[str, Any]]:
    """Measured attacks whose resolved metrics all have the same values."""
    unresolved = {"TPR@0.1%", "TPR@0.01%"} - set(metrics)
    return {
        n: {
            name: measure.Measured(dict.fromkeys(metrics, values) | dict.fromkeys(unresolved, [None] * len(values)))
            for name, values in by.items()
        }
        for n, by in budgets.items()
    }


def test_claims_on_few_references_are_judged_on_the_metrics_that_the_paper_names() -> None:
    low, middle, high = [5.0, 5.1, 5.2, 5.3], [5.8, 5.9, 6.0, 6.1], [6.0, 6.1, 6.3, 6.4]
    names = ("lira-fixed", "pl-mia", "pl-mia-pooled", "pl-mia-eb")
    few = {"rmia": high} | dict.fromkeys(names, low)
    claims, every = part("table_s2")._claims, ("AUC", "TPR@0.1%", "TPR@0.01%", "TPR@0%")
    budgets = {4: few, 32: few | {"pl-mia": middle}, 64: {"rmia": low} | dict.fromkeys(names, high)}
    rmia, many, ours = claims("Any", _few(budgets, every), several_views=True)
    assert (rmia.verdict, many.verdict, ours.verdict) == (outcome.HOLDS, outcome.PARTLY, outcome.PARTLY)
    assert "rmia against pl-mia-pooled, TPR@0.01% at 4" in rmia.because
    assert "TPR@0.1%" not in rmia.because + many.because
    assert "competitive" in many.because
    for metric in ("AUC", "TPR@0.1%", "TPR@0%"):
        assert f"pl-mia-eb against rmia, {metric} at 4: 5.15" in ours.because
    single = claims("Any", _few(budgets, ("AUC", "TPR@0%")), several_views=False)
    assert not any("pl-mia-pooled" in claim.because for claim in single)
    assert "TPR@0.01% at 4: not resolved" in single[0].because
    assert claims("Any", _few({64: budgets[64]}, every), several_views=True)[1].verdict == outcome.HOLDS


def test_the_repeated_items_are_those_of_the_command(repository: Path) -> None:
    text = (repository / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if "plmia reproduce " in line and "$(WHOLE)/" in line]
    asked = {line.split("$(WHOLE)/")[1].split()[0]: set(re.findall(r"(?:table|figure)-\w+", line)) for line in lines}
    folders = {path.parent.name for path in setting.HERE.glob("results/*/*.json")} - {"quick"}
    found = {name: {path.stem for path in (setting.HERE / "results" / name).glob("*.json")} for name in folders}
    assert found == asked
    of_cifar_100 = {f"table-{n}" for n in ("2", "3", "4", "5", "s2", "s3")} | {f"figure-{n}" for n in (2, 3, 4)}
    assert of_cifar_100 <= found["cifar-100"] & found["cifar-100-no-augmentation"]


def test_the_gain_of_the_pooled_variance_is_judged_on_cifar_100() -> None:
    low, middle, high = [5.0, 5.1, 5.2, 5.3], [5.8, 5.9, 6.0, 6.1], [7.0, 7.1, 7.3, 7.4]
    names = ("rmia", "lira-fixed", "pl-mia-eb")

    def verdict(**gains: list[float]) -> str:
        budgets = {
            int(n[1:]): dict.fromkeys(names, low) | {"pl-mia": low, "pl-mia-pooled": pooled}
            for n, pooled in gains.items()
        }
        found = part("table_s2")._claims("CIFAR-100, any", _few(budgets, ("AUC",)), several_views=True)
        (claim,) = [claim for claim in found if claim.name == "pooled-few"]
        return str(claim.verdict)

    assert verdict(n4=high, n16=middle) == outcome.HOLDS
    assert verdict(n4=middle, n16=high) == outcome.PARTLY, "it gains, but not most"
    assert verdict(n4=low, n16=high) == outcome.FAILS
    assert verdict(n4=high, n16=high) == outcome.SO_FAR


def test_the_trade_off_that_the_paper_prefers_is_compared_with_the_largest_auc() -> None:
    low, high = [5.0, 5.1, 5.2, 5.3], [7.0, 7.1, 7.3, 7.4]

    def verdict(chosen: dict[str, list[float]], other: dict[str, list[float]]) -> str:
        grid = {"pl-mia, eta 0.3, rho 0.9": chosen, "pl-mia, eta 1, rho 0.8": other}
        # rho = 1 is not part of the paper's grid.
        grid["pl-mia, eta 1, rho 1"] = {metric: [9.0, 9.1, 9.2, 9.3] for metric in measure.MAIN}
        return str(part("table_4")._trade_off({name: measure.Measured(dict(m)) for name, m in grid.items()}).verdict)

    small, large = dict.fromkeys(measure.MAIN, low), dict.fromkeys(measure.MAIN, high)
    assert verdict(large, small) == outcome.HOLDS
    assert verdict(small, large) == outcome.FAILS
    assert verdict(small | {"TPR@0%": high}, large | {"TPR@0%": low}) == outcome.PARTLY


def _committed() -> dict[str, Any]:
    number = {"mean": 70.0, "std": 1.0, "n": 2, "values": [69.3, 70.7]}
    rows = [
        {"keys": ["a"], "ours": {"AUC": number, "epochs": "50", "TPR@0%": None}, "paper": {"AUC": {"mean": 1.0}}},
        {"keys": ["b"], "ours": None, "paper": {}},
    ]
    claims = [{"claim": "It is so.", "verdict": "holds", "because": "70.00 against 60.00."}]
    return {"rows": rows, "claims": claims, "metrics": ["AUC"]}


def _ours(contents: dict[str, Any]) -> dict[str, Any]:
    cells: dict[str, Any] = contents["rows"][0]["ours"]
    return cells


MUTATIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "mean": lambda c: _ours(c)["AUC"].update(mean=70.6),
    "mean of another size": lambda c: _ours(c)["AUC"].update(mean=69.4),
    "std": lambda c: _ours(c)["AUC"].update(std=1.6),
    "no std": lambda c: _ours(c)["AUC"].update(std=None),
    "targets": lambda c: _ours(c)["AUC"].update(n=3),
    "a number that is none": lambda c: _ours(c).update(AUC=float("nan")),
    "a mean that is none": lambda c: _ours(c)["AUC"].update(mean=float("nan")),
    "words": lambda c: _ours(c).update(epochs="100"),
    "no words": lambda c: _ours(c).update(epochs=None),
    "not resolved": lambda c: _ours(c).update(AUC=None),
    "resolved": lambda c: _ours(c).update({"TPR@0%": {"mean": 1.0, "std": None, "n": 1}}),
    "cell gone": lambda c: _ours(c).pop("epochs"),
    "unresolved cell gone": lambda c: _ours(c).pop("TPR@0%"),
    "new cell": lambda c: _ours(c).update(more="1"),
    "new unresolved cell": lambda c: _ours(c).update(more=None),
    "row gone": lambda c: c["rows"].pop(),
    "row new": lambda c: c["rows"].append({"keys": ["c"], "ours": {}, "paper": None}),
    "row not run": lambda c: c["rows"][0].update(ours=None),
    "row run": lambda c: c["rows"][1].update(ours={}),
    "paper": lambda c: c["rows"][0].update(paper={"AUC": {"mean": 2.0}}),
    "verdict": lambda c: c["claims"][0].update(verdict="does not hold"),
    "claim": lambda c: c["claims"][0].update(claim="It is not so."),
    "claim gone": lambda c: c["claims"].clear(),
    "claim new": lambda c: c["claims"].append({"claim": "More.", "verdict": "holds", "because": ""}),
    "columns": lambda c: c["metrics"].append("TPR@0%"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_comparison_with_committed_results_finds_what_changed(name: str) -> None:
    changed = _committed()
    MUTATIONS[name](changed)
    differences = part("compare").differences
    assert list(differences(changed, _committed()))
    assert list(differences(_committed(), changed))


def test_comparison_with_committed_results_passes_over_noise() -> None:
    compare, near = part("compare"), _committed()
    number = _ours(near)["AUC"]
    number.update(mean=70.0 + compare.NOISE / 2, std=1.0 - compare.NOISE / 2, values=[69.5, 70.7])
    near["claims"][0]["because"] = "70.12 against 60.00."
    assert not list(compare.differences(near, _committed()))


def test_models_trained_anew_may_differ_by_chance_only() -> None:
    differ = part("compare").differences_retrained
    near, far, turned = _committed(), _committed(), _committed()
    _ours(near)["AUC"].update(mean=73.0, std=3.0)
    near["rows"].pop()
    near["claims"][0]["verdict"] = outcome.PARTLY
    assert not list(differ(near, _committed())), "4 standard errors are 8.9"
    _ours(far)["AUC"].update(mean=76.0)
    assert [line.partition(" is ")[0] for line in differ(far, _committed())] == ["a: AUC"]
    turned["claims"][0]["verdict"] = outcome.FAILS
    assert len(list(differ(turned, _committed()))) == 1


def test_results_with_another_number_of_references_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few, many = _committed(), _committed()
    few["run"], many["run"] = [{"data": "Any", "references": 8}], [{"data": "Any", "references": 16}]
    _ours(many)["AUC"].update(mean=90.0)
    folders = [_results(tmp_path / name, a=each) for name, each in (("few", few), ("many", many))]
    compare = part("compare")
    assert compare.main(folders[1], folders[0], retrained=True) == 0
    assert "not compared: a (16 references on Any, committed are 8)" in capsys.readouterr().out
    assert compare.main(folders[1], folders[0]) == 1, "the same models have the same number of references"


def _results(folder: Path, **contents: dict[str, Any]) -> Path:
    folder.mkdir()
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("retrained", [False, True])
def test_a_comparison_of_nothing_fails(retrained: bool, tmp_path: Path) -> None:
    main, some = part("compare").main, _results(tmp_path / "some", a=_committed())
    others = (tmp_path / "nowhere", _results(tmp_path / "empty"), _results(tmp_path / "other", b=_committed()))
    for other in others:
        for folders in ((some, other), (other, some)):
            with pytest.raises(SystemExit, match="nothing was compared: ") as stopped:
                main(*folders, retrained)
            assert isinstance(stopped.value.code, str), "which is printed, and the status is 1"


@pytest.mark.parametrize("seed", range(6))
def test_verdicts_on_the_theorem_are_the_same_for_every_seed(seed: int) -> None:
    second, third = part("theorem").claims(np.random.default_rng(seed))
    assert second.verdict == outcome.PARTLY, "contraction alone gains nothing where the shift is large"
    assert "rho 0.8, xi constant: +0.65, +0.03, +0.00" in second.because
    assert "rho 1, xi 0.5 apart: +0.67, +2.61, +10.13" in second.because
    assert third.verdict == outcome.PARTLY, "ties cost a little, which is not what the formulas promise"
    assert "17.06 % against 9.24 %" in third.because


def test_power_of_the_theorem_against_simulation() -> None:
    theorem, rng, n = part("theorem"), np.random.default_rng(3), 400_000
    null, member = (law.mean + law.std * rng.normal(size=n) for law in map(partial(glr_law, 1.0), Hypothesis))
    z = null[:1000]
    order = rng.random(2 * n)  # breaks ties
    votes = BinaryVote().shared(np.concatenate([null, member]), z, np.full(2 * n, len(z))) + order / 2000
    found = np.mean(votes[n:] > np.quantile(votes[:n], 0.99))
    broken, unbroken = theorem.voting_tpr(z, 1.0)
    assert broken == pytest.approx(found, abs=0.003)
    assert unbroken <= broken <= float(gaussian_tpr(0.01, 1.0))
    xi = rng.gamma(4, 0.25, n)
    null, member = (law.mean + law.std * rng.normal(size=n) for law in (blr_law(2.0, xi, 1.0, h) for h in Hypothesis))
    assert theorem.bayes_tpr(2.0, 1.0, 0.5) == pytest.approx(np.mean(member > np.quantile(null, 0.99)), abs=0.006)


def test_the_page_is_written_from_the_results(repository: Path) -> None:
    page = repository / "docs" / "reproduction.md"
    assert part("write_docs").page() == page.read_text(encoding="utf-8")


# People --------------------------------------------------------------------------------------------------------------


def test_the_committed_result_on_people_is_whole_and_keeps_its_promises() -> None:
    people = part("people")
    found = json.loads(people.RESULT.read_text(encoding="utf-8"))
    rows = {(row["attack"], row["references"], row["statistic"]): row for row in found["table"]}
    ways = (people.ONE_ROW, *people.STATISTICS)
    assert set(rows) == {(name, n, way) for name in people.NAMES for n in people.BUDGETS for way in ways}
    for row in (*rows.values(), *found["learned_minus_sum"]):
        assert all(set(row[metric]) == {"mean", "error"} for metric in people.METRICS)
    # All records of a person say more than one, and the learned combination is as good as the sum within its error.
    for name in people.NAMES:
        assert rows[name, 16, "learned"]["auc"]["mean"] > rows[name, 16, "one row"]["auc"]["mean"] + 3
    for row in found["learned_minus_sum"]:
        assert all(row[metric]["mean"] >= -2 * row[metric]["error"] for metric in people.METRICS), row
    for row in found["false_positives"]:
        assert set(row["sizes"]) == {str(size) for size in range(people.SIZES[0], people.SIZES[1] + 1)}
    planted = {row["epochs"]: row for row in found["planted"]}
    assert set(planted) == set(people.SUBGROUP_EPOCHS)
    assert planted[5]["found"] == planted[5]["audits_with"]
    for row in planted.values():
        assert row["called_without"] <= 0.055 * row["audits_without"]


def test_people_are_measured_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from plmia.data.designs import complementary_pairs
    from plmia.signals.signals import Signals

    people = part("people")
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(300), rng.integers(2, 7, 300))
    design = complementary_pairs(len(groups), 4, rng, groups)
    values = rng.normal(size=(*design.matrix.shape, 1)) + 1.5 * design.matrix[:, :, None]
    signals = Signals(values.astype(np.float32), design, groups=groups)
    found, called = people.measure(signals, (6,), [0, 2])
    rows = people.table(found)
    assert [row["statistic"] for row in rows] == ["one row", "max", "sum", "learned"] * 3
    assert all(n[0].sum() == 2 * 75 for n in called.values())  # half of the non-members are the population
    result = people.calls(next(people.judged(signals)), np.arange(150))
    assert set(result["identified"]) == {"others", "planted"}
    contents = {"table": rows, "learned_minus_sum": people.differences(found)}
    people.show(contents | {"false_positives": people.false_positives(called), "planted": [result]})
    assert len(capsys.readouterr().out.splitlines()) == 12 + 3 + 3 + 1


def test_people_without_the_data_name_the_folder(tmp_path: Path) -> None:
    from plmia.errors import DataError

    with pytest.raises(DataError, match=r"diabetes130\.npz"):
        part("people").read_people(tmp_path)

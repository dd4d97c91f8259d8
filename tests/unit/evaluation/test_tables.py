"""Results in a notebook: frames by pandas or polars, short texts, and HTML that shows everything as it is."""

from __future__ import annotations

import importlib.machinery
import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import ModuleType

import numpy as np
import pytest

from plmia.auditing.run import Audit
from plmia.errors import Note, OutputError, PlmiaError
from plmia.evaluation import tables as frames
from plmia.evaluation.tables import FrameError
from plmia.results.folder import run_attacks
from plmia.results.result import DEFAULT_ATTACK
from plmia.results.saved import SavedRun

# The attack whose numbers are given where none is named.
USUAL = DEFAULT_ATTACK


@pytest.fixture(scope="module")
def folder(tmp_path_factory, simulate_signals):
    from plmia import ATTACKS, Setup

    where, signals = tmp_path_factory.mktemp("run"), simulate_signals(0, points=400)
    run_attacks(signals, [ATTACKS["lira"], ATTACKS[USUAL]], [0, 3], Setup(), where)
    return where


@pytest.fixture
def saved(folder):
    return SavedRun(folder)


@pytest.fixture
def audit(folder, saved):
    return Audit(folder, saved.result)


@pytest.fixture
def installed(monkeypatch):
    """Stand-ins for pandas and polars: those that are named are there, the others are not."""

    def install(*names):
        for name in frames.LIBRARIES:
            module = None
            if name in names:
                module = ModuleType(name)
                module.__spec__ = importlib.machinery.ModuleSpec(name, None)
                module.DataFrame = lambda columns, name=name: (name, columns)
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(frames, "find_spec", lambda name: sys.modules[name] and sys.modules[name].__spec__)

    return install


# Frames --------------------------------------------------------------------------------------------------------------


def test_the_columns_are_the_numbers_of_metrics_json(saved):
    columns, row = saved.columns(), 0
    assert list(columns)[:5] == ["attack", "target", "auc", "auc_low", "auc_high"]
    for name, attack in saved.result.to_json()["attacks"].items():
        for entry in attack["per_target"]:
            values = {column: values[row] for column, values in columns.items()}
            assert (values["attack"], values["target"], values["auc"]) == (name, entry["target"], entry["auc"])
            assert values["auc_low"] == entry["auc_interval"]["low"]
            for fpr, point in entry["tpr"].items():
                found = [values[f"tpr_{fpr}{end}"] for end in ("", "_low", "_high")]
                if point["resolved"]:
                    ends = point.get("at_nominal", point)
                    assert found == [point["tpr"], ends["low"], ends["high"]]
                else:
                    assert found == [None] * 3
            row += 1
    assert {len(values) for values in columns.values()} == {row} == {4}


def test_an_audit_and_what_is_read_back_are_the_same_table(audit, saved):
    assert audit.columns() == saved.columns()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_is_made_with_the_library_that_was_named(library, installed, saved):
    installed("pandas", "polars")
    assert saved.to_frame(library) == (library, saved.columns())


def test_by_default_the_first_library_that_is_installed_is_used(installed, audit):
    installed("pandas", "polars")
    assert audit.to_frame()[0] == "pandas"
    installed("polars")
    assert audit.to_frame()[0] == "polars"


def test_without_a_library_the_error_says_what_to_do(installed, audit):
    installed()
    with pytest.raises(FrameError, match=r"pandas or polars.*pip install"):
        audit.to_frame()
    with pytest.raises(FrameError, match="polars is not installed: pip install polars"):
        audit.to_frame("polars")
    with pytest.raises(FrameError, match="there is no library 'excel': give 'pandas' or 'polars'"):
        audit.to_frame("excel")
    assert issubclass(FrameError, PlmiaError)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_real_library_reads_the_columns(library, saved):
    pytest.importorskip(library)
    frame = saved.to_frame(library)
    assert frame.shape == (4, 5 + 3 * 4)
    assert list(frame.columns) == list(saved.columns())
    records = saved.records("lira", 3).to_frame(library)
    assert records.shape[0] == len(saved.queries(3))


def test_importing_everything_that_makes_frames_imports_neither_library():
    code = "import sys, plmia.auditing.run, plmia.results.saved; assert not {'pandas', 'polars'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Records -------------------------------------------------------------------------------------------------------------


def test_records_are_by_default_those_of_the_verdict_and_of_the_first_target(audit, saved):
    best = saved.result.verdict.attack
    for results in (audit, saved):
        assert results.records().columns() == saved.records(best, 0).columns()
        assert results.records("lira").columns() == saved.records("lira", 0).columns()
        assert results.records(target=3).columns() == saved.records(best, 3).columns()


def test_a_table_of_records_has_columns_and_a_frame(saved, installed):
    table = saved.records("lira", 0)
    columns = table.columns()
    assert list(columns) == ["index", "label", "score", "p", "q", "rank", "member"]
    for values in columns.values():
        assert len(values) == len(table)
        assert type(values[0]) in (int, float, bool)
    installed("polars")
    assert table.to_frame() == ("polars", columns)


def test_a_table_of_records_is_short_and_can_be_cut(saved):
    table = saved.records("lira", 0)
    assert table[:3].columns() == {name: values[:3] for name, values in table.columns().items()}
    caption, head, *rows = repr(table).splitlines()
    assert f"{len(table):,} records" in caption
    assert head.split() == list(table.columns())
    assert [int(row.split()[0]) for row in rows] == table.index[:10].tolist()
    with pytest.raises(TypeError, match="slice"):
        table[0]


def test_records_without_classes_have_no_such_column(saved):
    from dataclasses import replace

    assert "label" not in replace(saved.records("lira", 0), label=None).columns()


# Single numbers ------------------------------------------------------------------------------------------------------


def test_single_numbers(audit, saved):
    for results in (audit, saved):
        assert results.auc() == saved.result.attacks[USUAL].auc.mean
        assert results.auc("lira") == saved.result.attacks["lira"].auc.mean
        assert results.tpr(fpr=0.0, attack="lira") == saved.result.attacks["lira"].tpr[0.0].mean
        assert results.tpr(0) == results.tpr(0.0)
        assert results.verdict is results.result.verdict
        assert str(results.verdict) == results.verdict.text
        assert results.status == results.verdict.status
        assert results.notes == results.result.notes


def test_a_rate_that_is_not_resolved_is_refused_with_the_number_it_needs(audit):
    rate = audit.result.attacks[USUAL].tpr[0.0001]
    assert not rate.resolved
    fewest = min(entry.n_non_members for entry in audit.result.attacks[USUAL].per_target)
    with pytest.raises(OutputError, match=rf"0.0001 needs 10,000 .* {fewest}"):
        audit.tpr(0.0001)


def test_what_was_not_measured_is_named(audit):
    with pytest.raises(OutputError, match=rf"'rmia' is not among the results in .*: take one of lira, {USUAL}"):
        audit.auc("rmia")
    with pytest.raises(OutputError, match=r"no TPR at an FPR of 0.02: take one of 0, 0.0001, 0.001, 0.01"):
        audit.tpr(0.02)


# Shown by itself -----------------------------------------------------------------------------------------------------


def test_the_text_is_the_verdict_and_the_folder_and_not_all_metrics(audit, saved, folder):
    for results in (audit, saved):
        text = repr(results)
        assert text.startswith(f"{type(results).__name__}({str(folder)!r}): {saved.result.verdict.text}")
        assert len(text) < 1200
        head, *rows = text.splitlines()[-4:-1]
        assert head.split()[:2] == ["attack", "AUC"]
        assert "0.01" not in head.split(), "columns without a value are left out"
        assert [row.split()[:2] for row in rows] == [[n, f"{100 * saved.auc(n):.2f}"] for n in (USUAL, "lira")]


def test_what_changes_how_the_verdict_is_read_stands_below_it(audit, folder):
    notes = (
        Note("groups", "info", "Changes nothing."),
        Note("unlike-references", "caution", "Given <b>."),
        Note("members-swapped", "invalid", "Swapped."),
    )
    found = Audit(folder, replace(audit.result, notes=notes))
    assert f"{audit.result.verdict.text}\n- Swapped.\n- Given <b>.\nattack" in repr(found)
    assert "<p>Given &lt;b&gt;.</p>" in found._repr_html_()


def test_a_doubt_that_is_the_verdict_is_said_once(audit, folder):
    note = Note("unlike-references", "caution", "The target is unlike.")
    verdict = replace(audit.result.verdict, text="Inconclusive: no leak was shown, but the target is unlike.")
    found = Audit(folder, replace(audit.result, verdict=verdict, notes=(note,)))
    assert repr(found).count("he target is unlike.") == 1
    assert found._repr_html_().count("he target is unlike.") == 1


def test_the_last_line_names_the_report_or_how_to_get_it(audit, tmp_path):
    found = Audit(tmp_path, audit.result)
    assert repr(found).splitlines()[-1].startswith(f"plmia.report({str(tmp_path)!r})")
    (tmp_path / "report.html").touch()
    assert repr(found).splitlines()[-1] == f"Report: {tmp_path / 'report.html'}"
    assert f"{tmp_path / 'report.html'}" in found._repr_html_()


@pytest.mark.parametrize("arguments", [("lira", 0.01), ("lira",), (0.01, 0.001)])
def test_the_wrong_order_names_the_right_one(audit, arguments):
    with pytest.raises(OutputError, match=r"the rate comes first, tpr\(0.01, 'rmia'\)"):
        audit.tpr(*arguments)


class Reader(HTMLParser):
    """Collects what a browser would show, and refuses what would reach elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.rows, self.text = [], [], ""

    def handle_starttag(self, tag, attributes):
        assert tag in {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "code"}
        assert not attributes
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_a_notebook_shows_the_verdict_and_a_table(audit, saved, folder):
    for results in (audit, saved):
        reader = Reader()
        reader.feed(results._repr_html_())
        assert reader.open == []
        assert saved.result.verdict.text in reader.text
        assert str(folder) in reader.text
        assert reader.rows[0] == ["attack", "AUC", "TPR at 1 %", "TPR at 0 %"]
        assert [row[0] for row in reader.rows[1:]] == ["lira", USUAL]
        assert reader.rows[2][1] == f"{100 * results.auc():.2f}"


def test_whatever_names_hold_is_shown_as_it_is(saved, tmp_path):
    evil, found = "<script>alert('&')</script>", saved.result
    verdict = replace(found.verdict, text=f"{evil} & more", attack=evil, auc_attack=evil)
    html = Audit(tmp_path / "<b>", replace(found, attacks={evil: found.attacks["lira"]}, verdict=verdict))._repr_html_()
    assert "<script" not in html
    assert "<b>" not in html
    reader = Reader()
    reader.feed(html)
    assert reader.rows[1][0] == evil
    assert f"{evil} & more" in reader.text


def test_columns_are_plain_values(saved):
    assert json.loads(json.dumps(saved.columns(), allow_nan=False)) == saved.columns()
    assert not any(isinstance(value, np.generic) for values in saved.columns().values() for value in values)


# One attack on one target --------------------------------------------------------------------------------------------


@pytest.fixture
def result(simulate_signals):
    from plmia import ATTACKS, Attack, Setup
    from plmia.evaluation.targets import attack_targets

    lira = ATTACKS["lira"]
    mine = Attack("<b>mine", lira.statistic, lira.calibration)
    (result,) = attack_targets(simulate_signals(0, points=400), [mine], [3], Setup())
    return result


def test_a_result_is_a_table_of_the_evaluated_points(result, installed):
    installed("pandas")
    name, columns = result.to_frame()
    assert name == "pandas"
    assert columns["index"] == result.truth.queries.tolist()
    assert columns["member"] == result.truth.members[result.truth.queries].tolist()
    assert columns["score"] == result.scores.score[result.truth.queries].tolist()
    assert columns["log10_p_conformal"] == result.scores.log10_p_conformal[result.truth.queries].tolist()


def test_metrics_of_a_target_are_a_table_of_rates_empty_where_nothing_is_known(result):
    metrics = result.metrics()
    columns = metrics.columns()
    assert columns["fpr"] == [0.0, 0.0001, 0.001, 0.01]
    assert [tpr is not None for tpr in columns["tpr"]] == [point.resolved for point in metrics.operating]
    assert columns["tpr"][0] == metrics.tpr_at(0).tpr
    assert columns["low"][1:3] == [None, None]


def test_a_notebook_shows_a_result_briefly_and_its_name_as_it_is(result):
    html = result._repr_html_()
    assert "&lt;b&gt;mine" in html
    assert "<b>" not in html
    assert html.endswith(result.metrics()._repr_html_())
    assert f"Target 3: AUC {result.metrics().auc:.3f}" in html
    assert html.count("<tr>") == 5
    assert repr(result) == f"AttackResult('<b>mine' on target 3, AUC {result.metrics().auc:.3f})"


def test_a_notebook_shows_the_most_exposed_records(saved):
    html = saved.records()._repr_html_()
    assert html.count("<tr>") == 11
    assert f"10 most exposed of {len(saved.records()):,} records" in html
    assert f"<td>{saved.records().index[0]}</td>" in html

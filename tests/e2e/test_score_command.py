"""`plmia score`, as a user meets it: options, what it prints, and the two files it writes."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import click.testing
import numpy as np
import pytest

from plmia import ATTACKS, Setup, Signals, __version__, attack_targets, read_signals
from plmia.attacks.attack import RIVALS
from plmia.auditing.score import store_notes
from plmia.cli.main import main
from plmia.data.designs import MembershipDesign
from plmia.errors import CODES
from plmia.signals.store import SignalStore

Run = Callable[..., click.testing.Result]
Write = Callable[..., Path]

FPRS = ["0", "0.0001", "0.001", "0.01"]
COMMAND = [sys.executable, "-c", "from plmia.cli.main import main; main(prog_name='plmia')"]
SLICE = "examples/cifar10_cnn_slice.npz"


def _metrics(folder: Path) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return contents


def _ok(result: click.testing.Result) -> click.testing.Result:
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result


def _fractions(value: Any) -> None:
    assert isinstance(value, int | float)
    assert not isinstance(value, bool)
    assert 0 <= value <= 1


# The files -----------------------------------------------------------------------------------------------------------


def test_metrics_json_keeps_to_its_schema(signals_file: Write, command: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _ok(command("score", signals_file(points=301), "-o", out, "--target", 1, "--target", 4, "--target", 9, "--quiet"))
    contents = _metrics(out)
    with np.load(out / "scores.npz") as scores:
        sizes = {target: len(scores[f"population/{target}"]) for target in (1, 4, 9)}
    assert contents["about"]["population"] == sorted(set(sizes.values()))
    assert contents["schema"] == 2
    assert contents["verdict"]["status"] in ("leak", "no_leak_shown", "inconclusive", "invalid")
    assert (contents["verdict"]["grade"] is None) == (contents["verdict"]["status"] != "leak")
    assert all(set(note) == {"code", "severity", "text"} for note in contents["notes"])
    assert {note["code"] for note in contents["notes"]} <= set(CODES)
    assert list(contents["attacks"]) == list(ATTACKS)
    for attack in contents["attacks"].values():
        assert {"auc", "tpr", "per_target"} <= set(attack)
        assert list(attack["tpr"]) == FPRS
        for spread in (attack["auc"], attack["balanced_accuracy"], *attack["tpr"].values()):
            _fractions(spread["mean"])
            _fractions(spread["std"])
        assert [entry["target"] for entry in attack["per_target"]] == [1, 4, 9]
        for entry in attack["per_target"]:
            _fractions(entry["auc"])
            assert list(entry["tpr"]) == FPRS
            assert entry["n_members"] + entry["n_non_members"] + sizes[entry["target"]] == 301
            for fpr, point in entry["tpr"].items():
                for key in ("tpr", "fpr_realised", "low", "high"):
                    _fractions(point[key])
                assert point["low"] <= point["tpr"] <= point["high"]
                assert point["fpr_realised"] <= float(fpr)
                assert point["resolved"] == (fpr == "0" or entry["n_non_members"] * float(fpr) >= 1)
        aucs = [entry["auc"] for entry in attack["per_target"]]
        assert attack["auc"]["mean"] == pytest.approx(np.mean(aucs), abs=1e-12)
        assert attack["auc"]["std"] == pytest.approx(np.std(aucs, ddof=1), abs=1e-12)
        for fpr in FPRS:
            rates = [entry["tpr"][fpr]["tpr"] for entry in attack["per_target"]]
            assert attack["tpr"][fpr]["mean"] == pytest.approx(np.mean(rates), abs=1e-12)
    about = contents["about"]
    assert about["plmia"] == __version__
    assert about["signals"]["models"] == 16
    assert about["signals"]["points"] == 301
    assert about["signals"]["views"] == 1
    assert re.fullmatch(r"[0-9a-f]{64}", about["signals"]["sha256"])
    assert (about["mode"], about["targets"], about["seed"]) == ("online", [1, 4, 9], 0)
    assert about["references"] == [14]


def test_scores_npz_has_every_score_and_p_value(signals_file: Write, command: Run, tmp_path: Path) -> None:
    out, file = tmp_path / "out", signals_file(views=2)
    _ok(command("score", file, "-o", out, "--target", 3, "--target", 0, "--quiet"))
    signals = read_signals(file)
    with np.load(out / "scores.npz", allow_pickle=False) as scores:
        expected = {f"{name}/{t}/{key}" for name in ATTACKS for t in (0, 3) for key in ("score", "statistic")}
        expected |= {f"{name}/{t}/log10_p{own}" for name in ATTACKS for t in (0, 3) for own in ("", "_conformal")}
        expected |= {f"{key}/{t}" for key in ("population", "queries", "members") for t in (0, 3)} | {"labels"}
        assert set(scores.files) == expected
        for name in scores.files:
            assert np.isfinite(scores[name]).all()
            if "log10_p" in name:
                assert (scores[name] <= 0).all()
            if name.count("/") == 2:
                assert scores[name].shape == (120,)
                assert scores[name].dtype == np.float64
        for target in (0, 3):
            population, queries = scores[f"population/{target}"], scores[f"queries/{target}"]
            assert sorted([*population, *queries]) == list(range(120))
            assert not signals.design.matrix[target, population].any()
            assert np.array_equal(scores[f"members/{target}"], signals.design.matrix[target])


def test_the_two_files_tell_the_same_story(signals_file: Write, command: Run, tmp_path: Path) -> None:
    """AUC and TPR in metrics.json are those of the scores in scores.npz, counted by hand."""
    out, file = tmp_path / "out", signals_file()
    _ok(command("score", file, "-o", out, "--quiet"))
    members = read_signals(file).design.matrix[0]
    with np.load(out / "scores.npz") as scores:
        queries = scores["queries/0"]
        for name, attack in _metrics(out)["attacks"].items():
            values, truth = scores[f"{name}/0/score"][queries], members[queries]
            difference = values[truth][:, None] - values[~truth]
            assert attack["auc"]["mean"] == pytest.approx((np.sign(difference).mean() + 1) / 2, abs=1e-12)
            above = (values[truth] > values[~truth].max()).mean()
            assert attack["tpr"]["0"]["mean"] == pytest.approx(above, abs=1e-12)


def test_nothing_else_is_written_and_an_earlier_result_is_replaced(
    signals_file: Write, command: Run, tmp_path: Path
) -> None:
    out, file = tmp_path / "deep" / "er" / "out", signals_file()
    _ok(command("score", file, "-o", out, "--quiet", "--attack", "lira"))
    assert sorted(p.name for p in out.iterdir()) == ["metrics.json", "records.csv", "scores.npz"]
    (out / "note.txt").write_text("mine")
    _ok(command("score", file, "-o", out, "--quiet", "--attack", "rmia"))
    assert sorted(p.name for p in out.iterdir()) == ["metrics.json", "note.txt", "records.csv", "scores.npz"]
    assert list(_metrics(out)["attacks"]) == ["rmia"]
    assert (out / "note.txt").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "signals.npz"]


# Options -------------------------------------------------------------------------------------------------------------


def test_target_0_is_the_default(signals_file: Write, command: Run, tmp_path: Path) -> None:
    file = signals_file()
    _ok(command("score", file, "-o", tmp_path / "a", "--quiet"))
    _ok(command("score", file, "-o", tmp_path / "b", "--quiet", "--target", "0"))
    assert _metrics(tmp_path / "a")["about"]["targets"] == [0]
    for name in ("metrics.json", "scores.npz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_target_all_takes_every_model_in_turn(signals_file: Write, command: Run, tmp_path: Path) -> None:
    file = signals_file(models=10)
    _ok(command("score", file, "-o", tmp_path / "all", "--quiet", "--target", "all", "--attack", "lira"))
    contents = _metrics(tmp_path / "all")
    assert contents["about"]["targets"] == list(range(10))
    assert [entry["target"] for entry in contents["attacks"]["lira"]["per_target"]] == list(range(10))
    _ok(command("score", file, "-o", tmp_path / "one", "--quiet", "--target", 7, "--attack", "lira"))
    with np.load(tmp_path / "all" / "scores.npz") as many, np.load(tmp_path / "one" / "scores.npz") as one:
        assert many["population/7"].tolist() == one["population/7"].tolist()
        np.testing.assert_allclose(many["lira/7/score"], one["lira/7/score"], rtol=1e-4, atol=1e-4)


def test_the_order_and_number_of_target_options_does_not_matter(
    signals_file: Write, command: Run, tmp_path: Path
) -> None:
    file = signals_file()
    for folder, order in (("a", (5, 2)), ("b", (2, 5, 2))):
        targets = [part for target in order for part in ("--target", target)]
        _ok(command("score", file, "-o", tmp_path / folder, "--quiet", *targets))
    for name in ("metrics.json", "scores.npz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_attacks_are_run_as_named(signals_file: Write, command: Run, tmp_path: Path, repository: Path) -> None:
    mine = f"{repository / 'tests' / 'contract' / 'difficulty_attack.py'}:DIFFICULTY"
    _ok(command("score", signals_file(), "-o", tmp_path, "--attack", "rmia", "--attack", mine, "--attack", "lira"))
    assert list(_metrics(tmp_path)["attacks"]) == ["rmia", "difficulty", "lira"]
    assert _metrics(tmp_path)["attacks"]["difficulty"]["auc"]["mean"] > 0.6


def test_offline_is_another_mode(signals_file: Write, command: Run, tmp_path: Path) -> None:
    file = signals_file()
    _ok(command("score", file, "-o", tmp_path / "on", "--quiet"))
    _ok(command("score", file, "-o", tmp_path / "off", "--quiet", "--mode", "offline"))
    assert _metrics(tmp_path / "off")["about"]["mode"] == "offline"
    with np.load(tmp_path / "on" / "scores.npz") as on, np.load(tmp_path / "off" / "scores.npz") as off:
        assert on["population/0"].tolist() == off["population/0"].tolist()
        changed = {name for name in ATTACKS if not np.allclose(on[f"{name}/0/score"], off[f"{name}/0/score"])}
    assert changed == set(ATTACKS) - {"attack-p", "attack-r"}  # these two never used IN references


def test_references_limits_them_to_whole_pairs(signals_file: Write, command: Run, tmp_path: Path) -> None:
    file = signals_file()
    _ok(command("score", file, "-o", tmp_path / "6", "--quiet", "--references", 6, "--target", "all"))
    _ok(command("score", file, "-o", tmp_path / "14", "--quiet", "--references", 14))
    _ok(command("score", file, "-o", tmp_path / "all", "--quiet"))
    assert _metrics(tmp_path / "6")["about"]["references"] == [6]
    assert (tmp_path / "14" / "scores.npz").read_bytes() == (tmp_path / "all" / "scores.npz").read_bytes()
    with np.load(tmp_path / "6" / "scores.npz") as few, np.load(tmp_path / "all" / "scores.npz") as many:
        assert not np.allclose(few["lira/0/score"], many["lira/0/score"])
        assert np.array_equal(few["attack-p/0/score"], many["attack-p/0/score"])


def test_single_models_make_odd_numbers_of_references(signals_file: Write, command: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = signals_file(replace={"membership": rng.random((16, 120)) < 0.5})  # no pairs at all
    _ok(command("score", file, "-o", tmp_path, "--quiet", "--references", 13))
    assert _metrics(tmp_path)["about"]["references"] == [13]


@pytest.mark.parametrize(("points", "size"), [(120, None), (800, None), (120, 7)])
def test_population_has_the_size_asked_for(
    points: int, size: int | None, signals_file: Write, command: Run, tmp_path: Path
) -> None:
    file = signals_file(points=points)
    _ok(command("score", file, "-o", tmp_path, "--quiet", *(["--population", size] if size else [])))
    outsiders = int((~read_signals(file).design.matrix[0]).sum())
    wanted = size or min(max(outsiders // 4, 100), outsiders // 2)
    assert _metrics(tmp_path)["about"]["population"] == [wanted]
    with np.load(tmp_path / "scores.npz") as scores:
        assert scores["population/0"].shape == (wanted,)


def test_probabilities_are_scaled_when_told_to(signals_file: Write, command: Run, tmp_path: Path) -> None:
    logits = read_signals(signals_file()).values.astype(np.float64)
    logits = logits.copy()
    logits[3, 5] = 60.0  # a probability of 1 to the last digit
    file = signals_file(name="p.npz", replace={"signals": 1 / (1 + np.exp(-logits))})
    _ok(command("score", file, "-o", tmp_path / "p", "--quiet", "--scale", "probability"))
    same = signals_file(name="l.npz", replace={"signals": np.minimum(logits, 36.7368005696771)})
    _ok(command("score", same, "-o", tmp_path / "l", "--quiet"))
    assert _metrics(tmp_path / "p")["about"]["signals"]["clipped"] == 1
    with np.load(tmp_path / "p" / "scores.npz") as p, np.load(tmp_path / "l" / "scores.npz") as straight:
        np.testing.assert_allclose(p["lira/0/score"], straight["lira/0/score"], rtol=1e-6, atol=1e-6)
    _ok(command("score", file, "-o", tmp_path / "as-is", "--quiet", "--scale", "logit"))
    assert _metrics(tmp_path / "as-is")["about"]["signals"]["clipped"] == 0


def test_packed_bits_and_zeros_and_ones_are_membership(
    signals_file: Write, simulate: Callable[..., dict[str, Any]], command: Run, tmp_path: Path
) -> None:
    membership = simulate(0, points=121)["membership"]
    packed = {"membership": np.packbits(membership, axis=1), "n_points": np.int64(121)}
    results = []
    for i, replace in enumerate([{}, packed, {"membership": membership.astype(np.int64)}, {"labels": None}]):
        file = signals_file(name=f"{i}.npz", points=121, replace=replace)
        _ok(command("score", file, "-o", tmp_path / str(i), "--quiet"))
        with np.load(tmp_path / str(i) / "scores.npz") as scores:
            results.append({name: scores[name].tobytes() for name in scores.files})
    without_labels = {name: values for name, values in results[0].items() if name != "labels"}
    assert results == [results[0]] * 3 + [without_labels]


# What is printed -----------------------------------------------------------------------------------------------------


def test_json_prints_exactly_metrics_json(signals_file: Write, command: Run, tmp_path: Path) -> None:
    result = _ok(command("score", signals_file(), "-o", tmp_path, "--json"))
    assert result.stdout == (tmp_path / "metrics.json").read_text(encoding="utf-8")


PRINTING = """
import sys
from dataclasses import dataclass
from plmia import Attack, BinaryVote
from plmia.attacks.statistics import PointwiseStatistic
print("while it is loaded")
@dataclass(frozen=True)
class Confidence(PointwiseStatistic):
    def __call__(self, block):
        print("while it runs")
        sys.stdout.write("more")
        return block.target
    def least_references(self, n_views):
        return 0
MINE = Attack("mine", Confidence(), BinaryVote())
"""


@pytest.mark.parametrize("verb", ["score", "plan", "screen"])
def test_what_an_attack_prints_is_not_in_the_json(verb: str, signals_file: Write, command: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PRINTING)
    words = () if verb == "plan" else ("-o", tmp_path / "out")
    result = command(verb, signals_file(), "--attack", f"{tmp_path / 'mine.py'}:MINE", "--json", "--quiet", *words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)
    for part in ("while it is loaded", "while it runs", "more"):
        assert part in result.stderr


@pytest.mark.parametrize("act", ["view.target[:] = 0", "view.references.in_mask[...] = False", "sys.exit(0)"])
def test_an_attack_that_writes_or_exits_is_refused(act: str, signals_file: Write, command: Run, tmp_path: Path) -> None:
    text = f"import sys\nfrom plmia import Attack, BinaryVote\ndef excess(view):\n    {act}\n    return view.target\n"
    (tmp_path / "mine.py").write_text(f"{text}MINE = Attack('mine', excess, BinaryVote())\n")
    words = ("--attack", f"{tmp_path / 'mine.py'}:MINE", "--attack", "attack-p", "-o", tmp_path / "out")
    result = command("score", signals_file(), *words)
    assert result.exit_code == 2
    assert re.fullmatch(r"plmia: attack mine .*mine\.py, line 4\).*\n", result.stderr)
    assert not (tmp_path / "out" / "metrics.json").exists()


def test_quiet_prints_nothing(signals_file: Write, command: Run, tmp_path: Path) -> None:
    assert _ok(command("score", signals_file(), "-o", tmp_path, "--quiet")).output == ""


def test_the_verdict_comes_first_then_five_attacks_and_three_notes(
    signals_file: Write, command: Run, tmp_path: Path
) -> None:
    file = signals_file(points=600)
    lines = _ok(command("score", file, "-o", tmp_path, "--target", 0, "--target", 1)).stdout.splitlines()
    contents = _metrics(tmp_path)
    assert lines[0] == contents["verdict"]["text"]
    for part in ("2 target", "600 records", "online", "14 references", "known non-members as the population"):
        assert part in lines[1]
    # 0.1 % and less take more non-members than there are.
    assert lines[2].split() == ["attack", "AUC", "TPR@1%", "TPR@0%", "ε", "≥"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:8]}
    assert list(rows) == ["pl-mia-eb", "pl-mia", "lira-fixed", "rmia", "attack-p"]
    auc = contents["attacks"]["pl-mia"]["auc"]
    assert rows["pl-mia"][:3] == [f"{100 * auc['mean']:.2f}", "±", f"{100 * auc['std']:.2f}"]
    shown = [line for line in lines if line.startswith("- ")]
    texts = [note["text"] for note in contents["notes"]]
    assert len(texts) > 3
    assert all(any(line.endswith(text) for text in texts) for line in shown[:3])
    (closing,) = shown[3:]
    hidden = len(contents["attacks"]) - 5
    assert (
        closing == f"- {hidden} more attacks, {len(texts) - 3} more note{'s' * (len(texts) > 4)}: --verbose shows all."
    )
    assert lines[-2].endswith("records.csv")
    assert lines[-1].startswith("plmia report ")


def test_verbose_shows_all_attacks_columns_and_notes(signals_file: Write, command: Run, tmp_path: Path) -> None:
    file = signals_file(points=600)
    lines = _ok(command("score", file, "-o", tmp_path, "--verbose")).stdout.splitlines()
    table = [line.split() for line in lines].index(["attack", "AUC", "TPR@1%", "TPR@0%", "ε", "≥", "own", "p-value"])
    assert [line.split()[0] for line in lines[table + 1 : table + 1 + len(ATTACKS)]] == list(ATTACKS)
    assert "attack-p-conditional" not in _metrics(tmp_path)["attacks"]
    shown = [line for line in lines if line.startswith("- ")]
    notes = {note["code"]: note for note in _metrics(tmp_path)["notes"]}
    assert {line.rpartition("): ")[0].partition(" (")[2] for line in shown} == set(notes)
    assert all(any(line.endswith(note["text"]) for line in shown) for note in notes.values())
    assert notes["excluded-references"]["text"].startswith("Model 1 ")


def test_attacks_that_were_asked_for_are_shown(signals_file: Write, command: Run, tmp_path: Path) -> None:
    asked = ["--attack", "lira", "--attack", "attack-r"]
    lines = _ok(command("score", signals_file(points=600), "-o", tmp_path, *asked)).stdout.splitlines()
    assert [line.split()[0] for line in lines[3:5]] == ["lira", "attack-r"]


def test_rows_of_the_table_do_not_break_where_there_is_no_terminal(
    signals_file: Write, command: Run, tmp_path: Path
) -> None:
    """With 10,000 non-members and two targets every column is filled, and a row is longer than 80 characters."""
    file = signals_file(points=30_000, models=24, shift=4.0)
    lines = _ok(command("score", file, "-o", tmp_path, "--target", 0, "--target", 2, "--verbose")).stdout.splitlines()
    rows = [line for line in lines if line.startswith(tuple(f"{name} " for name in ATTACKS))]
    assert [row.split()[0] for row in rows] == list(ATTACKS)
    assert max(map(len, rows)) > 80
    assert all("TPR@" not in row for row in rows)


def test_a_p_value_that_does_not_hold_is_named(repository: Path, command: Run, tmp_path: Path) -> None:
    """On real signals the combined p-value flags nearly all known non-members; the command says so, and what to do."""
    out = _ok(command("score", repository / SLICE, "-o", tmp_path, "--verbose")).stdout
    contents = _metrics(tmp_path)
    assert contents["attacks"]["pl-mia"]["own_p_value_on_population"]["flagged"] > 0.5
    assert contents["attacks"]["pl-mia"]["own_p_value_on_population"]["check_failed"] is True
    assert contents["attacks"]["lira"]["own_p_value_on_population"]["flagged"] is None
    row = next(line for line in out.splitlines() if line.startswith("pl-mia "))
    assert "98.8%" in row
    (note,) = (note["text"] for note in contents["notes"] if note["code"] == "combined-p-value")
    assert "pl-mia, pl-mia-pooled, pl-mia-eb" in note
    assert "98.8 %" in note
    failed = contents["attacks"]["pl-mia"]["per_target"][0]["diagnostics"]["failed_checks"]
    assert {"rule": "analytic", "level": 0.01, "fallback": "conformal", "why_none": None} in failed
    (at_one_in_a_thousand,) = (check for check in failed if check["level"] == 0.001)
    assert at_one_in_a_thousand["fallback"] is None
    assert "needs 999 known non-members" in at_one_in_a_thousand["why_none"]
    assert note in out


# Attacks that lack references ----------------------------------------------------------------------------------------


@pytest.fixture
def one_in(signals_file: Write, simulate: Callable[..., dict[str, Any]]) -> Path:
    """Signals in which point 17 has one IN reference, but none where model 5 is the target."""
    membership = simulate(0)["membership"].copy()
    membership[:, 17] = np.arange(len(membership)) == 5
    return signals_file(replace={"membership": membership})


@pytest.mark.parametrize("target", ["0", "all"])
def test_of_all_attacks_those_that_lack_references_are_left_out(
    target: str, one_in: Path, command: Run, tmp_path: Path
) -> None:
    out = _ok(command("score", one_in, "-o", tmp_path / "all", "--target", target, "--verbose")).stdout
    contents = _metrics(tmp_path / "all")
    skipped = contents["skipped"]
    assert {"lira", "pl-mia-plus", "pl-mia", "pl-mia-pooled"} <= set(skipped)
    # Without any IN reference fewer remain, and of many targets an attack needs all.
    left = ["attack-p", "attack-r", "rmia"] if target == "all" else ["attack-p", "attack-r", "lira-fixed", "rmia"]
    assert [name for name in contents["attacks"] if name != "pl-mia-eb"] == left
    assert ("pl-mia-eb" in skipped) == (target == "all")
    assert set(skipped) | set(contents["attacks"]) == set(ATTACKS)
    assert "record 17 has" in skipped["pl-mia"]
    assert "train more references" in skipped["pl-mia"]
    (note,) = (note["text"] for note in contents["notes"] if note["code"] == "attacks-left-out")
    assert all(name in note for name in skipped)
    assert note in out
    # Those that remain say what they say alone.
    alone = ["--attack", "rmia", "--attack", "attack-r"]
    _ok(command("score", one_in, "-o", tmp_path / "two", "--target", target, *alone, "--quiet"))
    for name in ("rmia", "attack-r"):
        assert contents["attacks"][name]["auc"] == _metrics(tmp_path / "two")["attacks"][name]["auc"]


def test_an_attack_that_was_asked_for_and_lacks_references_stops_the_run(
    one_in: Path, command: Run, tmp_path: Path
) -> None:
    result = command("score", one_in, "-o", tmp_path / "out", "--attack", "rmia", "--attack", "pl-mia")
    assert result.exit_code == 2
    assert "record 17 has 1" in result.stderr
    assert not (tmp_path / "out").exists()


def test_attacks_without_references_alone_are_no_audit(
    signals_file: Write, simulate: Callable[..., dict[str, Any]], command: Run, tmp_path: Path
) -> None:
    """Offline nothing but the loss is left where a point has no OUT reference."""
    membership = simulate(0)["membership"].copy()
    membership[1:, 17] = True
    file = signals_file(replace={"membership": membership})
    result = command("score", file, "-o", tmp_path / "out", "--mode", "offline")
    assert result.exit_code == 2
    assert "record 17 has no OUT reference" in result.stderr or "record 17 has 0" in result.stderr
    assert not (tmp_path / "out").exists()


# Attacks that tell nothing --------------------------------------------------------------------------------------------


@pytest.fixture
def level(signals_file: Write, simulate: Callable[..., dict[str, Any]]) -> Path:
    """Signals so near to each other that no vote of rmia passes its gamma, though its statistic varies."""
    return signals_file(replace={"signals": 0.05 * simulate(0)["signals"] - 3})


def test_of_all_attacks_one_with_a_constant_score_is_left_out(level: Path, command: Run, tmp_path: Path) -> None:
    out = _ok(command("score", level, "-o", tmp_path, "--scale", "logit", "--verbose")).stdout
    contents = _metrics(tmp_path)
    assert list(contents["skipped"]) == ["rmia"]
    assert set(contents["attacks"]) == set(ATTACKS) - {"rmia"}
    (note,) = (note["text"] for note in contents["notes"] if note["code"] == "attacks-left-out")
    assert all(fact in note for fact in ("rmia", "target 0", "gamma = 2"))
    assert note in out
    assert not any(line.startswith("rmia") for line in out.splitlines())
    with np.load(tmp_path / "scores.npz") as scores:
        assert not any(name.startswith("rmia/") for name in scores)


def test_an_attack_that_was_asked_for_and_has_a_constant_score_stops_the_run(
    level: Path, command: Run, tmp_path: Path
) -> None:
    result = command("score", level, "-o", tmp_path / "out", "--scale", "logit", "--attack", "rmia", "--attack", "lira")
    assert result.exit_code == 2
    assert "gamma = 2" in result.stderr
    assert not (tmp_path / "out").exists()
    assert command("score", level, "-o", tmp_path / "out", "--scale", "logit", "--attack", "lira").exit_code == 0


def test_experiments_measure_a_constant_score_as_it_is(simulate_signals: Callable[..., Signals]) -> None:
    given = simulate_signals(0)
    signals = Signals(0.05 * given.values - 3, given.design, given.labels)
    (result,) = attack_targets(signals, [ATTACKS["rmia"]], [0], Setup())
    assert result.metrics().auc == 0.5


# Groups ---------------------------------------------------------------------------------------------------------------


def test_groups_that_a_target_saw_in_part_are_told(
    signals_file: Write, simulate: Callable[..., dict[str, Any]], command: Run, tmp_path: Path
) -> None:
    groups, membership = np.arange(120) // 2, simulate(0)["membership"]
    out = _ok(
        command("score", signals_file(replace={"groups": groups}), "-o", tmp_path / "a", "--attack", "lira")
    ).stdout
    split = np.count_nonzero(membership[0, ::2] != membership[0, 1::2])
    assert f"(split-groups): {split} of 60 groups hold members and non-members of target 0" in out
    whole = membership[:, groups * 2]
    file = signals_file(replace={"groups": groups, "membership": whole})
    assert "groups hold members and" not in _ok(command("score", file, "-o", tmp_path / "b", "--attack", "lira")).stdout


def test_results_of_other_signals_are_replaced_with_a_word(signals_file: Write, command: Run, tmp_path: Path) -> None:
    first, other = signals_file(name="a.npz"), signals_file(1, name="b.npz")
    attack = ("--attack", "rmia")
    assert _ok(command("score", first, "-o", tmp_path / "out", *attack)).stderr == ""
    assert _ok(command("score", first, "-o", tmp_path / "out", *attack)).stderr == ""
    result = command("score", other, "-o", tmp_path / "out", *attack)
    assert result.exit_code == 0
    assert "replaced" in result.stderr


# Designs that reveal membership --------------------------------------------------------------------------------------


def test_counts_that_reveal_membership_are_balanced_and_said(signals_file: Write, command: Run, tmp_path: Path) -> None:
    """Exactly half of the models trained on each record, as in LiRA's published layout."""
    order = np.argsort(np.random.default_rng(0).uniform(size=(8, 600)), axis=0)
    noise = np.random.default_rng(1).normal(size=(8, 600)).astype(np.float32)
    file = signals_file(replace={"membership": order < 4, "signals": noise, "labels": None})
    out = _ok(command("score", file, "-o", tmp_path / "out", "--target", "all")).stdout
    contents = _metrics(tmp_path / "out")
    assert [note["severity"] for note in contents["notes"] if note["code"] == "counts-rebalanced"] == ["info"]
    assert contents["about"]["references"] == [6]
    assert "6 references" in out
    assert abs(contents["attacks"]["lira"]["auc"]["mean"] - 0.5) < 0.03


def test_counts_that_cannot_be_balanced_make_the_audit_invalid(
    signals_file: Write, command: Run, tmp_path: Path
) -> None:
    """Each record is in one model: whoever is in no reference is a member."""
    owner = np.random.default_rng(0).integers(0, 6, 600)
    noise = np.random.default_rng(1).normal(size=(6, 600)).astype(np.float32)
    replace = {"membership": owner == np.arange(6)[:, None], "signals": noise, "labels": None}
    attacks = ("--attack", "attack-p", "--attack", "attack-r")
    _ok(command("score", signals_file(replace=replace), "-o", tmp_path / "out", *attacks))
    verdict = _metrics(tmp_path / "out")["verdict"]
    assert (verdict["status"], verdict["doubts"][0]) == ("invalid", "counts-reveal-membership")
    assert command("gate", tmp_path / "out", "--max-tpr", 0.99, "--at-fpr", 0.01).exit_code == 2


# Sentences -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        {"points": 2_000, "shift": 0.0},
        {"points": 2_000, "shift": 3.0, "views": 2},
        {"points": 60, "shift": 0.0},
        {"points": 400, "models": 4},
        {"points": 2_000, "shift": 0.3, "models": 24},
    ],
)
def test_what_a_user_sees_is_short(shape: dict[str, Any], signals_file: Write, command: Run, tmp_path: Path) -> None:
    """Two lines of a wide terminal at most, and no note twice."""
    _ok(command("score", signals_file(**shape), "-o", tmp_path / "out"))
    contents = _metrics(tmp_path / "out")
    texts = [note["text"] for note in contents["notes"]]
    assert len(set(texts)) == len(texts)
    assert max(map(len, [*texts, contents["verdict"]["text"]])) <= 320
    assert all(not text[0].islower() and text.endswith(".") and "\n" not in text for text in texts)


# Same input and seed, same bytes -------------------------------------------------------------------------------------


def _subprocess(*arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env=os.environ | environment,
        check=False,
        timeout=120,
    )


def test_the_same_input_and_seed_give_the_same_bytes_anywhere(
    repository: Path, tmp_path: Path, without_progress: Callable[[str], str]
) -> None:
    """Two processes, two working folders, two output folders, other hash seeds and threads: the same two files."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "copy.npz").write_bytes((repository / SLICE).read_bytes())
    first = _subprocess(
        "score", SLICE, "-o", tmp_path / "a", "--target", 0, "--target", 5, cwd=repository, PYTHONHASHSEED="1"
    )
    second = _subprocess(
        *("score", "copy.npz", "-o", "b", "--target", "5", "--target", "0"),
        cwd=tmp_path / "elsewhere",
        PYTHONHASHSEED="2",
        OMP_NUM_THREADS="1",
        OPENBLAS_NUM_THREADS="1",
        TZ="Asia/Tokyo",
    )
    assert (first.returncode, without_progress(first.stderr)) == (0, "")
    assert (second.returncode, without_progress(second.stderr)) == (0, "")
    for name in ("metrics.json", "scores.npz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "elsewhere" / "b" / name).read_bytes()


def test_another_seed_draws_another_population_and_other_references(
    signals_file: Write, command: Run, tmp_path: Path
) -> None:
    file = signals_file()
    for seed in (0, 1):
        _ok(command("score", file, "-o", tmp_path / f"{seed}", "--quiet", "--references", 6, "--seed", seed))
    with np.load(tmp_path / "0" / "scores.npz") as zero, np.load(tmp_path / "1" / "scores.npz") as one:
        assert zero["population/0"].tolist() != one["population/0"].tolist()
        assert not np.allclose(zero["lira/0/score"], one["lira/0/score"])  # does not see the population
    assert _metrics(tmp_path / "1")["about"]["seed"] == 1


def test_scores_npz_has_no_date_in_it(signals_file: Write, command: Run, tmp_path: Path) -> None:
    _ok(command("score", signals_file(), "-o", tmp_path, "--quiet"))
    with zipfile.ZipFile(tmp_path / "scores.npz") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.testzip() is None


# The command itself --------------------------------------------------------------------------------------------------


def test_version(command: Run) -> None:
    assert _ok(command("--version")).stdout.strip().endswith(__version__)


def test_attacks_lists_every_attack(command: Run) -> None:
    """That of plmia screen, which needs the data, is last; no other command runs it unless asked."""
    names = [*ATTACKS, "attack-p-conditional"]
    lines = _ok(command("attacks")).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == names
    listing = json.loads(_ok(command("attacks", "--json")).stdout)
    assert list(listing) == names
    assert all({"statistic", "calibration", "note"} == set(entry) for entry in listing.values())
    everything = json.loads(_ok(command("attacks", "--all", "--json")).stdout)
    assert list(everything) == [*names, *RIVALS]


def test_rivals_run_if_they_are_named(signals_file: Write, command: Run, tmp_path: Path) -> None:
    named = [name for name in RIVALS if RIVALS[name].uses_references]
    options = [word for name in named for word in ("--attack", name)]
    _ok(command("score", signals_file(3, points=400), "-o", tmp_path, *options))
    assert list(_metrics(tmp_path)["attacks"]) == named
    assert all(attack["auc"]["mean"] > 0.6 for attack in _metrics(tmp_path)["attacks"].values())
    failed = command("score", signals_file(3, points=400), "-o", tmp_path, "--attack", "quantile-regression")
    assert failed.exit_code == 2
    assert "--data" in failed.stderr


@pytest.mark.parametrize("name", ["", *main.list_commands(click.Context(main))])
def test_every_help_has_an_example(name: str, command: Run) -> None:
    text = _ok(command(*name.split(), "--help")).stdout
    assert re.search(r"^ *Examples?:$", text, flags=re.MULTILINE)
    assert re.search(rf"^ +plmia {name or '[a-z]+'}", text, flags=re.MULTILINE)
    assert _ok(command(*name.split(), "-h")).stdout == text


def test_the_installed_command_runs(repository: Path, tmp_path: Path, without_progress: Callable[[str], str]) -> None:
    script = Path(sys.executable).parent / "plmia"
    if not script.exists():
        pytest.skip("the command is not installed beside this interpreter")
    done = subprocess.run(
        [script, "score", SLICE, "-o", tmp_path / "out", "--json"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=repository,
        check=False,
        timeout=120,
    )
    assert (done.returncode, without_progress(done.stderr)) == (0, "")
    assert done.stdout == (tmp_path / "out" / "metrics.json").read_text(encoding="utf-8")
    assert json.loads(done.stdout)["attacks"]["pl-mia"]["auc"]["mean"] > 0.7


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_terminal_can_show_the_table(
    encoding: str, signals_file: Write, tmp_path: Path, without_progress: Callable[[str], str]
) -> None:
    done = subprocess.run(
        [*COMMAND, "score", str(signals_file()), "-o", str(tmp_path / "out"), "--target", "0", "--target", "1"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        check=False,
        timeout=120,
    )
    assert (done.returncode, without_progress(done.stderr.decode(encoding))) == (0, "")
    assert "pl-mia-eb" in done.stdout.decode(encoding)


def test_a_folder_name_is_shown_as_it_is(signals_file: Write, command: Run, tmp_path: Path) -> None:
    out = tmp_path / "out:key:[red]"
    assert f"{out}/metrics.json" in _ok(command("score", signals_file(), "-o", out)).stdout


def test_metrics_json_is_plain_json(signals_file: Write, command: Run, tmp_path: Path) -> None:
    _ok(command("score", signals_file(), "-o", tmp_path, "--quiet"))

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    text = (tmp_path / "metrics.json").read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert math.isfinite(json.loads(text, parse_constant=refuse)["attacks"]["lira"]["auc"]["mean"])


def test_a_target_that_is_sure_of_everything_is_told_by_its_references(
    simulate: Callable[..., Any], signals_file: Write, command: Run, tmp_path: Path
) -> None:
    arrays = simulate(0, models=16, points=400)
    arrays["signals"][0] = 5.0
    _ok(command("score", signals_file(replace=arrays), "-o", tmp_path / "out"))
    contents = _metrics(tmp_path / "out")
    assert "pl-mia" in contents["attacks"]
    assert "attack-p" in contents["skipped"]


# A store with unfinished models --------------------------------------------------------------------------------------


@pytest.fixture
def unfinished(tmp_path: Path, simulate: Callable[..., Any]) -> Path:
    """Return a store of 17 models, of which 0 and 4 are not finished."""
    arrays = simulate(3, models=17, points=200)
    design = MembershipDesign(arrays["membership"])
    store = SignalStore.create(tmp_path / "run" / "signals", {"data": "abc"}, design, ["identity"], arrays["labels"])
    store.append(range(17), arrays["signals"], [{"seconds": 1.0} for _ in range(17)])
    (tmp_path / "run" / "signals" / "records" / "000000-000016.json").unlink()
    finished = [model for model in range(17) if model not in (0, 4)]
    for model in finished:
        store.append([model], arrays["signals"][[model]], [{"seconds": 1.0}])
    return tmp_path / "run" / "signals"


def test_a_target_that_is_not_finished_is_refused(unfinished: Path, command: Run, tmp_path: Path) -> None:
    for options in ((), ("--target", 4), ("--target", 4, "--target", 3)):
        result = command("score", unfinished, "-o", tmp_path / "out", "--attack", "rmia", *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert re.match(r"plmia: target [04] is not among the 15 finished models", result.stderr)
        assert len(result.stderr.splitlines()) == 1
        assert not (tmp_path / "out").exists()
    planned = command("plan", unfinished)
    assert planned.exit_code == 2
    assert "target 0 is not among the 15 finished models" in planned.stderr


def test_models_of_a_store_keep_their_numbers(unfinished: Path, command: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = command("score", unfinished, "-o", out, "--attack", "rmia", "--target", 5)
    assert result.exit_code == 0, result.output
    assert "15 of 17 models finished" in result.stderr
    printed = result.stdout
    about, design = _metrics(out)["about"], SignalStore.open(unfinished).design
    assert (about["targets"], about["signals"]["models"], about["references"]) == ([5], 15, [14])
    with np.load(out / "scores.npz") as scores:
        np.testing.assert_array_equal(scores["members/5"], design.matrix[5])
    assert any("15 of 17 models finished (models 0, 4 missing)" in str(note) for note in _metrics(out)["notes"])
    assert "15 of 17 models finished" in printed
    _ok(command("score", unfinished, "-o", out, "--attack", "rmia", "--target", "all", "--quiet"))
    assert _metrics(out)["about"]["targets"] == [1, 2, 3, *range(5, 17)]
    words = _ok(command("plan", unfinished, "--target", 5, "--quiet", "--attack", "rmia")).stdout
    assert "15 of 17 models finished" in words


def test_the_digest_covers_the_models_that_were_used(unfinished: Path, command: Run, tmp_path: Path) -> None:
    def digest() -> str:
        _ok(command("score", unfinished, "-o", tmp_path / "out", "--attack", "rmia", "--target", 5, "--quiet"))
        found: str = _metrics(tmp_path / "out")["about"]["signals"]["sha256"]
        return found

    first = digest()
    assert digest() == first
    (unfinished / "records" / "000016.json").unlink()
    assert digest() != first


def test_few_finished_models_are_a_caution(unfinished: Path) -> None:
    store = SignalStore.open(unfinished)
    for n, severity in ((4, "caution"), (5, "info")):
        (note,) = store_notes(store, store.signals(list(store.finished())[:n]))
        assert (note.code, note.severity) == ("unfinished-models", severity)


@pytest.mark.parametrize("junk", [{"seconds": "long"}, {"losses": ["a", "b"]}, {"versions": {"numpy": "\ud800"}}])
def test_a_store_that_has_junk_already_is_refused_in_one_sentence(
    unfinished: Path, command: Run, tmp_path: Path, junk: dict[str, Any]
) -> None:
    _ok(command("score", unfinished, "-o", unfinished.parent, "--attack", "rmia", "--target", 5, "--quiet"))
    path = unfinished / "records" / "000003.json"
    record = json.loads(path.read_text())
    del record["digest"]  # as an earlier version wrote it
    record["models"][0]["provenance"] = junk
    path.write_text(json.dumps(record | {"schema": 1}))
    for words in (("score", unfinished, "-o", tmp_path / "out", "--target", 5), ("plan", unfinished, "--target", 5)):
        result = command(*words)
        assert result.exit_code == 2
        assert "records/000003.json" in result.stderr
        assert len(result.stderr.splitlines()) == 1
    result = command("report", unfinished.parent)
    assert result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_report_on_a_target_whose_signals_went_missing(unfinished: Path, command: Run) -> None:
    run = unfinished.parent
    _ok(command("score", unfinished, "-o", run, "--attack", "rmia", "--target", 5, "--quiet"))
    _ok(command("report", run, "--quiet"))
    assert "record-1.svg" in {path.name for path in (run / "figures").iterdir()}
    (unfinished / "records" / "000005.json").unlink()
    result = command("report", run, "--quiet")
    assert result.exit_code in (0, 2), result.output
    assert result.exit_code == 2 or "record-1.svg" not in {path.name for path in (run / "figures").iterdir()}

"""The comparison of all attacks: what is measured, how sets merge, and the page's tables."""

import json
from dataclasses import replace

import numpy as np
import pytest
from experiments import kept, rivals
from experiments.charts import HeatCell, heat_map
from experiments.measure import AUC
from scipy.stats import ttest_rel

from plmia.auditing import screen
from plmia.errors import DataError
from plmia.evaluation.metrics import evaluate
from plmia.evaluation.targets import attack_targets


@pytest.fixture
def folder(tmp_path, simulate_signals):
    """Signals of 14 models, as an npz file and as kept models."""
    signals = simulate_signals(0, models=14, points=300, dtype="float16")
    np.savez(tmp_path / "mine.npz", signals=signals.values, membership=signals.design.matrix, labels=signals.labels)
    (tmp_path / "mine.json").write_text(json.dumps({"data": "Mine", "model": "any", "first_target": 4}))
    return tmp_path


def test_rows_are_means_and_paired_differences_over_reported_targets(folder):
    source = rivals.read_set("mine", folder, targets=3)
    made = rivals.measure(source)
    assert min(made["targets"]) >= 4
    assert {row["references"] for row in made["rows"]} == {2, 4, 8, 12}
    row = next(r for r in made["rows"] if (r["mode"], r["references"], r["attack"]) == ("offline", 4, "base"))
    naive = {}
    attacks = [rivals.ALL["base"], rivals.ALL[rivals.OURS]]
    for target in source.targets:
        setup = replace(source.setup("offline", 4), seed=source.seed + target)
        for result in attack_targets(source.signals, attacks, [target], setup):
            queries = result.truth.queries
            found = evaluate(result.scores.score[queries], result.truth.members[queries], (0.0,), target=0)
            naive.setdefault(result.scores.attack, []).append((100 * found.auc, 100 * found.tpr_at(0.0).tpr))
    assert made["metrics"][0] == AUC
    assert [row["mean"][0], row["mean"][4]] == pytest.approx(np.mean(naive["base"], axis=0).tolist(), abs=1e-3)
    apart = np.subtract(naive[rivals.OURS], naive["base"])
    assert row["ahead"][0][0] == pytest.approx(apart[:, 0].mean(), abs=1e-3)
    test = ttest_rel(*np.array([naive[rivals.OURS], naive["base"]])[:, :, 0])
    assert row["ahead"][0][1:] == pytest.approx(test.confidence_interval(), abs=1e-3)
    assert row["p_values"][0] == pytest.approx(test.pvalue, rel=0.01)
    assert row["mean"][2] is row["ahead"][2] is row["p_values"][2] is None  # 0.1 % is not resolved


def test_each_target_has_its_own_draw_of_references_and_population(folder):
    source = rivals.read_set("mine", folder, targets=4)
    found = list(rivals.attacked(source, [rivals.ALL["rmia"]], source.targets, source.setup("online", 2)))
    assert [result.target for result in found] == list(source.targets)
    assert len({tuple(sorted(result.references)) for result in found}) > 2
    again = replace(source.setup("online", 2), seed=source.seed + found[1].target)
    (same,) = attack_targets(source.signals, [rivals.ALL["rmia"]], [found[1].target], again)
    assert np.array_equal(same.references, found[1].references)
    assert np.array_equal(same.population, found[1].population)


def test_attacks_that_lack_references_are_left_out_and_the_others_stay(folder):
    made = rivals.measure(rivals.read_set("mine", folder, targets=3))
    named = {n: {row["attack"] for row in made["rows"] if row["references"] == n} for n in (2, 4)}
    assert not {"lira", "bavaria-t"} & named[2]
    assert {"rmia", "base", rivals.OURS} <= named[2]
    assert set(rivals.RIVALS) - {"quantile-regression"} <= named[4]


def test_committed_results_report_no_target_that_influenced_the_design():
    found = json.loads(rivals.RESULT.read_text(encoding="utf-8"))
    assert {key.rpartition("-")[0] for key in found} >= set(rivals.POINTS)
    for key, each in found.items():
        name = key.rpartition("-")[0]
        beside = [rivals.SIGNALS / f"{name}.json", rivals.SIGNALS / name / "about.json"]
        first = [json.loads(path.read_text(encoding="utf-8"))["first_target"] for path in beside if path.exists()]
        first += [given["first_target"] for given in [rivals.GIVEN.get(name)] if given]
        assert min(each["targets"]) >= max(first), key


def test_sets_merge_into_the_results(folder, monkeypatch):
    monkeypatch.setattr(rivals, "RESULT", folder / "rivals.json")
    (folder / "rivals.json").write_text('{"other-5": {}}')
    rivals.main("measure", ["mine"], folder, None, 3)
    found = json.loads((folder / "rivals.json").read_text())
    assert list(found) == ["other-5", "mine-300"]


def test_some_numbers_of_references_are_measured_again_and_other_rows_stay(folder, monkeypatch):
    monkeypatch.setattr(rivals, "RESULT", folder / "rivals.json")
    rivals.main("measure", ["mine"], folder, None, 3)
    whole = json.loads((folder / "rivals.json").read_text())
    changed = json.loads(json.dumps(whole))
    for row in changed["mine-300"]["rows"]:
        row["mean"][0] = -1.0
    (folder / "rivals.json").write_text(json.dumps(changed))
    rivals.main("measure", ["mine"], folder, None, 3, [4])
    rows = json.loads((folder / "rivals.json").read_text())["mine-300"]["rows"]
    assert len(rows) == len(whole["mine-300"]["rows"])
    for row, before in zip(rows, whole["mine-300"]["rows"], strict=True):
        assert (row["mode"], row["references"], row["attack"]) == (
            before["mode"],
            before["references"],
            before["attack"],
        )
        assert row["mean"][0] == (before["mean"][0] if row["references"] == 4 else -1.0)
    with pytest.raises(DataError, match="targets"):
        rivals.main("measure", ["mine"], folder, None, 2, [4])


def test_kept_models_are_a_set(tmp_path, simulate_signals):
    signals = simulate_signals(1, models=10, points=100, views=2)
    models = {
        str(i): {"sha256": kept.write_model(tmp_path / "mine" / f"{i:06d}.npz", values, members)}
        for i, (values, members) in enumerate(zip(signals.values, signals.design.matrix, strict=True))
    }
    labels = signals.labels.astype("<i2")
    np.savez(tmp_path / "mine" / "labels.npz", labels=labels)
    about = {"data": "Mine", "recipe": "any", "first_target": 2, "n_points": 100, "views": ["a", "b"]}
    about |= {"labels": kept.hashlib.sha256(labels.tobytes()).hexdigest(), "models": models}
    (tmp_path / "mine" / "about.json").write_text(json.dumps(about))
    source = rivals.read_set("mine", tmp_path, targets=2)
    assert source.targets == (2, 4)
    assert np.abs(source.signals.values - signals.values).max() <= kept.STEP / 2
    design, _ = kept.read_kept_design(tmp_path / "mine")
    assert np.array_equal(design.matrix, source.signals.design.matrix)
    assert rivals.planned("mine", tmp_path) == ("mine-100", [2, 4, 6, 8], [2, 4, 8])


def test_records_are_matched_with_their_data_by_labels(tmp_path):
    rng = np.random.default_rng(0)
    source = rivals.read_set("location_mlp", rivals.SIGNALS, targets=2)
    rows = np.sort(np.random.default_rng(rivals.CUT_SEED).choice(5010, 800, replace=False))
    X, y = rng.normal(size=(5010, 3)), rng.integers(0, 30, size=5010)
    y[rows] = source.signals.labels
    np.savez(tmp_path / "location30.npz", X=X, y=y)
    features = rivals.records_of("location_mlp", source, tmp_path)
    assert np.allclose(features.columns[:, :3], X[rows])
    np.savez(tmp_path / "location30.npz", X=X, y=np.roll(y, 1))
    with pytest.raises(DataError, match="location30"):
        rivals.records_of("location_mlp", source, tmp_path)
    assert rivals.records_of("location_mlp", source, tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (2, [2]),
        (4, [2, 4]),
        (12, [2, 4, 8, 12]),
        (44, [2, 4, 8, 16, 44]),
        (68, [2, 4, 8, 16, 64]),
        (254, [2, 4, 8, 16, 64, 254]),
    ],
)
def test_the_largest_number_of_references_is_a_step_of_its_own_if_it_is_far_from_the_last(most, expected):
    assert rivals.steps(most) == expected


def test_the_command_uses_the_committed_targets_and_numbers_of_references():
    found = json.loads(rivals.RESULT.read_text(encoding="utf-8"))
    plans = {key: (targets, steps) for key, targets, steps in map(rivals.planned, rivals.SETS)}
    assert set(found) == set(plans) | set(OUTSIDE)
    for key, (targets, steps) in plans.items():
        assert found[key]["targets"] == targets, key
        assert budgets_of(found[key]) == {(mode, n) for mode in rivals.MODES for n in steps}, key


# Commands for the sets whose signals are not in the repository, numbers of models, and what they allow.
OUTSIDE = {
    "cifar10_cnn-50000": ("measure --signals FOLDER cifar10_cnn", range(42, 66, 2), 64),
    "location_mlp-5010": ("measure --signals full --targets 20 location_mlp", range(43, 257, 2), 254),
}


@pytest.mark.parametrize("key", OUTSIDE)
def test_the_documented_command_has_the_committed_numbers_of_sets_elsewhere(key):
    each = json.loads(rivals.RESULT.read_text(encoding="utf-8"))[key]
    command, possible, most = OUTSIDE[key]
    for text in (rivals.__doc__, (rivals.HERE / "README.md").read_text(encoding="utf-8")):
        assert f"    python -m experiments.rivals {command}\n" in text
    given = rivals.arguments().parse_intermixed_args(command.split())
    assert f"{given.names[0]}-" == key[: key.rindex("-") + 1]
    assert each["targets"] == list(possible)[: given.targets]
    assert budgets_of(each) == {(mode, n) for mode in rivals.MODES for n in rivals.steps(most)}


def budgets_of(each):
    return {(row["mode"], row["references"]) for row in each["rows"]}


def test_a_set_and_its_small_part_keep_their_names_and_screened_rows(folder, simulate_signals, monkeypatch):
    monkeypatch.setattr(rivals, "RESULT", folder / "rivals.json")
    monkeypatch.setattr(rivals, "POINTS", {"mine": 300})
    rivals.main("measure", ["mine"], folder, None, 3)
    found = json.loads((folder / "rivals.json").read_text())
    found["mine-300"]["screened"] = [{"attack": "kept"}]
    (folder / "rivals.json").write_text(json.dumps(found))
    (whole := folder / "whole").mkdir()
    signals = simulate_signals(1, models=14, points=320, dtype="float16")
    np.savez(whole / "mine.npz", signals=signals.values, membership=signals.design.matrix, labels=signals.labels)
    (whole / "mine.json").write_text((folder / "mine.json").read_text())
    for place in (whole, folder):
        rivals.main("measure", ["mine"], place, None, 3)
    found = json.loads((folder / "rivals.json").read_text())
    assert {key: each["data"] for key, each in found.items()} == {"mine-300": "Mine", "mine-320": "Mine, all records"}
    assert found["mine-300"]["screened"] == [{"attack": "kept"}]
    rivals.main("measure", ["mine"], folder, None, 2)
    assert json.loads((folder / "rivals.json").read_text())["mine-300"]["screened"] == []


def test_images_are_read_as_rows_of_pixels_up_to_the_limit_of_the_package(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    source = rivals.read_set("fashion_mlp", rivals.SIGNALS, targets=2)
    rows = np.sort(np.random.default_rng(rivals.CUT_SEED).choice(30_000, 800, replace=False))
    X, y = rng.integers(0, 256, (30_000, 2, 2), dtype=np.uint8), rng.integers(0, 10, 30_000)
    y[rows] = source.signals.labels
    np.savez(tmp_path / "fashion_mnist.npz", X=X, y=y)
    monkeypatch.setattr(screen, "MOST_VALUES", X.size)
    features = rivals.records_of("fashion_mlp", source, tmp_path)
    assert np.array_equal(features.columns[:, :4], X[rows].reshape(800, 4))
    monkeypatch.setattr(screen, "MOST_VALUES", X.size - 1)
    assert rivals.records_of("fashion_mlp", source, tmp_path) is None


def naive_holm(p_values):
    """Adjusted p-values by the textbook: the smallest times n, the next times n - 1, and never below the one before."""
    adjusted, least = {}, 0.0
    for k, at in enumerate(sorted(p_values, key=p_values.get)):
        least = adjusted[at] = min(1.0, max(least, (len(p_values) - k) * p_values[at]))
    return adjusted


def test_p_values_are_adjusted_for_all_comparisons_of_a_mode():
    found = rivals.results()
    for mode in rivals.MODES:
        rows = [row for each in found.values() for row in each["rows"] if row["mode"] == mode and "ahead" in row]
        p_values = {(i, k): p for i, row in enumerate(rows) for k, p in enumerate(row["p_values"]) if p is not None}
        resolved = sum(interval is not None for row in rows for interval in row["ahead"])
        assert len(p_values) == resolved > 2_000
        expected = naive_holm(p_values)
        assert {at: rows[at[0]]["adjusted"][at[1]] for at in p_values} == pytest.approx(expected)


def test_an_outcome_remains_after_holm_if_the_adjusted_p_value_is_small():
    intervals = {"a": [1.0, 0.1, 2.0], "b": [-1.0, -2.0, -0.1], "c": [-1.0, -2.0, -0.1], "d": [0.0, -1.0, 1.0]}
    adjusted = {"a": 0.001, "b": 0.049, "c": 0.051, "d": 1.0}
    rows = {name: {"ahead": [interval], "adjusted": [adjusted[name]]} for name, interval in intervals.items()}
    plain = {"a": "ahead", "b": "behind", "c": "behind", "d": "open"}
    assert rivals.outcomes(rows, AUC) == plain
    assert rivals.outcomes(rows, AUC, corrected=True) == plain | {"c": "open"}
    assert rivals.behind(rows, AUC, corrected=True) == ["b"]
    assert rivals.standing(rows, AUC, corrected=True) == "behind"
    del rows["b"], rows["d"]
    assert (rivals.standing(rows, AUC), rivals.standing(rows, AUC, corrected=True)) == ("behind", "level")


def test_a_heat_map_prints_every_number_in_its_cell_with_its_mark():
    cells = {
        "left": [HeatCell("one", "a", 12.34), HeatCell("two", "b", -0.66, "bad")],
        "right": [HeatCell("two", "a", -0.04)],
    }
    drawn = heat_map("map", cells, ["a", "b"], ["bad", "level"], "alt", "title")
    assert [note["text"] for note in drawn.layout["annotations"]] == ["12.3", "−0.7", "0.0"]
    places = [(note["xref"], note["x"] < 0.5, note["y"] < 0.75) for note in drawn.layout["annotations"]]
    assert places == [("x domain", True, False), ("x domain", False, True), ("x2 domain", True, True)]
    fills = [trace["fillcolor"] for trace in drawn.data if trace.get("fillcolor") not in (None, "@paper/1")]
    assert [fill.partition("/")[0] for fill in fills] == ["@blue", "@vermilion", "@vermilion"]
    assert float(fills[0].partition("/")[2]) > float(fills[1].partition("/")[2]) > float(fills[2].partition("/")[2])
    marked = {
        trace["name"]: list(zip(trace["x"], trace["y"], strict=True)) for trace in drawn.data[:5] if trace["name"]
    }
    assert marked == {"bad": [(pytest.approx(1.5, abs=0.5), pytest.approx(0.5, abs=0.5))], "level": []}
    assert drawn.svg.count('text-anchor="middle" fill="#1a1d21">12.3</text>') == 1


def test_only_an_interval_that_excludes_0_decides():
    assert [rivals.outcome(x) for x in ([1.0, 0.1, 2.0], [1.0, -0.1, 2.0], [-1.0, -2.0, -0.1])] == [
        "ahead",
        "open",
        "behind",
    ]


# The claims of the page, for all sets ---------------------------------------------------------------------------------

BAVARIA = ["bavaria-t", "bavaria-n"]
# Every setting in which an attack is shown to be ahead, with the mean differences that the page rounds.
BEHIND = {
    ("online", "TPR@1%", "cifar100_wrn-50000", 128): {"bavaria-t": 0.2},
    ("offline", "AUC", "adult_mlp-800", 4): {"info-rmia": 0.4},
    ("offline", "TPR@1%", "adult_mlp-800", 4): {"info-rmia": 0.4},
    ("offline", "TPR@1%", "covertype_mlp-800", 4): {"info-rmia": 0.8},
    ("offline", "TPR@0%", "covertype_mlp-800", 4): {"info-rmia": 0.5},
}


@pytest.fixture(scope="module")
def settings():
    """Rows by attack of every mode, set and number of references."""
    found = rivals.results()
    return {
        (mode, key, n): rows
        for mode in rivals.MODES
        for key, each in found.items()
        for _, n, rows in rivals._settings({key: each}, mode)
    }


def nearest(rows, metric):
    """The smallest lead over any attack, and that attack."""
    return min((interval[0], name) for name, interval in rivals.compared(rows, metric).items())


def level(settings, metric):
    """Attacks that are neither shown to be ahead nor behind, by setting."""
    found = {
        at: {name for name, interval in rivals.compared(rows, metric).items() if rivals.outcome(interval) == "open"}
        for at, rows in settings.items()
    }
    return {at: names for at, names in found.items() if names}


def exceptions(settings, corrected):
    """Attacks that are shown to be ahead, with their mean lead, by mode, metric, set and number of references."""
    return {
        (mode, metric, key, n): {
            name: round(-rows[name]["ahead"][rivals.METRICS.index(metric)][0], 1) for name in names
        }
        for (mode, key, n), rows in settings.items()
        for metric in rivals.METRICS
        if (names := rivals.behind(rows, metric, corrected))
    }


def test_all_exceptions_are_named(settings):
    assert exceptions(settings, corrected=False) == BEHIND


def test_no_exception_remains_after_holm(settings):
    assert exceptions(settings, corrected=True) == {}


def test_info_rmia_is_level_in_many_offline_settings_with_few_references(settings):
    few = [
        (metric, at)
        for metric in rivals.METRICS
        for at, names in level(settings, metric).items()
        if at[0] == "offline" and at[2] <= 16 and "info-rmia" in names
    ]
    assert len(few) >= 30


def test_only_adult_and_cifar_10_have_a_level_auc(settings):
    assert level(settings, "AUC") == {
        ("online", "adult_mlp-800", 2): {"info-rmia", "base"},
        ("offline", "adult_mlp-800", 2): {"info-rmia"},
        ("offline", "adult_mlp-800", 4): {"base"},
        ("offline", "adult_mlp-800", 8): {"info-rmia", "base"},
        ("offline", "adult_mlp-800", 16): {"info-rmia", "base"},
        ("offline", "cifar10_wrn-2000", 4): {"base"},
        ("offline", "cifar10_wrn-2000", 8): {"base"},
    }


def test_who_is_level_at_1_percent(settings):
    found = level(settings, "TPR@1%")
    online = {at[1:]: names for at, names in found.items() if at[0] == "online" and at[2] < 64}
    assert online == {("cifar10_wrn-2000", 16): {"lira-fixed"}, ("adult_mlp-800", 2): {"info-rmia", "base"}}
    offline = {at[1:]: names for at, names in found.items() if at[0] == "offline"}
    assert {at for at, names in offline.items() if "info-rmia" in names} == {
        *(("adult_mlp-800", n) for n in (2, 8, 16, 254)),
        *(("covertype_mlp-800", n) for n in (2, 8)),
        ("location_mlp-5010", 4),
    }
    others = {at: names - {"info-rmia"} for at, names in offline.items() if names != {"info-rmia"}}
    assert others == {("adult_mlp-800", 254): {"base"}, ("covertype_mlp-800", 4): {"rmia"}}


def test_two_references_suffice_for_some_attacks_only(settings):
    few = [rows for (_, _, n), rows in settings.items() if n == 2]
    assert not {"lira", "pl-mia", *BAVARIA} & {name for rows in few for name in rows}


def test_attacks_come_closer_with_many_online_references(settings):
    near = {at[1:]: nearest(rows, "AUC") for at, rows in settings.items() if at[0] == "online" and at[2] >= 64}
    assert max(lead for lead, _ in near.values()) < 2.2
    others = {at: name for at, (_, name) in near.items() if name not in BAVARIA}
    assert others == {
        ("adult_mlp-800", 64): "base",  # online the same as info-rmia
        ("adult_mlp-800", 254): "lira",
        ("covertype_mlp-800", 254): "lira",
    }
    assert len(near) > 2 * len(others)


def test_who_is_level_in_the_far_tail(settings):
    resolved = {
        metric: {at[1] for at, rows in settings.items() if rivals.standing(rows, metric)} for metric in rivals.METRICS
    }
    assert len(resolved["TPR@0.1%"]) == 5
    assert resolved["TPR@0.01%"] == {key for key in resolved["TPR@0.1%"] if key.endswith("-50000")}
    assert len(resolved["TPR@0.01%"]) == 4
    low = level(settings, "TPR@0.1%")
    mine = {at: names for at, names in low.items() if at[1] == "location_mlp-5010"}
    assert set(mine) == {("online", "location_mlp-5010", n) for n in (64, 254)}
    assert all({"lira", *BAVARIA} <= names for names in mine.values())
    both = [
        at
        for metric in ("TPR@0.1%", "TPR@0.01%")
        for at, names in level(settings, metric).items()
        if at[2] <= 16 and {"rmia", "info-rmia"} <= names
    ]
    assert len(both) >= 10
    for metric in ("TPR@1%", "TPR@0.1%", "TPR@0.01%", "TPR@0%"):
        for n in (64, 128):
            shown = rivals.outcomes(settings["online", "cifar100_wrn-50000", n], metric)
            assert {shown[name] for name in BAVARIA} <= {"open", "behind"}, (metric, n)


def test_rates_at_which_the_mean_of_a_rival_is_larger_without_being_shown_to_be_ahead(settings):
    found = {
        (at[0], metric)
        for metric in ("TPR@0.1%", "TPR@0.01%", "TPR@0%")
        for at, names in level(settings, metric).items()
        if any(rivals.compared(settings[at], metric)[name][0] < 0 for name in names)
    }
    assert found == {
        *(("online", metric) for metric in ("TPR@0.1%", "TPR@0.01%", "TPR@0%")),
        *(("offline", metric) for metric in ("TPR@0.01%", "TPR@0%")),
    }


def test_the_lead_is_largest_without_augmentation_with_few_references_and_offline(settings):
    leads = {at: nearest(rows, "AUC")[0] for at, rows in settings.items()}
    for mode in rivals.MODES:
        for n in (2, 4, 8, 16):
            same = {key: lead for (at, key, m), lead in leads.items() if (at, m) == (mode, n)}
            without, others = (
                [lead for key, lead in same.items() if ("plain" in key) is kind] for kind in (True, False)
            )
            assert (min(without) > max(others)) is (mode == "offline" or n <= 8), (mode, n)
    offline = {at: lead for at, lead in leads.items() if at[0] == "offline" and at[2] > 16}
    without, others = ([lead for at, lead in offline.items() if ("plain" in at[1]) is kind] for kind in (True, False))
    assert len(without) == 2
    assert min(without) > max(others)


def test_what_is_found_on_cifar_100_without_augmentation(settings):
    key = "cifar100_wrn_plain-50000"
    for n, expected in (
        (4, [(74.5, rivals.OURS), (19.2, "pl-mia-pooled")]),
        (50, [(82.7, rivals.OURS), (68.1, "lira")]),
    ):
        rates = sorted(((-row["mean"][1], name) for name, row in settings["online", key, n].items()))[:2]
        assert [(round(-rate, 1), name) for rate, name in rates] == expected
    assert round(nearest(settings["online", key, 50], "AUC")[0], 1) == 0.6


def test_informia_and_base_are_one_attack_online_and_not_below_rmia(settings):
    gains = {}
    for (mode, key, n), rows in settings.items():
        if mode == "online":
            assert rows["info-rmia"]["mean"] == rows["base"]["mean"], (key, n)
            gains[key, n] = rows["info-rmia"]["mean"][0] - rows["rmia"]["mean"][0]
    small = [gain for (key, _), gain in gains.items() if int(key.rpartition("-")[2]) <= 2000]
    whole = [gain for (key, _), gain in gains.items() if int(key.rpartition("-")[2]) > 2000]
    assert (round(min(small), 1), round(max(small), 1)) == (0.1, 5.5)
    assert 0 <= min(whole) < max(whole) < 0.45


def test_what_attacks_without_references_find(settings):
    found = json.loads(rivals.RESULT.read_text(encoding="utf-8"))
    for key, each in found.items():
        if each["screened"]:
            auc = {row["attack"]: row["mean"][0] for row in each["screened"]}
            pair = auc["quantile-regression"], auc["attack-p-conditional"]
            assert abs(pair[0] - pair[1]) <= 0.9, key
            ours = min(settings[mode, key, 2][rivals.OURS]["mean"][0] for mode in rivals.MODES)
            assert ours - max(pair) >= 7, key


def test_the_first_figure_has_the_smallest_lead_of_every_setting(settings):
    drawn = rivals.charts(rivals.results())["which-attack"]
    leads = {mode: [nearest(rows, AUC)[0] for at, rows in settings.items() if at[0] == mode] for mode in rivals.MODES}
    printed = [note["text"].replace("−", "-") for note in drawn.layout["annotations"]]
    assert list(map(float, printed)) == [round(lead, 1) + 0.0 for mode in rivals.MODES for lead in leads[mode]]
    standings = [rivals.standing(rows, AUC) for rows in settings.values()]
    marked = {trace["name"]: 0 for trace in drawn.data if trace["mode"] == "markers"}
    for trace in drawn.data:
        if trace["mode"] == "markers":
            marked[trace["name"]] += len(trace["x"])
    assert list(marked.values()) == [standings.count("behind"), standings.count("level")]


def test_the_page_has_the_committed_results():
    found = rivals.results()
    text = rivals.PAGE.read_text(encoding="utf-8")
    assert rivals.with_tables(text, rivals.tables(found), "rivals") == text
    for name, drawn in rivals.charts(found).items():
        assert (rivals.PAGE.parent / f"{name}.svg").read_text(encoding="utf-8") == f"{drawn.svg}\n"
        assert f"]({name}.svg)" in text

"""False discovery rates and the table of records, against loops."""

from __future__ import annotations

import csv
import io
import json
import time

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from plmia.attacks.scoring import Scores, conformal_log10_p
from plmia.errors import PlmiaError
from plmia.evaluation import records
from plmia.evaluation.records import RecordTable, discoveries, exposure, q_values, record_table

Floats = npt.NDArray[np.float64]


def tied_p(seed: int, n: int = 60) -> Floats:
    """Draw p-values on a coarse grid, many of them small."""
    return np.ceil(np.random.default_rng(seed).uniform(size=n) ** 3 * 40) / 41


def loop_q(p: Floats) -> list[float]:
    """Smallest p' n / #{p <= p'} over all p' that are at least as large."""
    n = len(p)
    return [min(1.0, min(other * n / np.sum(p <= other) for other in p if other >= own)) for own in p]


def loop_rejected(p: Floats, fdr: float) -> list[bool]:
    """Step up: the largest k such that k p-values are at most fdr k / n."""
    n = len(p)
    k = max((k for k in range(1, n + 1) if sorted(p)[k - 1] * n <= fdr * k * (1 + 1e-12)), default=0)
    return [bool(k and own <= sorted(p)[k - 1]) for own in p]


def simulated(seed: int = 0, n: int = 200, points: int = 600) -> Scores:
    phi = np.random.default_rng(seed).normal(size=points)
    phi[n : n + 100] += 3
    conformal = conformal_log10_p(phi, np.arange(points), np.arange(n))
    return Scores("x", np.round(phi, 1), conformal, conformal, phi)


@pytest.mark.parametrize("seed", range(20))
def test_q_values_against_loops(seed: int) -> None:
    p = tied_p(seed)
    q = q_values(np.log10(p))
    assert q == pytest.approx(loop_q(p))
    assert q == pytest.approx(stats.false_discovery_control(p))
    order = np.argsort(p)
    assert (np.diff(q[order]) >= 0).all()
    for value in np.unique(p):
        assert len(set(q[p == value])) == 1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("fdr", [0.01, 0.1, 0.2, 0.5])
def test_discoveries_against_the_step_up_procedure(seed: int, fdr: float) -> None:
    p = tied_p(seed)
    assert discoveries(np.log10(p), fdr).tolist() == loop_rejected(p, fdr)


def test_a_rate_that_is_met_exactly_counts() -> None:
    for n in (10, 100, 1_000, 12_345):
        for k in (1, 3, n // 2, n):
            p = np.ones(n)
            p[:k] = 0.1 * k / n
            assert np.count_nonzero(discoveries(np.log10(p), 0.1)) == k


def test_tiny_p_values_do_not_vanish() -> None:
    log10_p = np.array([-400.0, -350.0, -0.1, 0.0])
    assert discoveries(log10_p, 0.05).tolist() == [True, True, False, False]
    assert q_values(log10_p)[0] == 0


@pytest.mark.parametrize("fdr", [0, 1, -1, np.nan])
def test_a_false_discovery_rate_is_a_rate(fdr: float) -> None:
    with pytest.raises(PlmiaError, match="false discovery rate"):
        discoveries(np.zeros(3), fdr)


def test_no_hypothesis_no_discovery() -> None:
    assert discoveries(np.zeros(0), 0.1).size == 0
    assert q_values(np.zeros(0)).size == 0


def test_exposure_compares_with_the_truth() -> None:
    scores, queries = simulated(), np.arange(200, 600)
    members = np.zeros(600, bool)
    members[200:300] = True
    found = exposure(scores, queries, members, 0.2, 200)
    named = discoveries(scores.log10_p_conformal[queries], 0.2)
    assert found.n_discoveries == named.sum() > 20
    assert found.n_true == named[:100].sum()
    assert found.realised_fdr == named[100:].sum() / named.sum()
    assert found.least == 10  # 400 hypotheses, p-values from 1/201 on: 10 of them must be that small
    out = found.to_json()
    assert json.loads(json.dumps(out)) == out
    assert set(out) == {"fdr", "n_discoveries", "n_true", "least", "realised_fdr"}


def test_fewer_discoveries_than_the_least_never_happen() -> None:
    members = np.zeros(600, bool)
    counts = [exposure(simulated(seed), np.arange(200, 600), members, 0.05, 200) for seed in range(30)]
    assert all(found.n_discoveries == 0 or found.n_discoveries >= found.least for found in counts)
    assert exposure(simulated(), np.arange(200, 600), members, 0.001, 200).least > 400
    assert exposure(simulated(), np.arange(200, 210), members, 0.5, 200).least == 1
    assert exposure(simulated(), np.arange(200, 600), members, 0.001, 200).realised_fdr == 0


def test_the_table_is_sorted_with_shared_ranks() -> None:
    scores, queries = simulated(), np.random.default_rng(1).permutation(np.arange(200, 600))
    labels = np.arange(600) % 7
    table = record_table(scores, np.arange(200), queries, labels)
    key = [(scores.log10_p_conformal[i], -scores.score[i]) for i in range(600)]
    assert table.rank.tolist() == [1 + sum(key[other] < key[i] for other in queries) for i in table.index]
    assert table.label is not None
    assert table.label.tolist() == labels[table.index].tolist()
    assert table.score.tolist() == scores.score[table.index].tolist()
    assert table.p == pytest.approx(10 ** scores.log10_p_conformal[table.index])
    assert sorted(table.index) == sorted(queries)
    pairs = list(zip(table.rank.tolist(), table.index.tolist(), strict=True))
    assert pairs == sorted(pairs)
    assert len({rank for rank, _ in pairs}) < len(pairs)
    q = dict(zip(queries, q_values(scores.log10_p_conformal[queries]), strict=True))
    assert table.q.tolist() == [q[index] for index in table.index]
    assert (np.diff(table.q) >= 0).all()


@pytest.mark.parametrize("follows", [True, False], ids=["p follows the score", "p does not"])
@pytest.mark.parametrize("distinct", [1, 5, 300, 10**9])
@pytest.mark.parametrize("shuffled", [False, True])
def test_the_order_of_the_table_is_that_of_a_sort_of_rows(follows: bool, distinct: int, shuffled: bool) -> None:
    rng = np.random.default_rng(distinct)
    score = rng.integers(0, distinct, 600).astype(float)
    p = np.log10(1 - np.floor(score / distinct * 7) / 10) if follows else np.log10(rng.integers(1, 9, 600) / 10)
    scores = Scores("a", score, p, p, score)
    queries = rng.permutation(np.arange(100, 600)) if shuffled else np.arange(100, 600)
    table = record_table(scores, np.arange(100), queries)
    assert table.index.tolist() == sorted(queries.tolist(), key=lambda i: (p[i], -score[i], i))


def written(table: RecordTable) -> str:
    file = io.BytesIO()
    table.write_lines(file)
    return file.getvalue().decode()


def rows_of(table: RecordTable) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(written(table))))


def test_the_file_holds_the_table() -> None:
    table = record_table(simulated(), np.arange(200), np.arange(200, 600))
    rows = rows_of(table)
    assert list(rows[0]) == ["index", "label", "score", "p", "q", "rank"]
    assert [int(row["index"]) for row in rows] == table.index.tolist()
    assert [float(row["score"]) for row in rows] == table.score.tolist()
    assert [float(row["q"]) for row in rows] == pytest.approx(table.q.tolist(), rel=1e-5)
    assert {row["label"] for row in rows} == {""}


@pytest.mark.parametrize("rows_at_once", [1, 7, 1 << 16])
def test_lines_are_those_of_a_loop_over_rows(monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    monkeypatch.setattr(records, "_ROWS", rows_at_once)
    members = np.arange(600) % 4 == 0
    for labels in (None, np.arange(600) % 7):
        table = record_table(simulated(), np.arange(200), np.arange(200, 600), labels, members=members)
        lines = ["index,label,score,p,q,rank,member"]
        for i, row in enumerate(zip(table.index, table.score, table.p, table.q, table.rank, strict=True)):
            index, score, p, q, rank = row
            label = "" if labels is None else str(labels[index])
            assert table.member is not None
            lines.append(f"{index},{label},{float(score)!r},{p:.6g},{q:.6g},{rank},{int(table.member[i])}")
        assert written(table) == "\n".join(lines) + "\n"


def test_the_group_stands_beside_each_record() -> None:
    groups = np.arange(600) // 3 + 1000
    table = record_table(simulated(), np.arange(200), np.arange(200, 600), groups=groups)
    rows = rows_of(table)
    assert list(rows[0]) == ["index", "label", "score", "p", "q", "rank", "group"]
    assert [int(row["group"]) for row in rows] == [groups[int(row["index"])] for row in rows]
    assert table.columns()["group"] == groups[table.index].tolist()


def test_the_member_column_stands_last() -> None:
    groups, members = np.arange(600) // 3, np.arange(600) % 4 == 0
    table = record_table(simulated(), np.arange(200), np.arange(200, 600), groups=groups, members=members)
    rows = rows_of(table)
    assert list(rows[0]) == ["index", "label", "score", "p", "q", "rank", "group", "member"]
    assert [row["member"] for row in rows] == [str(int(members[int(row["index"])])) for row in rows]
    assert table.columns()["member"] == members[table.index].tolist()


def test_known_non_members_are_no_hypotheses() -> None:
    with pytest.raises(PlmiaError, match="known non-members"):
        record_table(simulated(), np.arange(200), np.arange(199, 600))


def test_an_empty_table() -> None:
    table = record_table(simulated(), np.arange(200), np.arange(0))
    assert written(table) == "index,label,score,p,q,rank\n"
    assert len(table) == 0


def test_a_million_points_are_fast() -> None:
    rng = np.random.default_rng(0)
    phi = rng.normal(size=1_000_000)
    conformal = conformal_log10_p(phi, np.arange(len(phi)), np.arange(100_000))
    scores = Scores("x", phi, conformal, conformal, phi)
    start = time.perf_counter()
    table = record_table(scores, np.arange(100_000), np.arange(100_000, len(phi)))
    assert time.perf_counter() - start < 10  # about 1 s; a shared machine may be slower
    assert len(table) == 900_000

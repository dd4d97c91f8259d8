"""The report on people, subgroups, trainings and accusations: nothing mixes people with records."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmia.attacks.attack import ATTACKS
from plmia.data.designs import MembershipDesign
from plmia.evaluation.targets import Setup
from plmia.reporting import Extras, figures, write_report
from plmia.reporting.content import Content, read_content
from plmia.reporting.drawing import Absent, Figure
from plmia.reporting.page_text import (
    accusation_rows,
    audited,
    one_record_rows,
    subgroup_rows,
    subgroup_summary,
    tiles,
    training_rows,
)
from plmia.reporting.plots import classes_figure, record_figures, subgroup_figures, trainings_figures
from plmia.results.folder import run_attacks
from plmia.results.further import Further, columns_from
from plmia.signals.signals import Signals

PEOPLE, MODELS = 900, 10
WARDS = ("east", "<b>north</b>", "south", "rare", "seldom")
NEW_SECTIONS = ("one-record-head", "accusations", "subgroups", "trainings")


def of_people(seed: int) -> tuple[Signals, np.ndarray]:
    """Signals of people with 1 to 3 records that leak, most in the ward "south", and the ward of each person.

    Records are shuffled, so that the number of a person is not that of a record.
    """
    rng = np.random.default_rng(seed)
    ward = rng.choice(len(WARDS), PEOPLE, p=[0.45, 0.3, 0.21, 0.02, 0.02])
    groups = rng.permutation(np.repeat(np.arange(PEOPLE), rng.integers(1, 4, PEOPLE)))
    half = rng.random((MODELS // 2, PEOPLE)) < 0.5
    members = np.stack([half, ~half], axis=1).reshape(-1, PEOPLE)
    shift = np.where(ward == 2, 6.0, 1.0)
    values = rng.normal(size=(1, len(groups), 1)) + rng.normal(size=(MODELS, len(groups), 1))
    values += (shift * members)[:, groups, None]
    labels = rng.integers(0, 4, len(groups))
    return Signals(values.astype(np.float32), MembershipDesign(members[:, groups]), labels, groups=groups), ward


@pytest.fixture(scope="module")
def signals() -> Signals:
    return of_people(0)[0]


def made(folder: Path, unit: Any) -> Path:
    signals, ward = of_people(0)
    by = columns_from({"ward": np.array(WARDS)[ward][signals.groups]}, signals.n_points)
    attacks = [ATTACKS[name] for name in ("pl-mia", "rmia")]
    setup = Setup(population=150, unit=unit)
    run_attacks(signals, attacks, [0], setup, folder, further=Further(by, trainings=6), show_records=True)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("people"), "group")


@pytest.fixture(scope="module")
def content(folder: Path, signals: Signals) -> Content:
    return read_content(folder, Extras(signals=signals))


def page_of(folder: Path, copy: Path, extras: Extras | None = None, *, show_records: bool = False) -> str:
    shutil.copytree(folder, copy)
    return write_report(copy, extras, show_records=show_records).read_text(encoding="utf-8")


def held(page: str) -> dict[str, Any]:
    """The table of the page, as its script reads it."""
    found = re.search(r'<script type="application/json" id="rows">(.*?)</script>', page)
    assert found
    rows: dict[str, Any] = json.loads(found[1])
    return rows


def test_a_row_of_the_table_is_a_person_with_its_first_record(folder: Path, signals: Signals, tmp_path: Path) -> None:
    texts = [f"record {i} of {group}" for i, group in enumerate(np.asarray(signals.groups).tolist())]
    rows = held(page_of(folder, tmp_path / "run", Extras(texts=texts, signals=signals), show_records=True))
    groups = np.asarray(signals.groups)
    assert rows["unit"] == "person"
    assert rows["file"] == "people.csv"
    assert rows["label"] is None
    assert rows["group"] == rows["index"], "the groups of these signals are numbered like people"
    for person, first, n, preview in zip(
        rows["index"], rows["first_record"], rows["records"], rows["previews"], strict=True
    ):
        assert (first, n) == (np.flatnonzero(groups == person)[0], np.sum(groups == person))
        assert preview == {"text": f"record {first} of {person}"}


def test_signals_are_those_of_a_persons_first_record(content: Content, signals: Signals) -> None:
    first = record_figures(content)[0]
    assert isinstance(first, Figure)
    person, record = int(content.table.index[0]), int(content.table.shown_records[0])
    assert first.title.startswith(f"Person {person}, record {record} (first of ")
    assert f"class {signals.labels[record]}" in first.title  # type: ignore[index]
    target = first.layout["shapes"][0]["x0"]
    assert target == pytest.approx(float(signals.values[0, record, 0]))


def test_people_are_called_people(content: Content, folder: Path, tmp_path: Path) -> None:
    facts = dict(audited(content))
    assert f"{PEOPLE:,} people" in facts["Data"]
    assert "people: " in facts["Target"]
    assert any(tile.head == "People named as members" for tile in tiles(content))
    assert isinstance(classes_figure(content), Absent), "a person may have several classes"
    page = unescape(page_of(folder, tmp_path / "run"))
    assert "Most exposed people" in page
    assert "Evaluated records" not in page
    for name in NEW_SECTIONS:
        assert f'id="{name}"' in page
    assert "<b>north</b>" not in page_of(folder, tmp_path / "other").split('id="drawn"')[0]


def test_people_are_compared_with_one_record_each(content: Content) -> None:
    rows = {row.name: [cell.value for cell in row.cells] for row in one_record_rows(content)}
    single = content.result.one_record
    assert single
    assert list(rows) == ["pl-mia", "rmia"]
    for name, values in rows.items():
        whole, one = content.result.attacks[name], single[name]
        assert values[0] == f"{100 * whole.auc.mean:.1f} %"
        assert values[2] == f"{100 * one.auc.mean:.1f} %"
        assert whole.auc.mean > one.auc.mean


def test_subgroups_are_listed_and_drawn(content: Content) -> None:
    (table,) = content.subgroups
    rows = {row.name: row for row in subgroup_rows(table)}
    assert table.more_exposed == ("south",)
    assert [name for name, row in rows.items() if row.marked] == ["south"]
    assert rows["south"].cells[-1].below == "more exposed"
    merged = table.subgroups[-1]
    assert merged.merged == ("rare", "seldom")
    assert rows[merged.name + " (small)" * merged.small].cells[2].value == "–"
    said = subgroup_summary(table)
    assert "More exposed than the others: south." in said
    assert "rare, seldom" in said
    (figure,) = subgroup_figures(content)
    assert isinstance(figure, Figure)
    assert figure.layout["yaxis"]["ticktext"] == ["▲ south", "east", "&lt;b&gt;north&lt;/b&gt;"]
    assert "More exposed than the others: south." in figure.alt
    own, common = figure.data
    east = next(group for group in table.subgroups if group.name == "east")
    assert east.interval
    assert own["x"] == pytest.approx([group.tpr for group in table.subgroups if group.tpr is not None], rel=1e-4)
    assert own["x"][-1] + own["error_x"]["array"][-1] == pytest.approx(east.interval.high, abs=1e-4)
    assert common["x"][1] == pytest.approx(east.identified / east.n_members, rel=1e-4)


def test_trainings_stand_beside_the_target(content: Content) -> None:
    found = content.trainings
    assert found
    target, mean = training_rows(content, found)
    entry = content.result.attacks[content.verdict.attack].on(0)
    assert target.cells[0].value == f"{100 * entry.auc:.1f} %"
    assert target.cells[1].value == f"{100 * entry.tpr[0.01].tpr:.1f} %"
    assert mean.cells[0].value == f"{100 * found.auc.mean:.1f} %"
    (figure,) = trainings_figures(content)
    assert isinstance(figure, Figure)
    drawn = {trace["name"]: trace for trace in figure.data}
    points = [point for point in found.curve if point.percent > 0]
    assert drawn["members identified"]["text"] == [f"{point.identified:,}" for point in points]
    assert drawn["limit without a leak"]["y"] == pytest.approx([point.at_most for point in points], rel=1e-4)


def test_accusations_are_those_of_the_results(content: Content) -> None:
    rows = accusation_rows(content)
    assert [row.name for row in rows] == ["50 %", "10 %", "1 %", "0.1 %"]
    first = content.result.accusations[0]
    assert rows[0].cells[1].value == f"{100 * first.precision:.1f} %"
    assert rows[0].cells[2].value == f"{first.right:,.0f}"


def test_an_invalid_audit_shows_none_of_these_numbers(content: Content) -> None:
    invalid = replace(content.result, verdict=replace(content.verdict, status="invalid", grade=None))
    content = Content(content.saved, content.attack, content.target)
    earlier, content.saved.result = content.saved.result, invalid
    try:
        assert not content.subgroups
        assert not content.accusations
        assert content.trainings is None
        assert not one_record_rows(content)
        assert not subgroup_figures(content)
        assert not trainings_figures(content)
        assert not tiles(content)
    finally:
        content.saved.result = earlier


def test_records_have_the_same_sections_except_that_of_people(tmp_path: Path) -> None:
    folder = made(tmp_path / "records", "record")
    page = write_report(folder).read_text(encoding="utf-8")
    assert [name for name in NEW_SECTIONS if f'id="{name}"' in page] == list(NEW_SECTIONS[1:])
    assert "Records by ward" in page
    assert "People" not in page
    assert {"subgroups-1", "trainings"} <= figures(folder).keys()


def test_a_run_without_further_answers_has_no_empty_headings(tmp_path: Path, signals: Signals) -> None:
    few = Signals(signals.values[:, :120], MembershipDesign(signals.design.matrix[:, :120]))
    run_attacks(few, [ATTACKS["rmia"]], [0], Setup(population=20), tmp_path, further=Further(priors=()))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert not [name for name in NEW_SECTIONS if f'id="{name}"' in page or f'href="#{name}"' in page]

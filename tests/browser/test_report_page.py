"""The report in a real browser: opens from disk, says what the JSON says, and everything in it works."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plmia.reporting.page_text import STYLES

AXE = Path(__file__).parent / "assets" / "axe.min.js"
SCREENS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
PAGE = 25

Open = Callable[..., Any]


def rows(page: Any) -> list[list[str]]:
    cells: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('#table tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    return cells


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def held(page: Any) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads(page.locator("#rows").text_content())
    return contents


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_it_opens_from_disk_fits_the_screen_and_asks_for_nothing(
    opened: Open, hostile: Path, width: int, scheme: str
) -> None:
    report = opened(hostile, width, scheme)
    report.draw_all()
    assert report.page.evaluate("document.documentElement.scrollWidth") <= width
    assert [url for url in report.requests if not url.startswith(("file:", "data:"))] == []
    assert [url for url in report.requests if url.startswith("file:")] == [hostile.as_uri()]
    assert report.messages == []


def test_the_verdict_is_that_of_the_json(opened: Open, hostile: Path) -> None:
    verdict = json.loads((hostile.parent / "metrics.json").read_text(encoding="utf-8"))["verdict"]
    page = opened(hostile).page
    head, text = (page.locator(f"#verdict-{part}").text_content() for part in ("head", "text"))
    whole = verdict["text"].replace(" %", "\u00a0%")
    assert text[1:] == whole.removeprefix(f"{head}: ")[1:], "the heading is not repeated"
    assert page.locator("#verdict-text").bounding_box()["y"] < 300
    style = STYLES[verdict["grade"] or verdict["status"]]
    assert page.locator("#verdict").get_attribute("class") == f"verdict {style}"
    assert page.locator(".tile").first.bounding_box()["y"] < 900


@pytest.mark.parametrize("width", [1280, 390])
def test_every_figure_has_marks_axes_and_a_caption(opened: Open, hostile: Path, width: int) -> None:
    report = opened(hostile, width)
    report.draw_all()
    found = report.page.evaluate(
        """[...document.querySelectorAll("figure[data-figure]")].map(f => ({
            name: f.id,
            marks: [...f.querySelectorAll(".plot .scatterlayer path, .plot .barlayer path")]
                .filter(p => { const b = p.getBBox(); return b.width + b.height > 1; }).length,
            titles: [...f.querySelectorAll(".plot .xtitle, .plot .x2title")].map(t => t.textContent),
            ticks: f.querySelectorAll(".plot .xtick, .plot .ytick").length,
            caption: f.querySelector("figcaption").textContent,
            alt: f.querySelector(".plot").getAttribute("aria-label"),
        }))"""
    )
    names = [figure["name"] for figure in found]
    assert {"roc", "tpr", "scores", "classes", "fpr", "p-values", "references", "record-1", "record-6"} <= set(names)
    for figure in found:
        assert figure["marks"] >= 2, figure
        assert figure["titles"], figure
        assert all(figure["titles"]), figure
        assert figure["ticks"] >= 4, figure
        assert "ealthy" in figure["caption"] or figure["name"] == "roc", figure
        assert len(figure["alt"]) > 20, figure


def test_text_that_looks_like_markup_is_shown_as_text(opened: Open, hostile: Path) -> None:
    report = opened(hostile)
    report.draw_all()
    page = report.page
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.scripts.length") == 4
    assert page.locator("main img, main b").count() == 0
    assert "</script><script>window.hacked = 1</script>" in {row[2] for row in rows(page)}
    assert all("<b>" in row[-1] and "&amp;" in row[-1] for row in rows(page))
    shown = page.locator("#classes .plot .ytick text").all_text_contents()
    assert "a & b <b>bold</b>" in shown
    assert any(text.startswith("</script><script>") for text in shown)


@pytest.mark.parametrize(("key", "column"), [("Rank", "rank"), ("Record", "index"), ("Score", "score"), ("q", "q")])
def test_a_click_on_a_heading_sorts(opened: Open, hostile: Path, key: str, column: str) -> None:
    page = opened(hostile).page
    values = held(page)[column]
    button = page.locator("#table thead button", has_text=key).first
    shown = {"rank": 0, "index": 1, "score": 3, "q": 5}[column]
    seen = {}
    for _ in range(2):
        button.click()
        seen[button.locator("..").get_attribute("aria-sort")] = [
            float(row[shown].replace(",", "")) for row in rows(page)
        ]
    assert seen.keys() == {"ascending", "descending"}
    assert seen["ascending"] == pytest.approx(sorted(values)[:PAGE], rel=1e-2)
    assert seen["descending"] == pytest.approx(sorted(values, reverse=True)[:PAGE], rel=1e-2)
    assert page.locator("th[aria-sort=ascending], th[aria-sort=descending]").count() == 1


def test_the_table_says_who_is_a_member(opened: Open, hostile: Path) -> None:
    page = opened(hostile).page
    members = ["yes" if member else "no" for member in held(page)["member"]]
    assert [row[6] for row in rows(page)] == members[:PAGE]
    page.locator("#table thead button", has_text="Member").click()
    assert {row[6] for row in rows(page)} == {"yes"}, "members come first"


def test_filters_leave_the_records_that_match(opened: Open, hostile: Path) -> None:
    page = opened(hostile).page
    all_rows = held(page)
    page.select_option("#class", "1")
    chosen = [i for i, label in enumerate(all_rows["label"]) if label == 1]
    assert f"of {len(chosen):,} that match" in page.locator("#count").text_content()
    assert [int(row[1]) for row in rows(page)] == [all_rows["index"][i] for i in chosen[:PAGE]]
    page.select_option("#fdr", "0.1")
    chosen = [i for i in chosen if all_rows["q"][i] <= 0.1]
    assert chosen
    assert [int(row[1]) for row in rows(page)] == [all_rows["index"][i] for i in chosen[:PAGE]]
    page.select_option("#class", "")
    page.select_option("#fdr", "")
    page.fill("#search", f"<b>{all_rows['index'][3]}</b>")
    assert [int(row[1]) for row in rows(page)] == [all_rows["index"][3]]
    page.fill("#search", "no such record")
    assert rows(page) == []
    assert page.locator("#count").text_content() == "No record matches."


def test_pages_turn(opened: Open, hostile: Path) -> None:
    page = opened(hostile).page
    index = held(page)["index"]
    assert page.locator("#previous").is_disabled()
    page.click("#next")
    assert [int(row[1]) for row in rows(page)] == index[PAGE : 2 * PAGE]
    page.click("#last")
    assert int(rows(page)[-1][1]) == index[-1]
    assert page.locator("#next").is_disabled()
    page.click("#first")
    assert [int(row[1]) for row in rows(page)] == index[:PAGE]


def test_the_csv_holds_what_is_filtered_and_sorted(opened: Open, hostile: Path, tmp_path: Path) -> None:
    page = opened(hostile).page
    everything = table(hostile.parent / "records.csv")
    page.select_option("#class", "1")
    page.locator("#table thead button", has_text="Record").click()
    with page.expect_download() as download:
        page.click("#csv")
    download.value.save_as(tmp_path / "records.csv")
    found = table(tmp_path / "records.csv")
    expected = sorted((row for row in everything if row["label"] == "1"), key=lambda row: int(row["index"]))
    assert [row["index"] for row in found] == [row["index"] for row in expected]
    assert [row["rank"] for row in found] == [row["rank"] for row in expected]
    assert [row["member"] for row in found] == [row["member"] for row in expected]
    for key in ("score", "p", "q"):
        assert [float(row[key]) for row in found] == pytest.approx([float(row[key]) for row in expected], rel=1e-3)
    assert {row["class"] for row in found} == {"</script><script>window.hacked = 1</script>"}


def test_the_legend_switches_series_by_keyboard(opened: Open, hostile: Path) -> None:
    report = opened(hostile)
    page = report.page
    page.locator("#roc").scroll_into_view_if_needed()
    page.locator("#roc .legend button").first.wait_for()
    lines = "document.querySelectorAll('#roc .plot .scatterlayer .trace .js-line').length"
    before = page.evaluate(lines)
    button = page.locator("#roc .legend button", has_text="rmia")
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    report.until(f"{lines} < {before}")
    page.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "true"
    report.until(f"{lines} === {before}")
    fills = "document.querySelectorAll('#roc .plot .js-fill').length"
    assert page.evaluate(fills) == 1
    page.locator("#roc .legend button", has_text="bands of the attacks shown").press("Enter")
    report.until(f"{fills} > 5")


def test_a_point_tells_its_numbers(opened: Open, hostile: Path) -> None:
    page = opened(hostile).page
    page.locator("#tpr").scroll_into_view_if_needed()
    point = page.locator("#tpr .plot .points path.point").last
    point.wait_for()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    label = page.locator("#tpr .hoverlayer .hovertext")
    label.wait_for()
    assert "FPR" in label.text_content()


def test_a_figure_zooms_and_can_be_reset_but_never_sent(opened: Open, hostile: Path) -> None:
    report = opened(hostile)
    page = report.page
    page.locator("#roc").scroll_into_view_if_needed()
    page.locator("#roc .modebar-btn").first.wait_for(state="attached")
    titles = page.evaluate("[...document.querySelectorAll('#roc .modebar-btn')].map(b => b.getAttribute('data-title'))")
    assert titles == ["Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"]
    span = "(() => { const r = document.querySelector('#roc .plot').layout.xaxis.range; return r[1] - r[0]; })()"
    before = page.evaluate(span)
    page.locator("#roc .modebar-btn[data-title='Zoom in']").focus()
    page.keyboard.press("Enter")
    report.until(f"{span} < {before}")
    mode = "document.querySelector('#roc .plot').layout.xaxis.tickmode"
    report.until(f"{mode} === 'auto'")
    report.until("document.querySelectorAll('#roc .plot .xtick').length >= 2")
    page.locator("#roc .modebar-btn[data-title='Reset axes']").focus()
    page.keyboard.press("Enter")
    report.until(f"Math.abs({span} - {before}) < 1e-6")
    report.until(f"{mode} === 'array'")


def test_figures_follow_the_colour_scheme(opened: Open, hostile: Path) -> None:
    report = opened(hostile)
    page = report.page
    page.locator("#roc").scroll_into_view_if_needed()
    page.locator("#roc .xtitle").wait_for()
    colours = "[getComputedStyle(document.body).backgroundColor, document.querySelector('#roc .xtitle').style.fill]"
    light = page.evaluate(colours)
    page.emulate_media(color_scheme="dark")
    paper, title = (f"{colours}[{i}] !== {json.dumps(light[i])}" for i in (0, 1))
    report.until(f"{paper} && {title}")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_axe_finds_nothing_serious(opened: Open, hostile: Path, width: int, scheme: str) -> None:
    report = opened(hostile, width, scheme)
    report.draw_all()
    report.page.evaluate(AXE.read_text(encoding="utf-8"))
    result = report.page.evaluate("axe.run()")
    assert len(result["passes"]) > 30
    assert [(found["impact"], found["id"], found["nodes"][0]["html"]) for found in result["violations"]] == []


def test_all_that_acts_is_reached_with_the_tab_key(opened: Open, hostile: Path) -> None:
    report = opened(hostile)
    report.draw_all()
    page = report.page
    page.evaluate("window.scrollTo({ top: 0, behavior: 'instant' })")
    page.locator("h1").click()
    page.evaluate("document.activeElement.blur()")
    seen = set()
    for _ in range(400):
        page.keyboard.press("Tab")
        seen.add(
            page.evaluate("(e => e.id || e.dataset?.key || e.textContent.trim().slice(0, 30))(document.activeElement)")
        )
        if "last" in seen or "next" in seen:
            break
    assert {"search", "class", "fdr", "csv", "rank", "score", "next", "What leaks"} <= seen
    assert any("rmia" in text for text in seen)


def test_without_scripts_and_on_paper_the_figures_are_there(opened: Open, hostile: Path) -> None:
    page = opened(hostile, java_script_enabled=False).page
    assert page.locator("#roc .static svg").is_visible()
    assert page.locator("#verdict-text").is_visible()
    report = opened(hostile)
    report.draw_all()
    report.page.emulate_media(media="print")
    assert report.page.locator("#roc .static svg").is_visible()
    assert not report.page.locator("#roc .plot").is_visible()
    assert not report.page.locator("#controls").is_visible()


def test_images_are_shown_small_and_named(opened: Open, pictures: Path) -> None:
    report = opened(pictures)
    images = report.page.locator("#table img")
    assert images.count() == PAGE
    assert report.page.evaluate("[...document.querySelectorAll('#table img')].every(i => i.naturalWidth === 8)")
    assert images.first.get_attribute("alt") == f"Record {held(report.page)['index'][0]}"
    assert "plmia report --signals" in report.page.locator("#record-1").text_content()
    assert report.messages == []


def test_tables_fit_the_paper(opened: Open, hostile: Path) -> None:
    # A4 less margins of 1 cm is 718 pixels wide.
    report = opened(hostile, 718)
    report.page.emulate_media(media="print")
    assert report.page.evaluate("document.documentElement.scrollWidth") <= 718
    edges = report.page.evaluate("[...document.querySelectorAll('table')].map(t => t.getBoundingClientRect().right)")
    assert max(edges) <= 718


def test_what_is_shown_of_records_is_said_and_small_on_a_phone(opened: Open, hostile: Path) -> None:
    page = opened(hostile, 390).page
    records = held(page)
    assert len(records["previews"]) == len(records["index"])
    assert page.locator("#contents").text_content() == ""
    lines = page.locator("#table tbody tr")
    assert lines.count() == 2 * PAGE, "numbers in one line, class and text in another"
    assert lines.nth(0).bounding_box()["height"] + lines.nth(1).bounding_box()["height"] < 110
    assert f"text {records['index'][0]} " in lines.nth(1).text_content()
    assert page.evaluate(
        "document.querySelector('#table').scrollWidth <= document.querySelector('#table').parentElement.clientWidth"
    )
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every(s => s.getAttribute('aria-label'))")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_report_on_people_fits_the_screen_and_is_accessible(opened: Open, people: Path, width: int) -> None:
    report = opened(people, width)
    report.draw_all()
    page = report.page
    assert {"subgroups-1", "trainings"} <= set(page.evaluate("[...document.querySelectorAll('figure')].map(f => f.id)"))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.hacked") is None
    assert report.messages == []
    page.evaluate(AXE.read_text(encoding="utf-8"))
    violations = page.evaluate("axe.run()")["violations"]
    assert [(found["impact"], found["id"], found["nodes"][0]["html"]) for found in violations] == []


def test_the_csv_of_people_is_that_of_the_run(opened: Open, people: Path, tmp_path: Path) -> None:
    page = opened(people).page
    with page.expect_download() as download:
        page.click("#csv")
    assert download.value.suggested_filename == "exposed_people.csv"
    download.value.save_as(tmp_path / "people.csv")
    found, expected = table(tmp_path / "people.csv"), table(people.parent / "people.csv")
    assert found[0].keys() == expected[0].keys()
    for key in ("index", "records", "first_record", "group", "rank", "member"):
        assert [row[key] for row in found] == [row[key] for row in expected]

"""Write the report: one HTML file that needs nothing else, and its figures beside it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from plmia.data.files import FIGURES, PAGE, Staging, finish_publication, folder_lock, make_private, remove_figures
from plmia.errors import OutputError, percent, round_percent, writable
from plmia.reporting import page_text
from plmia.reporting.content import Content, Extras, previews, read_content, shows_features
from plmia.reporting.drawing import DARK, LIGHT, Absent, Figure, apply_colours, in_theme, rounded, svg
from plmia.reporting.plots import RATES, Sections, sections_of
from plmia.results.saved import SavedRun

MAX_RECORDS = 2000
FILES = ("metrics.json", "people.csv", "records.csv", "scores.npz", "trainings.csv")


def write_report(
    results: Path | SavedRun,
    extras: Extras | None = None,
    *,
    show_records: bool = False,
    attack: str | None = None,
    target: int | None = None,
) -> Path:
    """Write ``report.html`` and ``figures/`` into a folder of results, and return the path of the page.

    Extras are checked against the results. Images, features, texts and groups of records appear only if
    ``show_records``. By default, figures and the table of records are about the verdict's attack on the first target.
    """
    saved = results if isinstance(results, SavedRun) else SavedRun(results)
    folder = saved.folder
    try:
        with folder_lock(folder):
            finish_publication(folder)
        content = read_content(saved, extras, attack, target)
        sections = sections_of(content)
        contents = dict(_figure_files(figure for group in sections.values() for figure in group))
        contents["attacks.csv"] = writable(as_csv(saved.columns())).encode()
        _publish(saved, contents, writable(page(content, sections, show_records=show_records)).encode())
        return folder / PAGE
    except OSError as error:
        raise OutputError(
            f"cannot write the report to {folder} ({error.strerror}): free some space or choose another folder"
        ) from error


def figures(
    results: Path | SavedRun, extras: Extras | None = None, *, attack: str | None = None, target: int | None = None
) -> dict[str, Figure]:
    """Return the figures of a report by name, except those that cannot be drawn; a notebook shows them."""
    sections = sections_of(read_content(results, extras, attack, target))
    return {f.name: f for group in sections.values() for f in group if isinstance(f, Figure)}


def _figure_files(figures: Iterable[Figure | Absent]) -> Iterator[tuple[str, bytes]]:
    """Yield each figure as SVG and as JSON, with the name of the file."""
    colours = in_theme(LIGHT)
    for figure in figures:
        if isinstance(figure, Figure):
            spec = json.dumps(apply_colours(figure.to_json(), colours), indent=1, allow_nan=False)
            yield f"{figure.name}.svg", svg(figure).encode()
            yield f"{figure.name}.json", f"{spec}\n".encode()


def _publish(saved: SavedRun, figures: Mapping[str, bytes], html: bytes) -> None:
    """Replace earlier figures and an earlier page, the page last."""
    folder = saved.folder
    with Staging(folder) as staging:
        for name, contents in {**figures, PAGE: html}.items():
            with staging.create(name) as file:
                file.write(contents)
        with folder_lock(folder):
            if not saved.still_there():
                raise OutputError(
                    f"another run replaced the results in {folder} while the report was written: run plmia report again"
                )
            remove_figures(folder)
            make_private(folder / FIGURES)
            (folder / PAGE).unlink(missing_ok=True)
            for name in figures:
                staging.place(name, f"{FIGURES}/{name}")
            staging.place(PAGE, PAGE)


def as_csv(columns: Mapping[str, Sequence[Any]]) -> str:
    """Return columns as CSV; a missing value is an empty cell."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def page(content: Content, sections: Sections, *, show_records: bool) -> str:
    """Return the HTML of a report."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, finalize=unbroken
    )
    environment.filters["svg"] = lambda figure: _safe(svg(figure, css_variable, paper=False))
    drawn = {f.name: f.to_json() for group in sections.values() for f in group if isinstance(f, Figure)}
    scripts = [asset("plotly-basic.min.js"), asset("report.js")]
    return environment.from_string(asset("template.html.j2")).render(
        text=page_text,
        style=_safe(css()),
        scripts=[_safe(script) for script in scripts],
        policy=policy(scripts),
        content=content,
        title=content.title,
        shows_features=show_records and shows_features(content.extras),
        percent=percent,
        round_percent=round_percent,
        rates=RATES,
        figures=sections,
        absent=lambda figure: isinstance(figure, Absent),
        records=_safe(in_script(_records(content, show_records=show_records))),
        drawn=_safe(unbroken(in_script({"figures": drawn, "light": dict(LIGHT), "dark": dict(DARK)}))),
        show_records=show_records,
        files=[name for name in FILES if (content.saved.folder / name).exists()],
    )


def unbroken(value: object) -> object:
    """Return a text with a non-breaking space before each percent sign; anything else, such as markup, unchanged."""
    return re.sub(r"(?<=\d) %", "\u00a0%", value) if type(value) is str else value


def _safe(text: Any) -> Any:
    """Mark text from this package as HTML."""
    import markupsafe

    return markupsafe.Markup(text)  # noqa: S704 - the files of this package, and JSON escaped by `in_script`


def css_variable(name: str) -> str:
    """Return a named colour as a variable of the page's style."""
    return f"var(--{name[1:]})" if name.startswith("@") else name


@cache
def asset(name: str) -> str:
    """Return the text of a file of this package."""
    return (files("plmia.reporting") / "assets" / name).read_text(encoding="utf-8")


def css() -> str:
    """Return the style of the page, with the colours of both themes."""
    light, dark = ("".join(f"--{name}:{value};" for name, value in theme.items()) for theme in (LIGHT, DARK))
    themes = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return themes + asset("style.css")


def policy(scripts: Sequence[str]) -> str:
    """Content security policy that allows these scripts and nothing from elsewhere."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def in_script(value: object) -> str:
    """Return JSON for a script element, escaped so that no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _records(content: Content, *, show_records: bool) -> dict[str, object]:
    """Columns of the first records or people, as the script of the page reads them."""
    table = content.table
    part = slice(MAX_RECORDS)
    index = table.index[part].tolist()
    label = None if table.label is None else table.label[part].tolist()
    shown = table.shown_records[part]
    group = content.group_names(shown) if show_records else None
    return {
        "unit": content.unit,
        "units": content.units,
        "index": index,
        "label": label,
        "group": group,
        "score": rounded(table.score[part], 7),
        "p": rounded(table.p[part], 4),
        "q": rounded(table.q[part], 4),
        "rank": table.rank[part].tolist(),
        "member": None if table.member is None else table.member[part].astype(int).tolist(),
        "records": None if table.records is None else table.records[part].tolist(),
        "first_record": None if table.first_record is None else shown.tolist(),
        "classes": {str(c): content.class_name(c) for c in sorted(set(label or []))},
        "named": content.class_names is not None,
        "previews": previews(content.extras, shown.tolist()) if show_records else [],
        "total": len(table),
        "file": f"{content.units}.csv",
        # The file is of the verdict's attack on the first target.
        "in_file": content.attack == content.verdict.attack and content.target == min(content.saved.targets),
    }

"""Write the report: one HTML file that needs nothing else, and the figures beside it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from plmia.data.files import (
    FIGURES,
    PAGE,
    Staging,
    finish_publication,
    folder_lock,
    make_private,
    remove_figures,
)
from plmia.errors import OutputError
from plmia.reporting.checks import (
    accuracies_figure,
    false_positives_figure,
    losses_figure,
    p_values_figure,
    references_figure,
)
from plmia.reporting.content import Content, Extras, nice_percent, read_content, rounded, writable
from plmia.reporting.gaussians import record_figures
from plmia.reporting.leaks import classes_figure, roc_figure, scores_figure, tpr_figure
from plmia.reporting.plots import Absent, Figure
from plmia.reporting.previews import previews, shows_features
from plmia.reporting.static import png, svg
from plmia.reporting.summary import (
    RATES,
    attack_rows,
    audited,
    check_notes,
    gaussianity,
    glossary,
    next_step,
    status,
    tiles,
    verdict_words,
    warnings,
    words,
)
from plmia.reporting.theme import DARK, LIGHT, in_theme, painted
from plmia.reporting.trends import trends_figure
from plmia.results.saved import SavedResults

MOST_RECORDS = 2000
FILES = ("metrics.json", "records.csv", "scores.npz")


def write_report(
    results: Path | SavedResults,
    extras: Extras | None = None,
    *,
    show_records: bool = False,
    attack: str | None = None,
    target: int | None = None,
) -> Path:
    """Write ``report.html`` and ``figures/``, with a table of the attacks, into a folder of results; return the page.

    Parameters
    ----------
    results : Path or SavedResults
        A folder written by `plmia audit` or `plmia score`, or what was read from it.
    extras : Extras, optional
        Data, names and signals that the page may show.
    show_records : bool
        Whether the page shows images, features, texts and groups of records; by default it names them by number only.
    attack : str, optional
        What the figures and the table speak of; the attack of the verdict by default.
    target : int, optional
        Likewise; the first by default.
    """
    saved = results if isinstance(results, SavedResults) else SavedResults(results)
    folder = saved.folder
    try:
        with folder_lock(folder):
            finish_publication(folder)
        content = read_content(saved, extras, attack, target)
        groups = _figures(content)
        files = dict(_figure_files(f for group in groups.values() for f in group))
        files["attacks.csv"] = writable(as_csv(saved.columns())).encode()
        _publish(saved, files, writable(page(content, groups, show_records=show_records)).encode())
        return folder / PAGE
    except OSError as error:
        raise OutputError(
            f"cannot write the report to {folder} ({error.strerror}): make room or choose another folder"
        ) from error


def figures(
    results: Path | SavedResults, extras: Extras | None = None, *, attack: str | None = None, target: int | None = None
) -> dict[str, Figure]:
    """Return the figures of a report by name, as far as the results allow them; a notebook shows them.

    Parameters
    ----------
    results, extras, attack, target
        As in `write_report`.
    """
    groups = _figures(read_content(results, extras, attack, target))
    return {f.name: f for group in groups.values() for f in group if isinstance(f, Figure)}


def _figures(content: Content) -> dict[str, list[Figure | Absent]]:
    """All figures by the section of the page where they stand."""
    return {
        "leak": [roc_figure(content), tpr_figure(content)],
        "exposed": [scores_figure(content), classes_figure(content)],
        "trust": [false_positives_figure(content), p_values_figure(content), references_figure(content)],
        "signals": record_figures(content),
        "model": [trends_figure(content), losses_figure(content), accuracies_figure(content)],
    }


def _figure_files(figures: Iterable[Figure | Absent]) -> Iterator[tuple[str, bytes]]:
    """Yield each figure as SVG, JSON and, where Pillow is installed, PNG, with the name of the file."""
    colour = in_theme(LIGHT)
    for figure in figures:
        if isinstance(figure, Absent):
            continue
        spec = json.dumps(painted(figure.to_json(), colour), indent=1, allow_nan=False)
        yield f"{figure.name}.svg", svg(figure).encode()
        yield f"{figure.name}.json", f"{spec}\n".encode()
        picture = png(figure)
        if picture is not None:
            yield f"{figure.name}.png", picture


def _publish(saved: SavedResults, figures: Mapping[str, bytes], html: bytes) -> None:
    """Put a page and its figures in the place of earlier ones, the page last."""
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
    """Return columns as CSV, empty where there is no value."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def page(content: Content, groups: dict[str, list[Figure | Absent]], *, show_records: bool) -> str:
    """Return the HTML of a report."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["svg"] = _inline_svg
    template = environment.from_string(asset("template.html.j2"))
    drawn = {f.name: f.to_json() for group in groups.values() for f in group if isinstance(f, Figure)}
    scripts = [asset("plotly-basic.min.js"), asset("report.js")]
    return template.render(
        style=_safe(css()),
        scripts=[_safe(script) for script in scripts],
        policy=policy(scripts),
        content=content,
        of_what=f" of {content.extras.data.name}" if content.extras.data is not None else "",
        glossary=glossary(content),
        unusual=show_records and shows_features(content.extras),
        status=status(content.verdict),
        tiles=tiles(content),
        audited=audited(content),
        warnings=warnings(content),
        check_notes=check_notes(content),
        verdict_words=verdict_words(content.verdict),
        next_step=next_step(content),
        words=words(content),
        gaussianity=gaussianity(content),
        rates=[nice_percent(rate) for rate in RATES],
        attacks=attack_rows(content),
        figures=groups,
        absent=lambda figure: isinstance(figure, Absent),
        records=_safe(in_script(_records(content, show_records=show_records))),
        drawn=_safe(in_script({"figures": drawn, "light": dict(LIGHT), "dark": dict(DARK)})),
        show_records=show_records,
        files=[name for name in FILES if (content.saved.folder / name).exists()],
    )


def _safe(text: str) -> Any:
    """Mark text of our own as HTML."""
    import markupsafe

    return markupsafe.Markup(text)  # noqa: S704 - the files of this package, and JSON escaped by `in_script`


def _inline_svg(figure: Figure) -> Any:
    return _safe(svg(figure, css_variable, paper=False))


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
    """Content security policy: these scripts and no others, and nothing from anywhere."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def in_script(value: Any) -> str:
    """Return JSON that may stand inside a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _records(content: Content, *, show_records: bool) -> dict[str, Any]:
    """The first records as columns, with what is shown of them."""
    table = content.table
    part = slice(MOST_RECORDS)
    index = table.index[part].tolist()
    label = None if table.label is None else table.label[part].tolist()
    group = None if content.groups is None or not show_records else content.groups[table.index[part]].tolist()
    names = {} if label is None else {str(c): content.class_name(c) for c in sorted(set(label))}
    return {
        "index": index,
        "label": label,
        "group": group,
        "score": rounded(table.score[part], 7),
        "p": rounded(table.p[part], 4),
        "q": rounded(table.q[part], 4),
        "rank": table.rank[part].tolist(),
        "member": None if table.member is None else table.member[part].astype(int).tolist(),
        "classes": names,
        "named": content.extras.class_names is not None,
        "previews": previews(content.extras, index) if show_records else [],
        "total": len(table),
        # records.csv is of the verdict's attack on the first target.
        "file": content.attack == content.verdict["attack"] and content.target == min(content.saved.targets),
    }

"""Write docs/reproduction.md from the committed results: nothing in it is typed by hand but the first lines.

python -m experiments.write_docs
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

from .cut_signals import MODELS
from .outcome import NOT_RESOLVED, PAPER, markdown, paper_numbers, table
from .setting import HERE, NOT_RUN, SIGNALS
from .whole import WHOLE

RESULTS, DOCS = HERE / "results", HERE.parent / "docs"
FIGURES = DOCS / "reproduction"
# Longer tables stay in their file; their figure is shown.
MOST_ROWS = 60
HEAD = """# The paper, run again

Every table and figure of *Membership Inference via Pairwise Likelihood Ratios* is an experiment with a name:
`plmia reproduce --list` names all {n}, `plmia reproduce table-2` runs one, `make reproduce-quick` runs all of them on
small signals that are kept in the repository. Each prints ours beside the paper's numbers and writes JSON, Markdown and
SVG. This page is written from the JSON files in `experiments/results`; what was not run here is marked "{not_run}".
"{not_resolved}" stands for a rate that is not resolved: a target has too few non-members among its queries for it (a
TPR at 0.01 % FPR needs 10,000, one at 0.1 % needs 1,000; 0 % is always there). An empty cell has no such number.

What was run: CIFAR-10 (its images as JPEG, at full size) with Wide-ResNets, 18 views, trained with augmentation, and
once more as the paper says, without; perceptrons on Location-30 (a table of 446 bits, 30 classes), Adult, Covertype
(20,000 rows) and Fashion-MNIST (30,000 images) with the paper's 254 references, and boosted trees on the first three
with 126 (half of the paper's, for the time they take), in place of Purchase-100. CIFAR-100, CINIC-10 and Purchase-100
run from the published archives with `--data` where a user has them. Perceptrons train for 50 epochs, or for 100, 200 or
400 with a falling learning rate: for the first of these that gets 99.5 % of a pilot's members right
(`experiments/pilot.py`); bits are not standardised.
Numbers are percent, mean and standard deviation over targets. A difference between two attacks is paired over targets,
with a 95 % interval of Student's t. A claim that says several things "holds in part" where some are shown and some
shown not to be so, and "holds where decided" where some are shown and intervals leave the others open; less than three
targets decide nothing. Limits that a verdict takes stand beside it in brackets. The JSON files keep the
value of each target, so that every interval can be computed again.

Nothing was tuned on the targets that are reported. The paper's attacks run with their defaults. `pl-mia-eb` and the
conformal false-positive rate are ours, beyond the paper; `pl-mia-eb` chooses with reference models in the target's
place. Its design was settled with an eye on some of these models. They are references here, never targets: targets are
taken from the model on that the table below names. None of them had been attacked before the design was done, but for
the Wide-ResNets: their results had been printed once when the fit was changed for few references (more points, a ratio
that is held unless that is clearly worse), which was decided on perceptrons and trees before the targets named here.

| signals | data | models | trained by | targets from model |
| --- | --- | --- | --- | --- |
{whole}

The CIFAR-100 networks are not reported yet: {kept} of {planned} models of `cifar100_wrn` are trained so far. Their
signals are kept in `experiments/signals/cifar100_wrn`, and no command of this page reads them.

Commands below with `--signals full` read a folder of these signals, which are too large for the repository.
`make reproduce-whole DATA=FOLDER` trains what the folder `full` lacks on the data sets in FOLDER (the Wide-ResNets want
a GPU; what is interrupted goes on), runs every command of this page and compares what comes out with what is committed:
means within four standard errors of their difference, no verdict turned round. `python -m experiments.whole FOLDER full
NAME` trains one of them alone. A file `full/NAME.json` beside each says what it is. An audit trains a target and its
references; of the Wide-ResNets without augmentation only the references are used, each in the target's place in turn.
Without that option the same commands run on the signals in `experiments/signals`: 2,000 points of {cut} of the
Wide-ResNets, 800 points of the perceptrons and of the boosted trees on Location-30.
"""
WHY = """## Where we disagree, and the experiment that says why

- **PL-MIA and LiRA.** With one population for all queries the score increases with the query's statistic, so PL-MIA,
  PL-MIA+ (up to ties) and LiRA with the same variance have one ROC curve. [table-3](#table-3) takes the paper's gain
  apart into the step from one variance for all points to one a point, and the step to calibration.
- **Offline.** With rho below 1 the offline ratio has a maximum, and whoever is more confident scores lower.
  [table-4](#table-4) sets rho to 1, which lifts it to one-sided LiRA, and shows what learning the IN law from the
  population (`pl-mia-eb`) gives instead.
- **Size of the population.** [figure-2](#figure-2) draws Z once for all queries, and afresh for each query.
- **p-values and the analytic threshold.** The statistic of some non-members lies far below the rest, so that pairwise
  p-values are not uniform ([figure-3](#figure-3)) and the threshold flags far more than it says.
  [figure-4](#figure-4) leaves the lowest ones out, and simulates the paper's own model: with the same law for all
  points, and with the laws that each point's references have, which alone give what real signals give.
- **Theorem thm:main.** [table-3](#table-3) measures and computes what its parts say. (I): votes tie at the top, which
  costs power at rates of some times 1/|Z|. (II): contraction alone gains nothing where the shift is large. (III)
  compares two formulas, of which one takes comparisons that share a query for independent; the powers of both attacks
  differ by what ties of votes cost.
- **Training.** [table-s1](#table-s1) trains as the paper says, without augmentation, and once more with it, on the same
  halves: which of the two has the paper's accuracy and its level of leakage is decided there, and
  [table-2](#table-2) has all attacks on both. What further views and pooling do where training had no augmentation is
  at the [end](#no-augmentation).
"""


def main() -> None:
    """Write the page; move new figures beside it, so that each is stored once."""
    FIGURES.mkdir(exist_ok=True)
    for path in (*RESULTS.glob("*.svg"), *_further("svg")):
        path.replace(FIGURES / _figure(path))
    for path in (*RESULTS.glob("*.md"), *_further("md")):
        path.unlink()  # the page has it
    (DOCS / "reproduction.md").write_text(page(), encoding="utf-8")


def page() -> str:
    """Contents of docs/reproduction.md."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    items = [item for item in paper_numbers() if item in found]
    kept = json.loads((SIGNALS / "cifar100_wrn" / "about.json").read_text(encoding="utf-8"))["models"]
    head = HEAD.format(
        n=len(paper_numbers()),
        not_run=NOT_RUN,
        not_resolved=NOT_RESOLVED,
        whole=_whole(),
        cut=MODELS["cifar10_wrn"],
        kept=len(kept),
        planned=WHOLE["cifar100_wrn"].references + 1,
    )
    parts = [head, "## Verdicts", _verdicts(found, items), WHY]
    parts += [_section(found[item], RESULTS) for item in items]
    for folder, paths in groupby(_further("json"), lambda path: path.parent):
        parts.append(f'<a id="{folder.name}"></a>\n\n## Once more: {folder.name}')
        parts += [_section(json.loads(path.read_text(encoding="utf-8")), folder) for path in paths]
    parts.append(f"The paper's numbers, as data: `experiments/{PAPER.name}`.")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _whole() -> str:
    """What the whole signals are, one row each."""
    return "\n".join(
        f"| `{name}` | {one.data} | {one.references + 1 - len(one.leave_out)} | `{one.recipe}` | {one.first_target} |"
        for name, one in WHOLE.items()
    )


def _verdicts(found: dict[str, Any], items: list[str]) -> str:
    lines = ["| claim | verdict | where |", "| --- | --- | --- |"]
    for item in items:
        for claim in found[item]["claims"]:
            lines.append(_verdict(claim, item, item))
    for path in _further("json"):
        name = path.parent.name
        claims = json.loads(path.read_text(encoding="utf-8"))["claims"]
        lines += [_verdict(claim, f"{path.stem}, {name}", name) for claim in claims]
    return "\n".join(lines)


def _verdict(claim: dict[str, str], words: str, anchor: str) -> str:
    text = claim["claim"].replace("|", "&#124;")
    return f"| {text} | **{claim['verdict']}** | [{words}](#{anchor}) |"


def _further(suffix: str) -> list[Path]:
    """Results on other models, one folder each."""
    return sorted(path for path in RESULTS.glob(f"*/*.{suffix}") if path.parent.name != "quick")


def _figure(path: Path) -> str:
    """Name of a figure beside the page."""
    return path.name if path.parent == RESULTS else f"{path.parent.name}-{path.name}"


def _section(contents: dict[str, Any], folder: Path) -> str:
    item = contents["item"]
    stem = Path(_figure(folder / item)).name
    drawn = [path.name for path in FIGURES.glob("*.svg") if re.fullmatch(rf"{stem}(-\d+)?", path.stem)]
    names = [f"reproduction/{name}" for name in sorted(drawn, key=lambda name: (len(name), name))]
    page = markdown(contents, names, level=2 if folder == RESULTS else 3)
    head, _, rest = page.partition("\n")
    if len(contents["rows"]) > MOST_ROWS:
        file = f"experiments/{(folder / item).relative_to(HERE)}.json"
        rest = rest.replace(table(contents), f"All {len(contents['rows'])} rows: `{file}`.")
    if folder != RESULTS:
        return f"{head}\n{rest}\n`{contents['command']}`"
    return f'<a id="{item}"></a>\n\n{head}\n{rest}\n`{contents["command"]}`'


if __name__ == "__main__":
    main()

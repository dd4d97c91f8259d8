"""Write docs/reproduction.md from the committed results: nothing in it is typed by hand but the first lines.

python -m experiments.write_docs
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from .outcome import PAPER, markdown, paper_numbers, table
from .setting import HERE, NOT_RUN

RESULTS, DOCS = HERE / "results", HERE.parent / "docs"
# Longer tables stay in their file; their figure is shown.
MOST_ROWS = 40
HEAD = """# The paper, run again

Every table and figure of *Membership Inference via Pairwise Likelihood Ratios* is an experiment with a name:
`plmia reproduce --list` names all {n}, `plmia reproduce table-2` runs one, `make reproduce-quick` runs all of them on
small signals that are kept in the repository. Each prints ours beside the paper's numbers and writes JSON, Markdown and
SVG. This page is written from the JSON files in `experiments/results`; what was not run here is marked "{not_run}".

What was run: CIFAR-10 with Wide-ResNets, 18 views, and Location-30 (a table of 446 bits, 30 classes) in place of
Purchase-100, with boosted trees on Adult and Covertype as well. CIFAR-100, CINIC-10 and Purchase-100 run from the
published archives with `--data` where a user has them.
Numbers are percent, mean and standard deviation over targets. A difference between two attacks is paired over targets,
with a 95 % interval of Student's t; where the interval leaves it open the verdict says so. Nothing was
tuned on the targets: attacks run with their defaults, empirical Bayes chooses with reference models in the target's
place. `pl-mia-eb` and the conformal false-positive rate are ours, beyond the paper.

Commands below with `--signals full` read a folder of whole signals, which are too large for the repository. Its
`cifar10_wrn` is made on a GPU by

    plmia audit --data cifar-10-binary.tar.gz --recipe 'wide-resnet?epochs=50&augment=true' --views rmia18 \\
        --references 70 -o full/cifar10_wrn

its `location_mlp.npz` holds 128 perceptrons that were trained elsewhere; the like of them trains
`plmia reproduce table-s5 --data location30.npz --references 126`.

Without that option the same commands run on the signals in `experiments/signals`: 2,000 points of the same 71
Wide-ResNets, 1,500 points of the same perceptrons, all points of the same boosted trees.
"""
WHY = """## Where we disagree, and the experiment that says why

- **PL-MIA and LiRA.** With one population for all queries the score increases with the query's statistic, so PL-MIA,
  PL-MIA+ (up to ties) and LiRA with the same variance have one ROC curve. [table-3](#table-3) takes the paper's gain
  apart into the step from one variance for all points to one a point, and the step to calibration.
- **Offline.** With rho below 1 the offline ratio has a maximum, and whoever is more confident scores lower.
  [table-4](#table-4) sets rho to 1, which lifts it to one-sided LiRA, and shows what learning the IN law from the
  population (`pl-mia-eb`) gives instead.
- **Size of the population.** [figure-2](#figure-2) draws Z once for all queries, and afresh for each query.
- **p-values and the analytic threshold.** The null statistic is skewed, so that pairwise p-values are not uniform
  ([figure-3](#figure-3)) and the threshold flags far more than it says; [figure-4](#figure-4) does the same with
  statistics simulated from the paper's model, where it is skewed and where it is not.
- **Theorem thm:main (III)** compares two formulas, of which one takes comparisons that share a query for independent;
  the simulation is at [table-3](#table-3).
- **Training.** Ours have 50 epochs with augmentation, fewer references and another accuracy ([table-s1](#table-s1)), so
  levels differ from the paper's; what is compared are attacks on the same models.
"""


def main() -> None:
    """Write the page and copy the figures beside it."""
    figures = DOCS / "reproduction"
    figures.mkdir(exist_ok=True)
    for path in RESULTS.glob("*.svg"):
        shutil.copyfile(path, figures / path.name)
    (DOCS / "reproduction.md").write_text(page(), encoding="utf-8")


def page() -> str:
    """Contents of docs/reproduction.md."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    items = [item for item in paper_numbers() if item in found]
    parts = [HEAD.format(n=len(paper_numbers()), not_run=NOT_RUN), "## Verdicts", _verdicts(found, items), WHY]
    parts += [_section(found[item], RESULTS) for item in items]
    parts += _further()
    parts.append(f"The paper's numbers, as data: `experiments/{PAPER.name}`.")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _verdicts(found: dict[str, Any], items: list[str]) -> str:
    lines = ["| claim | verdict | where |", "| --- | --- | --- |"]
    for item in items:
        for claim in found[item]["claims"]:
            text = claim["claim"].replace("|", "&#124;")
            lines.append(f"| {text} | **{claim['verdict']}** | [{item}](#{item}) |")
    return "\n".join(lines)


def _further() -> list[str]:
    """Results on other data, one folder each."""
    paths = sorted(path for path in RESULTS.glob("*/*.json") if path.parent.name != "quick")
    return [
        f"## On other data: {p.parent.name}\n\n{_section(json.loads(p.read_text('utf-8')), p.parent)}" for p in paths
    ]


def _section(contents: dict[str, Any], folder: Path) -> str:
    item = contents["item"]
    svgs = sorted(folder.glob(f"{item}*.svg")) if folder == RESULTS else []
    names = [f"reproduction/{path.name}" for path in svgs if _of(item, path)]
    page = markdown(contents, names, level=2 if folder == RESULTS else 3)
    head, _, rest = page.partition("\n")
    if len(contents["rows"]) > MOST_ROWS:
        rest = rest.replace(table(contents), f"All {len(contents['rows'])} rows: `experiments/results/{item}.md`.")
    if folder != RESULTS:
        return f"{head}\n{rest}\n`{contents['command']}`"
    return f'<a id="{item}"></a>\n\n{head}\n{rest}\n`{contents["command"]}`'


def _of(item: str, path: Path) -> bool:
    return path.stem == item or path.stem.rpartition("-")[0] == item


if __name__ == "__main__":
    main()

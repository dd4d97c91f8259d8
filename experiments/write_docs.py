"""Write docs/reproduction.md from the committed results; only the first lines of the page are written by hand.

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

Every table and figure of *Membership Inference via Pairwise Likelihood Ratios* is an experiment with a name.
`plmia reproduce --list` lists all {n}, `plmia reproduce table-2` runs one, and `make reproduce-quick` runs all of them
on small signals that are kept in the repository. Each experiment prints our numbers next to the paper's and writes
JSON, Markdown and SVG. This page is generated from the JSON files in `experiments/results`. Experiments that were not
run here are marked "{not_run}". "{not_resolved}" marks a rate that is not resolved, because a target has too few
non-members among its queries: a TPR at 0.01 % FPR needs 10,000, one at 0.1 % needs 1,000; 0 % is always given. An
empty cell means that the number does not exist.

These models were trained:

- Wide-ResNets on CIFAR-10 (its images as JPEG, at full size) with 18 views, with augmentation, and also without
  augmentation as in the paper.
- Wide-ResNets on CIFAR-100 (lossless images) with augmentation and 18 views.
- Perceptrons on Location-30 (a table of 446 bits, 30 classes), Adult, Covertype (20,000 rows) and Fashion-MNIST
  (30,000 images), with the paper's 254 references. They train for 50 epochs, or for 100, 200 or 400 with a decreasing
  learning rate: the first of these that classifies 99.5 % of a pilot's members correctly (`experiments/pilot.py`).
  Bits are not standardised.
- Boosted trees on the first three of these data sets, with 126 references (half of the paper's, because of the
  training time), in place of Purchase-100.

CINIC-10 and Purchase-100 run from the published archives with `--data`, if you have them.

Numbers are percent, mean and standard deviation over targets. A difference between two attacks is paired over targets,
with a 95 % interval of Student's t. A claim with several parts "holds in part" if some parts are shown to be true and
some to be false. It "holds where decided" if some parts are shown to be true and the intervals leave the others open.
Fewer than three targets decide nothing. Limits used by a verdict are given in brackets. The JSON files contain the
value of each target, so every interval can be recomputed.

Nothing was tuned on the reported targets. The paper's attacks run with their defaults. `pl-mia-eb` and the conformal
false-positive rate are our own additions to the paper; `pl-mia-eb` makes its choices on reference models that act as
the target. Some of these models influenced its design. They are references here, never targets: targets start at the
model given in the table below. No target was attacked before the design was final, except the Wide-ResNets. Their
results had been printed once when the fit was changed for few references (more points, and a ratio that is held unless
that is clearly worse). This change was decided on perceptrons and trees, before the targets named here.

Since these results were computed, `pl-mia-eb` places one knot of a trend per 50 points instead of 300, at most 8. This
changes fits to fewer than 2,400 points, and so the quick results and [Which attack wins](explanation/which-attack.md),
which were computed anew. The results on whole signals of CIFAR-10, perceptrons and trees were not; nearly all of them
fit more points.

| signals | data | models | trained by | targets from model |
| --- | --- | --- | --- | --- |
{whole}

Of the CIFAR-100 networks, {kept} of {planned} models of `cifar100_wrn` are trained so far, and none of
`cifar100_wrn_plain`. Each target has {have} references. [Repeated: cifar-100](#cifar-100) has every item that names
CIFAR-100. The images are lossless. The signals are kept in `experiments/signals/cifar100_wrn`;
`python -m experiments.kept write cifar100_wrn full` writes them into a folder.

Commands below with `--signals full` read a folder of these signals, which are too large for the repository.
`make reproduce-whole DATA=FOLDER` trains the models that are missing in the folder `full`, on the data sets in FOLDER.
The Wide-ResNets need a GPU; an interrupted command continues when it is run again. The command then runs every
experiment of this page and compares the results with the committed ones. Means must agree within four standard errors
of their difference, and no verdict may be reversed. `python -m experiments.whole FOLDER full NAME` trains one set of
signals. The file `full/NAME.json` next to each describes it. An audit trains a target and its references. For the
Wide-ResNets without augmentation, only the references are used; each acts as the target in turn. Without `--signals`,
the same commands run on the signals in `experiments/signals`: 2,000 points of {cut} of the Wide-ResNets, 800 points of
the perceptrons and of the boosted trees on Location-30. `make reproduce-quick` runs table-2 and table-s2 on 2,000
points of {cut100} of the CIFAR-100 networks, too.
"""
WHY = """## Where our results differ, and the experiment that shows why

- **PL-MIA and LiRA.** With one population for all queries, the score increases with the query's statistic. Therefore
  PL-MIA, PL-MIA+ (up to ties) and LiRA with the same variance have one ROC curve. [table-3](#table-3) splits the
  paper's gain into two steps: from one variance for all points to one per point, and from there to calibration.
- **Offline.** With rho below 1, the offline ratio has a maximum, and more confident answers above it score lower.
  [table-4](#table-4) sets rho to 1, which raises it to one-sided LiRA. It also shows the effect of learning the IN
  distribution from the population (`pl-mia-eb`).
- **Size of the population.** [figure-2](#figure-2) draws Z once for all queries, and separately for each query.
- **p-values and the analytic threshold.** The statistic of some non-members lies far below the rest. Pairwise p-values
  are therefore not uniform ([figure-3](#figure-3)), and the threshold flags far more records than it states.
  [figure-4](#figure-4) leaves the lowest values out and simulates the paper's own model in two ways: with the same
  distribution for all points, and with the distributions of each point's references. Only the latter agrees with real
  signals.
- **Theorem thm:main.** [table-3](#table-3) measures and computes its parts. (I): votes tie at the top, which costs
  power at rates of a few times 1/|Z|. (II): contraction alone gains nothing if the shift is large. (III) compares two
  formulas, one of which treats comparisons that share a query as independent. The powers of both attacks differ by the
  cost of tied votes.
- **Training.** [table-s1](#table-s1) trains without augmentation, as in the paper, and also with it, on the same
  halves. It shows which of the two has the paper's accuracy and level of leakage. [table-2](#table-2) has all attacks
  on both. The [end](#no-augmentation) shows the effect of additional views and pooling if training had no
  augmentation.
- **Accuracy.** Our CIFAR-10 images are JPEG files, which lose detail, so their accuracy cannot be compared with the
  paper's 91.7 %. CIFAR-100 is lossless here. One pilot model per recipe has these accuracies; the paper states
  {paper} % on held-out images:

{pilot}

  So the paper's accuracy is reached with augmentation only, which the paper's protocol does not name. The models of
  this page train for 100 epochs, as in the paper, with augmentation.
"""


def main() -> None:
    """Write the page and move new figures next to it; each figure is stored once."""
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
        cut100=MODELS["cifar100_wrn"],
        kept=len(kept),
        have=2 * ((len(kept) - 1) // 2 - 1),
        planned=WHOLE["cifar100_wrn"].references + 1,
    )
    why = WHY.format(paper=_paper_accuracy("CIFAR-100"), pilot=_pilot())
    parts = [head, "## Verdicts", _verdicts(found, items), why]
    parts += [_section(found[item], RESULTS) for item in items]
    for folder, paths in groupby(_further("json"), lambda path: path.parent):
        parts.append(f'<a id="{folder.name}"></a>\n\n## Repeated: {folder.name}')
        parts += [_section(json.loads(path.read_text(encoding="utf-8")), folder) for path in paths]
    parts.append(f"The paper's numbers, as data: `experiments/{PAPER.name}`.")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _paper_accuracy(data: str) -> float:
    """Test accuracy of the paper's models."""
    rows = paper_numbers()["table-s1"]["rows"]
    return float(next(row["cells"]["test accuracy"] for row in rows if row["keys"] == [data]))


def _pilot() -> str:
    """Table of the accuracies of the CIFAR-100 pilot."""
    found = json.loads((SIGNALS / "cifar100_wrn" / "pilot.json").read_text(encoding="utf-8"))["percent"]
    rows = [f"| `{recipe}` | {each['members']:.1f} % | {each['held_out']:.1f} % |" for recipe, each in found.items()]
    return "\n".join(f"  {line}" for line in ("| recipe | members | held out |", "| --- | ---: | ---: |", *rows))


def _whole() -> str:
    """Rows of the table of whole signals."""
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
    """Results on other models, one folder per kind of model."""
    return sorted(path for path in RESULTS.glob(f"*/*.{suffix}") if path.parent.name != "quick")


def _figure(path: Path) -> str:
    """File name of a figure next to the page."""
    return path.name if path.parent == RESULTS else f"{path.parent.name}-{path.name}"


def _section(contents: dict[str, Any], folder: Path) -> str:
    item = contents["item"]
    if folder != RESULTS:  # the first section of the item has what was not run here
        contents = contents | {"rows": [row for row in contents["rows"] if row["ours"] is not None]}
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

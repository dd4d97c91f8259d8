"""Write docs/reproduction.md from the committed results; only the first lines of the page are written by hand.

python -m experiments.write_docs
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

from plmia.training.recipes.named import parse_recipe

from . import protocols
from .cut_signals import MODELS, POINTS
from .measure import FEWEST_TARGETS
from .outcome import NOT_RESOLVED, PAPER, markdown, paper_numbers, table
from .setting import HERE, NOT_RUN, SIGNALS
from .table_s1 import NEAR
from .whole import WHOLE

RESULTS, DOCS = HERE / "results", HERE.parent / "docs"
FIGURES = DOCS / "reproduction"
# Longer tables stay in their file; their figure is shown.
MOST_ROWS = 60
HEAD = """# The paper, run again

Every table and figure of *Membership Inference via Pairwise Likelihood Ratios* is an experiment with a name.
`plmia reproduce --list` lists all {n}, `plmia reproduce table-2` runs one, and `make reproduce-quick` runs all of them
on small signals that are kept in the repository. Each experiment prints our numbers next to the paper's and writes
JSON, Markdown and SVG. This page is generated from the JSON files in `experiments/results`. What was not run is marked
"{not_run}". A link in place of a number, such as [cifar-100](#cifar-100), leads to the section that has the number.
"{not_resolved}" marks a rate that is not resolved, because a target has too few non-members among its queries: a TPR at
0.01 % FPR needs 10,000, one at 0.1 % needs 1,000; 0 % is always given. An empty cell means that the number does not
exist.

These models were trained:

- Wide-ResNets on CIFAR-10 (its images as JPEG, at full size) with 18 views, with augmentation, and also without
  augmentation as in the paper.
- Wide-ResNets on CIFAR-100 (lossless images) with 18 views: with augmentation, and without it as in the paper; a few
  with 200 epochs, and on images that were stored as JPEG.
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
that is clearly worse). This change was decided on perceptrons and trees, before the targets named here. On CIFAR-100,
earlier results of targets 39 to 87 showed a gap to BaVarIA. The change that closed it was chosen on models before 39.

Since these results were computed, `pl-mia-eb` has changed:

- It places one knot of a trend per 50 points instead of 300, at most 8 (offline, by another rule).
- With 2 references, it predicts the target by regression.
- Offline, it keeps fewer coordinates of the views.
- With many references, coordinates have variances of their own.

The quick results, those on CIFAR-100 and [Which attack wins](explanation/which-attack.md) were computed anew. The
results on whole signals of CIFAR-10, perceptrons and trees were not.

| signals | data | models | trained by | targets from model |
| --- | --- | --- | --- | --- |
{whole}

The signals of the CIFAR-100 networks are kept in `experiments/signals`, and
`python -m experiments.kept write NAME full` writes them into a folder. With augmentation, each target has {have}
references, and without it {have_plain}; the paper has 254. Every item of the paper that names CIFAR-100 was run on
both: [with augmentation](#cifar-100), and [without it](#cifar-100-no-augmentation) as in the paper. figure-5 is about
boosted trees only. The sets with 200 epochs and on JPEG copies have too few models for the paper's claims on attacks.
They show [what the training does](#training-on-cifar-100). [table-s1](#cifar-100-table-s1) decides the claim on
accuracy. All but the set with 200 epochs are in [Which attack wins](explanation/which-attack.md).

Commands below with `--signals full` read a folder of these signals, which are too large for the repository.
`make reproduce-whole DATA=FOLDER` trains the models that are missing in the folder `full`, on the data sets in FOLDER.
On CIFAR-100, it starts from the kept networks and trains the others. The results on this page are from the kept
networks alone, and `make reproduce-whole DATA=FOLDER KEPT=only` takes these without training. A file `full/NAME.npz`
counts as complete: remove it to train the rest. The Wide-ResNets need a GPU; an interrupted
command continues when it is run again. The command then runs every
experiment of this page and compares the results with the committed ones. Means must agree within four standard errors
of their difference, and no verdict may be reversed. Results with another number of references are not compared, since
attacks gain from references. `python -m experiments.whole FOLDER full NAME` trains one set of signals. The file
`full/NAME.json` next to each describes it. An audit trains a target and its references. For the Wide-ResNets without
augmentation on CIFAR-10, only the references are used; each acts as the target in turn. Without `--signals`, the same
commands run on the signals in `experiments/signals`: {points:,} points of {cut} of the Wide-ResNets, {fewer:,} points
of the perceptrons and of the boosted trees on Location-30. `make reproduce-quick` runs table-2 and
table-s2 on {points100:,} points of {cut100} of the CIFAR-100 networks, too.
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
  halves. It shows which of the two is nearer to the paper's accuracy and level of leakage, on CIFAR-10 and
  [on CIFAR-100](#cifar-100-table-s1). [table-2](#table-2) has all attacks
  on both. The [end](#no-augmentation) shows the effect of additional views and pooling if training had no
  augmentation.
- **Accuracy on CIFAR-10.** The paper states {paper10} %, without augmentation. [table-s1](#table-s1) has
  {plain10:.1f} % without augmentation ({epochs_plain10} epochs), and {augmented10:.1f} % with it
  ({epochs_augmented10} epochs). Our images of CIFAR-10 are JPEG files of quality {quality} with halved chroma, and we
  have no lossless copy. This puts {paper10} % out of reach, and longer training does not change that: the description
  of these images states 87.5 % after 100 epochs with augmentation and 88.3 % after 200, for the same network on half of
  the images (not measured by a script of this repository). On CIFAR-100, whose images are lossless, JPEG copies of the
  same kind cost {jpeg_lost:.1f} points ({epochs100} epochs with augmentation). Training without augmentation costs
  {plain_lost:.1f} points there. With augmentation, {epochs_augmented10} epochs instead of {epochs100} cost
  {epochs_lost:.1f} points (one model each).

<a id="training-on-cifar-100"></a>

- **Training on CIFAR-100.** These images are lossless. The paper states {paper} %, after 100 epochs without
  augmentation. We varied augmentation, the number of epochs, and the compression of the images. We did not vary depth
  {depth} and width {width} (the paper names neither), batch size, learning rate or weight decay, here or on CIFAR-10.
  One pilot model per recipe has these accuracies on members and on held-out images:

{pilot}

  Recipes within {near:g} point of the paper's accuracy: {reached}.
  The protocol that the paper states, without augmentation, stays {below:.1f} points below in the mean of {models}
  models ([table-s1](#cifar-100-table-s1)). We do not know whether networks of another width or depth reach it without
  augmentation.

  The CIFAR-100 networks of this page train for {epochs100} epochs, as in the paper; most of them with augmentation. The
  next table shows what the training does to the attacks: online AUC / TPR at 1 % / TPR at 0.1 % FPR.
  Models to compare have the same members, and their targets have the same numbers of references
  (`experiments/protocols.py`). Held-out accuracies are means over all models. Models before {first} of the networks
  with {epochs100} epochs and augmentation influenced the design of `pl-mia-eb`. Where they are the only ones with the
  same members, `pl-mia-eb` did not attack them (–):

{protocols}

  AUC against the same members with {epochs100} epochs and augmentation (95 % intervals over targets):

{differences}

{undecided}  JPEG copies lose accuracy, and members are easier to find. Without augmentation, `rmia` finds fewer
  members, `pl-mia` more, and `pl-mia-eb` most. Our explanation: such networks remember the exact image more than its
  shifted and mirrored views. `pl-mia-eb` learns from the references how much each view says; the other attacks average
  over the views. Without augmentation, additional views lower the AUC of the other attacks, on CIFAR-100
  ([figure-2](#cifar-100-no-augmentation-figure-2)) and on CIFAR-10 ([figure-2](#no-augmentation-figure-2)).
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
    head = HEAD.format(
        n=len(paper_numbers()),
        not_run=NOT_RUN,
        not_resolved=NOT_RESOLVED,
        whole=_whole(),
        cut=MODELS["cifar10_wrn"],
        cut100=MODELS["cifar100_wrn"],
        points=POINTS["cifar10_wrn"],
        points100=POINTS["cifar100_wrn"],
        fewer=POINTS["location_mlp"],
        have=_references("cifar100_wrn"),
        have_plain=_references("cifar100_wrn_plain"),
    )
    parts = [head, "## Verdicts", _verdicts(found, items), _why(found["table-s1"])]
    parts += [_section(found[item], RESULTS) for item in items]
    for folder, paths in groupby(_further("json"), lambda path: path.parent):
        parts.append(f'<a id="{folder.name}"></a>\n\n## Repeated: {folder.name}')
        parts += [_section(json.loads(path.read_text(encoding="utf-8")), folder) for path in paths]
    parts.append(f"The paper's numbers, as data: `experiments/{PAPER.name}`.")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _why(table_s1: dict[str, Any]) -> str:
    paper, found = _paper_accuracy("CIFAR-100"), protocols.measured()
    (copies, lossless), (plain, augmented) = (found[name]["held_out"] for name in ("JPEG 75", "no augmentation"))
    (plain10, augmented10), pilot = table_s1["run"], _pilot_models()
    recipe = parse_recipe(WHOLE["cifar100_wrn"].recipe).to_json()
    return WHY.format(
        paper10=_paper_accuracy("CIFAR-10"),
        plain10=100 * plain10["test_accuracy"],
        epochs_plain10=plain10["epochs"],
        augmented10=100 * augmented10["test_accuracy"],
        epochs_augmented10=augmented10["epochs"],
        epochs100=recipe["epochs"],
        depth=recipe["depth"],
        width=recipe["width"],
        quality=WHOLE["cifar100_wrn_jpeg"].jpeg,
        paper=paper,
        pilot=_pilot(paper),
        near=NEAR,
        reached=_reached(paper),
        below=paper - plain,
        models=found["no augmentation"]["models"],
        plain_lost=augmented - plain,
        epochs_lost=pilot[WHOLE["cifar100_wrn"].recipe]["held_out"] - pilot[WHOLE["cifar10_wrn"].recipe]["held_out"],
        jpeg_lost=lossless - copies,
        first=WHOLE["cifar100_wrn"].first_target,
        undecided=_undecided(found),
        protocols=protocols.table(),
        differences="\n".join(
            f"    - {training}: `{attack}` {row['difference'][attack]}"
            for training, row in found.items()
            for attack in row["difference"]
        ),
    )


def _kept(name: str) -> int | None:
    """Number of kept models of some signals; None if they are not kept model by model."""
    path = SIGNALS / name / "about.json"
    return len(json.loads(path.read_text(encoding="utf-8"))["models"]) if path.exists() else None


def _references(name: str) -> int:
    """References of each target in pairs: model 0 has no partner, and the pair of the target is left out."""
    return 2 * (((_kept(name) or 0) - 1) // 2 - 1)


def _paper_accuracy(data: str) -> float:
    """Test accuracy of the paper's models."""
    rows = paper_numbers()["table-s1"]["rows"]
    return float(next(row["cells"]["test accuracy"] for row in rows if row["keys"] == [data]))


def _pilot(paper: float) -> str:
    """Table of the accuracies of the CIFAR-100 pilot."""
    rows = [
        f"| `{recipe}` | {each['members']:.1f} % | {each['held_out']:.1f} % | {each['held_out'] - paper:+.1f} |"
        for recipe, each in _pilot_models().items()
    ]
    head = f"| recipe | members | held out | against the paper's {paper} % |"
    return "\n".join(f"  {line}" for line in (head, "| --- | ---: | ---: | ---: |", *rows))


def _pilot_models() -> dict[str, dict[str, float]]:
    """Accuracies of the CIFAR-100 pilot, by recipe."""
    text = (SIGNALS / "cifar100_wrn" / "pilot.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, float]] = json.loads(text)["percent"]
    return found


def _reached(paper: float) -> str:
    """Recipes of the pilot that are near the paper's accuracy."""
    near = [recipe for recipe, each in _pilot_models().items() if abs(each["held_out"] - paper) < NEAR]
    return ", ".join(f"`{recipe}`" for recipe in near) or "none"


def _undecided(found: dict[str, dict[str, Any]]) -> str:
    """Trainings whose effect on the attacks is not decided, because they have too few targets."""
    return "".join(
        f"  **The effect of {training} on the attacks is not decided here.** These numbers are from "
        f"{len(row['targets'])} target{'s' * (len(row['targets']) > 1)} with\n"
        f"  {row['references']} references, so there is no interval.\n\n"
        for training, row in found.items()
        if len(row["targets"]) < FEWEST_TARGETS
    )


def _whole() -> str:
    """Rows of the table of whole signals."""
    return "\n".join(
        f"| `{name}` | {one.data} | {_models(name)} | `{one.recipe}` | {one.first_target} |"
        for name, one in WHOLE.items()
    )


def _models(name: str) -> str:
    """Number of models, and of those that are planned."""
    planned, kept = WHOLE[name].references + 1 - len(WHOLE[name].leave_out), _kept(name)
    return str(planned) if kept in (None, planned) else f"{kept} of {planned}"


def _verdicts(found: dict[str, Any], items: list[str]) -> str:
    lines = ["| claim | verdict | where |", "| --- | --- | --- |"]
    for item in items:
        for claim in found[item]["claims"]:
            lines.append(_verdict(claim, item, item))
    for path in _further("json"):
        name = path.parent.name
        claims = json.loads(path.read_text(encoding="utf-8"))["claims"]
        lines += [_verdict(claim, f"{path.stem}, {name}", f"{name}-{path.stem}") for claim in claims]
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
    else:
        contents = contents | {"rows": [_linked(row, item) for row in contents["rows"]]}
    stem = Path(_figure(folder / item)).name
    drawn = [path.name for path in FIGURES.glob("*.svg") if re.fullmatch(rf"{stem}(-\d+)?", path.stem)]
    names = [f"reproduction/{name}" for name in sorted(drawn, key=lambda name: (len(name), name))]
    page = markdown(contents, names, level=2 if folder == RESULTS else 3)
    head, _, rest = page.partition("\n")
    if len(contents["rows"]) > MOST_ROWS:
        file = f"experiments/{(folder / item).relative_to(HERE)}.json"
        rest = rest.replace(table(contents), f"All {len(contents['rows'])} rows: `{file}`.")
    anchor = item if folder == RESULTS else f"{folder.name}-{item}"
    return f'<a id="{anchor}"></a>\n\n{head}\n{rest}\n`{contents["command"]}`'


def _linked(row: dict[str, Any], item: str) -> dict[str, Any]:
    """A row; if it was run on other models, with a link to the section that has it."""
    if row["ours"] is not None:
        return row
    for path in _further("json"):
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.stem == item else []
        if any(other["keys"] == row["keys"] and other["ours"] is not None for other in rows):
            return row | {"elsewhere": f"[{path.parent.name}](#{path.parent.name}-{item})"}
    return row


if __name__ == "__main__":
    main()

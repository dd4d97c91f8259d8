"""Compare screening without references with an audit: ``python benchmarks/screening.py FOLDER``.

FOLDER holds ``diabetes130.npz`` and ``adult.npz``; files that are missing are left out. The digits of scikit-learn are
always there. On each data set models are trained on random halves, in complementary pairs. Some of them are screened
one by one, and audited with 16 of the others as references. The table has the mean AUC and TPR at 1 % FPR over these
targets, in per cent. Writes ``bench-out/screening.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import plmia
from plmia.data.arrays import IntArray
from plmia.evaluation.tables import text_table

REFERENCES = 16
LOSS, CONDITIONAL, AUDIT = "attack-p", "attack-p-conditional", "pl-mia-eb"


@dataclass(frozen=True)
class Row:
    """Means over the targets of one data set, in per cent."""

    data: str
    recipe: str
    records: int
    attack: str
    auc: float
    tpr: float


def diabetes(folder: Path, n: int, rng: np.random.Generator) -> plmia.LabelledData:
    """UCI Diabetes 130-US hospitals: the rows of ``n`` patients, grouped by patient."""
    with np.load(folder / "diabetes130.npz") as file:
        bits = np.unpackbits(file["X_bin"], axis=1)[:, : int(file["n_bin"])]
        X, y, patient = np.hstack([file["X_num"], bits]).astype(np.float32), file["y"], file["patient"]
    everybody = np.unique(patient)
    kept = np.isin(patient, rng.choice(everybody, min(n, len(everybody)), replace=False))
    return plmia.LabelledData(X[kept], y[kept], patient[kept], name="Diabetes 130-US")


def adult(folder: Path, n: int, rng: np.random.Generator) -> plmia.LabelledData:
    """UCI Adult: ``n`` records; copies of a record stay together."""
    with np.load(folder / "adult.npz") as file:
        X, y = file["X"], file["y"]
    kept = np.sort(rng.choice(len(y), min(n, len(y)), replace=False))
    data = plmia.LabelledData(X[kept], y[kept])
    return plmia.LabelledData(X[kept], y[kept], data.first_copies, name="Adult")


def digits() -> plmia.LabelledData:
    """Handwritten digits of scikit-learn."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return plmia.LabelledData(X, y, name="digits")


def compared(data: plmia.LabelledData, recipe: str, n_targets: int, folder: Path) -> Iterator[Row]:
    """Train models, and screen and audit the first ones."""
    plmia.audit(recipe, data, references=REFERENCES + 4, folder=folder, progress=False)
    signals, targets = folder / "signals", (0, 1, 3, 5)[:n_targets]  # of different pairs
    found: dict[str, list[tuple[float, float]]] = {LOSS: [], CONDITIONAL: [], AUDIT: []}
    for target in targets:
        screened = plmia.screen(signals, target=target, X=data, folder=folder / "screened", progress=False)
        audited = plmia.score(
            signals, folder / "audited", target=target, references=REFERENCES, attacks=[AUDIT], progress=False
        )
        for result in (screened.result, audited.result):
            for name, attack in result.attacks.items():
                found[name].append((100 * attack.auc.mean, 100 * attack.tpr[0.01].mean))
    for name, values in found.items():
        yield Row(data.name, recipe, units(data), name, *np.mean(values, axis=0).round(1).tolist())


def units(data: plmia.LabelledData) -> int:
    """Number of records, or of groups."""
    groups: IntArray | None = data.groups
    return data.n_points if groups is None else len(np.unique(groups))


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with diabetes130.npz and adult.npz")
    parser.add_argument("--records", type=int, default=12_000, help="records (patients) of each file")
    parser.add_argument("--targets", type=int, default=4, choices=(1, 2, 3, 4), help="models to attack")
    parser.add_argument("--seed", type=int, default=0, help="seed of the records that are taken")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    sets = [(digits(), "sklearn:RandomForestClassifier")]
    for name, read in (("adult", adult), ("diabetes130", diabetes)):
        if (options.folder / f"{name}.npz").exists():
            sets.append((read(options.folder, options.records, rng), "mlp"))
    rows: list[Row] = []
    for data, recipe in sets:
        with tempfile.TemporaryDirectory() as folder:
            rows += compared(data, recipe, options.targets, Path(folder))
        cells = [[str(value) for value in asdict(row).values()] for row in rows]
        print(text_table([["data", "recipe", "records", "attack", "AUC", "TPR at 1 %"], *cells], left=2), flush=True)
    out = Path("bench-out")
    out.mkdir(exist_ok=True)
    (out / "screening.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()

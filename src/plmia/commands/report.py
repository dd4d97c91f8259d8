"""`plmia report`: the page of results that exist already."""

from __future__ import annotations

from pathlib import Path

import click

from plmia.data import load_npz, read_data
from plmia.errors import DataError
from plmia.report import Extras, write_report
from plmia.signals import Signals, read_signals
from plmia.terminal import stdout

# Arrays of texts that an npz may hold beside its points.
_TEXTS = ("texts", "class_names", "feature_names")


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--data",
    "data_path",
    type=click.Path(path_type=Path),
    help="The data that were audited, to show records: npz with X and y and optionally texts, class_names and "
    "feature_names, or a published archive.",
)
@click.option(
    "--signals",
    "signals_path",
    type=click.Path(path_type=Path),
    help="The signals that were scored, to show those of single records; an audit has them in its folder.",
)
@click.option("--no-records", is_flag=True, help="Show no image, feature or text of any record.")
@click.option("--attack", metavar="NAME", help="Attack of the figures and the table; by default the verdict's.")
@click.option("--target", type=int, metavar="I", help="Target of the figures and the table; by default the first.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def report(
    folder: Path,
    data_path: Path | None,
    signals_path: Path | None,
    no_records: bool,
    attack: str | None,
    target: int | None,
    quiet: bool,
) -> None:
    """Write DIR/report.html from the results in DIR.

    One file that opens without a network: the verdict, figures, and the most exposed records. The figures are written
    to DIR/figures as SVG and JSON, and as PNG where Pillow is installed (pip install 'plmia[images]').

    \b
    Examples:
      plmia report run
      plmia report out --signals signals.npz --data data.npz
      plmia report run --no-records --attack rmia
    """  # noqa: D301 - click wants the control character itself
    extras = _extras(data_path, None if signals_path is None else _signals(signals_path))
    path = write_report(folder, extras, show_records=not no_records, attack=attack, target=target)
    if not quiet:
        stdout().print(str(path), markup=False, soft_wrap=True)


def _extras(path: Path | None, signals: Signals | None) -> Extras:
    """Return the data, and the texts and names that stand beside them in an npz."""
    if path is None:
        return Extras(signals=signals)
    arrays = load_npz(path, _TEXTS, "`X` or `texts`", DataError) if path.suffix == ".npz" else {}
    for name in _TEXTS:
        if name in arrays and (arrays[name].ndim != 1 or arrays[name].dtype.kind != "U"):
            raise DataError(
                f"{path} has {name} of shape {arrays[name].shape} and type {arrays[name].dtype}: "
                "a list of texts is needed, as numpy.array(names) makes it"
            )
    data = None if "texts" in arrays else read_data(path)
    texts, classes, features = (arrays[name].tolist() if name in arrays else None for name in _TEXTS)
    return Extras(data, texts, classes, features, signals)


def _signals(path: Path) -> Signals:
    from plmia.store import SignalStore

    if (path / "store.json").is_file():
        return SignalStore.open(path).signals()
    return read_signals(path)

"""Signals files as untrusted input: what is read, and that everything else ends in one named error."""

from __future__ import annotations

import io
import pickle
import re
import zipfile

import numpy as np
import pytest

from plmia.data.designs import MembershipDesign
from plmia.errors import SignalsError
from plmia.numerics import logit_from_probabilities
from plmia.signals import signals
from plmia.signals.signals import Signals, read_signals

MODELS, POINTS, VIEWS = 6, 11, 3


def arrays_of(points=POINTS, views=VIEWS, dtype="float32"):
    rng = np.random.default_rng(0)
    return {
        "signals": rng.normal(0, 4, (MODELS, points, views)).astype(dtype),
        "membership": rng.random((MODELS, points)) < 0.5,
        "labels": rng.integers(0, 4, points),
    }


@pytest.fixture
def write(tmp_path):
    """Write the usual arrays, some replaced (None: left out), and return the path."""

    def save(compressed=False, **replaced):
        path = tmp_path / "signals.npz"
        arrays = {name: array for name, array in (arrays_of() | replaced).items() if array is not None}
        (np.savez_compressed if compressed else np.savez)(path, **arrays)
        return path

    return save


@pytest.fixture
def refused(tmp_path):
    """Return the sentence with which a file (given as its bytes, or as a path) is refused."""

    def read(what, **arguments):
        path = what
        if isinstance(what, bytes | bytearray):
            path = tmp_path / "given.npz"
            path.write_bytes(what)
        with pytest.raises(SignalsError) as caught:
            read_signals(path, **arguments)
        message = str(caught.value)
        assert "\n" not in message
        return message

    return read


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def zipped(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "."), content)
    return stream.getvalue()


def assert_same(found, arrays):
    assert np.array_equal(found.values, arrays["signals"].reshape(*arrays["signals"].shape[:2], -1))
    assert np.array_equal(found.design.matrix, arrays["membership"])
    assert (found.labels is None) == ("labels" not in arrays)
    assert found.labels is None or np.array_equal(found.labels, arrays["labels"])


@pytest.mark.parametrize("points", [1, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("form", ["bool", "uint8", "int64", ">i4", "packed", "packed, one number in an array"])
def test_membership_may_be_bools_zeros_and_ones_or_packed_bits(write, points, form):
    arrays = arrays_of(points)
    truth = arrays["membership"]
    stored = {"membership": np.packbits(truth, axis=1) if "packed" in form else truth.astype(form)}
    if "packed" in form:
        stored["n_points"] = np.array([points]) if "array" in form else points
    found = read_signals(write(**(arrays | stored)))
    assert_same(found, arrays)
    assert found.design.matrix.dtype == np.bool_


def test_unpacked_bytes_may_come_with_their_number_of_points(write):
    arrays = arrays_of()
    assert_same(read_signals(write(membership=arrays["membership"].astype("uint8"), n_points=POINTS)), arrays)


@pytest.mark.parametrize("views", [0, 1, 5])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f2", ">f4", ">f8", "longdouble"])
@pytest.mark.parametrize("compressed", [False, True])
def test_signals_may_have_two_axes_or_three_and_any_float(write, views, dtype, compressed):
    arrays = arrays_of(views=max(views, 1), dtype=dtype)
    if views == 0:
        arrays["signals"] = arrays["signals"][:, :, 0]
    found = read_signals(write(compressed, **arrays))
    assert_same(found, arrays)
    wanted = np.dtype(dtype).newbyteorder("=") if np.dtype(dtype).itemsize <= 8 else np.dtype(np.float64)
    assert found.values.dtype == wanted
    assert found.values.dtype.isnative
    assert (found.n_models, found.n_points, found.n_views) == (MODELS, POINTS, max(views, 1))


def test_labels_are_optional(write):
    assert read_signals(write(labels=None)).labels is None
    assert np.array_equal(read_signals(write(labels=np.arange(POINTS, dtype="uint8"))).labels, np.arange(POINTS))


def test_fortran_order_is_the_same(write):
    arrays = arrays_of()
    stored = {name: np.asfortranarray(array) for name, array in arrays.items()}
    assert_same(read_signals(write(**stored)), arrays)


def test_other_arrays_in_the_file_are_left_alone(write):
    assert_same(read_signals(write(other=np.array([object()], dtype=object))), arrays_of())


def test_any_true_byte_is_one(tmp_path):
    arrays = arrays_of()
    content = bytearray(npy(arrays["membership"]))
    body = len(content) - MODELS * POINTS
    content[body:] = bytes(255 if byte else 0 for byte in content[body:])
    path = tmp_path / "bytes.npz"
    path.write_bytes(zipped(signals__npy=npy(arrays["signals"]), membership__npy=bytes(content)))
    found = read_signals(path).design.matrix
    assert set(found.view(np.uint8).ravel()) == {0, 1}
    assert np.array_equal(found, arrays["membership"])


def test_probabilities_are_scaled_on_demand_and_clipping_is_counted(write):
    p = np.random.default_rng(0).random((MODELS, POINTS)).astype("float32")
    p[0, :2], p[1, 0] = 1.0, 0.0
    found = read_signals(write(signals=p), scale="probability")
    exact, n_clipped = logit_from_probabilities(p)
    assert np.array_equal(found.values[:, :, 0], exact)
    assert found.n_clipped == n_clipped == 3
    as_logits = read_signals(write(signals=p), scale="logit")
    assert np.array_equal(as_logits.values[:, :, 0], p)
    assert as_logits.n_clipped == 0


def with_value(value, where=(2, 7, 1)):
    signals = arrays_of()["signals"]
    signals[where] = value
    return signals


SPOILED = {
    "nan": ({"signals": with_value(np.nan)}, "hold nan at model 2, record 7, view 1"),
    "inf": ({"signals": with_value(np.inf)}, "hold inf at model 2, record 7, view 1"),
    "-inf": ({"signals": with_value(-np.inf)}, "hold -inf at model 2, record 7, view 1.*must be finite"),
    "probabilities": ({"signals": np.full((6, 11), 0.5)}, r"lie in \[0, 1\], like probabilities: .*'probability'"),
    "one axis": ({"signals": np.ones(6) * 9}, r"shape \(6,\).*\[models, records, views\]"),
    "four axes": ({"signals": np.ones((6, 11, 3, 2)) * 9}, r"shape \(6, 11, 3, 2\).*are needed"),
    "no views": ({"signals": np.ones((6, 11, 0))}, r"shape \(6, 11, 0\).*no empty axis"),
    "no points": ({"signals": np.ones((6, 0)), "membership": np.ones((6, 0), bool)}, r"shape \(6, 0, 1\).*empty"),
    "integers": ({"signals": np.ones((6, 11), int)}, "signals of type int64: floats are needed"),
    "text": ({"signals": np.full((6, 11), "a")}, "signals of type <U1: floats are needed"),
    "complex": ({"signals": np.ones((6, 11), complex)}, "signals of type complex128: floats are needed"),
    "records": ({"signals": np.zeros((6, 11), [("a", "f4")])}, "floats are needed"),
    "other models": ({"membership": np.ones((5, 11), bool)}, r"shape \(5, 11\), signals \(6, 11, 3\)"),
    "other points": ({"membership": np.ones((6, 12), bool)}, r"shape \(6, 12\), signals \(6, 11, 3\).*need the same"),
    "flat membership": ({"membership": np.ones(11, bool)}, r"membership has shape \(11,\).*one row per model"),
    "twos": ({"membership": np.full((6, 11), 2)}, "other values than 0 and 1: booleans are needed"),
    "real membership": ({"membership": np.full((6, 11), 0.5)}, "type float64 and other values than 0 and 1: booleans"),
    "text membership": ({"membership": np.full((6, 11), "1")}, "membership has type <U1: booleans are needed"),
    "packed without n_points": ({"membership": np.full((6, 2), 255, "uint8")}, "together with `n_points`"),
    "packed for others": (
        {"membership": np.full((6, 3), 255, "uint8"), "n_points": 11},
        "has 3 columns, n_points = 11 needs 2 packed bytes: pack with numpy.packbits",
    ),
    "n_points of text": (
        {"membership": np.ones((6, 2), "uint8"), "n_points": "11"},
        "n_points is ",
    ),
    "two n_points": ({"membership": np.ones((6, 2), "uint8"), "n_points": [11, 11]}, r"n_points is \[11, 11\]"),
    "n_points below 1": ({"membership": np.ones((6, 0), "uint8"), "n_points": -5}, "n_points is -5.*1 or more"),
    "other labels": ({"labels": np.arange(10)}, r"labels have shape \(10,\).*integers \[11\] are needed"),
    "real labels": ({"labels": np.ones(11)}, "labels have shape .* type float64: integers"),
    "pickled signals": (
        {"signals": np.full((6, 11), None)},
        "pickled objects, which could run code and are never loaded",
    ),
    "pickled labels": ({"labels": np.array([{}] * 11, object)}, "pickled objects, which could run code"),
    "no signals": ({"signals": None}, "holds no array 'signals'.*: add it"),
    "no membership": ({"membership": None}, "holds no array 'membership'.*: add it"),
}


@pytest.mark.parametrize(("replaced", "message"), SPOILED.values(), ids=SPOILED)
def test_what_does_not_fit_is_refused_with_value_and_remedy(write, refused, replaced, message):
    assert re.search(message, refused(write(**replaced)))


@pytest.mark.parametrize("value", [-0.1, 1.1, np.nan])
def test_what_is_no_probability_is_refused(write, refused, value):
    p = np.full((MODELS, POINTS), 0.5)
    p[3, 4] = value
    message = refused(write(signals=p), scale="probability")
    assert f"{value} at model 3, record 4, view 0" in message
    assert "must lie in [0, 1]" in message


def test_a_value_of_four_bytes_is_named_as_it_was_written(write, refused):
    p = np.full((MODELS, POINTS), 0.5, "float32")
    p[3, 4] = 1.2
    assert "hold 1.2 at model 3" in refused(write(signals=p), scale="probability")


@pytest.mark.parametrize("stray", [1, 20])
def test_probabilities_with_some_stray_values_are_not_taken_for_logits(write, refused, stray):
    p = np.random.default_rng(0).random((MODELS, 400))
    p[0, :stray], p[1, 0] = 1.2, -0.1
    file = write(signals=p, membership=np.ones(p.shape, bool), labels=None)
    message = refused(file)
    assert f"{2400 - stray - 1:,} of the 2,400 signals of" in message
    assert "the range is -0.1 to 1.2: correct them and give the scale 'probability', or" in message
    assert np.array_equal(read_signals(file, scale="logit").values[:, :, 0], p)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_the_range_and_the_share_of_probabilities_are_those_of_a_loop(monkeypatch, dtype, at_once):
    monkeypatch.setattr(signals, "_POINTS_AT_ONCE", at_once)
    values = np.random.default_rng(0).normal(0.5, 2, (3, 20, 2)).astype(dtype)
    values[0, :6, 0] = 0, -0.0, 1, np.nextafter(values.dtype.type(1), values.dtype.type(2)), 1e-7, -1e-7
    one_by_one = [float(value) for value in values.ravel()]
    assert signals._range(values) == (min(one_by_one), max(one_by_one))
    assert signals._count_in_unit_interval(values) == sum(0 <= value <= 1 for value in one_by_one)
    values[1, 3, 1] = np.nan
    assert np.isnan(signals._range(values)).all()


@pytest.mark.parametrize(("mean", "deviation"), [(0, 4), (0.5, 0.5), (6, 3), (0.5, 0.2)])
def test_logits_are_taken_for_logits(write, mean, deviation):
    logits = np.random.default_rng(0).normal(mean, deviation, (MODELS, 400))
    file = write(signals=logits, membership=np.ones(logits.shape, bool), labels=None)
    assert np.array_equal(read_signals(file).values[:, :, 0], logits)


def test_zeros_and_ones_of_any_number_type_are_membership(write):
    membership = arrays_of()["membership"]
    for kind in ("float64", "float32", "int8", "uint64"):
        found = read_signals(write(membership=membership.astype(kind)))
        assert np.array_equal(found.design.matrix, membership)


def test_signals_are_checked_without_a_file_too():
    membership = MembershipDesign(np.ones((2, 3), bool))
    for values in (np.ones((2, 3)), np.ones((2, 3, 1), int), np.ones((2, 4, 1)), np.full((2, 3, 1), np.nan)):
        with pytest.raises(SignalsError):
            Signals(values, membership)


@pytest.mark.parametrize(
    ("wrong", "labels", "advice"),
    [
        (("signals",), True, "transpose the signals"),
        (("signals",), False, "transpose the signals"),
        (("membership",), True, "transpose the membership"),
        (("membership",), False, "transpose the membership"),
        (("signals", "membership"), True, "transpose signals and membership"),
    ],
)
def test_swapped_axes_are_refused_with_what_to_transpose(write, refused, wrong, labels, advice):
    arrays = arrays_of()
    replaced = {name: np.swapaxes(arrays[name], 0, 1) for name in wrong}
    message = refused(write(**replaced, **({} if labels else {"labels": None})))
    assert advice in message
    assert "[models, records]" in message


@pytest.mark.parametrize("name", ["long.csv", "long.parquet"])
def test_a_table_is_refused_with_the_command_that_imports_it(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"fold,p")
    with pytest.raises(SignalsError, match=re.escape(f"plmia import table {path} -o")):
        read_signals(path)


def test_paths_that_are_no_files_are_refused(tmp_path, refused):
    assert "there is no file" in refused(tmp_path / "missing.npz")
    assert "is a folder" in refused(tmp_path)
    assert "cannot be read" in refused(tmp_path / ("x" * 300))


class Trap:
    """Would leave a trace if it were unpickled."""

    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


NO_NPZ = {
    "empty": (b"", "is not an npz file"),
    "nothing": (b"", "is not an npz file .it is empty"),
    "text": (b"signals,membership\n1,2\n", "is not an npz file .it starts with b'signal'"),
    "pickle": (pickle.dumps(Trap()), "is not an npz file"),
    "a single array": (npy(np.ones((3, 4))), "is a single array: save `signals` and `membership` with numpy.savez"),
    "a zip of text": (zipped(signals="1,2", membership="0,1"), "'signals', but not as a NumPy array"),
    "a zip of others": (zipped(readme="hello"), "holds no array 'signals'.*: add it"),
    "an empty zip": (zipped(), "holds no array 'signals'"),
    "a zip of text called npy": (zipped(signals__npy="1,2", membership__npy="0"), "not as a NumPy array"),
    "the start of a zip": (b"PK\x03\x04", "is damaged"),
}


@pytest.mark.parametrize(("content", "message"), NO_NPZ.values(), ids=NO_NPZ)
def test_what_is_no_npz_is_refused(refused, content, message):
    assert re.search(message, refused(content))
    assert not Trap.sprung


HEADERS = {
    "not closed": b"{'descr': '<f4', 'fortran_order': False, 'shape': (6, 11), ",
    "deep": b"(" * 3000,
    "huge": b"{'descr': '<f4', 'fortran_order': False, 'shape': (6, 99999999999999), }",
    "overflow": b"{'descr': '<f4', 'fortran_order': False, 'shape': (6, 4611686018427387904), }",
    "negative": b"{'descr': '<f4', 'fortran_order': False, 'shape': (6, -11), }",
    "no type": b"{'descr': 'what', 'fortran_order': False, 'shape': (6, 11), }",
    "no dictionary": b"17",
    "code": b"__import__('os').getcwd()",
    "objects": b"{'descr': '|O', 'fortran_order': False, 'shape': (6, 11), }",
    "longer than it says": b"{'descr': '<f4', 'fortran_order': False, 'shape': (6, 10), }",
    "shorter than it says": b"{'descr': '<f4', 'fortran_order': False, 'shape': (6, 12), }",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_spoiled_header_is_refused_although_the_checksum_fits(refused, header):
    head = b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header + b"\n"
    content = zipped(signals__npy=head + np.ones((6, 11), "<f4").tobytes(), membership__npy=npy(np.ones((6, 11), bool)))
    assert "given.npz" in refused(content)


def test_a_header_that_python_2_wrote_is_read_in_silence(tmp_path):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (6L, 11L), }\n"
    head = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    path = tmp_path / "old.npz"
    membership = npy(np.ones((6, 11), bool))
    path.write_bytes(zipped(signals__npy=head + np.full((6, 11), 3, "<f4").tobytes(), membership__npy=membership))
    assert (read_signals(path).values == 3).all()


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """Return the bytes of a file whose arrays are larger than the buffers they are read with, and the arrays."""
    arrays = arrays_of(points=5001, views=2)
    found = {}
    for compressed in (False, True):
        path = tmp_path_factory.mktemp("contents") / "signals.npz"
        packed = {"membership": np.packbits(arrays["membership"], axis=1), "n_points": 5001}
        (np.savez_compressed if compressed else np.savez)(path, **(arrays | packed))
        found[compressed] = path.read_bytes()
    return found, arrays


@pytest.mark.parametrize("compressed", [False, True])
def test_a_truncated_file_is_refused_wherever_it_is_cut(contents, refused, compressed):
    content = contents[0][compressed]
    cuts = {0, 1, 2, 5, 30, 100, *np.linspace(0, len(content) - 1, 20).astype(int)}
    for cut in cuts | {len(content) - k for k in (1, 2, 10, 21, 22, 23, 60, 120)}:
        assert "damaged" in (message := refused(content[:cut])) or "not an npz" in message, cut


def read_or_refuse(path, content):
    path.write_bytes(content)
    try:
        return read_signals(path)
    except SignalsError:
        return None


@pytest.mark.parametrize("compressed", [False, True])
def test_damage_is_refused_or_does_no_harm(contents, tmp_path, compressed):
    content, arrays = contents[0][compressed], contents[1]
    rng = np.random.default_rng(0)
    directory = content.rindex(b"PK\x01\x02", 0, content.index(b"PK\x01\x02") + 4)
    headers = [
        start + k for name in (b"signals.npy", b"labels.npy") for start in [content.index(name)] for k in range(200)
    ]
    places = [*rng.integers(0, len(content), 30), *rng.choice(headers, 60), *range(directory, len(content), 3)]
    refusals = 0
    for place in places:
        spoiled = bytearray(content)
        spoiled[place] ^= int(rng.integers(1, 256))
        found = read_or_refuse(tmp_path / "spoiled.npz", spoiled)
        refusals += found is None
        if found is not None:
            assert_same(found, arrays)
    assert refusals > 0.5 * len(places)


def test_a_header_that_hides_half_of_an_array_is_refused(contents, tmp_path):
    content = contents[0][False]
    spoiled = content.replace(b"(6, 5001, 2)", b"(6, 5001, 1)")
    assert spoiled != content
    assert read_or_refuse(tmp_path / "spoiled.npz", spoiled) is None


@pytest.mark.parametrize("flag", [1, 32, 64])
def test_an_encrypted_or_patched_entry_is_refused(contents, tmp_path, flag):
    spoiled = bytearray(contents[0][False])
    spoiled[spoiled.index(b"PK\x01\x02") + 8] |= flag
    assert read_or_refuse(tmp_path / "spoiled.npz", spoiled) is None


@pytest.mark.parametrize("method", [1, 12, 14, 99])
def test_another_compression_than_the_data_have_is_refused(contents, tmp_path, method):
    spoiled = bytearray(contents[0][False])
    spoiled[spoiled.index(b"PK\x01\x02") + 10] = method
    assert read_or_refuse(tmp_path / "spoiled.npz", spoiled) is None


# Numbers of models


def test_models_of_a_file_are_numbered_from_0(write):
    signals = read_signals(write())
    assert signals.models == tuple(range(MODELS))
    assert signals.rows([4, 0]).tolist() == [4, 0]


def test_models_keep_their_numbers():
    arrays = arrays_of()
    numbers = (1, 7, 2, 30, 8, 5)
    signals = Signals(arrays["signals"], MembershipDesign(arrays["membership"]), models=numbers)
    assert signals.rows(numbers).tolist() == list(range(MODELS))
    assert signals.rows([30, 1]).tolist() == [3, 0]
    for missing in (0, -1, 31):
        with pytest.raises(SignalsError, match=rf"target {missing} .* 6 finished models .*1, 7, 2"):
            signals.rows([7, missing], "target")


@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 1, 2, 3, 4, 4), (-1, 0, 1, 2, 3, 4), tuple(range(7))])
def test_numbers_that_cannot_be_those_of_the_models_are_refused(numbers):
    arrays = arrays_of()
    with pytest.raises(SignalsError, match=rf"{len(numbers)} model numbers .* 6 models"):
        Signals(arrays["signals"], MembershipDesign(arrays["membership"]), models=numbers)


def test_a_signal_that_is_not_finite_is_found_by_the_number_of_its_model():
    arrays = arrays_of()
    arrays["signals"][2, 3, 1] = np.nan
    with pytest.raises(SignalsError, match="model 12, record 3, view 1"):
        Signals(arrays["signals"], MembershipDesign(arrays["membership"]), models=(10, 11, 12, 13, 14, 15))

"""Code of users may raise anything: each error becomes one sentence, and only interruptions pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from plmia.data.user_code import described, failure, lacks_memory, load_user_file
from plmia.errors import AttackError

ODD = {
    "text": "class Odd(Exception):\n    def __str__(self): return 1 / 0\nraise Odd",
    "text that exits": "class Odd(Exception):\n    def __str__(self): raise SystemExit(0)\nraise Odd",
    "no exception": "class Odd(BaseException): pass\nraise Odd('no')",
    "exit": "class Odd(SystemExit): pass\nraise Odd(0)",
    "group": "class Odd(BaseExceptionGroup): pass\nraise Odd('no', [KeyboardInterrupt()])",
}


@pytest.mark.parametrize("name", ODD)
def test_a_file_that_raises_anything_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ODD[name])
    with pytest.raises(AttackError, match=r"mine\.py .*Odd"):
        load_user_file(tmp_path / "mine.py", AttackError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_interruptions_pass(error: type[BaseException], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"raise {error.__name__}")
    with pytest.raises(error):
        load_user_file(tmp_path / "mine.py", AttackError)


def test_an_error_whose_text_cannot_be_read_is_described() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert "OddError" in described(OddError())
    assert "ZeroDivisionError" in described(OddError())
    assert "OddError" in failure(OddError(), None)
    assert not lacks_memory(OddError())
    assert described(ValueError("no")) == "ValueError: no"

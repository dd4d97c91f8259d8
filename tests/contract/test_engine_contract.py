"""The contract of an engine, checked on every engine of the package and on one that a user wrote."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from plmia.errors import TrainingError, require_members
from plmia.training.engines import Engine, Failed, Inline, LocalProcesses, Ray, Results, attempt

# Workers cannot import a test, so their work lies in a module of its own.
WORK = """
import numpy as np
from plmia.errors import RecipeError

def work(job):
    if job == "recipe":
        raise RecipeError("no such column")
    if job == "bug":
        raise ZeroDivisionError("of my own")
    return np.full(3, job)
"""


class Reversed(Engine):
    """A user's engine with the least that an engine needs: jobs from last to first."""

    def run(self, work: Callable[[Any], Any], jobs: Iterable[Any]) -> Results:
        for job in reversed(list(jobs)):
            yield job, attempt(work, job)


ENGINES = {"inline": Inline(), "processes": LocalProcesses(2), "reversed": Reversed(), "ray": Ray("local", in_flight=2)}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "ray" and (importlib.util.find_spec("ray") is None or os.environ.get("CI") != "true"):
        pytest.skip("starting a cluster takes long; tests/e2e/test_ray.py does it")
    return ENGINES[request.param]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Any], Any]]:
    folder = tmp_path_factory.mktemp("work")
    (folder / "work_of_engine_contract.py").write_text(WORK)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))  # workers of Ray do not get sys.path
        yield __import__("work_of_engine_contract").work
        del sys.modules["work_of_engine_contract"]


def test_every_member_has_its_type(engine: Engine) -> None:
    require_members(engine, Engine, TrainingError)
    assert engine.at_once >= 1
    assert isinstance(engine.maps_files, bool)


def test_every_job_comes_back_once_with_its_result(engine: Engine, work: Any) -> None:
    found = list(engine.run(work, range(5)))
    assert sorted(job for job, _ in found) == list(range(5))
    for job, result in found:
        np.testing.assert_array_equal(result, np.full(3, job))


def test_no_jobs_give_no_results(engine: Engine, work: Any) -> None:
    assert list(engine.run(work, [])) == []


def test_a_failure_stays_with_its_job(engine: Engine, work: Any) -> None:
    found = dict(engine.run(work, [1, "recipe", "bug", 2]))
    np.testing.assert_array_equal(found[1], np.full(3, 1))
    np.testing.assert_array_equal(found[2], np.full(3, 2))
    assert found["recipe"] == Failed("no such column", by_recipe=True)
    assert found["bug"].by_recipe
    assert "ZeroDivisionError: of my own" in found["bug"].sentence
    assert "ZeroDivisionError" in found["bug"].trace


def test_an_engine_can_be_closed_early_and_used_again(engine: Engine, work: Any) -> None:
    results = engine.run(work, range(6))
    next(results)
    results.close()
    assert next(results, None) is None
    assert len(list(engine.run(work, range(2)))) == 2


def test_a_missing_member_is_named() -> None:
    class Partial:
        at_once = 1

    with pytest.raises(TrainingError, match=r"Partial lacks maps_files, run: .*Engine"):
        require_members(Partial(), Engine, TrainingError)

"""Each pickle of the first release loads, and the object says what it said."""

from __future__ import annotations

import importlib
import json
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from my_utils.profiling.capture_controller import set_default_controller

from ..conftest import RunPython
from .release1_files import FILES, batch, content, durations, pickle_files, state_of

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

BEFORE: dict[str, Any] = json.loads(content(FILES / "pickles.json.xz"))
NAMES = [path.name.partition(".pickle")[0] for path in pickle_files()]


@pytest.fixture(autouse=True)
def no_controller_is_left() -> Iterator[None]:
    """A CaptureWorker makes the process's controller, and so does one that is unpickled."""
    yield
    set_default_controller(None)


def loaded(name: str) -> Any:
    (path,) = (each for each in pickle_files() if each.name.startswith(f"{name}.pickle"))
    return pickle.loads(content(path))


def what_is_lost(before: Any, now: Any, place: str = "") -> list[str]:
    """What is not there any more, or not the same; what is new is fine."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            text
            for key, value in before.items()
            for text in (
                what_is_lost(value, now[key], f"{place}/{key}")
                if key in now
                else [f"{place}/{key} is gone"]
            )
        ]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [text for i, (a, b) in pairs for text in what_is_lost(a, b, f"{place}[{i}]")]
    return [] if before == now else [f"{place} was {before!r:.80}, and is {now!r:.80}"]


def test_there_is_one_for_each_state() -> None:
    assert set(NAMES) == set(BEFORE)
    assert len(NAMES) > 70


@pytest.mark.parametrize("name", NAMES)
def test_it_says_the_same(name: str) -> None:
    lost = what_is_lost(BEFORE[name], state_of(loaded(name)))
    assert not lost, "\n".join(lost[:20])


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_pickled_again(name: str) -> None:
    """A second trip goes by today's names."""
    again = pickle.loads(pickle.dumps(loaded(name)))
    assert not what_is_lost(BEFORE[name], state_of(again))


@pytest.mark.slow
def test_they_load_where_nothing_is_imported(run_python: RunPython) -> None:
    """In the order of their names backwards, too: none needs what another one imported."""
    program = """
import lzma, pickle, sys
from collections.abc import Iterator
from pathlib import Path
paths = sorted(Path(sys.argv[1]).glob("*.pickle*"), reverse=True)
for path in paths:
    data = path.read_bytes()
    pickle.loads(lzma.decompress(data) if path.suffix == ".xz" else data)
print(len(paths))
"""
    done = run_python("-c", program, str(FILES / "pickles"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(NAMES)}\n"


# --- what the objects are, by facts of the tests' own ---


def test_gathered_times() -> None:
    times = loaded("my_utils.timing.GatheredTime")
    assert isinstance(times, importlib.import_module("my_utils.timing").GatheredTime)
    assert set(times) == set(durations())
    for name, seconds in durations().items():
        assert times[name].count() == len(seconds)
        assert times[name].sum() == pytest.approx(math.fsum(seconds))
        assert times[name].samples.tolist() == pytest.approx(seconds)
    summary = loaded("my_utils.timing.GatheredTime.summary")
    assert summary["load"].is_summary
    assert summary["save"].sum() == pytest.approx(math.fsum(durations()["save"]))
    assert loaded("my_utils.timing.TimeData").max() == 2.0


def test_a_signed_batch_is_verified() -> None:
    import torch

    from my_utils.utils import ChecksumUtils

    ChecksumUtils.enabled = True
    try:
        signed = loaded("signed batch")
        assert ChecksumUtils.verify(signed).ok
        assert all(torch.equal(signed[key], value) for key, value in batch().items())
        found = ChecksumUtils.verify(loaded("changed batch")).mismatches
    finally:
        ChecksumUtils.enabled = False
    assert {(each.key, each.sample, each.problem) for each in found} == {
        ("y", 0, "moved"),
        ("y", 2, "moved"),
    }


def test_models_that_were_saved_with_hooks_still_run() -> None:
    import torch

    for name, model in loaded("models with hooks").items():
        assert model(torch.ones(1, 2)).tolist() == [[1.0, 1.0]], name


def test_a_diverge_report() -> None:
    report = loaded("my_utils.diverge.Report")
    assert report.status == "different"
    assert report.first.difference.call.name == "3"
    assert (
        report.first.difference.cause is importlib.import_module("my_utils.diverge").Cause.WEIGHTS
    )


def test_a_run_report(tmp_path: Path) -> None:
    report = loaded("my_utils.report.Report")
    assert [straggler.rank for straggler in report.stragglers] == [2]
    assert set(report.ranks["rank"]) == {0, 1, 2, 3}
    assert json.loads(report.to_json())["run"]["steps"] == 40
    assert report.save_csv(tmp_path)

"""--my-utils-trace: the test run, as Perfetto's trace processor reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..clients.perfetto import TraceProcessor, why_missing
from .conftest import Suite

SUITE = """
    import os, time
    import pytest

    @pytest.fixture
    def slow_to_set_up():
        time.sleep(0.2)

    def test_a(slow_to_set_up):
        time.sleep(0.1)

    @pytest.mark.parametrize("odd", ["a,b", '"', "%2C"])
    def test_odd(odd):
        time.sleep(0.01)

    def test_fails():
        assert False

    def test_skipped():
        pytest.skip("meant")

    @pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="a worker only")
    def test_kills_its_worker():
        os._exit(3)
"""
SLICES = (
    "select s.id as id, s.parent_id as parent, s.name as name, s.ts as ts, s.dur as dur, "
    "t.name as track, coalesce(extract_arg(s.arg_set_id, 'debug.outcome'), "
    "extract_arg(s.arg_set_id, 'args.outcome')) as outcome from slice s "
    "join thread_track tt on s.track_id = tt.id join thread t using (utid) order by s.ts"
)


def slices_of(trace: Path) -> list[dict[str, Any]]:
    reason = why_missing()
    if reason is not None:
        pytest.skip(reason)
    with TraceProcessor(trace) as processor:
        assert processor.complaints() == {}
        return processor.query(SLICES)


@pytest.mark.parametrize("name", ["tests.pftrace", "tests.json"])
def test_a_slice_for_each_test_and_phase(suite: Suite, name: str) -> None:
    suite.write("test_it.py", SUITE)
    output = suite.run("--my-utils-trace", name)
    assert f"my_utils: trace of the tests: {suite.folder / name}" in output
    slices = slices_of(suite.folder / name)
    assert {one["track"] for one in slices} == {"main"}
    tests = {one["name"]: one for one in slices if one["parent"] is None}
    assert len(tests) == 7
    assert 'test_it.py::test_odd["]' in tests and "test_it.py::test_odd[%2C]" in tests
    outcomes = [tests[f"test_it.py::{test}"]["outcome"] for test in ("test_a", "test_fails",
                "test_skipped")]  # fmt: skip
    assert outcomes == ["passed", "failed", "skipped"]
    whole = tests["test_it.py::test_a"]
    phases = [one for one in slices if one["parent"] == whole["id"]]
    assert [one["name"] for one in phases] == ["setup", "call", "teardown"]
    assert phases[0]["dur"] >= 0.2e9 and phases[1]["dur"] >= 0.1e9
    assert sum(one["dur"] for one in phases) <= whole["dur"] * 1.01


SUBTESTS = """
    import time

    def test_parts(subtests):
        time.sleep(0.1)
        for part in range(2):
            with subtests.test("part", number=part):
                time.sleep(0.1)
                with subtests.test():
                    assert part == 0
        time.sleep(0.1)
"""


def test_subtests_are_inside_their_call(suite: Suite) -> None:
    suite.write("test_it.py", SUBTESTS)
    output = suite.run("--my-utils-trace", "tests.json")
    slices = slices_of(suite.folder / "tests.json")
    call = next(one for one in slices if one["name"] == "call")
    assert call["dur"] >= 0.4e9, output
    parts = [one for one in slices if one["parent"] == call["id"]]
    assert [(one["name"], one["outcome"]) for one in parts] == [
        ("part (number=0)", "passed"), ("part (number=1)", "passed"),
    ]  # fmt: skip
    inner = [one for one in slices if one["name"] == "subtest"]
    assert [one["parent"] for one in inner] == [one["id"] for one in parts]
    assert [one["outcome"] for one in inner] == ["passed", "failed"]


RERUNS = """
    # What pytest-rerunfailures does: reports of a test that will run again say "rerun".
    from _pytest.runner import runtestprotocol

    def pytest_runtest_protocol(item, nextitem):
        for last in (False, True):
            item._initrequest()
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            again = any(report.failed for report in reports) and not last
            for report in reports:
                if report.failed and again:
                    report.outcome = "rerun"
                item.ihook.pytest_runtest_logreport(report=report)
            if not again:
                return True

    def pytest_report_teststatus(report):
        return ("rerun", "R", "RERUN") if report.outcome == "rerun" else None
"""


def test_a_test_that_is_run_again(suite: Suite) -> None:
    suite.write("conftest.py", RERUNS)
    suite.write("test_it.py", """
        runs = []

        def test_flaky():
            runs.append(1)
            assert len(runs) > 1
    """)  # fmt: skip
    suite.run("--my-utils-trace", "tests.json")
    whole, *phases = slices_of(suite.folder / "tests.json")
    assert whole["outcome"] == "passed"
    assert [(one["name"], one["outcome"]) for one in phases] == [
        ("setup", "passed"), ("call", "rerun"), ("teardown", "passed"),
        ("setup", "passed"), ("call", "passed"), ("teardown", "passed"),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_track_for_each_worker(suite: Suite) -> None:
    suite.write("test_it.py", SUITE)
    suite.run("-p", "xdist.plugin", "-n", "2", "--my-utils-trace", "tests.pftrace")
    slices = slices_of(suite.folder / "tests.pftrace")
    tests = [one for one in slices if one["parent"] is None]
    assert sorted(one["name"].partition("::")[2].partition("[")[0] for one in tests) == [
        "test_a", "test_fails", "test_kills_its_worker", *["test_odd"] * 3, "test_skipped",
    ]  # fmt: skip
    assert {one["track"] for one in tests} >= {"gw0", "gw1"}
    (killed,) = (one for one in tests if "kills" in one["name"])
    assert killed["outcome"] == "failed"
    assert killed["id"] in {one["parent"] for one in slices if one["name"] == "crashed"}


@pytest.mark.slow
def test_each_rank_writes_its_own(suite: Suite) -> None:
    suite.write("test_it.py", "def test_it(): pass")
    suite.run("--my-utils-trace", "tests.pftrace", ranks=2)
    for rank in (0, 1):
        slices = slices_of(suite.folder / f"tests.rank{rank}of2.pftrace")
        assert [one["name"] for one in slices if one["parent"] is None] == ["test_it.py::test_it"]


def test_a_trace_that_cannot_be_written(suite: Suite) -> None:
    suite.write("test_it.py", "import os\ndef test_it(): os.rename('gone', 'away')")
    (suite.folder / "gone").mkdir()
    done = suite.start("--my-utils-trace", "gone/tests.json")
    assert done.returncode == 0
    assert "my_utils: the trace of the tests was not written: " in done.stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [("tests.txt", "unknown suffix '.txt'"), ("none/tests.json", "--my-utils-trace must be in a")],
)
def test_a_wrong_file_is_refused_at_once(suite: Suite, name: str, text: str) -> None:
    done = suite.start("--my-utils-trace", name)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert text in done.stderr

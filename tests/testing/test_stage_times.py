"""stage_times: the rows of a test, and a gate against its last run that passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from my_utils.analysis.diff import load_steps

from .conftest import Suite, counts

# A step waits for a time that the environment sets: the gate has to see it.
SUITE = """
    import os, time
    import pytest
    from my_utils import GlobalLogger, MyTimer

    MyTimer(tag="other").time_stage("of another test").__enter__().__exit__(None, None, None)

    def train(times):
        for _ in times.steps(range(50)):
            with times.timer.time_stage("forward"):
                time.sleep(float(os.environ["FORWARD_S"]))

    @pytest.mark.my_utils_gate("iter:+50%", "forward:+50%")
    def test_gated(stage_times):
        train(stage_times)
        assert "FAILS" not in os.environ

    def test_by_the_ini_file(stage_times):
        train(stage_times)

    @pytest.mark.my_utils_gate("iter:+50%")
    def test_few_steps(stage_times):
        for _ in stage_times.steps(range(3)):
            with stage_times.timer.time_stage("forward"):
                pass

    @pytest.mark.my_utils_gate("iter")
    def test_no_limit(stage_times):
        pass

    def test_an_open_log(tmp_path, request):
        GlobalLogger().setup(tmp_path, console=False)
        with pytest.raises(RuntimeError, match=f"which GlobalLogger writes to {tmp_path}: close"):
            request.getfixturevalue("stage_times")
        GlobalLogger().close()
"""
FAST, SLOW = "0.002", "0.02"  # far apart: the machine may be busy


@pytest.fixture
def timed(suite: Suite) -> Suite:
    suite.write("pytest.ini", "[pytest]\nmy_utils_baseline = kept\n")
    suite.write("test_it.py", SUITE)
    return suite


def last_of(suite: Suite, test: str) -> Path:
    (found,) = suite.folder.glob(f"kept/test_it.py__{test}-*/last")
    return found


@pytest.mark.slow
def test_a_slower_run_fails(timed: Suite) -> None:
    first = timed.run("-k", "gated", FORWARD_S=FAST)
    assert counts(first)["passed"] == 1
    last = last_of(timed, "test_gated")
    steps = load_steps(last)
    assert steps.stages == ["forward", "untimed"]  # the row of another test is elsewhere
    assert len(steps.step_ns) == 49
    assert steps.parts[0, :, 0].min() >= float(FAST) * 1e9

    again = timed.run("-k", "gated", FORWARD_S=SLOW)
    assert counts(again)["failed"] == 1
    assert "slower than A, the last run that passed" in again
    assert "of it in `forward`" in again
    assert "FAILED: iter:+50%: B is at +" in again
    assert load_steps(last).parts.sum() == steps.parts.sum()  # the slow run is not kept

    failed = timed.run("-k", "gated", FORWARD_S=FAST, FAILS="1")
    assert counts(failed)["failed"] == 1
    assert load_steps(last).parts.sum() == steps.parts.sum()

    meant = timed.run("-k", "gated", "--my-utils-update", FORWARD_S=SLOW)
    assert counts(meant)["passed"] == 1
    assert load_steps(last).parts[0, :, 0].min() >= float(SLOW) * 1e9


@pytest.mark.slow
def test_gates_of_the_ini_file_and_what_is_not_decided(timed: Suite) -> None:
    timed.write("pytest.ini", "[pytest]\nmy_utils_gates = iter:+50%\n")
    options = ("-o", "my_utils_baseline=kept", "-k", "ini or few or limit or log")
    first = timed.run(*options, FORWARD_S=FAST)
    assert counts(first) == {"passed": 3, "error": 1}
    assert "'iter' is not a limit such as iter:+2%" in first
    again = timed.run(*options, FORWARD_S=SLOW)
    assert counts(again) == {"failed": 1, "passed": 2, "warning": 1, "error": 1}
    assert "1 gate undecided against A," in again
    assert "20 are needed" in again


@pytest.mark.slow
def test_each_rank_has_its_runs_in_the_cache(suite: Suite) -> None:
    suite.write("test_it.py", SUITE)
    suite.run("-k", "gated", ranks=2, FORWARD_S=FAST)
    kept = suite.folder / ".pytest_cache/d/my_utils_stage_times"
    names = sorted(path.name.partition(".py__test_gated-")[2][8:] for path in kept.iterdir())
    assert names == [".rank0of2", ".rank1of2"]


WRONG = """
    import pytest

    @pytest.mark.my_utils_gate("iter+10%")
    def test_text(stage_times): ...

    @pytest.mark.my_utils_gate(10)
    def test_number(stage_times): ...

    @pytest.mark.my_utils_gate(limit="iter:+10%")
    def test_keyword(stage_times): ...

    def test_ini(stage_times): ...
"""


def test_wrong_limits_are_refused(suite: Suite) -> None:
    suite.write("test_it.py", WRONG)
    suite.write("pytest.ini", "[pytest]\nmy_utils_gates = forward\n")
    output = suite.run()
    assert counts(output) == {"error": 4}, output
    for text in (
        "ValueError: my_utils_gate: 'iter+10%' is not a limit such as iter:+2%",
        "TypeError: my_utils_gate must be a str such as 'iter:+10%', not 10",
        "TypeError: my_utils_gate must have its limits by position, not {'limit': 'iter:+10%'}",
        "ValueError: my_utils_gates: 'forward' is not a limit such as iter:+2%",
    ):
        assert text in output

"""Ranges of steps and ranks as users write them, in all commands that take them."""

from __future__ import annotations

from typing import Any

import pytest

from my_utils import MyTimer, csv2trace, timeline
from my_utils.cli import live, report
from my_utils.core.ranges import parse_ranks, parse_steps, ranges_text, rank_ranges
from my_utils.profilers import capture
from my_utils.profiling.ProfileManager import ProfileManager


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("7", (7, 8)),
        ("-7", (-7, -6)),
        ("10:20", (10, 20)),
        ("10-19", (10, 20)),
        (" 10 - 19 ", (10, 20)),
        ("7-7", (7, 8)),
        ("-3:2", (-3, 2)),
        (":20", (-(2**63), 20)),
        ("10:", (10, 2**63 - 1)),
    ],
)
def test_steps(text: str, steps: tuple[int, int]) -> None:
    assert parse_steps(text) == steps


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at must be a step or a range such as 10:20 or 10-19, not ''"),
        ("ten", "at must be a step or a range such as 10:20 or 10-19, not 'ten'"),
        ("10:20:2", "at must be a step or a range such as 10:20 or 10-19, not '10:20:2'"),
        ("1-2-3", "at must be a step or a range such as 10:20 or 10-19, not '1-2-3'"),
        ("5:5", "at must hold a step, not be an empty range of steps: '5:5'"),
        ("5-3", "at must hold a step, not be an empty range of steps: '5-3'"),
        (f"0:{2**63}", f"at must be numbers of 64 bits, not '0:{2**63}'"),
    ],
)
def test_wrong_steps(text: str, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_steps(text, "at")
    assert str(raised.value) == said


def test_a_picture_needs_both_ends() -> None:
    with pytest.raises(ValueError, match=r"both ends such as 10:20 or 10-19, not '10:'"):
        parse_steps("10:", bounded=True)


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", [0]), ("0,3-5", [0, 3, 4, 5]), (" 5 , 1 - 2 ", [1, 2, 5])]
)
def test_ranks(text: str, ranks: list[int]) -> None:
    assert sorted(parse_ranks(text)) == ranks
    assert rank_ranges(ranges_text(rank_ranges(text))) == rank_ranges(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "r must be numbers and ranges such as 0,3-7, not ''"),
        ("1,", "r must be numbers and ranges such as 0,3-7, not '1,'"),
        ("-1", "r must be numbers and ranges such as 0,3-7, not '-1'"),
        ("0:3", "r must be numbers and ranges such as 0,3-7, not '0:3'"),
        ("7-3", "r must rise from 0 up, as in 0,3-7, not '7-3'"),
        (f"{2**31}", f"r must rise from 0 up, as in 0,3-7, not '{2**31}'"),
        ("0-1000000", "r must be at most 1,000,000 numbers a range, not '0-1000000'"),
    ],
)
def test_wrong_ranks(text: str, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_ranks(text, "r")
    assert str(raised.value) == said


@pytest.mark.parametrize("text", ["10:20", "10-19"])
def test_everything_that_takes_steps_reads_both_forms(text: str) -> None:
    timer = MyTimer(tag=f"steps {text}")
    for step in range(30):
        timer.set_step(step)
        with timer.time_stage("iter"):
            pass
    reported = timer.generate_report("iter", iteration_filter=text)["iterations"]
    manager = ProfileManager(
        {"tool": "none", "steps": [text], "roles": {"a": {"functions": ["f"]}}}
    )
    wanted = set(range(10, 20))
    assert {iteration["step"] for iteration in reported} == wanted
    assert {step for step in range(30) if manager.should_capture_this_iter(step)} == wanted


@pytest.mark.parametrize(
    ("main", "arguments", "said"),
    [
        (csv2trace.main, ["x", "-o", "y", "--steps"], "--steps: steps must be"),
        (report.main, ["x", "--steps"], "--steps: steps must be"),
        (timeline.main, ["x", "--steps"], "--steps: steps must be"),
        (csv2trace.main, ["x", "-o", "y", "--ranks"], "--ranks: ranks must be"),
        (report.main, ["x", "--ranks"], "--ranks: ranks must be"),
        (live.main, ["x", "--ranks"], "--ranks: ranks must be"),
        (capture.main, ["x", "--ranks"], "--ranks: ranks must be"),
    ],
)
def test_commands_name_the_argument(
    main: Any, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main([*arguments, "1to3"])
    assert raised.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert "not '1to3'" in told

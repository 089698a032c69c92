"""`--since`, `--between` and `--at`: against the moments in the CSV, and against `--steps`."""

from __future__ import annotations

import csv
import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from my_utils.cli.report import main as report
from my_utils.cli.why import main as why
from my_utils.core.moments import moment_text, parse_moment

from ..support.planted_runs import Run
from ..support.run_csv import START_NS, RankCsv

pytestmark = pytest.mark.no_torch

Judge = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 1 is slow from step 200 on; a step takes 60 ms, and then 70."""
    run = Run(ranks=3, steps=400).slower(1.5, "forward", rank=1, steps=slice(200, 400))
    return run.write(tmp_path_factory.mktemp("part") / "logs")


@pytest.fixture
def judge(logs: Path, capsys: pytest.CaptureFixture[str]) -> Judge:
    def judged(*options: str) -> dict[str, Any]:
        why([str(logs), "--json", *options])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return judged


def begins_in(logs: Path) -> list[float]:
    """Unix time of each step of rank 0, s."""
    with open(logs / "profile_rank_0.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["event_name"] == "iter"]
    return [float(Decimal(row["timestamp_unix"])) for row in rows if row["event_type"] == "START"]


def local(unix_s: float) -> datetime:
    return datetime.fromtimestamp(unix_s)


def first_from(begins: list[float], moment: datetime) -> int:
    return next(step for step, begin in enumerate(begins) if begin >= moment.timestamp())


@pytest.mark.parametrize(
    "form", ["%H:%M:%S", "%a %d %b %H:%M:%S", "%d %b %Y %H:%M:%S", "%Y-%m-%dT%H:%M:%S"]
)
def test_a_time_means_the_steps_that_begin_from_then_on(
    logs: Path, judge: Judge, form: str
) -> None:
    begins = begins_in(logs)
    moment = local(begins[230]).replace(microsecond=0)
    found = judge("--since", moment.strftime(form))
    step = first_from(begins, moment)
    assert 200 < step <= 230
    assert found == judge("--steps", f"{step}:")
    assert (found["first_step"], found["last_step"]) == (step + 1, 399)  # after one to warm up


def test_a_time_with_an_offset_is_the_same_moment(logs: Path, judge: Judge) -> None:
    moment = datetime.fromtimestamp(int(begins_in(logs)[230]), UTC)
    step = first_from(begins_in(logs), moment)
    assert judge("--since", moment.isoformat()) == judge("--steps", f"{step}:")


def test_how_long_before_the_end(logs: Path, judge: Judge) -> None:
    """The last step ends with its last stage."""
    begins = begins_in(logs)
    with open(logs / "profile_rank_0.csv", newline="") as file:
        last = list(csv.DictReader(file))[-1]
    end = float(Decimal(last["timestamp_unix"])) + float(last["duration_ms"]) * 1e-3 * (
        last["event_type"] != "END"
    )
    step = first_from(begins, local(end - 10))
    found = judge("--since", "10s")
    assert found["last_step"] == 399
    assert abs(found["first_step"] - 1 - step) <= 1


def test_between_two_moments_of_any_kind(logs: Path, judge: Judge) -> None:
    begins = begins_in(logs)
    moment = local(begins[180]).replace(microsecond=0)
    found = judge("--between", "50", f"{moment:%H:%M:%S}")
    assert found == judge("--steps", f"50:{first_from(begins, moment)}")


def test_at_shows_the_part_that_has_the_moment(logs: Path, judge: Judge) -> None:
    before, after = judge("--at", "100"), judge("--at", "300")
    assert (before["status"], before["first_step"], before["last_step"]) == ("ok", 1, 199)
    assert (after["status"], after["first_step"], after["last_step"]) == ("found", 200, 399)
    assert after["findings"][0]["ranks"] == [1]
    begins = begins_in(logs)
    assert judge("--at", local(begins[100]).isoformat()) == before
    assert judge("--at", local(begins[300] + 0.01).isoformat()) == after


def judged(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> dict[str, Any]:
    why([str(folder), "--json", *options])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


STAGES = [("input", 0.0, 100.0), ("forward", 100.0, 800.0), ("optimizer", 800.0, 900.0)]


@pytest.mark.parametrize("lowest_was_there", [True, False])
def test_a_time_after_a_restart_means_the_steps_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lowest_was_there: bool
) -> None:
    """Of the first attempt, rank 0 did 50 steps or none, rank 1 did 60: the second one begins with
    step 60."""
    folder = tmp_path / "logs"
    for rank, first in ((0, 50 * lowest_was_there), (1, 60)):
        one = RankCsv(rank, 2)
        for attempt, steps in ((1, first), (2, 100)):
            if steps:
                at = 100_000.0 * (attempt - 1)
                one.process(attempt, at)
                one.note("run", {"version": 1}, at)
                for step in range(steps):
                    one.step(step, at + 1000.0 * step + 10, STAGES)
        one.write(folder)
    begin = local(START_NS / 1e9)
    for seconds, step in ((120, 80), (20, 20), (55, 55)):
        moment = (begin + timedelta(seconds=seconds)).isoformat()
        wanted = judged(capsys, folder, "--steps", f"{step}:")
        assert judged(capsys, folder, "--since", moment) == wanted
    second = (begin + timedelta(seconds=100)).isoformat()
    between = judged(capsys, folder, "--between", begin.isoformat(), second)
    assert between == judged(capsys, folder, "--steps", "0:60")
    with pytest.raises(SystemExit):
        why([str(folder), "--at", "160"])
    assert "steps 0 to 159" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("by_s", [7200, -7200])
@pytest.mark.parametrize("name", ["total_ns", "delta_ns"])
def test_times_are_those_of_the_clock_as_it_was_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by_s: int, name: str
) -> None:
    """It is set in step 20 of 100, of which each takes a second, and once more after a restart."""
    one = RankCsv()
    ahead_s, begins = 0, []
    for attempt in (1, 2):
        at_s = 200 * (attempt - 1) + ahead_s
        one.process(attempt, 1000.0 * at_s)
        one.note("run", {"version": 1}, 1000.0 * at_s)
        for step in range(100):
            if step == 20:
                ahead_s += by_s
                one.note("clock_step", {name: by_s * 10**9}, 1000.0 * (at_s + by_s + step) - 50)
                at_s += by_s
            begins.append(START_NS / 1e9 + at_s + step)
            one.step(step, 1000.0 * (at_s + step), STAGES)
    folder = one.write(tmp_path / "logs")
    for step in (30, 180) if by_s > 0 else (130, 180):  # of a time of day the last one
        moment = local(begins[step] - 0.02)
        wanted = judged(capsys, folder, "--steps", f"{step}:")
        assert judged(capsys, folder, "--since", moment.isoformat()) == wanted
    with pytest.raises(SystemExit):
        why([str(folder), "--since", "2999-01-01"])
    said = " ".join(capsys.readouterr().err.split())
    assert f"{moment_text(min(begins))} to {moment_text(begins[-1] + 0.9)}" in said


def test_the_page_of_a_part(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moment = local(begins_in(logs)[230]).replace(microsecond=0)
    step = first_from(begins_in(logs), moment)
    page = tmp_path / "page.html"
    assert report([str(logs), "--since", f"{moment:%H:%M:%S}", "-o", str(page)]) == 0
    assert f"steps {step + 1}:400" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--since", "noon"], "must be a step such as 15000, a time such as 14:05"),
        (["--since", "25:00"], "not '25:00'"),
        (["--at", "400"], "--at must be in the run, steps 0 to 399, "),
        (["--since", "1999-01-01", "--steps", "3:"], "not allowed with argument"),
        (["--since", "2999-01-01"], "--since must name steps of the run, steps 0 to 399, "),
        (["--at", "1d"], "--at must be in the run"),
        (["--between", "200", "100"], "not '200 100'"),
    ],
)
def test_what_is_no_moment_of_the_run_is_a_wrong_argument(
    logs: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        why([str(logs), *options])
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_time_of_day_is_the_last_of_the_run() -> None:
    end = datetime(2026, 11, 24, 9, 30)
    begin = end - timedelta(days=9)
    for text, wanted in {
        "09:00": end.replace(hour=9, minute=0),
        "10:00": end.replace(hour=10, minute=0) - timedelta(days=1),
        "Fri 10:00": datetime(2026, 11, 20, 10),
        "17 Nov 10:00": datetime(2026, 11, 17, 10),
        "14 Nov 10:00": None,
        "Mon 17 Nov 10:00": None,  # a Tuesday
    }.items():
        found = parse_moment(text).unix_s(begin.timestamp(), end.timestamp())
        assert found == (None if wanted is None else wanted.timestamp()), text


@pytest.fixture
def in_berlin() -> Iterator[None]:
    """Clocks go from 02:00 to 03:00 on 29 March 2026, and from 03:00 back to 02:00 on 25 October,
    both at 01:00 UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_berlin")
@pytest.mark.parametrize(
    ("text", "begin", "end", "wanted"),
    [
        ("02:30", "2026-10-24T08:00", "2026-10-25T09:00", "2026-10-25T01:30"),
        ("02:30", "2026-10-25T00:45", "2026-10-25T09:00", "2026-10-25T01:30"),
        ("02:30", "2026-10-23T08:00", "2026-10-25T01:10", "2026-10-25T00:30"),
        ("14:05", "2026-10-23T08:00", "2026-10-25T01:10", "2026-10-24T12:05"),
        ("Sun 02:30", "2026-10-24T08:00", "2026-10-25T00:50", "2026-10-25T00:30"),
        ("02:30", "2026-03-28T00:00", "2026-03-29T09:00", "2026-03-28T01:30"),
        ("02:30", "2026-03-28T08:00", "2026-03-29T09:00", None),
        ("03:30", "2026-03-28T08:00", "2026-03-29T09:00", "2026-03-29T01:30"),
    ],
)
def test_a_time_of_day_where_clocks_change(
    text: str, begin: str, end: str, wanted: str | None
) -> None:
    """All but the text are UTC."""
    begin_s, end_s = (datetime.fromisoformat(f"{each}Z").timestamp() for each in (begin, end))
    found_s = parse_moment(text).unix_s(begin_s, end_s)
    found = found_s and f"{datetime.fromtimestamp(found_s, UTC):%Y-%m-%dT%H:%M}"
    assert found == wanted


@pytest.mark.parametrize("form", ["", "iso"])
def test_the_begin_that_an_error_says_is_in_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """Which it says in whole seconds: the first step begins later in that second."""
    one = RankCsv()
    one.process()
    one.note("run", {"version": 1})
    for step in range(100):
        one.step(step, 700 + 1000.0 * step, STAGES)
    folder = one.write(tmp_path / "logs")
    with pytest.raises(SystemExit):
        why([str(folder), "--at", "1000"])
    said = " ".join(capsys.readouterr().err.split())
    (begin,) = re.findall("steps 0 to 99, (.*) to ", said)
    begin = local(START_NS / 1e9).isoformat() if form == "iso" else begin
    assert judged(capsys, folder, "--since", begin) == judged(capsys, folder, "--steps", "0:")
    assert judged(capsys, folder, "--at", begin) == judged(capsys, folder, "--at", "0")

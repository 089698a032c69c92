"""When somebody is told: on generated histories, and on processes that stand, die and go on."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis.live.alerts.alert import Alert, Place, as_data
from my_utils.analysis.live.alerts.host_memory import DAY_S, Fill, HostMemory, read_fill
from my_utils.analysis.live.alerts.hysteresis import Hysteresis
from my_utils.analysis.live.alerts.steps import Steps
from my_utils.analysis.live.alerts.watch import Limits, Watch
from my_utils.analysis.live.poll import SnapshotRequest
from my_utils.analysis.live.poller import Poller

from ...conftest import ROOT, RunPython
from ...support.inbox import open_inbox
from ...support.live_ranks import Started, kill, tell, wait_until
from ...support.planted_replicas import COLUMNS, ROWS, PlantedRank, flipped, parameters
from ...support.schemas import loads_checked

pytestmark = pytest.mark.no_torch

POLL_S = 5.0
BEGINS_S, ENDS_S = 20.0, 60.0


# --- once when it begins, once when it ends ---


def told(seen: Sequence[Alert | None], every_s: float = POLL_S) -> list[tuple[float, bool]]:
    """When something was told, and whether it was the end."""
    changes = Hysteresis(BEGINS_S, ENDS_S)
    return [
        (at * every_s, change.is_over)
        for at, alert in enumerate(seen)
        for change in changes.look(at * every_s, [alert] if alert else [])
    ]


def slow(*ranks: int, sure: bool = False) -> Alert:
    return Alert("held up", "rank 1 holds the others up", ranks=ranks, sure=sure)


def test_what_lasts_is_told_once_and_its_end_once() -> None:
    assert told([None, *[slow(1)] * 10, *[None] * 30]) == [(25.0, False), (110.0, True)]


def test_a_sure_one_needs_two_looks() -> None:
    assert told([slow(1, sure=True)]) == []
    assert told([slow(1, sure=True)] * 2) == [(5.0, False)]


def test_a_moment_is_not_told() -> None:
    assert told([*[slow(1)] * 4, None] * 50) == []


def test_what_flickers_is_told_once() -> None:
    """It is there for a minute and gone for 40 s, all day."""
    day = [*[slow(1)] * 12, *[None] * 8] * 500
    assert told(day) == [(20.0, False)]


def test_what_comes_back_ends_ever_later() -> None:
    """There and gone for five minutes each: told each time at first, and then not any more."""
    changes = told([*[slow(1)] * 60, *[None] * 60] * 60)
    assert len(changes) <= 9
    assert [is_over for _, is_over in changes] == [False, True] * (len(changes) // 2) + (
        [False] * (len(changes) % 2)
    )


def test_other_ranks_are_another_one() -> None:
    seen = [*[slow(1, 2)] * 10, *[slow(2, 3)] * 10, *[slow(7)] * 10]
    assert told(seen) == [(20.0, False), (120.0, True), (120.0, False)]


@pytest.mark.parametrize("seed", range(50))
def test_nothing_ends_that_has_not_begun_and_begins_that_has_not_ended(seed: int) -> None:
    draw = random.Random(seed)
    seen: list[Alert | None] = []
    while len(seen) < 2000:
        alert = draw.choice([None, slow(1), slow(2), slow(1, 2, sure=True)])
        seen += [alert] * draw.randint(1, draw.choice([2, 8, 80]))
    changes = told(seen)
    assert [is_over for _, is_over in changes] == [n % 2 == 1 for n in range(len(changes))]
    ends = [at for at, is_over in changes if is_over]
    for at in ends:  # each because it was gone for so long, or for another one that began then
        before = seen[int((at - ENDS_S) / POLL_S) + 1 : int(at / POLL_S) + 1]
        assert None in before or len({one.ranks for one in before if one}) > 1
    hours = len(seen) * POLL_S / 3600
    assert len(changes) <= 40 * hours


# --- slower than before ---


class Training:
    """Polls of a training whose steps take `step_s` seconds, with a pause each `every` steps.
    attempt: of its processes."""

    def __init__(self, steps: Steps, seed: int = 0) -> None:
        self.steps = steps
        self.draw = random.Random(seed)
        self.attempt, self.step = 1, -1
        self.began_s = self.next_s = self.polled_s = 0.0  # of the step, of the next one

    def run(
        self, seconds: float, step_s: float, grows: float = 0.0, noise: float = 0.03,
        every: int = 1000, pause_s: float = 0.0,
    ) -> None:  # fmt: skip
        began_s, end_s = self.next_s, self.next_s + seconds
        while self.next_s < end_s:
            self.poll_until(self.next_s)
            self.step += 1
            self.began_s = self.next_s
            took_s = step_s * (1 + grows * (self.next_s - began_s) / seconds)
            took_s *= math.exp(self.draw.gauss(0, noise))
            self.next_s += took_s + (pause_s if self.step % every == every - 1 else 0.0)
        self.poll_until(end_s)

    def poll_until(self, end_s: float) -> None:
        while self.polled_s + POLL_S <= end_s:
            self.polled_s += POLL_S
            self.steps.add(self.polled_s, self.attempt, self.step)
            if self.step >= 0:
                self.steps.time(self.began_s, self.step)

    def start_anew(self, after_s: float) -> None:
        self.polled_s = self.next_s = self.next_s + after_s
        self.attempt, self.step = self.attempt + 1, -1


HOUR_S = 3600.0


@pytest.mark.parametrize("step_s", [0.02, 0.7, 3.0, 20.0])
def test_steps_that_take_longer(step_s: float) -> None:
    steps = Steps(0.0)
    training = Training(steps)
    training.run(2 * HOUR_S, step_s)
    assert steps.usual_s == pytest.approx(step_s, rel=0.03)
    training.run(HOUR_S, 1.2 * step_s)
    assert steps.is_slower
    assert steps.level_s / steps.usual_s == pytest.approx(1.2, rel=0.03)
    training.run(HOUR_S, step_s)
    assert steps.level_s < 1.05 * steps.usual_s
    assert bool(steps.is_slower) is False


def test_a_slow_drift() -> None:
    steps = Steps(0.0)
    Training(steps).run(48 * HOUR_S, 1.0, grows=0.3)
    assert steps.is_slower


@pytest.mark.parametrize("seed", range(8))
def test_a_healthy_run_is_not_slower(seed: int) -> None:
    """With noise, and pauses each five minutes or half an hour."""
    draw = random.Random(seed)
    steps = Steps(0.0)
    training = Training(steps, seed)
    step_s = draw.choice([0.1, 1.0, 9.0])
    for _ in range(24):
        training.run(
            HOUR_S, step_s, noise=draw.choice([0.02, 0.1]),
            every=round(draw.choice([300.0, 1800.0]) / step_s),
            pause_s=draw.choice([0.0, 10.0, 90.0]),
        )  # fmt: skip
        assert not steps.is_slower


def test_it_keeps_as_much_of_a_month_as_of_a_day() -> None:
    steps = Steps(0.0)
    training = Training(steps)
    sizes = []
    for _ in range(4):
        training.run(36 * HOUR_S, 2.0)
        sizes.append(len(steps._levels) + len(steps._marks) + len(steps._samples))
    assert max(sizes) < 300


# --- goodput ---


def test_goodput_is_the_share_of_the_hour_that_went_into_steps() -> None:
    steps = Steps(0.0)
    training = Training(steps)
    training.run(1200.0, 1.0)
    assert steps.goodput == pytest.approx(1.0, abs=0.01)
    for _ in range(3):  # four minutes down, eleven of steps
        training.start_anew(240.0)
        training.run(660.0, 1.0)
    assert steps.goodput == pytest.approx(1 - 3 * 240 / 3600, abs=0.02)


def test_goodput_is_not_known_while_a_run_is_young() -> None:
    steps = Steps(0.0)
    for now_s in range(0, 890, 5):
        steps.add(float(now_s), 0, -1)
    assert steps.goodput is None
    for now_s in range(890, 1200, 5):
        steps.add(float(now_s), 0, -1)
    assert steps.goodput == 0.0


def test_goodput_falls_while_no_step_comes() -> None:
    steps = Steps(0.0)
    training = Training(steps)
    training.run(HOUR_S, 1.0)
    for now_s in range(3600, 5400, 5):
        steps.add(float(now_s), 1, training.step)
    assert steps.goodput == pytest.approx(0.5, abs=0.03)


# --- memory ---

GIB = float(1 << 30)


def memory_of(used: Iterator[float], limit: float = 512 * GIB) -> HostMemory:
    memory = HostMemory()
    for at, now in enumerate(used):
        memory.look(30.0 * at, Fill(now, limit))
    return memory


@pytest.mark.parametrize("hours", [1, 6, 30])
@pytest.mark.parametrize("seed", range(4))
def test_memory_that_leaks(hours: int, seed: int) -> None:
    """The time that it has left, within a tenth."""
    draw = random.Random(seed)
    rate = draw.uniform(5, 10) * GIB / 3600
    count = hours * 120
    noise = 0.3 * GIB
    memory = memory_of(100 * GIB + rate * 30 * n + draw.gauss(0, noise) for n in range(count))
    left = memory.left()
    assert left is not None
    at_last = 412 * GIB - rate * 30 * (count - 1)
    late = rate * 500  # the newest sample may be so old
    assert left.free == pytest.approx(at_last, abs=4 * noise + late)
    assert left.seconds == pytest.approx(at_last / rate, rel=0.1, abs=500)


@pytest.mark.parametrize("seed", range(20))
def test_memory_that_does_not(seed: int) -> None:
    """Level, with noise; full at first; up and down with epochs; a step up."""
    draw = random.Random(seed)
    period, step = draw.randint(20, 300), draw.randint(50, 400)
    kinds: list[Callable[[int], float]] = [
        lambda n: draw.gauss(0, GIB),
        lambda n: 100 * GIB * (1 - math.exp(-n / 30)),
        lambda n: 50 * GIB * (n % period) / period,
        lambda n: 30 * GIB * (n > step) + draw.gauss(0, GIB),
    ]
    grow = kinds[seed % len(kinds)]
    memory = HostMemory()
    seconds = []
    for n in range(600):
        memory.look(30.0 * n, Fill(200 * GIB + grow(n), 512 * GIB))
        left = memory.left()
        seconds.append(math.inf if left is None else left.seconds)
    assert sum(one < DAY_S for one in seconds) <= 12 * (seed % 4 in (1, 2, 3)) * 10, seconds


def test_a_month_of_samples_is_as_many_as_a_day_of_them() -> None:
    memory = memory_of(iter([200 * GIB] * 90_000))
    assert len(memory._samples) <= 256
    assert memory._samples[-1][0] - memory._samples[0][0] >= DAY_S / 2


def test_the_memory_of_this_host_is_read() -> None:
    fill = read_fill()
    assert fill is not None
    assert 0 < fill.used < fill.limit
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert fill.limit <= 1024 * int(rows["MemTotal"].split()[0])


# --- what is sent ---


def test_a_text_has_three_short_lines_at_most() -> None:
    alert = Alert(
        "hang", "hangs\x1b[31m\nin step " + "9" * 900, "rank 1\r\nis in input " * 99, (1,)
    )
    for is_over in (False, True):
        data = as_data(alert, Place("train", "abc", 7), 0.0, is_over=is_over)
        loads_checked("live-alert", json.dumps(data))
        lines = data["text"].split("\n")
        assert len(lines) <= 3 and all(len(line) <= 300 for line in lines)
        assert data["text"].replace("\n", "").isprintable()


# --- real processes ---

QUICK = Limits(hung_s=1.0, begins_s=0.0, ends_s=0.0)


class Told:
    """What a watch of a folder sends, poll by poll."""

    def __init__(self, folder: Path, limits: Limits = QUICK, **options: Any) -> None:
        self.messages: list[dict[str, Any]] = []
        watch = Watch("train-1", "abc", self._add, limits, **options)
        self.poller = Poller(SnapshotRequest((str(folder),), None, 1.0), watch)

    def _add(self, message: bytes) -> None:
        self.messages.append(loads_checked("live-alert", message.decode()))

    def events(self) -> list[tuple[str, str, list[int]]]:
        """After another poll: kind, event and ranks of all so far."""
        self.poller.poll()
        return [(one["kind"], one["event"], one["ranks"]) for one in self.messages]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path)
    yield started
    started.end()


def test_a_rank_that_dies_and_comes_back(start: Started, tmp_path: Path) -> None:
    one, two = (start(rank, 5, "iter,backward") for rank in range(2))
    told = Told(tmp_path, QUICK._replace(hung_s=0.0))
    assert told.events() == []
    kill(two)
    wait_until(lambda: ("gone", "began", [1]) in told.events())
    start(1, 5, "iter,backward")
    wait_until(lambda: ("gone", "ended", [1]) in told.events())
    assert sum(kind == "gone" for kind, _, _ in told.events()) == 2
    kill(one)


def test_replicas_that_differ_and_are_equal_again(start: Started, tmp_path: Path) -> None:
    start(0, 5, "iter,backward")
    values = bytes(4 * ROWS * COLUMNS)
    ranks = [PlantedRank(tmp_path, rank, [parameters("0-3", "w")]) for rank in range(4)]

    def check(step: int, *drifted: int) -> None:
        for number, rank in enumerate(ranks):
            rank.check(step, {"w": flipped(values, 41) if number in drifted else values})

    check(50)
    told = Told(tmp_path, QUICK._replace(hung_s=0.0))
    assert told.events() == []
    check(60, 2)
    wait_until(lambda: told.events() == [("replicas", "began", [2])])
    assert told.messages[0]["text"].splitlines()[0] == (
        "train-1: replicas differ since step 51 to 60: w, rows 40-43, rank 2 against the 3 others"
    )
    check(70)
    wait_until(lambda: ("replicas", "ended", [2]) in told.events())
    assert len(told.messages) == 2
    for rank in ranks:
        rank.close()


def test_a_run_that_hangs_and_goes_on(start: Started, tmp_path: Path) -> None:
    waiting = start(0, 5, "iter,all_reduce")
    late = start(1, 5, "iter,data")
    told = Told(tmp_path)
    wait_until(lambda: ("hang", "began", [1]) in told.events())
    (hang,) = (one for one in told.messages if one["kind"] == "hang")
    first, second, third = hang["text"].splitlines()
    assert first.startswith("train-1: hangs since ") and "in iter > all_reduce, rank 0" in first
    assert second.startswith("rank 1 on node-a: in iter > data while ")
    assert third.startswith("step 5, since ")
    tell(late, "stop data")
    tell(waiting, "stop all_reduce")

    def goes_on() -> bool:
        for process in (waiting, late):
            tell(process, "start data")
            tell(process, "stop data")
        return ("hang", "ended", [1]) in told.events()

    wait_until(goes_on)


def test_a_rank_that_gives_no_sign_of_life(start: Started, tmp_path: Path) -> None:
    process = start(0, 5, "iter", world=1)
    told = Told(tmp_path, QUICK._replace(hung_s=0.0))
    wait_until(lambda: told.poller.poll().found.ranks[0].beat_age_s is not None)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: ("gone", "began", [0]) in told.events())
    assert "rank 0 on node-a is without a sign of life" in told.messages[0]["text"]
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: ("gone", "ended", [0]) in told.events())


def test_only_who_leads_tells_of_the_run_and_each_of_its_memory(
    start: Started, tmp_path: Path
) -> None:
    memory = memory_of(100 * GIB + GIB * n for n in range(60))
    memory._sample_s = math.inf  # none of this host
    told = Told(tmp_path, leads=lambda ranks: False, memory=memory)
    kill(start(0, 5, "iter", world=2))
    wait_until(lambda: told.events())
    assert {one["kind"] for one in told.messages} == {"memory"}
    assert told.messages[0]["left_s"] == pytest.approx(353 * 30, rel=0.05)
    assert "full in about 2 h" in told.messages[0]["text"]


def test_the_command_tells_an_address(start: Started, tmp_path: Path) -> None:
    start(0, 5, "iter,backward")
    late = start(1, 5, "iter,backward")
    with open_inbox() as inbox:
        live = subprocess.Popen(
            [sys.executable, "-m", "my_utils", "live", str(tmp_path), "--alert", inbox.address,
             "--interval", "0.1", "--json"],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert live.stdout is not None
        assert json.loads(live.stdout.readline())["suspects"] == []
        threading.Thread(target=live.stdout.read, daemon=True).start()
        kill(late)
        wait_until(lambda: ("gone", "began", [1]) in inbox.events())
        live.send_signal(signal.SIGINT)
        assert live.wait(60) == 0
    assert inbox.messages()[0]["run"] == tmp_path.name


@pytest.mark.parametrize("option", ["--once", "--hung=5"])
def test_one_look_tells_nobody(option: str, tmp_path: Path, run_python: RunPython) -> None:
    done = run_python("-m", "my_utils", "live", str(tmp_path), option, "--alert", "true")
    assert done.returncode == 2 and "--alert watches until Ctrl-C" in done.stderr


def test_goodput_below_the_limit(tmp_path: Path) -> None:
    steps = Steps(-7200.0, hour_s=1.0)
    told = Told(tmp_path, QUICK._replace(goodput=0.9), steps=steps)
    wait_until(lambda: ("goodput", "began", []) in told.events())
    assert "goodput 0 %" in told.messages[0]["text"] and told.messages[0]["value"] == 0.0

"""`python -m my_utils capture` against jobs that run: who captures which steps, and who says no."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from my_utils import MyTimer, _core
from my_utils.core import warnings as _warnings
from my_utils.profilers import capture
from my_utils.profilers.capture.on_demand import (
    job as capture_job,
    responses as capture_responses,
    steps as capture_steps,
    store as capture_store,
    window as capture_window,
)
from my_utils.profilers.capture.on_demand.control_file import (
    CONTROL_NAME,
    Request,
    RequestError,
    read_requests,
    read_response,
    response_path,
)
from my_utils.profilers.capture.on_demand.steps import survey
from my_utils.profilers.torch_profiler import slot as _slot
from my_utils.profiling.backends import CaptureBackend, NoOpBackend, TorchProfilerBackend
from my_utils.profiling.capture_controller import CaptureController

from ...conftest import ROOT, RunPython
from ...support.profile_rows import Profile
from ...support.ranks import Ranks
from ...support.schemas import loads_checked

pytestmark = pytest.mark.long_file

# `held()` in a rank: whether requests that the test will make are to be read before the next step.
HELD = """
from pathlib import Path
def held():
    try:
        since, number = map(float, Path(HOLD).read_text().split())
    except FileNotFoundError:
        return False
    from my_utils.profilers.capture.on_demand.job import _job
    return sum(request.time >= since for request in _job.seen.values()) < number
"""

# A rank that trains: each step has its own name in a trace. It ends when its parent does.
LOOP = """
import ctypes, json, signal, sys, threading, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
options = json.loads(sys.argv[1])
from my_utils import GlobalLogger, MyTimer
GlobalLogger().setup(options["log_dir"], rank=options["rank"], world_size=4, console=False)
timer = MyTimer(tag="train")
work = None
if options["torch"]:
    import torch
    torch.ones(1) + 1
    torch.set_num_threads(1)
    with torch.profiler.profile():  # the first one takes seconds
        pass
    def work(step):
        with torch.profiler.record_function(f"step {step}"):
            torch.ones(8) + step
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
HOLD = options["hold"]
step = options["first"]
is_ready = False
while not ended.is_set() and step < options["end"]:
    if options["steps"]:
        timer.set_step(step)
    with timer.time_stage("iter"):
        if work:
            work(step)
        time.sleep(options["pause"])
    if not is_ready:
        is_ready = True
        print("ready", flush=True)
    step += not held()
"""


def hold(folder: Path, requests: int = 1) -> None:
    """Ranks begin no step before they have read that many requests which are made from now on."""
    replace(folder / "hold", f"{time.time()!r} {requests}".encode())


@dataclass
class Job:
    """Ranks of one run, each a process."""

    log_dir: Path
    ranks: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, rank: int, env: dict[str, str] | None = None, **options: Any) -> None:
        chosen = {
            "log_dir": str(self.log_dir), "rank": rank, "first": 0, "end": 10**9, "pause": 0.02,
            "torch": False, "steps": True, "hold": str(self.log_dir.parent / "hold"), **options,
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-c", HELD + LOOP, json.dumps(chosen)],
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.ranks.append(process)

    def hold(self, requests: int = 1) -> None:
        hold(self.log_dir.parent, requests)

    def wait_until_ready(self) -> None:
        for process in self.ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def end(self) -> None:
        for process in self.ranks:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.ranks:
            process.wait(30)

    def kill(self) -> None:
        for process in self.ranks:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path / "logs")
    yield job
    job.kill()


@pytest.fixture(scope="module")
def torch_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Four ranks of torch that go on for as long as the tests do."""
    pytest.importorskip("torch")
    job = Job(tmp_path_factory.mktemp("run") / "logs")
    for rank in range(4):
        job.start(rank, torch=True)
    job.wait_until_ready()
    yield job
    job.kill()


def ask(run_python: RunPython, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "my_utils", "capture", *map(str, arguments), timeout=200)


def ask_json(run_python: RunPython, *arguments: object) -> tuple[int, dict[str, Any]]:
    done = ask(run_python, *arguments, "--json")
    return done.returncode, loads_checked("capture", done.stdout) if done.stdout else {}


def steps_in(path: str) -> list[int]:
    """The steps whose work is in a Chrome trace."""
    events = json.loads(Path(path).read_text())["traceEvents"]
    names = [event.get("name", "") for event in events if event.get("ph") == "X"]
    return sorted(int(name.split()[1]) for name in names if name.startswith("step "))


@pytest.mark.timeout(320)
class TestFourRanks:
    @pytest.mark.slow
    def test_those_asked_trace_the_same_steps_and_no_other(
        self, torch_job: Job, run_python: RunPython
    ) -> None:
        torch_job.hold()
        done = ask(
            run_python, torch_job.log_dir, "--ranks", "1,3", "--steps", 3, "--wait", 150,
            "--options", "record_shapes",
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        lines = done.stdout.splitlines()
        assert "of ranks 1,3, torch" in lines[0]
        id = lines[0].split()[1].rstrip(":")
        folder = torch_job.log_dir / "captures"
        traces = {rank: folder / f"{id}__rank{rank}.json" for rank in (1, 3)}
        for rank, trace in traces.items():
            assert any(line == f"rank {rank}: done: {trace}" for line in lines), lines
        first = steps_in(str(traces[1]))
        assert first == list(range(first[0], first[0] + 3))
        assert steps_in(str(traces[3])) == first
        assert f"steps {first[0]} to {first[2]} " in lines[0]
        assert not list(folder.glob("*rank0*")) and not list(folder.glob("*rank2*"))

    def test_two_requests_in_a_row_are_both_served(
        self, torch_job: Job, run_python: RunPython
    ) -> None:
        torch_job.hold(2)
        here = survey(str(torch_job.log_dir)).ranks[0].step
        assert here is not None
        requests = [
            capture.request_capture(torch_job.log_dir, ranks=0, first_step=here + ahead, steps=2)
            for ahead in (100, 140)
        ]
        for request, ahead in zip(requests, (100, 140), strict=True):
            answer = capture.wait_for_capture(request, torch_job.log_dir, timeout_s=100)[0]
            assert answer["state"] == "done", answer
            assert answer["opened_at_step"] == here + ahead
            assert steps_in(answer["files"][0]) == [here + ahead, here + ahead + 1]

    @pytest.mark.slow
    def test_steps_at_a_distance_that_begin_ahead_of_the_job(
        self, torch_job: Job, run_python: RunPython
    ) -> None:
        torch_job.hold()
        status, data = ask_json(
            run_python, torch_job.log_dir, "--ranks", "1,3", "--first-step", 3, "--every", 25,
            "--times", 2, "--wait", 200,
        )  # fmt: skip
        assert status == 0, data
        found = [[steps_in(file) for file in one["files"]] for one in data["answers"].values()]
        first = data["request"]["first_step"]
        assert first % 25 == 3 and found == [[[first], [first + 25]]] * 2
        assert (data["request"]["every"], data["request"]["times"]) == (25, 2)

    def test_all_ranks_at_another_place(
        self, torch_job: Job, run_python: RunPython, tmp_path: Path
    ) -> None:
        torch_job.hold()
        status, data = ask_json(
            run_python, torch_job.log_dir, "--output-dir", tmp_path / "here", "--wait", 150
        )
        assert status == 0, data
        files = [answer["files"][0] for answer in data["answers"].values()]
        assert [Path(file).parent for file in files] == [tmp_path / "here"] * 4
        (step,) = {step for file in files for step in steps_in(file)}
        assert data["request"]["first_step"] == step

    def test_what_cannot_be_had_on_a_cpu_says_so(
        self, torch_job: Job, run_python: RunPython
    ) -> None:
        import torch

        if torch.cuda.is_available():
            pytest.skip("CUDA is available")
        for backend in ("cuda", "memory"):
            status, data = ask_json(
                run_python, torch_job.log_dir, "--ranks", 2, "--backend", backend, "--wait", 100,
                "--now",
            )  # fmt: skip
            assert status == 3
            assert data["answers"]["2"]["reason"] == "CUDA is not available"

    def test_one_that_ends_in_the_window(self, torch_job: Job) -> None:
        log_dir, last = torch_job.log_dir, torch_job.ranks.pop()
        request = capture.request_capture(log_dir, ranks=3, steps=10_000, first_step="now")
        wait_until(lambda: state_of(log_dir, request, 3) == "open")
        opened_at = capture.responses(log_dir, request.id, [3])[3]["opened_at_step"] or 0
        wait_until(lambda: (survey(str(log_dir)).ranks[3].step or 0) > opened_at + 2)
        assert last.stdin is not None and last.stdout is not None
        last.stdin.close()
        last.wait(60)
        last.stdout.close()
        answer = capture.responses(log_dir, request.id, [3])[3]
        assert answer["state"] == "failed"
        assert answer["reason"].startswith("the process ended after ")
        steps = steps_in(answer["files"][0])
        assert steps[0] == answer["opened_at_step"] == opened_at and len(steps) > 1


@pytest.mark.timeout(320)
class TestWhoCannotAnswer:
    def test_unknown_ranks_and_dead_ones(self, job: Job, run_python: RunPython) -> None:
        job.start(0)
        job.start(1)
        job.wait_until_ready()
        job.ranks[1].kill()
        job.ranks[1].wait()
        job.hold()
        done = ask(run_python, job.log_dir, "--ranks", "0,1,9", "--backend", "none", "--wait", 60)
        assert done.returncode == 3
        assert "rank 0: done" in done.stdout
        assert "rank 1: failed: its process " in done.stdout and " is gone" in done.stdout
        assert "rank 9: failed: no such rank has files in the log directory (there: 0, 1)" in (
            done.stdout
        )
        job.hold()
        everyone = ask(run_python, job.log_dir, "--backend", "none", "--wait", 60)
        assert everyone.returncode == 3, "rank 1 was killed, and is missing"
        assert "rank 0: done" in everyone.stdout
        assert "rank 1: failed: its process " in everyone.stdout
        nobody = ask(run_python, job.log_dir, "--ranks", "1,9")
        assert nobody.returncode == 1
        assert "none of the ranks that are asked runs" in nobody.stderr

    def test_a_job_that_never_steps(self, job: Job, run_python: RunPython) -> None:
        job.start(0, steps=False)
        job.start(1, env={"MY_UTILS_CAPTURE": "0"})
        job.wait_until_ready()
        status, data = ask_json(run_python, job.log_dir, "--backend", "none", "--now", "--wait", 2)
        assert status == 3
        assert len(data["answers"]) == 2
        for answer in data["answers"].values():
            assert answer["reason"].startswith("no answer in time; it is at step")
            assert "MY_UTILS_CAPTURE=0" in answer["reason"]

    def test_a_step_that_is_over(self, job: Job) -> None:
        job.hold(2)
        job.start(0, first=1000)
        job.wait_until_ready()
        request = capture.request_capture(job.log_dir, first_step=1001, backend="none")
        late = capture.request_capture(job.log_dir, first_step=500, backend="none")
        answer = capture.wait_for_capture(late, job.log_dir, timeout_s=60)[0]
        assert answer["state"] == "failed"
        assert answer["reason"] == "step 500 was over: the request was read at step 1000"
        answer = capture.wait_for_capture(request, job.log_dir, timeout_s=30)[0]
        assert (answer["state"], answer["opened_at_step"]) == ("done", 1001)

    @pytest.mark.parametrize("lead", ["x", "0", "-1", "inf", "nan"])
    def test_a_wrong_lead(self, tmp_path: Path, run_python: RunPython, lead: str) -> None:
        found = ask(run_python, tmp_path, f"--lead={lead}")
        assert found.returncode == 2
        assert f"argument --lead: '{lead}' is not a number above 0" in found.stderr

    @pytest.mark.slow
    def test_wrong_arguments(self, tmp_path: Path, run_python: RunPython) -> None:
        for arguments in (
            ["--ranks", "3-1"],
            ["--steps", "0"],
            ["--backend", "fast"],
            ["--wait", "-1"],
            ["--window", "[]"],
            ["--window", '{"start_profile_names": []}', "--at-start"],
            ["--window", '{"start_profile_name": ["f"]}', "--at-start"],
            ["--output-dir", "relative", "--at-start"],
            ["--options", "colours", "--at-start"],
        ):
            done = ask(run_python, tmp_path, *arguments)
            assert done.returncode == 2 or "--steps" in arguments, (arguments, done)
            assert "Traceback" not in done.stderr
        done = ask(run_python, tmp_path / "nowhere")
        assert done.returncode == 2 and "No such file or directory" in done.stderr
        assert not (tmp_path / CONTROL_NAME).exists()


class Clock:
    """Time that goes on in `sleep` alone, and ranks that step by it; rank 1 is slower."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, period_s: float, phase: float) -> None:
        self.now = self.begin = 1000.0
        self.period_s = period_s
        self.phase = phase  # the part of step 100 that is over
        fake = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(capture_steps, "time", fake)
        monkeypatch.setattr(capture_steps, "survey", self.survey)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def step_of(self, rank: int) -> int:
        steps = (self.now - self.begin) / self.period_s + self.phase
        return 100 + int(steps / 5 if rank == 1 else steps)

    def seconds_until(self, step: int) -> float:
        """Until rank 0 begins it."""
        return self.begin + (step - 100 - self.phase) * self.period_s - self.now

    def survey(self, log_dir: str, ranks: list[int]) -> capture_steps.Survey:
        found: Any = {
            rank: SimpleNamespace(alive=True, source="journal", step=self.step_of(rank))
            for rank in ranks
        }
        return capture_steps.Survey(found, ranks)

    def seen(self, id: str, ranks: list[int], tag: str | None) -> dict[int, capture_steps.Seen]:
        """What ranks answer through a store."""
        return {n: capture_steps.Seen(self.step_of(n), self.now, self.now) for n in ranks}


@pytest.mark.parametrize("phase", [0.0, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("period_s", [0.02, 0.3, 1.0, 3.0, 10.0, 30.0])
class TestTheStepLiesAhead:
    """By more than the lead, and not by much more, however long a step takes."""

    @pytest.mark.parametrize("lead_s", [None, 10.0, 60.0])
    def test_of_ranks_with_files(
        self, monkeypatch: pytest.MonkeyPatch, period_s: float, phase: float, lead_s: float | None
    ) -> None:
        clock = Clock(monkeypatch, period_s, phase)
        first = capture_steps.step_ahead("", [0, 1], lead_s)
        self.check(clock, first, lead_s or capture_steps.LEAD_LOCAL_S)

    @pytest.mark.parametrize("lead_s", [None, 60.0])
    def test_of_ranks_that_listen_to_a_store(
        self, monkeypatch: pytest.MonkeyPatch, period_s: float, phase: float, lead_s: float | None
    ) -> None:
        distributed = pytest.importorskip("torch.distributed")
        store = distributed.HashStore()
        store.set(capture_store.WORLD, "2")
        channel = capture_store.StoreChannel(store)
        clock = Clock(monkeypatch, period_s, phase)
        monkeypatch.setattr(channel, "_steps", clock.seen)
        first = channel.step_ahead(Request(id="a", ranks=((0, 1),)), lead_s)
        self.check(clock, first, lead_s or capture_store.LEAD_S)

    def check(self, clock: Clock, first: int | None, lead_s: float) -> None:
        assert first is not None
        assert clock.now - clock.begin < lead_s + 1.0, "it takes no longer to find"
        assert lead_s <= clock.seconds_until(first) < 2 * lead_s + 3 * clock.period_s


# Ranks of one job that share nothing but torch's store. Half of them are reported to listen by the
# environment, and have a timer before there is a store.
STORE_BEFORE = """
import os
if os.environ["RANK"] == "1":
    os.environ["MY_UTILS_CAPTURE"] = "store"
from my_utils import GlobalLogger, MyTimer
from my_utils.profilers import capture
rank = int(os.environ["RANK"])
GlobalLogger().setup(f"logs{rank}", rank=rank, console=False)
timer = MyTimer(tag="train")
timer.set_step(0)
"""

STORE_LOOP = """
from pathlib import Path
if rank == 0:
    capture.listen()
    capture.listen()  # changes nothing
timer.set_step(1)  # the other one listens from here on
dist.barrier()
step = 2
while not Path("stop").exists():
    timer.set_step(step)
    time.sleep(0.01)
    if step == 20 and rank == 0:
        mine = capture.request_capture(store="default", backend="none", first_step=150, steps=3)
        Path("mine.new").write_text(mine.id)
        Path("mine.new").replace("mine")
    step += step < 100 or not held()
"""


@pytest.fixture(scope="module")
def store_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ranks, Path]]:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("store")
    hold(folder)
    ranks = Ranks(STORE_LOOP, 2, folder, f"HOLD = 'hold'{HELD}{STORE_BEFORE}")
    wait_until((folder / "mine").exists, 200)
    yield ranks, folder
    (folder / "stop").touch()
    results = ranks.finish()
    assert [status for status, _, _ in results] == [0, 0], results


@pytest.mark.timeout(320)
class TestByStore:
    @pytest.mark.slow
    def test_ranks_begin_at_the_same_step(
        self, store_ranks: tuple[Ranks, Path], run_python: RunPython
    ) -> None:
        hold(store_ranks[1])
        asked = ["--store", store_ranks[0].address, "--backend", "none", "--steps", 2, "--wait", 60]
        status, data = ask_json(run_python, *asked)
        assert status == 0, data
        first = data["request"]["first_step"]
        assert first > 0
        assert opened(data["answers"]) == [first, first]
        # Each tells its own folder as well.
        for rank in (0, 1):
            answer = response_path(store_ranks[1] / f"logs{rank}", data["request"]["id"], rank)
            wait_until(partial(is_done, answer))

    def test_ranks_that_are_not_there(self, store_ranks: tuple[Ranks, Path]) -> None:
        store = store_ranks[0].address
        request = capture.request_capture(
            store=store, backend="none", ranks=[1, 5], first_step="now"
        )
        found = capture.wait_for_capture(request, store=store, timeout_s=60)
        assert found[1]["state"] == "done" and sorted(found) == [1, 5]
        assert found[5]["reason"] == "the job has 2 ranks"

    def test_a_rank_may_ask(self, store_ranks: tuple[Ranks, Path]) -> None:
        channel = capture_store.StoreChannel(store_ranks[0].address)
        id = (store_ranks[1] / "mine").read_text()
        wait_until(lambda: all_done(channel.read(id, (0, 1))))
        assert opened(channel.read(id, (0, 1))) == [150, 150]

    def test_a_broken_request_is_answered(self, store_ranks: tuple[Ranks, Path]) -> None:
        channel = capture_store.StoreChannel(store_ranks[0].address)
        channel._put({"request": {"id": "odd", "steps": -1}})
        wait_until(lambda: len(channel.read("odd", (0, 1))) == 2)
        for answer in channel.read("odd", (0, 1)).values():
            assert answer["state"] == "failed"
            assert answer["reason"].startswith("the request is broken: steps must be an int from 1")

    def test_nobody_listens(self, run_python: RunPython, tmp_path: Path) -> None:
        distributed = pytest.importorskip("torch.distributed")
        server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        done = ask(run_python, "--store", f"127.0.0.1:{server.port}")
        assert done.returncode == 2 and "no rank listens to this store" in done.stderr
        for store in ("host", "host:port", ":1"):
            with pytest.raises(ValueError, match="store must be HOST:PORT"):
                capture.request_capture(store=store)
        with pytest.raises(TypeError, match="store must be a torch store"):
            capture.request_capture(store=3)  # type: ignore[arg-type]
        both = ask(run_python, tmp_path, "--store", "host:1")
        assert both.returncode == 2 and "either LOGS or --store" in both.stderr

    def test_one_that_asks_and_is_held_up_before_it_says_what(self) -> None:
        distributed = pytest.importorskip("torch.distributed")
        store = distributed.HashStore()
        offered: list[Any] = []
        listener = capture_store.Listener(store, 0, 1, offered.append)
        listener.end()
        number = store.add(capture_store.COUNT, 1)
        for _ in range(40):  # polls of 20 seconds
            listener._poll()
        store.set(f"{capture_store.PREFIX}/{number}", json.dumps({"request": {"id": "late"}}))
        listener._poll()
        assert [request.id for request in offered] == ["late"]

    @pytest.mark.slow
    def test_a_store_that_hangs_while_a_rank_ends(self) -> None:
        pytest.importorskip("torch")
        server = python(STORE_SERVER)
        assert server.stdout is not None
        rank = python(LISTENER, server.stdout.readline())
        try:
            assert rank.stdout is not None and rank.stdout.readline() == "listens\n"
            server.send_signal(signal.SIGSTOP)
            time.sleep(0.2)
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
            time.sleep(3)
            server.send_signal(signal.SIGCONT)
            assert rank.wait(60) == 0
        finally:
            for process in (server, rank):
                process.kill()
                process.communicate()


STORE_SERVER = """
import sys, torch.distributed as dist
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(f"127.0.0.1:{server.port}", flush=True)
sys.stdin.read()
"""

LISTENER = """
import sys
from my_utils.profilers.capture.on_demand import store
listener = store.Listener(store.open_store(sys.argv[1].strip()), 0, 1, print)
listener.pause = 0.001
listener.wake.set()
print("listens", flush=True)
sys.stdin.readline()
"""


NINE_STEPS = """
import sys
from my_utils import GlobalLogger, MyTimer
GlobalLogger().setup(sys.argv[1], rank=0, world_size=1, console=False)
timer = MyTimer(tag="train")
for step in range(9):
    timer.set_step(step)
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def is_done(path: Path) -> bool:
    found = read_response(path)
    return found is not None and found["state"] == "done"


def opened(answers: Mapping[Any, Any]) -> list[int]:
    return [answer["opened_at_step"] for answer in answers.values()]


def all_done(answers: Mapping[int, Any]) -> bool:
    return len(answers) == 2 and all(answer["state"] == "done" for answer in answers.values())


# The answer is written while the process ends, and it is stopped meanwhile.
STOPPED_AT_EXIT = """
import os, signal, sys, threading, time
from my_utils.profilers.capture.on_demand import responses
atomic_write = responses.atomic_write
def slow(path):
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.2)
    return atomic_write(path)
responses.atomic_write = slow
responses.respond("id", 0, sys.argv[1], "done")
"""


@pytest.mark.slow
@pytest.mark.no_torch
def test_the_last_answer_of_a_process_that_is_stopped_meanwhile(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED_AT_EXIT, str(tmp_path)], cwd=ROOT
    )  # fmt: skip
    try:
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        time.sleep(capture_responses.EXIT_WAIT_S)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert capture.responses(tmp_path, "id", [0])[0]["state"] == "done"


class TestAtStart:
    def test_only_requests_for_it_outlive_the_processes(self, job: Job) -> None:
        job.log_dir.mkdir()
        old = capture.request_capture(job.log_dir, first_step="now", backend="none")
        new = capture.request_capture(
            job.log_dir, first_step=2, steps=3, backend="none", at_start=True
        )
        job.start(0, first=1, end=60)
        answer = capture.wait_for_capture(
            Request(**{**vars(new), "ranks": ((0, 0),)}), job.log_dir, timeout_s=60
        )[0]
        assert (answer["state"], answer["opened_at_step"]) == ("done", 2)
        job.end()
        assert capture.responses(job.log_dir, old.id, [0]) == {}
        log = (job.log_dir / "rank_0.log").read_text()
        assert f"capture {old.id} is ignored: it is older than this process" in log

    def test_waiting_for_a_job_that_has_not_begun(self, job: Job) -> None:
        job.log_dir.mkdir()
        request = capture.request_capture(
            job.log_dir, first_step="now", backend="none", at_start=True
        )
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(capture.wait_for_capture, request, job.log_dir, timeout_s=60)
            job.start(2)
            answers = waiting.result()
        assert {rank: answer["state"] for rank, answer in answers.items()} == {2: "done"}

    def test_waiting_for_one_that_has_ended_by_then(self, tmp_path: Path) -> None:
        request = capture.request_capture(tmp_path, first_step="now", backend="none", at_start=True)
        subprocess.run([sys.executable, "-c", NINE_STEPS, tmp_path], cwd=ROOT, check=True)
        answers = capture.wait_for_capture(request, tmp_path, timeout_s=60)
        assert {rank: answer["state"] for rank, answer in answers.items()} == {0: "done"}

    def test_waiting_for_a_job_that_does_not_begin(
        self, tmp_path: Path, run_python: RunPython
    ) -> None:
        done = ask(run_python, tmp_path, "--at-start", "--wait", 0.3)
        assert done.returncode == 3
        assert f"{tmp_path}: no rank was there within 0.3 s" in done.stderr


# --- in this process ---


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited for nothing"
        time.sleep(0.02)


def state_of(log_dir: Path, request: Request, rank: int = 0) -> str | None:
    answer = capture.responses(log_dir, request.id, [rank]).get(rank)
    return None if answer is None else str(answer["state"])


class Here:
    """This process as a job: it steps when it is reported to."""

    def __init__(self, profile: Profile) -> None:
        self.folder = profile.folder
        self.timer = MyTimer(tag="train")
        _core.set_step_hook(capture_job.at_step)

    def request(self, **options: Any) -> Request:
        return capture.request_capture(
            self.folder, **{"backend": "none", "first_step": "now", **options}
        )

    def answer(self, request: Request) -> dict[str, Any]:
        wait_until(lambda: capture_responses._writer.thread is None)
        found = capture.responses(self.folder, request.id, [0])
        return dict(found[0]) if found else {}

    def state(self, request: Request) -> str | None:
        return self.answer(request).get("state")

    def step_until(self, step: int, condition: Callable[[], object]) -> None:
        """The same number again and again begins no step."""

        def set_step_and_look() -> object:
            self.timer.set_step(step)
            return condition()

        wait_until(set_step_and_look)

    def step_until_counted(self, kind: str, number: int) -> None:
        self.step_until(0, lambda: counted(kind) == number)

    def step_until_read(self, step: int, request: Request) -> None:
        self.step_until(step, lambda: request.id in capture_job._job.seen)


@pytest.fixture
def here(profile: Profile) -> Iterator[Here]:
    _warnings._counts.clear()
    capture_job._job = capture_job._Job()
    yield Here(profile)
    for window in capture_job._job.windows:
        window.close_at_exit()
    _core.watch_steps(False)
    capture_window.registered.clear()


class TestOneProcess:
    pytestmark = pytest.mark.no_torch

    def test_a_window_is_open_for_exactly_its_steps(self, here: Here, profile: Profile) -> None:
        request = here.request(first_step=5, steps=2)
        here.step_until_read(3, request)
        assert here.state(request) == "armed"
        here.timer.set_step(4)
        assert here.state(request) == "armed"
        here.timer.set_step(5)
        assert here.state(request) == "open"
        for step in (5, 5, 6):
            here.timer.set_step(step)
            assert here.state(request) == "open"
        here.timer.set_step(7)
        assert here.state(request) == "done"
        assert here.answer(request)["opened_at_step"] == 5
        rows = [row for row in profile.all_rows() if row.name == "my_utils.capture"]
        assert [(row.kind, row.step, row.metadata["state"]) for row in rows] == [
            ("INSTANT", 3, "armed"),
            ("INSTANT", 5, "open"),
            ("INSTANT", 7, "done"),
        ]
        assert rows[0].metadata["request"] == request.id

    def test_numbers_may_jump(self, here: Here) -> None:
        request = here.request(first_step=15, steps=2)
        here.step_until_read(0, request)
        states = []
        for step in (10, 20, 30, 40, 50):
            here.timer.set_step(step)
            states.append(here.state(request))
        assert states == ["armed", "open", "open", "done", "done"]

    def test_each_of_some_steps_has_its_window(self, here: Here, profile: Profile) -> None:
        request = here.request(first_step=5, every=4, times=3)
        here.step_until_read(0, request)
        states = []
        for step in range(1, 15):
            here.timer.set_step(step)
            states.append(here.state(request))
        opened = [step for step, state in enumerate(states, 1) if state == "open"]
        assert opened == [5, 9, 13]
        assert set(states[:13]) == {"armed", "open"} and states[13] == "done"
        rows = [row for row in profile.all_rows() if row.name == "my_utils.capture"]
        opens = [row.step for row in rows if row.metadata["state"] == "open"]
        assert opens == [5, 9, 13]

    def test_steps_of_a_series_that_were_missed_are_left_out(self, here: Here) -> None:
        request = here.request(first_step=5, every=4, times=2)
        here.step_until_read(10, request)
        states = []
        for step in (11, 12, 13, 14, 16, 17, 18):
            here.timer.set_step(step)
            states.append(here.state(request))
        assert states == ["armed", "armed", "open", "armed", "armed", "open", "done"]
        assert here.answer(request)["opened_at_step"] == 17

    def test_other_timers_take_no_steps_of_a_series(self, here: Here) -> None:
        other = MyTimer(tag="eval")
        request = here.request(every=3, times=2)
        here.step_until_read(6, request)
        here.timer.set_step(7)
        other.set_step(9)
        assert here.state(request) == "armed"
        here.timer.set_step(9)
        assert here.state(request) == "open"

    def test_a_process_that_ends_between_two_steps_of_a_series(self, tmp_path: Path) -> None:
        """It keeps what it has, and says that it is not all."""
        request = capture.request_capture(
            tmp_path, backend="none", first_step=2, every=50, times=2, at_start=True
        )
        subprocess.run([sys.executable, "-c", NINE_STEPS, tmp_path], cwd=ROOT, check=True)
        answer = capture.responses(tmp_path, request.id, [0])[0]
        assert answer["state"] == "failed"
        assert answer["reason"] == "the process ended after 1 of 2 captures"

    def test_windows_may_overlap(self, here: Here) -> None:
        requests = [here.request(first_step=first, steps=3) for first in (5, 6)]
        here.step_until_read(0, requests[1])
        for step in (5, 6, 7):
            here.timer.set_step(step)
        assert [here.state(request) for request in requests] == ["open", "open"]
        here.timer.set_step(8)
        assert [here.state(request) for request in requests] == ["done", "open"]
        here.timer.set_step(9)
        assert here.state(requests[1]) == "done"

    def test_the_timer_that_opens_it_counts(self, here: Here) -> None:
        other = MyTimer(tag="eval")
        request = here.request(first_step=5, steps=1)
        tagged = here.request(first_step=5, steps=1, tag="eval")
        here.step_until_read(0, tagged)
        here.timer.set_step(5)
        assert [here.state(request), here.state(tagged)] == ["open", "armed"]
        other.set_step(5)
        other.set_step(6)
        assert [here.state(request), here.state(tagged)] == ["open", "done"]
        here.timer.set_step(6)
        assert here.state(request) == "done"

    def test_a_timer_that_is_deleted_leaves_no_window_open(self, here: Here) -> None:
        request = here.request(first_step=5, steps=9)
        here.step_until_read(0, request)
        timer: MyTimer | None = MyTimer(tag="short")
        assert timer is not None
        timer.set_step(5)
        timer.set_step(6)
        timer = None
        here.timer.set_step(7)
        assert here.state(request) == "failed"
        assert here.answer(request)["reason"] == "its timer was deleted after 1 of 9 steps"

    def test_threads_keep_to_their_own_windows(self, here: Here) -> None:
        request = here.request(first_step=5, steps=2)
        here.step_until_read(0, request)
        thread = threading.Thread(target=here.timer.set_step, args=(5,))
        thread.start()
        thread.join()
        for step in (6, 7, 8):
            here.timer.set_step(step)  # this thread did not open it
        assert here.state(request) == "open"

    def test_a_request_for_others_is_not_answered(self, here: Here) -> None:
        others = here.request(ranks=[1, 2])
        request = here.request()
        here.step_until_read(0, request)
        assert here.state(others) is None and here.state(request) == "open"

    @pytest.mark.slow
    def test_broken_and_foreign_files_are_ignored_with_one_warning(
        self, here: Here, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = here.folder / CONTROL_NAME
        kinds = {
            "broken": [b"{", b"", b'{"my_utils": "control", "version": 9, "requests": []}'],
            "foreign": [b"[]", b'{"requests": []}'],
            "too_large": [b" " * 70_000],
        }
        with caplog.at_level(logging.WARNING, logger="my_utils"):
            for kind, contents in kinds.items():
                for number, content in enumerate(contents, 1):
                    replace(path, content)
                    name = f"capture_request:{kind}"
                    here.step_until_counted(name, number)
            path.unlink()
            path.symlink_to("/etc/passwd")
            here.step_until(0, lambda: counted("capture_request:not_a_file") == 1)
            path.unlink()
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == 4
        assert all(message.startswith("the control file is ignored: ") for message in messages)
        request = here.request()
        here.step_until_read(0, request)
        assert here.state(request) == "open"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    def test_a_stranger_is_not_obeyed(self, here: Here) -> None:
        (elsewhere := here.folder / "elsewhere").mkdir()
        request = capture.request_capture(elsewhere, backend="none", first_step="now")
        content = (elsewhere / CONTROL_NAME).read_bytes()
        replace(here.folder / CONTROL_NAME, content, owner=12345)
        here.step_until(0, lambda: counted("capture_request:stranger") == 1)
        assert here.state(request) is None

    @pytest.mark.parametrize("mode", [0o620, 0o602])
    def test_a_file_that_others_can_write_to_is_not_obeyed(self, here: Here, mode: int) -> None:
        (elsewhere := here.folder / "elsewhere").mkdir()
        request = capture.request_capture(elsewhere, backend="none", first_step="now")
        (elsewhere / CONTROL_NAME).chmod(mode)
        (elsewhere / CONTROL_NAME).rename(here.folder / CONTROL_NAME)
        here.step_until(0, lambda: counted("capture_request:writable") == 1)
        assert here.state(request) is None

    def test_a_broken_request_is_answered_when_it_has_an_id(self, here: Here) -> None:
        good = {"id": "good", "backend": "none"}
        bad = {"id": "bad", "backend": "a newer one"}
        evil = {"id": "../../evil", "backend": "none"}
        odd = {"id": "odd", "output_dir": "relative"}
        content = {"my_utils": "control", "version": 1, "requests": [bad, evil, odd, 3, good]}
        replace(here.folder / CONTROL_NAME, json.dumps(content).encode())
        here.step_until(0, lambda: "good" in capture_job._job.seen)
        wait_until(lambda: capture_responses._writer.thread is None)
        answers = {id: capture.responses(here.folder, id, [0])[0] for id in ("good", "bad", "odd")}
        assert answers["good"]["state"] == "open"
        assert answers["bad"]["state"] == answers["odd"]["state"] == "failed"
        assert "backend must be one of torch, cuda, memory, none" in answers["bad"]["reason"]
        assert "output_dir must be an absolute path" in answers["odd"]["reason"]
        assert not list(here.folder.parent.rglob("*evil*"))
        assert counted("capture_request:broken") == 4

    def test_an_id_is_used_once(self, here: Here) -> None:
        request = here.request(first_step=5)
        here.step_until_read(0, request)
        for step in (5, 6):
            here.timer.set_step(step)
        assert here.state(request) == "done"
        again = {**request.as_data(), "first_step": 9}
        content = {"my_utils": "control", "version": 1, "requests": [again]}
        replace(here.folder / CONTROL_NAME, json.dumps(content).encode())
        here.step_until(8, lambda: counted("capture_request:repeated") == 1)
        here.timer.set_step(9)
        assert here.answer(request)["opened_at_step"] == 5

    def test_an_answer_that_cannot_be_written_is_one_warning(
        self, here: Here, caplog: pytest.LogCaptureFixture
    ) -> None:
        (here.folder / "captures").write_text("in the way")
        request = here.request(first_step=5)
        with caplog.at_level(logging.WARNING, logger="my_utils"):
            here.step_until_read(0, request)
            for step in (5, 6):
                here.timer.set_step(step)
            wait_until(lambda: capture_responses._writer.thread is None)
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == 1 and "a capture's state could not be written" in messages[0]
        assert capture_job._job.windows == []

    def test_a_forked_child_goes_on_without(self, here: Here) -> None:
        request = here.request(first_step=5, steps=3)
        here.step_until_read(0, request)
        here.timer.set_step(5)
        child = os.fork()
        if child == 0:
            here.timer.set_step(9)
            os._exit(len(capture_job._job.windows))
        assert os.waitpid(child, 0)[1] == 0
        assert here.state(request) == "open"


def counted(kind: str) -> int:
    return _warnings.counts().get(kind, 0)


def replace(path: Path, content: bytes, owner: int | None = None) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    if owner is not None:
        os.chown(temporary, owner, owner)
    temporary.replace(path)


class Broken(CaptureBackend):
    def start(self) -> None:
        raise RuntimeError("no such device")


class TestTimersOfATag:
    """One that is asked for counts alone, however far others in the process are."""

    @pytest.fixture
    def timers(self, here: Here) -> Iterator[MyTimer]:
        """`here.timer` has the tag train."""
        here.timer.set_step(150)
        further = MyTimer(tag="eval")
        further.set_step(5000)
        yield further

    def test_the_first_step_is_ahead_of_it(self, here: Here, timers: MyTimer) -> None:
        for tag, step in (("train", 150), ("eval", 5000)):
            first = here.request(first_step="next", lead_s=0.1, tag=tag).first_step
            assert first is not None and step + 2 <= first < step + 100
        assert here.request(first_step="next", tag="trian").first_step is None

    def test_through_a_store_too(self, here: Here, timers: MyTimer) -> None:
        distributed = pytest.importorskip("torch.distributed")
        store = distributed.HashStore()
        listener = capture_store.Listener(store, 0, 1, lambda item: None)
        listener.pause = 0.01
        channel = capture_store.StoreChannel(store)
        try:
            for tag, step in (("train", 150), ("eval", 5000), (None, 5000)):
                request = Request(id=f"by-{tag}", ranks=((0, 0),), tag=tag)
                first = channel.step_ahead(request, 0.1)
                assert first is not None and step + 2 <= first < step + 100
        finally:
            listener.end()

    def test_a_step_that_was_over_when_another_one_read(self, here: Here, timers: MyTimer) -> None:
        over, next_one, ahead = (
            here.request(first_step=first, tag="eval") for first in (5000, 5001, 5003)
        )
        here.step_until_read(150, ahead)
        states = []
        for step in (5001, 5002, 5005):
            timers.set_step(step)
            states.append([here.state(request) for request in (over, next_one, ahead)])
        assert states == [
            ["failed", "open", "armed"],
            ["failed", "done", "armed"],
            ["failed", "done", "open"],
        ]
        reason = here.answer(over)["reason"]
        assert reason == "step 5000 was over: the request was read at step 5001"

    def test_why_it_did_not_answer(self, here: Here, timers: MyTimer) -> None:
        for tag, place in (
            ("train", "it is at step 150 of the timer 'train'"),
            ("trian", "it has begun no step of the timer 'trian'"),
        ):
            request = here.request(tag=tag, ranks=0, first_step=200)
            answer = capture.wait_for_capture(request, here.folder, timeout_s=0)[0]
            assert answer["reason"].startswith(f"no answer in time; {place}; does its timer")


class TestOtherProfilers:
    def test_while_another_one_runs(self, here: Here) -> None:
        torch = pytest.importorskip("torch")
        request = here.request(backend="torch")
        with torch.profiler.profile():
            here.step_until_read(0, request)
            assert here.state(request) == "failed"
        reason = here.answer(request)["reason"]
        assert reason.endswith("is profiling, and torch has one profiler a process")
        assert _slot.holder() is None
        again = here.request(backend="torch", first_step=5)
        here.step_until_read(0, again)
        for step in (5, 6):
            here.timer.set_step(step)
        assert here.state(again) == "done"
        assert _slot.holder() is None

    def test_a_controller_of_the_job(self, here: Here) -> None:
        controller = CaptureController(NoOpBackend())
        capture.register(controller)
        window = {"start_profile_names": ["forward"], "start_mb": 1}
        request = here.request(window=window, first_step=5, steps=2)
        here.step_until_read(4, request)
        opened = []
        for step in (4, 5, 6, 7):
            here.timer.set_step(step)
            for microbatch in (0, 1):
                with controller.hook("forward", iter=step, microbatch_index=microbatch):
                    opened += [(step, microbatch)] if controller.window else []
        assert opened == [(5, 1), (6, 1)], "once in each of the steps"
        assert here.state(request) == "done"
        once = here.request(window={**window, "start_iter": 21}, first_step=20, steps=3)
        here.step_until_read(19, once)
        for step in (20, 21, 22, 23):
            here.timer.set_step(step)
            with controller.hook("forward", iter=step, microbatch_index=1):
                opened += [(step, 1)] if controller.window else []
        assert opened[2:] == [(21, 1)]
        assert here.state(once) == "done"
        unmet = here.request(window={"start_profile_names": ["backward"]}, steps=1)
        here.step_until_read(39, unmet)
        assert controller.armed == [unmet.id]
        here.timer.set_step(40)
        assert controller.armed == []
        assert "none of backward was called" in here.answer(unmet)["reason"]

    def test_files_of_a_controller(self, here: Here) -> None:
        """Of two windows in the same steps each says which are its own, whatever backend wrote
        them, and also where the function raised."""
        pytest.importorskip("torch")
        ours = TorchProfilerBackend(here.folder / "ours", rank=0)
        controller = CaptureController(ours)
        capture.register(controller)
        own = {"tool": "torch", "output_dir": str(here.folder / "own")}
        window = {"start_profile_names": ["f"]}
        with_own = {"start_profile_names": ["g"], "backend": own}
        first = here.request(window=window, first_step=5, steps=2)
        second = here.request(window=with_own, first_step=5, steps=2)
        raising = here.request(window={"start_profile_names": ["h"]}, first_step=5)
        here.step_until_read(4, raising)
        for step in (5, 6, 7):
            here.timer.set_step(step)
            for name in ("f", "g", "h"):
                with contextlib.suppress(KeyError), controller.hook(name):
                    if name == "h":
                        raise KeyError
        for request, folder, names in (
            (first, "ours", ["__rank0.json", "__rank0.2.json"]),
            (second, "own", ["__rank0.json", "__rank0.2.json"]),
            (raising, "ours", ["__rank0.json"]),
        ):
            files = [str(here.folder / folder / f"{request.id}{name}") for name in names]
            assert here.answer(request)["files"] == files
            assert all(map(os.path.exists, files))
        assert here.answer(raising)["reason"] == "the window ended as raised"
        assert [here.state(request) for request in (first, second)] == ["done", "done"]

    def test_no_controller_and_one_that_fails(self, here: Here) -> None:
        window = {"start_profile_names": ["forward"]}
        nobody = here.request(window=window)
        here.step_until_read(0, nobody)
        assert "no CaptureController is registered" in here.answer(nobody)["reason"]
        controller = CaptureController(Broken())
        capture.register(controller)
        failing = here.request(window=window)
        here.step_until_read(0, failing)
        with controller.hook("forward"):
            pass
        here.timer.set_step(1)
        assert here.answer(failing)["reason"] == "the window ended as failed"


class TestTheFile:
    pytestmark = pytest.mark.no_torch

    def test_it_keeps_the_newest(self, tmp_path: Path) -> None:
        ids = [capture.request_capture(tmp_path, first_step=n).id for n in range(20)]
        text = (tmp_path / CONTROL_NAME).read_bytes()
        assert [item.id for item in read_requests(text)] == ids[-16:]
        assert all(re.fullmatch(r"\d{8}T\d{6}-[0-9a-f]{8}", id) for id in ids)
        assert len(text) < 64 * 1024

    def test_many_ranks_fit(self, tmp_path: Path) -> None:
        for _ in range(3):
            request = capture.request_capture(tmp_path, ranks=range(1, 10_001, 2), first_step=1)
        text = (tmp_path / CONTROL_NAME).read_bytes()
        (*_, last) = read_requests(text)
        assert isinstance(last, Request) and last == request
        assert last.is_for(9_999) and not last.is_for(9_998)
        assert len(text) <= 64 * 1024

    def test_requests_at_the_same_time_are_all_kept(self, tmp_path: Path) -> None:
        threads = [
            threading.Thread(target=capture.request_capture, args=(tmp_path,),
                             kwargs={"first_step": n})
            for n in range(12)
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = read_requests((tmp_path / CONTROL_NAME).read_bytes())
        assert {item.first_step for item in found if isinstance(item, Request)} == set(range(12))

    def test_it_is_replaced_where_it_was_broken(self, tmp_path: Path) -> None:
        (tmp_path / CONTROL_NAME).write_bytes(b"\xff")
        request = capture.request_capture(tmp_path, first_step=1)
        assert read_requests((tmp_path / CONTROL_NAME).read_bytes()) == [request]
        with pytest.raises(RequestError):
            read_requests(b"\xff")

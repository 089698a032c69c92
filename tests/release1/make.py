"""Makes `files/`: one small file of each kind that the first release (0.1.0) writes.

    unshare --uts --mount python tests/release1/make.py

as root on Linux, from the root of a checkout of the first release that was built in place, with
torch and the packages of the extras `report` and `profiling`. It need not be run again: the files
are what users of the first release have on their disks, and today's code must read them.

Everything happens below /data, a file system of its own, on a host named `host-a`, so that no file
says where it was made. Files that compress well are kept as .xz; `release1_files.unpack` undoes
that. `expected.json` has what the programs below did, as they count it themselves.
"""

# mypy: disable-error-code="call-arg"
# It names what the first release names.
from __future__ import annotations

import json
import lzma
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = Path(__file__).resolve().parent / "files"
DATA = Path("/data")
RUN = DATA / "run"
COMPRESSED_FROM = 8 * 1024  # bytes

# What all victims share: `stage` finishes one, `end` is SIGKILL.
VICTIM = """
import os, signal, sys, threading, time
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer

folder = sys.argv[1]
logger = GlobalLogger()
timer = MyTimer(tag="train")

def setup(**options):
    logger.setup(folder, rank=0, world_size=2, console=False, machine_id="node-a", **options)

def stage(name):
    timer.start(name)
    timer.stop(name)

def end():
    os.kill(os.getpid(), signal.SIGKILL)

"""

# By the folder below crashed/: the program, the stages that it finished, and those that it left
# open from the outermost inwards.
CRASHES: dict[str, tuple[str, dict[str, int], list[str]]] = {
    "undrained": (
        """
setup()
timer.set_step(1)
for _ in range(5): stage("forward")
timer.step()
for _ in range(7): stage("backward")
end()
""",
        {"forward": 5, "backward": 7},
        [],
    ),
    "open": (
        """
setup()
timer.set_step(3)
timer.start("iter")
stage("forward")
timer.step()
timer.start("backward")
timer.start("all_reduce")
end()
""",
        {"forward": 1},
        ["iter", "backward", "all_reduce"],
    ),
    "threads": (
        """
setup()
def work(number):
    for _ in range(10): stage(f"load {number}")
threads = [threading.Thread(target=work, args=(i,), name=f"loader-{i}") for i in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
timer.start("wait")
end()
""",
        {"load 0": 10, "load 1": 10, "load 2": 10},
        ["wait"],
    ),
    "events": (
        """
setup(extra_log_label="Trainer")
logger.instant("checkpoint", {"path": "model_100.pt", "note": "a,b=c%"}, step=100)
logger.counter("loss", {"train": 0.25, "valid": 0.5}, step=100)
logger.log_profile_event(None, 100, "download", "ASYNC_START", metadata="id=7")
logger.log_profile_event(None, 100, "download", "ASYNC_END", metadata="id=7")
logger.set_time_offset(1.5)
stage("forward")
end()
""",
        {"forward": 1},
        [],
    ),
    "rotated": (
        """
setup(max_csv_bytes=4096)
timer.start("iter")
for i in range(60):
    timer.set_step(i)
    stage("forward")
    timer.step()
stage("forward")
end()
""",
        {"forward": 61},
        ["iter"],
    ),
    "elsewhere": (
        """
setup(journal_dir="/data/journals")
timer.set_step(4)
timer.start("iter")
stage("data")
timer.start("forward")
beat = os.path.join(folder, "rank_0.heartbeat.json")
until = time.monotonic() + 60
while time.monotonic() < until:
    if os.path.exists(beat) and "forward" in open(beat).read(): break
    time.sleep(0.05)
end()
""",
        {"data": 1},
        ["iter", "forward"],
    ),
    "dropped": (
        """
flag = os.environ["HANG_WHILE"]
setup(io="background")
open(flag, "w").close()
timer.step()
for _ in range(9000): stage("short")
os.unlink(flag)
until = time.monotonic() + 60
while time.monotonic() < until and "my_utils.dropped" not in open(logger.csv_path).read():
    timer.step()
    time.sleep(0.05)
for _ in range(4): stage("after")
end()
""",
        {"after": 4},  # of the short ones as many as were not dropped
        [],
    ),
}

FINISHED_RUN = """
import sys
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer

folder = sys.argv[1]
logger = GlobalLogger()
logger.setup(folder, rank=1, world_size=2, console=False, machine_id="node-a",
             extra_log_label="Trainer")
logger.get_logger().info("training starts")
timer = MyTimer(tag="train")
for step in range(6):
    timer.set_step(step)
    with timer.time_stage("iter"):
        with timer.time_stage("forward"):
            pass
        with timer.time_stage("backward"):
            pass
    logger.counter("loss", {"train": 1 / (step + 1)}, step=step)
    timer.step()
logger.instant("checkpoint", {"path": "model.pt", "note": "a,b=c%"}, step=5)
logger.log_profile_event(None, 5, "download", "ASYNC_START", metadata="id=7")
logger.log_profile_event(None, 5, "download", "ASYNC_END", metadata="id=7")
logger.log_profile_event(None, 5, "hand over", "FLOW_START", metadata="id=8")
logger.log_profile_event(None, 5, "hand over", "FLOW_END", metadata="id=8")
timer.start("left, open")
logger.close()
"""

ROTATED_RUN = """
import sys
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer

logger = GlobalLogger()
logger.setup(sys.argv[1], rank=0, world_size=2, console=False, machine_id="node-a",
             max_csv_bytes=4096)
timer = MyTimer()
for step in range(20):
    timer.set_step(step)
    with timer.time_stage("iter"), timer.time_stage("forward"):
        pass
    timer.step()
logger.close()
"""

GPU_RUN = """
timer = _core.Timer("train", use_cuda=True)
run(timer, "forward", 2_000_000)
run(timer, "backward", 3_000_000)
for _ in range(100):
    timer.step()
    time.sleep(0.005)
report()
"""

JOB = """
import sys, time
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer
GlobalLogger().setup(sys.argv[1], rank=0, world_size=1, console=False, machine_id="node-a")
timer = MyTimer()
print("ready", flush=True)
step, until = 0, time.monotonic() + 60
while time.monotonic() < until:
    timer.set_step(step)
    timer.step()
    step += 1
    time.sleep(0.02)
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TZ": "UTC", **more}


def run(program: str, folder: Path, status: int = 0, **more: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, env=environment(**more), cwd=DATA, check=False)
    assert done.returncode == status, (done.returncode, program)


# --- profiles ---


def crashed() -> dict[str, Any]:
    from ..fakes import compile_fake

    hanging = compile_fake("hanging_writes.c", DATA / "hanging_writes.so", "-D_DEFAULT_SOURCE")
    expected = {}
    (DATA / "journals").mkdir()
    for name, (program, finished, left_open) in CRASHES.items():
        more = {}
        if name == "dropped":
            more = {"LD_PRELOAD": str(hanging), "HANG_WHILE": str(DATA / "hang")}
        run(VICTIM + program, RUN / "crashed" / name, -signal.SIGKILL, **more)
        expected[name] = {"finished": finished, "open": left_open}
    (journal,) = (DATA / "journals").glob("*.journal")
    shutil.move(journal, RUN / "crashed/elsewhere")
    return expected


def finished() -> dict[str, Any]:
    run(FINISHED_RUN, RUN / "finished")
    run(ROTATED_RUN, RUN / "finished")
    return {
        "rank 0": {"iter": 20, "forward": 20},
        "rank 1": {"iter": 6, "forward": 6, "backward": 6},
    }


def on_gpu() -> dict[str, Any]:
    from ..fakes import compile_fake
    from ..stages.test_cuda_timing import PRELUDE

    library = DATA / "cuda" / "libcuda.so.1"
    library.parent.mkdir()
    compile_fake("fake_cuda.c", library)
    folder = RUN / "on_gpu"
    run(PRELUDE + GPU_RUN, folder, LD_LIBRARY_PATH=str(library.parent), LOGS=str(folder))
    return {"forward": 2.0, "backward": 3.0}  # ms


def planted() -> None:
    """A run with a slow rank, and what the report says of it."""
    from my_utils.report import analyze

    from ..support.planted_runs import Run

    folder = RUN / "planted"
    Run(ranks=4, steps=40).slower(1.5, "forward", rank=2).write(folder)
    report = analyze(folder, parquet=RUN / "report" / "parquet")
    (RUN / "report" / "report.json").write_text(report.to_json() + "\n")
    report.save_csv(RUN / "report" / "csv")
    pickled("my_utils.report.Report", report)


def traces() -> None:
    from my_utils.csv2trace import csv_to_trace

    (RUN / "traces").mkdir()
    source = RUN / "finished"
    for name in ("ranks.json", "ranks.pftrace", "ranks.json.gz"):
        csv_to_trace(source, RUN / "traces" / name)
    csv_to_trace(source, RUN / "traces" / "seed.json", layout="seed")
    pickled("my_utils.csv2trace.Summary", csv_to_trace(source, DATA / "x.json"))


def captures() -> None:
    """Requests of every kind, and what a job answers to those that it can serve."""
    from my_utils.capture import request_capture

    folder = RUN / "control"
    folder.mkdir()
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, str(folder)], env=environment(), stdout=subprocess.PIPE
    )
    try:
        assert job.stdout is not None
        job.stdout.readline()
        first = request_capture(folder, ranks=0, steps=2, first_step="now", backend="none")
        wait(folder, first.id)
        second = request_capture(folder, ranks=[0], steps=2, backend="torch",
                                 options=["record_shapes"], output_dir="/data/run/out")  # fmt: skip
        wait(folder, second.id)
        request_capture(folder, ranks=[3, 4, 5, 9], first_step=10**9, backend="cuda", tag="train")
        request_capture(folder, first_step=10**9, backend="memory", at_start=True)
        last = request_capture(folder, first_step="now", backend="none",
                               window={"start_profile_names": ["train_step"]})  # fmt: skip
        wait(folder, last.id)
    finally:
        job.kill()
        job.wait()
    for path in folder.iterdir():
        if path.is_file() and path.name != "my_utils.control.json":
            path.unlink()
    shutil.rmtree(RUN / "out")  # torch's own trace
    pickled("my_utils.capture.Request", second)


def wait(folder: Path, id: str) -> None:
    path = folder / "captures" / f"{id}__rank0.status.json"
    until = time.monotonic() + 60
    while not path.exists() or json.loads(path.read_text())["state"] not in ("done", "failed"):
        assert time.monotonic() < until, id
        time.sleep(0.05)


# --- tensors ---


def model() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU(), torch.nn.Linear(3, 2)
    )


def recordings() -> None:
    import torch

    from my_utils.diverge import compare_files, main as diverge
    from my_utils.module_hook import ForwardTraceRecorder

    folder = RUN / "recordings"
    folder.mkdir()
    for name, bias in (("a", 0.0), ("b", 0.5)):
        net = model()
        with torch.no_grad():
            net[3].bias += bias
        with ForwardTraceRecorder(
            net, sample_mode="head", sample_max_elems=4, record_param_md5=True,
            record_buffer_hash=True, record_param_dtypes=True, stats=True, record_grads=True,
        ) as recorder:  # fmt: skip
            net(torch.arange(8.0).reshape(2, 4)).sum().backward()
        recorder.save(folder / f"{name}.pt", extra={"note": "single step"})
        if name == "a":
            pickled("my_utils.module_hook.Recording", recorder.snapshot())
    report = compare_files(folder / "a.pt", folder / "b.pt")
    pickled("my_utils.diverge.Report", report)
    with open(folder / "diverge.json", "w") as out:
        old, sys.stdout = sys.stdout, out
        try:
            diverge([str(folder / "a.pt"), str(folder / "b.pt"), "--json"])
        finally:
            sys.stdout = old


def tensor_figures() -> None:
    """Digests, statistics and counts of inputs that `release1_files.tensors` makes again."""
    from my_utils.tensors import compare, md5, nan_inf_count, stats, tensor_hash

    from .release1_files import tensors

    found = {}
    for name, tensor in tensors().items():
        digest, counts = tensor_hash(tensor), nan_inf_count(tensor)
        found[name] = {
            "content": digest.content,
            "combined": digest.combined,
            "md5": md5(tensor),
            "nan_inf": repr(counts),
        }
    (RUN / "tensors.json").write_text(json.dumps(found, indent=1) + "\n")
    one = tensors()["float32"]
    pickled("my_utils.tensors.TensorDigest", tensor_hash(one))
    pickled("my_utils.tensors.TensorStats", stats(one))
    pickled("my_utils.tensors.NanInfCount", nan_inf_count(one))
    pickled("my_utils.tensors.TensorDiff", compare(one, one + 1))


def dumps() -> None:
    from my_utils.dump_utils import DumpConfig, DumpTensorIO, UniversalDumper, UniversalLoader

    from .release1_files import objects, tensors

    folder = RUN / "dumps"
    expected = {}
    with UniversalDumper(DumpConfig(root_dir=folder, strict=True)) as dumper:
        for name, value in objects().items():
            place = dumper.dump(stage=name, obj=value, data_id=42, branch="train")
            expected[name] = os.path.relpath(str(place), folder)
    late = UniversalDumper(DumpConfig(root_dir=folder, asynchronous=True, strict=True))
    place = late.dump(stage="async", obj=objects()["tensors"], data_id=43)
    late.close()
    expected["async"] = os.path.relpath(str(place), folder)
    cut = DumpConfig(root_dir=folder, max_items=2, max_string=3, max_tensor_elements=4)
    place = UniversalDumper(cut).dump(stage="cut", obj=objects()["plain"], data_id=None)
    expected["cut"] = os.path.relpath(str(place), folder)
    for place in expected.values():
        UniversalLoader(folder).load(place, allow_pickle=True)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    single = DumpTensorIO(RUN / "tensor_io", compare_file=RUN / "tensor_io" / "compare.jsonl")
    single.dump(tensors()["float32"], dump_id=7, tag="latent", rank=0)
    single.compare(tensors()["float32"] + 1e-9, 7, "latent", rank=0)
    pickled("my_utils.dump_utils.DumpConfig", cut)


# --- times, sweeps, memory ---


class Keeping:
    """A store of torch that keeps what is put into it."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.kept: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self.kept[key] = value if isinstance(value, bytes) else value.encode()
        self.store.set(key, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def times() -> None:
    """A file of gathered times, and what rank 1 puts into torch's store for rank 0."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from my_utils.timing import ProfiledTime, TimeManager

    from .release1_files import durations

    folder = RUN / "timing"
    folder.mkdir()
    manager = TimeManager(durations())
    gathered = manager.gather()
    assert gathered is not None
    gathered.save(folder / "gathered.pt")
    pickled("my_utils.timing.GatheredTime", gathered)
    pickled("my_utils.timing.TimeData", gathered["load"])
    pickled("my_utils.timing.GatheredTime.summary", manager.gather(summary=True))
    assert ProfiledTime.load(folder / "gathered.pt")["load"].count() == 4

    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    for tag, summary in (("samples", False), ("summary", True)):
        store = Keeping(dist.HashStore())  # type: ignore[attr-defined]
        manager.gather(summary=summary, tag=tag, store=store, timeout=1)
        (folder / f"message_{tag}.json").write_text(
            json.dumps({key: value.hex() for key, value in store.kept.items()}, indent=1) + "\n"
        )
    dist.destroy_process_group()


def sweep() -> None:
    from my_utils.annotations import parametrize_shapes

    folder = RUN / "sweep"
    folder.mkdir()

    @parametrize_shapes(
        shapes=[(4, 8), (16, 8), 7], batch_sizes=[1, 2], warmup=0, repeats=3, on_error="mark",
        output_csv=folder / "sweep.csv",
    )  # fmt: skip
    def work(shape: Any, batch_size: int) -> Any:
        if shape == 7:
            raise MemoryError if batch_size == 1 else ValueError("no such shape")
        return lambda: sum(range(1000))

    result = work()
    pickled("my_utils.annotations.SweepResult", result)
    pickled("my_utils.annotations.SweepPoint", result.points[0])


def tracker() -> None:
    from my_utils.gpu_mem_tracker import GPU_Performance_Tracker

    folder = RUN / "tracker"
    with GPU_Performance_Tracker(folder / "run", 0.05, False, plot=False) as running:
        time.sleep(0.3)
    pickled("my_utils.gpu_mem_tracker.Peak", running.peaks()["process_rss_bytes"])


def stage_reports() -> None:
    from my_utils.logger import GlobalLogger
    from my_utils.utils import MyTimer

    folder = RUN / "stage_report"
    GlobalLogger().setup(DATA / "logs", rank=0, world_size=1, console=False, machine_id="node-a")
    timer = MyTimer(tag="train")
    for step in range(3):
        timer.set_step(step)
        with timer.time_stage("iter"), timer.time_stage("forward"):
            pass
        timer.step()
    report = timer.generate_report("", folder / "report.txt", "0:2")
    timer.generate_csv(report, folder / "report.csv")
    GlobalLogger().close()


def random_states() -> None:
    import random

    import numpy as np
    import torch

    from my_utils.CtrlRandom.control_random import ControlRandom

    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    ControlRandom.setup(RUN / "random", rank=0)
    ControlRandom.save_random("step 5", {"x": torch.arange(3), "text": "a"})
    drawn = {"python": random.random(), "numpy": np.random.rand(), "torch": torch.rand(1).item()}
    (RUN / "random" / "drawn_next.json").write_text(json.dumps(drawn) + "\n")


def operators() -> None:
    """The inputs of the first operator that gave a NaN."""
    import torch

    from my_utils.compare_tool import NanInfError, NanInfTracker

    x = torch.tensor([1.0, 0.0])
    try:
        with NanInfTracker(
            dump_error_data=True, should_log_to_file=True, output_dir=RUN / "operators"
        ):
            x / x
    except NanInfError:
        return
    raise AssertionError


# --- pickles ---


def pickled(name: str, value: Any) -> None:
    folder = RUN / "pickles"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.pickle").write_bytes(pickle.dumps(value, protocol=4))


def pickles() -> None:
    from .release1_files import public_objects

    for name, value in public_objects().items():
        pickled(name, value)


# --- all ---


def main() -> None:
    socket.sethostname("host-a")
    DATA.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", DATA], check=True)
    RUN.mkdir()
    os.chdir(RUN)
    os.environ["TZ"] = "UTC"
    time.tzset()
    sys.path.insert(0, str(ROOT))
    expected = {"crashed": crashed(), "finished": finished(), "on_gpu": on_gpu()}
    for make in (planted, traces, captures, recordings, tensor_figures, dumps, times, sweep,
                 tracker, stage_reports, random_states, operators, pickles):  # fmt: skip
        print(make.__name__, flush=True)
        make()
    (RUN / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    keep()
    keep_attributes()


def keep_attributes() -> None:
    """What the objects of the pickles say to users of the first release."""
    from .release1_files import content, pickle_files, state_of

    states = {
        path.name.partition(".pickle")[0]: state_of(pickle.loads(content(path)))
        for path in pickle_files()
    }
    data = json.dumps(states, indent=1).encode() + b"\n"
    (FILES / "pickles.json.xz").write_bytes(lzma.compress(data, preset=9))


def keep() -> None:
    shutil.rmtree(FILES, ignore_errors=True)
    for path in sorted(RUN.rglob("*")):
        if not path.is_file():
            continue
        target = FILES / path.relative_to(RUN)
        target.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        if len(data) >= COMPRESSED_FROM:
            target = target.with_name(target.name + ".xz")
            data = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
        target.write_bytes(data)


if __name__ == "__main__":
    main()

"""Threads that train, watch and compare tensors at once; prints what they saw wrong.

    python torch_thread_stress.py FOLDER SECONDS

What each thread sees of its own model must be what it saw of it alone. What they share are weights,
one profiler, one recorder's dumps and the files.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from my_utils import (
    ChecksumUtils,
    CompareWithCPU,
    DumpConfig,
    ForwardTraceRecorder,
    GlobalLogger,
    ModuleProfiler,
    MyTimer,
    NanInfTracker,
    UniversalDumper,
    UniversalLoader,
    open_module_tracker,
    timer_wrap,
)
from my_utils.compare_tool import OpRecorder
from my_utils.tensors import assert_same, md5, stats, sums_digest, tensor_hash, tensor_sums

SIZES = [7, 4096, 300_000]  # below and above what is hashed without the GIL
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.complex64]


def small_model(seed: int) -> torch.nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4)
        )


def train(model: torch.nn.Module, batch: torch.Tensor) -> None:
    model(batch).square().mean().backward()
    model.zero_grad()


def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [
        torch.randn(size, generator=generator).mul(9).to(dtype)
        for size in SIZES
        for dtype in DTYPES
    ]


def hashes_of(event: Any) -> tuple[str, list[Any]]:
    return event.module, [meta.hash for meta in (*event.inputs, *event.outputs)]


class Stress:
    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.until = time.monotonic() + seconds
        self.rounds = threading.local()
        self.lock = threading.Lock()
        self.counted: Counter[str] = Counter()
        self.failures: list[str] = []
        self.shared = tensors()
        self.digests = tensor_hash(self.shared)
        self.batch = torch.linspace(-1, 1, 64).reshape(4, 16)
        self.model = small_model(0)
        self.timer = MyTimer(use_cuda=False)

    def goes_on(self) -> bool:
        """True in a thread's first round, too, however late it comes."""
        is_first = not hasattr(self.rounds, "began")
        self.rounds.began = True
        return is_first or time.monotonic() < self.until

    def count(self, name: str, number: int = 1) -> None:
        with self.lock:
            self.counted[name] += number

    def same(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise AssertionError(f"{what}: {found!r:.300}, expected {expected!r:.300}")

    # --- tensors -----------------------------------------------------------------------------

    def hashes(self) -> None:
        digests = md5(self.shared), [stats(one) for one in self.shared]
        while self.goes_on():
            self.same("hashes", tensor_hash(self.shared), self.digests)
            self.same("md5", md5(self.shared), digests[0])
            self.same("stats", repr([stats(one) for one in self.shared]), repr(digests[1]))
            for tensor, digest in zip(self.shared, self.digests, strict=True):
                dtype = str(tensor.dtype).removeprefix("torch.")
                self.same("sums", sums_digest(tensor_sums(tensor), dtype, tensor.shape), digest)
            self.count("hashes")

    def compares_tensors(self) -> None:
        other = [one.clone() for one in self.shared]
        other[4][77] += 1
        while self.goes_on():
            assert_same(self.shared, [one.clone() for one in self.shared])
            try:
                assert_same(other, self.shared, rtol=0, atol=0)
            except AssertionError as error:
                self.same("place", "first at (77,)" in str(error), True)
            else:
                raise AssertionError("a difference was not seen")
            self.count("compared")

    def signs(self) -> None:
        names = [str(place) for place in range(len(self.shared))]
        while self.goes_on():
            signed = ChecksumUtils.sign(dict(zip(names, self.shared, strict=True)))
            self.same("verified", bool(ChecksumUtils.verify(signed)), True)
            self.count("signed")

    def dumps(self) -> None:
        folder = str(self.folder / f"dumps-{threading.get_native_id()}")
        loader = UniversalLoader(folder)
        with UniversalDumper(DumpConfig(root_dir=folder, asynchronous=True, strict=True)) as dumper:
            number = 0
            while self.goes_on():
                value = {"step": number, "tensors": self.shared[:6]}
                written = dumper.dump("stage", value, data_id=number)
                dumper.flush()
                assert_same(loader.load(written), value, rtol=0, atol=0)
                number += 1
                self.count("dumped")

    # --- models ------------------------------------------------------------------------------

    def profiles_its_own(self, backward: bool) -> None:
        model = small_model(1)
        while self.goes_on():
            with ModuleProfiler(model, backward=backward) as profiler:
                for _ in range(20):
                    train(model, self.batch)
            table = profiler.summary()
            self.same("calls", list(table["calls"]), [20] * 4)
            self.count("profiled")

    def calls_the_shared(self) -> None:
        while self.goes_on():
            for _ in range(20):
                self.model(self.batch)
            self.count("shared", 20)

    def records_its_own(self) -> None:
        model, expected = small_model(2), None
        while self.goes_on():
            with ForwardTraceRecorder(
                model, record_param_hash=True, record_buffer_md5=True, record_grads=True, stats=True
            ) as recorder:
                train(model, self.batch)
            found = [hashes_of(event) for event in recorder.events]
            expected = expected or found
            self.same("events", found, expected)
            self.count("recorded")

    def records_operators(self) -> None:
        model, expected = small_model(3), None
        while self.goes_on():
            with open_module_tracker(model), OpRecorder() as recorder:
                train(model, self.batch)
            found = [hashes_of(event) for event in recorder.events]
            expected = expected or found
            self.same("operators", found, expected)
            self.count("operators")

    def compares_operators(self) -> None:
        model, expected = small_model(4), None
        while self.goes_on():
            with CompareWithCPU(verbose=False) as compare:
                train(model, self.batch)
            self.same("failed", compare.summary.failed, 0)
            expected = expected or compare.summary.passed
            self.same("compared operators", compare.summary.passed, expected)
            self.count("cpu")

    def finds_its_nan(self) -> None:
        model = small_model(6)
        while self.goes_on():
            with NanInfTracker() as tracker:
                result = model(self.batch)
                result.sub(result).div(result.sub(result)).mul(2)
            found = [(one.op.rpartition(".")[2], one.role) for one in tracker.findings]
            self.same("findings", found, [("div", "producer"), ("mul", "propagator")])
            self.count("nan")

    def times_stages(self) -> None:
        @timer_wrap
        def forward() -> None:
            self.model(self.batch)

        while self.goes_on():
            for _ in range(20):
                self.timer.start("outer")
                with self.timer.time_stage("inner"):
                    forward()
                self.timer.stop("outer")
            self.count("stages", 40)

    # --- the run -----------------------------------------------------------------------------

    def guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            with self.lock:
                self.failures.append(f"{getattr(work, '__name__', work)}: {error!r:.600}")

    def run(self) -> list[int]:
        works: list[Callable[[], Any]] = [
            self.hashes, self.hashes, self.compares_tensors, self.signs, self.dumps, self.dumps,
            lambda: self.profiles_its_own(False), lambda: self.profiles_its_own(True),
            self.calls_the_shared, self.calls_the_shared, self.records_its_own,
            self.records_its_own, self.records_operators, self.compares_operators,
            self.finds_its_nan, self.finds_its_nan, self.times_stages, self.times_stages,
        ]  # fmt: skip
        with ModuleProfiler(self.model) as profiler:
            threads = [threading.Thread(target=self.guarded, args=(work,)) for work in works]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return list(profiler.summary()["calls"])


def rows(folder: Path) -> int:
    found = 0
    for path in folder.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            found += sum(row["event_type"] == "END" for row in csv.DictReader(file))
    return found


def main() -> None:
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)  # its threads spin, and there are enough
    ChecksumUtils.enabled = True
    logger = GlobalLogger()
    logger.setup(str(folder), level=logging.WARNING)
    stress = Stress(folder, seconds)
    with contextlib.redirect_stdout(io.StringIO()):
        calls = stress.run()
    logger.close()
    json.dump(
        {
            "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
            "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
            "counted": stress.counted,
            "calls": calls,
            "rows": rows(folder),
            "failures": stress.failures,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()

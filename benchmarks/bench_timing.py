"""Times by name: what a timed call costs, and gathering over ranks.

A call is compared with the bare function, whose cost is taken off, and with codetiming's decorator.
Gathering is compared with `torch.distributed.gather_object` of the lists that it replaces, over
four real processes on gloo; each side gathers what the ranks hold, in turns.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import pickle
import random
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from benchmarks.harness import Claim, peak_mib, take_turns
from my_utils.timing import GatheredTime, TimeManager, timer_wrap

CALLS = 5000
RANKS = 4
SAMPLES = 64_000


def work() -> None:
    pass


timed_work = timer_wrap()(work)


def calls_of(function: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(CALLS):
            function()

    return run


def enabled(function: Callable[[], None], tm: TimeManager) -> Callable[[], None]:
    def run() -> None:
        with tm.enable_timer():
            function()

    return run


def calls(smoke: bool) -> list[Claim]:
    tm = TimeManager()
    timed = calls_of(timed_work)
    sides = {"bare": calls_of(work), "off": timed, "on": enabled(timed, tm)}
    try:
        import codetiming
    except ImportError as error:
        print(f"a peer left out: {error}")
    else:
        sides["codetiming"] = calls_of(codetiming.Timer("work", logger=None)(work))
    figures = take_turns(sides, calls=CALLS, rounds=3 if smoke else 101, between=tm.clear)
    bare = figures.pop("bare")
    figures = {name: value - bare for name, value in figures.items()}
    claims = [
        Claim("timer_wrap, nothing enabled", figures["off"], "the bound", 100, "ns", 1.0),
        Claim("timer_wrap, recorded", figures["on"], "the bound", 400, "ns", 1.0),
    ]
    if "codetiming" in figures:
        claims.append(
            Claim("timer_wrap, recorded", figures["on"], "codetiming's decorator",
                  figures["codetiming"], "ns", 5.0, faster=True)
        )  # fmt: skip
    return claims


# --- gathering ----------------------------------------------------------------------------------


def filled(rank: int, names: int, samples: int) -> TimeManager:
    """Stages of different lengths, each with a spread of a tenth and a long tail."""
    generator = random.Random(rank)
    tm = TimeManager()
    for stage in range(names):
        middle = 2e5 * 2**stage if names < 20 else 1e5 * (stage + 1)
        for _ in range(samples // names):
            late = 3.0 if generator.random() < 0.01 else 1.0
            tm.add(f"stage {stage}", int(middle * late * generator.lognormvariate(0.0, 0.1)))
    return tm


def run_rank(rank: int, port: int, rounds: int, results: Connection) -> None:
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    tm = filled(rank, 8, SAMPLES // RANKS)
    lists = tm.records
    times: dict[str, list[float]] = {"gather": [], "gather_object": []}
    for _ in range(rounds):
        for side in times:
            dist.barrier()
            began = time.perf_counter()
            if side == "gather":
                tm.gather()
            else:
                dist.gather_object(lists, [None] * RANKS if rank == 0 else None)
            times[side].append(time.perf_counter() - began)
    if rank == 0:
        results.send({side: statistics.median(found) for side, found in times.items()})
    dist.barrier()
    dist.destroy_process_group()


def gathering(smoke: bool) -> list[Claim]:
    from my_utils.record.timing.packed import pack

    if importlib.util.find_spec("torch") is None:
        print("left out: gathering needs torch")
        return []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    processes = [
        context.Process(target=run_rank, args=(rank, port, 2 if smoke else 101, sending))
        for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    sending.close()  # so that its end is seen when the ranks are gone
    try:
        figures = receiving.recv()
    finally:
        for process in processes:
            process.join(30)
            process.kill()
    tm = filled(0, 8, SAMPLES // RANKS)
    packed, pickled = len(pack(tm, 0, False)), len(pickle.dumps(tm.records))
    what = "gather of 64 k times, 4 gloo ranks"
    return [
        Claim(what, figures["gather"] * 1e3, "gather_object of lists",
              figures["gather_object"] * 1e3, "ms", 2.0, faster=True),
        Claim(f"{what}: bytes a rank", packed, "pickled lists", pickled, "B", 0.25),
    ]  # fmt: skip


def merging(smoke: bool) -> list[Claim]:
    """4,096 summaries of 100 names, made of 16 different ones. Processor time: it is one thread."""
    from my_utils.record.timing.packed import Merger, pack

    kinds = [pack(filled(kind, 100, 10_000), 0, summary=True) for kind in range(2 if smoke else 16)]
    times = []

    def merge() -> None:
        began = time.process_time()
        merger = Merger()
        for rank in range(4096):
            kind = kinds[rank % len(kinds)]
            merger.add(rank, kind[:4] + rank.to_bytes(4, "little") + kind[8:])
        found = GatheredTime(merger.tables(), world_size=4096, missing={})
        times.append(time.process_time() - began)
        assert found["stage 7"].rank_count() == 4096

    grown = max(peak_mib(merge) for _ in range(1 if smoke else 5))
    took = statistics.median(times)
    return [
        Claim("merge of 4,096 ranks x 100 names, CPU", took, "the bound", 1.0, "s", 1.0),
        Claim("the same, memory", grown, "the bound", 200, "MiB", 1.0),
    ]


def run(smoke: bool) -> list[Claim]:
    return [*calls(smoke), *gathering(smoke), *merging(smoke)]

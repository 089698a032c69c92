"""A check of the replica watch on two ranks, against one read of the weights, other hashes of them,
and a comparison by all_gather.

Times are those of a rank's processor with one thread, so that a busy machine spoils them less; the
last one leaves out what waits for the network.
"""

from __future__ import annotations

import gc
import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import xxhash
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import Claim, Row
from benchmarks.plain_read import load_plain_read

RANKS = 2


def run(smoke: bool = False) -> list[Row]:
    layers, width, rounds = (4, 64, 1) if smoke else (128, 1024, 9)
    with tempfile.TemporaryDirectory() as folder:
        spawn(_measure, (folder, layers, width, rounds), nprocs=RANKS)
        ms = json.loads((Path(folder) / "ms.json").read_text())
    what = "check of 512 MiB of parameters, one thread"
    return [
        Claim(what, ms["check"], "reading them", ms["read"], "ms", 1.1),
        Claim(what, ms["check"], "XXH3_128 of them", ms["xxh3"], "ms", 0.8, True),
        Claim(what, ms["check"], "SHA-256 of them", ms["sha256"], "ms", 5, True),
        Claim(what, ms["check"], "MD5 of them", ms["md5"], "ms", 10, True),
        Claim(what, ms["check"], "all_gather and torch.equal", ms["gather"], "ms", 5, True),
        Claim("what is there to hash, of 256 tensors", ms["find"], "reading them", ms["read"],
              "ms", 0.05),
    ]  # fmt: skip


def _measure(rank: int, folder: str, layers: int, width: int, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    times = _times(rank, layers, width, rounds)
    gc.collect()  # a model that is left keeps gloo's threads, which abort a process that ends
    dist.destroy_process_group()
    if rank == 0:
        found = {name: statistics.median(values) for name, values in times.items()}
        (Path(folder) / "ms.json").write_text(json.dumps(found))


def _times(rank: int, layers: int, width: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each round of each side."""
    from my_utils.tensors.replicas.sums import take
    from my_utils.tensors.replicas.tensors import Finder

    torch.manual_seed(0)
    linear = (torch.nn.Linear(width, width) for _ in range(layers))
    model = DistributedDataParallel(torch.nn.Sequential(*linear))
    weights = [parameter.detach() for parameter in model.parameters()]
    finder = Finder({"": model}, None, gradients=False, rank=rank, world_size=RANKS)
    plain_read = load_plain_read()

    def check() -> None:
        take([source.values for source in finder.tracked().sources]).wait()

    def hashed(name: str) -> None:
        for weight in weights:
            hashlib.new(name, weight.numpy().data).digest()

    def hashed_xxh3() -> None:
        for weight in weights:
            xxhash.xxh3_128_digest(weight.numpy().data)

    def gather() -> None:
        for weight in weights:
            every = [torch.empty_like(weight) for _ in range(RANKS)]
            dist.all_gather(every, weight)
            assert all(torch.equal(weight, other) for other in every)

    sides: dict[str, Callable[[], object]] = {
        "check": check,
        "read": lambda: [plain_read(w.data_ptr(), w.numel() * 4) for w in weights],
        "find": finder.tracked,
        "xxh3": hashed_xxh3,
        "sha256": lambda: hashed("sha256"),
        "md5": lambda: hashed("md5"),
        "gather": gather,
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            dist.barrier()
            began = time.process_time_ns()
            work()
            times[name].append((time.process_time_ns() - began) / 1e6)
    return times

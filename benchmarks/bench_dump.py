"""Dumps against torch.save and against plain writes of the same bytes, on memory-backed disk.

Times are those of the processor (user and system), so that a busy machine spoils them less; for the
same reason torch is given one thread, since the threads of its pool spend time on waiting for each
other. The dumps are complete: tree, digests of every byte, manifest. The 303 MB are the weights of
24 encoder layers of width 512; both sides write new files.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Claim

if TYPE_CHECKING:
    from torch import Tensor

MEMORY = Path("/dev/shm")


def memory_disk() -> str | None:
    return str(MEMORY) if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None


def in_turns(
    folder: Path, rounds: int, sides: dict[str, Callable[[Path], object]]
) -> dict[str, float]:
    """Median processor seconds of each side; each writes into a folder that is new."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            target = folder / "out"
            target.mkdir()
            began = time.process_time()
            work(target)
            times[name].append(time.process_time() - began)
            shutil.rmtree(target)
    return {name: statistics.median(values) for name, values in times.items()}


def dump(obj: Any) -> Callable[[Path], object]:
    from my_utils.dump_utils import DumpConfig, UniversalDumper

    def work(target: Path) -> None:
        dumper = UniversalDumper(DumpConfig(root_dir=target, strict=True))
        dumper.dump(stage="bench", obj=obj, data_id=1, branch="main")

    return work


def save_each(tensors: dict[str, Tensor]) -> Callable[[Path], object]:
    import torch

    def work(target: Path) -> None:
        for name, tensor in tensors.items():
            torch.save(tensor, target / f"{name}.pt")

    return work


def write_raw(tensors: dict[str, Tensor]) -> Callable[[Path], object]:
    views = [tensor.numpy().data.cast("B") for tensor in tensors.values()]

    def work(target: Path) -> None:
        with open(target / "raw", "wb", buffering=0) as file:
            for view in views:
                file.write(view)

    return work


def small_tensors(folder: Path, smoke: bool) -> list[Claim]:
    import torch

    count = 50 if smoke else 1000
    tensors = {f"weight_{i}": torch.randn(8, 8) for i in range(count)}
    sides = {"ours": dump(tensors), "torch": save_each(tensors)}
    in_turns(folder, 1, sides)
    times = in_turns(folder, 1 if smoke else 15, sides)
    what = f"dump of {count} small tensors"
    return [
        Claim(what, times["ours"] * 1e3, "torch.save each", times["torch"] * 1e3, "ms", 25, True)
    ]


def large_tensors(folder: Path, smoke: bool) -> list[Claim]:
    import torch

    from my_utils.dump_utils import UniversalLoader

    layer = torch.nn.TransformerEncoderLayer(512, 8)
    shapes = {name: value.shape for name, value in layer.state_dict().items()}
    layers = 1 if smoke else 24
    tensors = {f"{i}.{name}": torch.randn(s) for i in range(layers) for name, s in shapes.items()}
    size = sum(tensor.numel() * 4 for tensor in tensors.values()) / 1e6
    sides = {"ours": dump(tensors), "raw": write_raw(tensors)}
    in_turns(folder, 1, sides)
    times = in_turns(folder, 1 if smoke else 9, sides)
    what = f"dump of {size:.0f} MB, digests included"
    claims = [Claim(what, times["ours"] * 1e3, "raw write", times["raw"] * 1e3, "ms", 1.3)]
    sides["ours"](folder)
    loader = UniversalLoader(folder)
    (path,) = loader.dumps()
    torch.save(tensors, folder / "all.pt")
    mapped = cpu_of(lambda: loader.load(path, verify=False), smoke)
    verified = cpu_of(lambda: loader.load(path), smoke)
    peer = cpu_of(lambda: torch.load(folder / "all.pt", weights_only=True), smoke)
    claims.append(Claim("load it, mapped", mapped, "torch.load", peer, "ms", 3, True))
    claims.append(Claim("load it, every byte verified", verified, "torch.load", peer, "ms", 2))
    return claims


def cpu_of(work: Callable[[], object], smoke: bool) -> float:
    """Median processor time, in ms."""
    times = []
    for _ in range(1 if smoke else 7):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e3


def run(smoke: bool = False) -> list[Claim]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(dir=memory_disk()) as name:
            return small_tensors(Path(name), smoke) + large_tensors(Path(name), smoke)
    finally:
        torch.set_num_threads(threads)

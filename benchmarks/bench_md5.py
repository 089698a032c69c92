"""MD5 of the tensors of a model, on one thread, against hashlib tensor by tensor.

Times are those of the processor, so that a busy machine spoils them less.
"""

from __future__ import annotations

import hashlib
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Claim


def parameters(smoke: bool) -> list[object]:
    """The 288 tensors, 303 MB, of 24 encoder layers; a small one's for the smoke test."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = torch.nn.TransformerEncoderLayer(64 if smoke else 512, 8)
        model = torch.nn.TransformerEncoder(layer, 2 if smoke else 24)
    return list(model.parameters())


def unequal(smoke: bool) -> tuple[list[object], list[object]]:
    """Tensors of the shapes of Llama-3-8B, scaled down, and as many bytes in 16 equal ones."""
    import torch

    scale = 64 if smoke else 4
    hidden, inner, words, heads = (n // scale for n in (4096, 14336, 128256, 1024))
    layer = [hidden, hidden, heads, heads, inner, inner, inner]
    sizes = 2 * [words * hidden] + 32 * [rows * hidden for rows in layer]
    even = 16 * [sum(sizes) // 16]

    def tensors(sizes: list[int]) -> list[object]:
        return [torch.ones(size, dtype=torch.int16) for size in sizes]

    return tensors(sizes), tensors(even)


def usual_way(tensors: list[object]) -> list[str]:
    """What a script writes that wants a checksum of each tensor."""
    return [
        hashlib.md5(t.detach().cpu().contiguous().numpy().tobytes()).hexdigest()  # type: ignore[attr-defined]
        for t in tensors
    ]


def without_copies(tensors: list[object]) -> list[str]:
    return [hashlib.md5(t.detach().numpy()).hexdigest() for t in tensors]  # type: ignore[attr-defined]


def wanted() -> float:
    """How many times faster than hashlib: by the vectors that this processor has."""
    return 12 if "avx512vl" in Path("/proc/cpuinfo").read_text() else 10


def processor_ms(work: Callable[[list[object]], list[str]], tensors: list[object]) -> float:
    began = time.process_time_ns()
    work(tensors)
    return (time.process_time_ns() - began) / 1e6


def run(smoke: bool = False) -> list[Claim]:
    import torch

    from my_utils.tensors import md5

    tensors = parameters(smoke)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    sides: dict[str, Callable[[list[object]], list[str]]] = {
        "md5": md5,
        "usual": usual_way,
        "no copy": without_copies,
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    try:
        assert md5(tensors) == usual_way(tensors) == without_copies(tensors)
        for _ in range(1 if smoke else 9):
            for name, work in sides.items():
                times[name].append(processor_ms(work, tensors))
        model, even = unequal(smoke)
        assert md5(model[:3]) == usual_way(model[:3])
        for _ in range(1 if smoke else 9):
            times.setdefault("model", []).append(processor_ms(md5, model))
            times.setdefault("even", []).append(processor_ms(md5, even))
    finally:
        torch.set_num_threads(before)
    median = {name: statistics.median(found) for name, found in times.items()}
    what = "md5 of 288 tensors, 303 MB, one thread"
    return [
        Claim(what, median["md5"], "hashlib each", median["usual"], "ms", wanted(), True),
        Claim(
            what, median["md5"], "hashlib each, no copies", median["no copy"], "ms", wanted(), True
        ),
        Claim("md5 of Llama-3-8B's shapes, 1.0 GB, one thread", median["model"],
              "as much in 16 equal tensors", median["even"], "ms", 0.95, True),
    ]  # fmt: skip

"""Comparison of two float32 tensors against torch.allclose and torch.testing.assert_close, and
against the plain read of both.

Both sides run on the same number of threads: one, by the time of the processor, so that a busy
machine spoils it less; and all of torch's, by the clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.harness import Claim, peak_mib

Work = Callable[[], object]


def medians_ms(sides: dict[str, Work], clock: Callable[[], int], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            began = clock()
            work()
            times[name].append((clock() - began) / 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def against_reads(huge: bool, smoke: bool) -> Claim:
    """On one thread. Bound: each byte of both is read once."""
    from benchmarks.plain_read import load_plain_read, random_block
    from my_utils.tensors import compare

    a, near = (random_block(2**14 if smoke else 2**26, huge=huge) for _ in range(2))
    near.mul_(1e-7).add_(a)
    plain_read = load_plain_read()
    sides: dict[str, Work] = {
        "compare": lambda: compare(a, near),
        "read": lambda: [plain_read(x.data_ptr(), x.numel() * 4) for x in (a, near)],
    }
    median = medians_ms(sides, time.process_time_ns, 1 if smoke else 15)
    pages = "huge pages" if huge else "4 KiB pages"
    return Claim(f"compare of 2 x 256 MiB float32, {pages}, 1 thread(s)", median["compare"],
                 "plain read of both", median["read"], "ms", 0.85, True)  # fmt: skip


def run(smoke: bool) -> list[Claim]:
    import torch

    from my_utils.tensors import assert_same, compare

    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2**16 if smoke else 2**24, generator=generator)
    near = a + 1e-7 * torch.randn(a.shape, generator=generator)
    sides: dict[str, Work] = {
        "compare": lambda: compare(a, near),
        "allclose": lambda: torch.allclose(a, near, rtol=1.3e-6, atol=1e-5),
        "assert_close": lambda: torch.testing.assert_close(a, near),
        "assert_same": lambda: assert_same(a, near),
    }
    claims = []
    before = torch.get_num_threads()
    try:
        for threads, clock in ((1, time.process_time_ns), (before, time.perf_counter_ns)):
            torch.set_num_threads(threads)
            medians_ms(sides, clock, 1)
            median = medians_ms(sides, clock, 1 if smoke else 9)
            what = f"compare of 2 x {a.numel() / 1e6:.1f} M float32, {threads} thread(s)"
            for peer, bound in (("allclose", 35), ("assert_close", 15)):
                claims.append(Claim(what, median["compare"], peer, median[peer], "ms", bound, True))
            same = what.replace("compare", "assert_same")
            pair = median["assert_same"], "assert_close", median["assert_close"]
            claims.append(Claim(same, *pair, "ms", 15, True))
        rise = peak_mib(sides["compare"])
        torch.set_num_threads(1)
        claims += [against_reads(huge, smoke) for huge in (True, False)]
    finally:
        torch.set_num_threads(before)
    claims.append(Claim("memory that compare takes", rise, "1 MiB", 1, "MiB", 1))
    return claims

"""Statistics of 16.8 M float32 against six calls of torch, and the counts of NaN and Inf against
the plain read of memory; both sides with the same threads."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.harness import Claim, take_turns
from benchmarks.plain_read import load_plain_read, medians_in_turns, random_block
from my_utils.tensors import nan_inf_count, stats

SMALL = 64
CALLS = 2000


def six_calls(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What a user writes who wants to know the same."""
    return x.min(), x.max(), x.mean(), x.std(), x.isnan().sum(), x.isinf().sum()


def often(function: Callable[[torch.Tensor], object], x: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        for _ in range(CALLS):
            function(x)

    return run


def big(x: torch.Tensor, threads: int, rounds: int) -> list[Claim]:
    torch.set_num_threads(threads)
    found = take_turns(
        {"stats": lambda: stats(x), "six": lambda: six_calls(x)}, calls=1, rounds=rounds
    )
    return [
        Claim(f"stats, {x.numel() / 1e6:.1f} M f32, threads: {threads}", found["stats"] / 1e6,
              "six calls of torch", found["six"] / 1e6, "ms", 40, faster=True),
    ]  # fmt: skip


def read(x: torch.Tensor, rounds: int) -> list[Claim]:
    torch.set_num_threads(1)
    plain_read = load_plain_read()
    size = x.numel() * x.element_size()
    sides = {
        "count": lambda: nan_inf_count(x),
        "read": lambda: plain_read(x.data_ptr(), size),
    }
    found = take_turns(sides, calls=1, rounds=rounds)
    return [
        Claim(f"nan_inf_count, {x.numel() / 1e6:.1f} M f32, threads: 1", found["count"] / 1e6,
              "plain read", found["read"] / 1e6, "ms", 0.8, faster=True),
    ]  # fmt: skip


def against_read(huge: bool, smoke: bool) -> Claim:
    """Bound: each byte is read once."""
    torch.set_num_threads(1)
    x = random_block(1 << 14 if smoke else 1 << 26, huge=huge)
    plain_read = load_plain_read()
    sides: dict[str, Callable[[], object]] = {
        "stats": lambda: stats(x),
        "read": lambda: plain_read(x.data_ptr(), x.numel() * 4),
    }
    found = medians_in_turns(sides, 1 if smoke else 15)
    pages = "huge pages" if huge else "4 KiB pages"
    return Claim(f"stats, 256 MiB f32, {pages}, threads: 1", found["stats"], "plain read",
                 found["read"], "ms", 0.85, faster=True)  # fmt: skip


def small(rounds: int) -> list[Claim]:
    x = torch.randn(SMALL)
    sides = {"stats": often(stats, x), "six": often(six_calls, x)}
    found = take_turns(sides, calls=CALLS, rounds=rounds)
    return [
        Claim(f"stats of {SMALL} f32", found["stats"] / 1e3, "six calls of torch",
              found["six"] / 1e3, "µs", 40, faster=True),
    ]  # fmt: skip


def run(smoke: bool) -> list[Claim]:
    before = torch.get_num_threads()
    rounds = 1 if smoke else 15
    x = torch.randn(1 << 14 if smoke else 1 << 24)
    try:
        claims = big(x, 1, rounds)
        if before > 1:
            claims += big(x, before, rounds)
        limits = [against_read(huge, smoke) for huge in (True, False)]
        return [*claims, *read(x, 3 * rounds), *limits, *small(rounds)]
    finally:
        torch.set_num_threads(before)

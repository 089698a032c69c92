"""Porting CUDA sources: against chained str.replace with the same rules, and with more of them.

Times are those of the processor, so that a busy machine spoils them less.
"""

from __future__ import annotations

import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Claim
from my_utils.musa import _rules
from my_utils.musa._replacer import Replacer


def real_sources() -> bytes:
    """CUDA's own headers where the package is installed, else text made of the rules' names."""
    for entry in sys.path:
        for folder in sorted(Path(entry or ".").glob("nvidia/*/include"), reverse=True):
            if (folder / "cuda_runtime_api.h").is_file():
                return b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.h")))
    names = list(_rules.load("musa").pairs)
    lines = (f"  {random.choice(names)}(stream, value);  // a comment\n" for _ in range(50_000))
    return "".join(lines).encode()


def tier(pairs: list[tuple[str, str]]) -> Replacer:
    rules = [(old.encode(), new.encode()) for old, new in pairs]
    return Replacer([(rules, True)])


def many_rules(text: bytes, count: int, used: int) -> list[tuple[str, str]]:
    """`used` names of the text, and others like them that it does not have."""
    found = re.findall(rb"\bcu[A-Za-z_]\w{3,}", text)
    names = sorted({each.decode() for each in found})
    random.Random(1).shuffle(names)
    mine = names[:used]
    extra = (f"{names[i % len(names)]}_{i:x}" for i in range(count - used))
    return [(name, name.replace("cu", "mu", 1)) for name in [*mine, *extra]]


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    began = clock()
    work()
    return clock() - began


def medians(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            times[name].append(seconds(work))
    return {name: statistics.median(found) for name, found in times.items()}


def chained(text: str, pairs: dict[str, str]) -> str:
    for old, new in pairs.items():
        text = text.replace(old, new)
    return text


def run(smoke: bool) -> list[Claim]:
    text = real_sources()
    text = text[:200_000] if smoke else (text * (5_000_000 // len(text) + 1))[:5_000_000]
    rounds = 1 if smoke else 3
    rules = _rules.load("musa").pairs
    sample = text[: 100_000 if smoke else 1_000_000]
    ours = tier(list(rules.items()))
    used = 20 if smoke else 500
    few, many = (tier(many_rules(text, count, used)) for count in (1_000, 25_000))
    plain = sample.decode("latin-1")
    times = medians(
        {
            "ours": lambda: ours.replace(text),
            "few": lambda: few.replace(text),
            "many": lambda: many.replace(text),
        },
        rounds,
    )
    slow = medians({"chained": lambda: chained(plain, rules)}, 1 if smoke else 3)["chained"]
    each = 1e9 / len(text)
    return [
        Claim("a byte of CUDA source, default rules", each * times["ours"], "chained str.replace",
              1e9 / len(sample) * slow, "ns", 5, faster=True),
        Claim("a byte with 25,000 rules", each * times["many"], "1,000 rules", each * times["few"],
              "ns", 1.2),
    ]  # fmt: skip

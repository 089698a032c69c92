"""What NVTX ranges cost: with no tool attached, and with one that listens and does nothing.

The peer is NVIDIA's own Python package. With no tool its calls record nothing at all, while ours
record the stage in the journal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Claim, take_turns
from my_utils import _core

CALLS = 2000
ROOT = Path(__file__).resolve().parent.parent


class BenchTimer(_core.Timer):
    __slots__ = ()


def loop() -> None:
    for _ in range(CALLS):
        pass


def sides() -> dict[str, Callable[[], object]]:
    import nvtx

    timer = BenchTimer()
    domain = nvtx.get_domain("bench")
    attributes = domain.get_event_attributes(message="forward", color="blue")

    def start_stop() -> None:
        for _ in range(CALLS):
            timer.start("forward")
            timer.stop("forward")

    def with_look() -> None:
        for _ in range(CALLS):
            timer.start("forward", "red", "bench")
            timer.stop("forward")

    def annotate() -> None:
        for _ in range(CALLS):
            with nvtx.annotate("forward", color="blue"):
                pass

    def domain_ranges() -> None:
        for _ in range(CALLS):
            domain.push_range(attributes)
            domain.pop_range()

    return {
        "loop": loop,
        "start/stop": start_stop,
        "start/stop with color and domain": with_look,
        "nvtx.annotate": annotate,
        "nvtx Domain.push_range": domain_ranges,
    }


def figures(rounds: int) -> dict[str, float]:
    """ns a pair in this process, the loop taken off."""
    _core.open_output(kind="null")
    drain = BenchTimer().step
    found = take_turns(sides(), calls=CALLS, rounds=rounds, between=drain)
    base = found.pop("loop")
    return {name: value - base for name, value in found.items()}


def figures_with_a_tool(rounds: int) -> dict[str, float]:
    """The same in a process to which a tool attached at its start."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libquiet.so"
        source = ROOT / "tests/fakes/nvtx_injection.c"
        subprocess.run(
            ["gcc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True
        )
        tool = {"NVTX_INJECTION64_PATH": str(library), "FAKE_NVTX_QUIET": "1"}
        result = subprocess.run(
            [sys.executable, "-m", "benchmarks.bench_nvtx", str(rounds)],
            cwd=ROOT,
            env={**os.environ, **tool},
            capture_output=True,
            text=True,
            check=True,
        )
    found: dict[str, float] = json.loads(result.stdout)
    return found


def run(smoke: bool) -> list[Claim]:
    if not _core.nvtx_state()["built"]:
        print("built without NVTX: nothing to measure")
        return []
    rounds = 3 if smoke else 101
    try:
        alone = figures(rounds)
    except ImportError as error:
        print(f"peers left out: {error}")
        return []
    attached = figures_with_a_tool(rounds)
    return [
        Claim("no tool: start/stop, recorded", alone["start/stop"], "nvtx.annotate, no range",
              alone["nvtx.annotate"], "ns", 4.0, faster=True),
        Claim("tool attached: start/stop, range and record", attached["start/stop"],
              "nvtx.annotate", attached["nvtx.annotate"], "ns", 8.0, faster=True),
        Claim("tool attached: with color and domain",
              attached["start/stop with color and domain"], "nvtx.annotate",
              attached["nvtx.annotate"], "ns", 5.0, faster=True),
        Claim("tool attached: start/stop, range and record", attached["start/stop"],
              "nvtx Domain.push_range", attached["nvtx Domain.push_range"], "ns", 2.0),
    ]  # fmt: skip


if __name__ == "__main__":
    assert _core.nvtx_state()["attached"]
    print(json.dumps(figures(int(sys.argv[1]))))

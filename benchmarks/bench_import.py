"""What it costs to import the package and to start a command of it."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.harness import Claim


def seconds(*arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def run(smoke: bool) -> list[Claim]:
    """Each start stands beside a bare one, and the median of their differences counts."""
    imported, command, listed = [], [], []
    for _ in range(2 if smoke else 21):
        bare = seconds("-c", "pass")
        imported.append(seconds("-c", "import my_utils") - bare)
        listed.append(seconds("-m", "my_utils", "--help") - bare)
        command.append(seconds("-m", "my_utils.csv2trace", "--help"))
    extra, more = statistics.median(imported), statistics.median(listed)
    return [
        Claim("import my_utils, over a bare start", 1e3 * extra, "30 ms", 30, "ms", 1),
        Claim("python -m my_utils.csv2trace --help", 1e3 * statistics.median(command), "100 ms",
              100, "ms", 1),
        Claim("my_utils --help, over a bare start", 1e3 * more, "60 ms", 60, "ms", 1),
    ]  # fmt: skip

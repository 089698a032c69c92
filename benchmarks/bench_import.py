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
    bare, imported, command = [], [], []
    for _ in range(2 if smoke else 21):
        bare.append(seconds("-c", "pass"))
        imported.append(seconds("-c", "import my_utils"))
        command.append(seconds("-m", "my_utils.csv2trace", "--help"))
    extra = statistics.median(imported) - statistics.median(bare)
    return [
        Claim("import my_utils, over a bare start", 1e3 * extra, "30 ms", 30, "ms", 1),
        Claim("python -m my_utils.csv2trace --help", 1e3 * statistics.median(command), "100 ms",
              100, "ms", 1),
    ]  # fmt: skip

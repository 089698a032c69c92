"""What it costs to import the package, to start a command of it, and to install its source."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Claim


def seconds(*arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def installation() -> float:
    """Seconds of pip with the source distribution, which compiles in a separate environment."""
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", folder], cwd=root, check=True
        )
        (archive,) = Path(folder).glob("*.tar.gz")
        return seconds(
            "-m", "pip", "install", "-q", "--no-deps", "--target", f"{folder}/to", str(archive)
        )


def run(smoke: bool) -> list[Claim]:
    """Each start stands beside a bare one, and the median of their differences counts."""
    imported, command, listed = [], [], []
    for _ in range(2 if smoke else 21):
        bare = seconds("-c", "pass")
        imported.append(seconds("-c", "import my_utils") - bare)
        listed.append(seconds("-m", "my_utils", "--help") - bare)
        command.append(seconds("-m", "my_utils.csv2trace", "--help"))
    extra, more = statistics.median(imported), statistics.median(listed)
    claims = [
        Claim("import my_utils, over a bare start", 1e3 * extra, "30 ms", 30, "ms", 1),
        Claim("python -m my_utils.csv2trace --help", 1e3 * statistics.median(command), "100 ms",
              100, "ms", 1),
        Claim("my_utils --help, over a bare start", 1e3 * more, "60 ms", 60, "ms", 1),
    ]  # fmt: skip
    if not smoke:
        claims.append(Claim("pip install from the source", installation(), "60 s", 60, "s", 1))
    return claims

"""The passport of a checkpoint, against reading it, hashing its file and comparing its tensors.

Times are those of the processor on one thread, so that a busy machine spoils them less; the file is
in the page cache.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Claim, Row, output_and_peak

PIECE = 16 << 20

PEAK = """
import sys
from my_utils.cli.passport_diff import main
sys.exit(main([*sys.argv[1:], "--quiet"]))
"""


def read(path: Path) -> None:
    buffer = bytearray(PIECE)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def hashed(path: Path, name: str) -> None:
    with open(path, "rb") as file:
        hashlib.file_digest(file, name)


def hashed_xxh3(path: Path) -> None:
    import xxhash

    digest = xxhash.xxh3_128()
    buffer = bytearray(PIECE)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])


def compared(path: Path) -> None:
    """What a script does that wants to know whether two checkpoints are equal."""
    import torch
    from safetensors.torch import load_file

    a, b = load_file(path), load_file(path)
    assert all(torch.equal(a[name], b[name]) for name in a)


def processor_ms(work: Callable[[Path], object], path: Path) -> float:
    began = time.process_time_ns()
    work(path)
    return (time.process_time_ns() - began) / 1e6


def run(smoke: bool = False) -> list[Row]:
    import torch
    from safetensors.torch import save_file

    from my_utils.tensors.passport import read_weights

    count, rows = (2, 64) if smoke else (32, 4096)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    sides: dict[str, Callable[[Path], object]] = {
        "passport": lambda path: read_weights(str(path), None, None),
        "read": read,
        "xxh3": hashed_xxh3,
        "sha256": lambda path: hashed(path, "sha256"),
        "md5": lambda path: hashed(path, "md5"),
        "load and compare": compared,
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            weights = {f"w{i}": torch.randn(rows, 4096).bfloat16() for i in range(count)}
            save_file(weights, path)
            del weights
            for _ in range(1 if smoke else 5):
                for name, work in sides.items():
                    times[name].append(processor_ms(work, path))
            _, mib = output_and_peak([sys.executable, "-c", PEAK, str(path), str(path)])
            _, idle_mib = output_and_peak([sys.executable, "-c", "import torch"])
    finally:
        torch.set_num_threads(threads)
    ms = {name: statistics.median(found) for name, found in times.items()}
    what = "passport of a file of 1 GiB, one thread"
    return [
        Claim(what, ms["passport"], "reading it", ms["read"], "ms", 1.25),
        Claim(what, ms["passport"], "XXH3_128 of it", ms["xxh3"], "ms", 0.8, True),
        Claim(what, ms["passport"], "SHA-256 of it", ms["sha256"], "ms", 3, True),
        Claim(what, ms["passport"], "MD5 of it", ms["md5"], "ms", 5, True),
        Claim("passports of both, compared", 2 * ms["passport"], "load and torch.equal",
              ms["load and compare"], "ms", 0.5, True),
        Claim("passport diff of two files of 1 GiB, peak", mib, "import torch", idle_mib, "MB",
              1.3),
    ]  # fmt: skip

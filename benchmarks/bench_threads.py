"""Eight threads that record at once, in C: what a pair costs each, and whether a record is lost."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Claim

ROOT = Path(__file__).resolve().parent.parent
THREADS = 8


def build() -> Path:
    """Compiles the engine with ``threads.c``; a few seconds."""
    program = ROOT / "build" / "bench" / "threads"
    program.parent.mkdir(parents=True, exist_ok=True)
    flags_of = [sys.executable, str(ROOT / "csrc" / "flags.py")]
    listed = subprocess.run(
        [*flags_of, "--sources", "csrc/engine"], check=True, capture_output=True, text=True
    )
    kernels = program.parent / "kernel_sources.c"
    subprocess.run([sys.executable, "csrc/embed.py", str(kernels)], check=True, cwd=ROOT)
    objects = []
    for source in [*listed.stdout.split(), str(kernels)]:
        flags = subprocess.run([*flags_of, source], check=True, capture_output=True, text=True)
        target = program.parent / (Path(source).stem + ".o")
        command = ["gcc", *flags.stdout.split(), "-O3", "-Icsrc/engine", "-c", source]
        subprocess.run([*command, "-o", str(target)], check=True, cwd=ROOT)
        objects.append(str(target))
    link = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O3", "-Icsrc/engine", "benchmarks/threads.c"]
    libraries = ["-lpthread", "-ldl", "-lm"]
    subprocess.run([*link, *objects, *libraries, "-o", str(program)], check=True, cwd=ROOT)
    return program


def measure(program: Path, threads: int, pairs: int) -> tuple[float, int]:
    """Thread CPU time of a pair in ns, and the records lost."""
    output = subprocess.run(
        [str(program), str(threads), str(pairs)], check=True, capture_output=True, text=True
    ).stdout.split()
    return float(output[0]), int(output[1])


def run(smoke: bool) -> list[Claim]:
    program = build()
    one, many, lost = [], [], 0
    for _ in range(1 if smoke else 7):
        one.append(measure(program, 1, 20_000 if smoke else 1_000_000)[0])
        figure, dropped = measure(program, THREADS, 20_000 if smoke else 500_000)
        many.append(figure)
        lost += dropped
    return [
        Claim(f"a pair, {THREADS} threads, thread CPU", statistics.median(many), "one thread",
              statistics.median(one), "ns", 1.3),
        Claim("records lost by them (+1)", lost + 1, "none (+1)", 1, "", 1),
    ]  # fmt: skip

"""The kernels of aarch64 against those of x86-64, in instructions that QEMU counts.

Instructions are counted for as many bytes as a vector has: 16 for NEON, 32 for AVX2. Where both
need as many, NEON is half as fast at the same rate of instructions. No time is measured: an
emulator has none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.harness import Claim, NotMeasured, Row

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"

BOUND = 1.5
PASSES = 3

KERNELS = (
    "base/cpu", "base/error", "base/parallel", "tensor/", "hash/", "stats/stats", "stats/nan_inf",
    "compare/", "csv/csv_scan",
)  # fmt: skip
"""How the paths of the C files begin that the program needs."""


@dataclass(frozen=True)
class Machine:
    """A processor to emulate: its instruction set, its compiler, and the bytes of its vectors."""

    name: str
    set: str
    emulator: tuple[str, ...]
    vector: int

    @property
    def compiler(self) -> str:
        return f"{self.name}-linux-gnu-gcc"

    def missing(self) -> list[str]:
        return [name for name in (self.compiler, self.emulator[0]) if not shutil.which(name)]


ARM = Machine("aarch64", "NEON", ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"), 16)
INTEL = Machine("x86_64", "AVX2", ("qemu-x86_64", "-cpu", "max"), 32)


def compile_one(machine: Machine, source: str) -> str:
    """The object of one C file, compiled as it is for use."""
    environment = {**os.environ, "MY_UTILS_MACHINE": machine.name}
    flags = subprocess.run(
        [sys.executable, "csrc/flags.py", source],
        check=True, cwd=ROOT, env=environment, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    target = BUILD / machine.name / f"{Path(source).stem}.o"
    command = [machine.compiler, *flags, "-Icsrc/engine", "-c", source, "-o", str(target)]
    subprocess.run(command, check=True, cwd=ROOT)
    return str(target)


def build(machine: Machine) -> Path:
    """The program that runs the kernels."""
    environment = {**os.environ, "MY_UTILS_MACHINE": machine.name}
    listed = subprocess.run(
        [sys.executable, "csrc/flags.py", "--sources", "csrc/engine"],
        check=True, cwd=ROOT, env=environment, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    begins = tuple(f"csrc/engine/{name}" for name in KERNELS)
    sources = [source for source in listed if source.startswith(begins)]
    (BUILD / machine.name).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = pool.map(
            lambda source: compile_one(machine, source), [*sources, "benchmarks/instructions.c"]
        )
    program = BUILD / machine.name / "instructions"
    link = [machine.compiler, *objects, "-lpthread", "-ldl", "-lm", "-o", str(program)]
    subprocess.run(link, check=True)
    return program


def build_plugin() -> Path:
    plugin = BUILD / "instruction_counter.so"
    command = ["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]
    source = "benchmarks/instruction_counter.c"
    subprocess.run([*command, source, "-o", str(plugin)], check=True, cwd=ROOT)
    return plugin


class Counter:
    """The instructions of the kernels on one machine."""

    def __init__(self, machine: Machine, plugin: Path) -> None:
        self.machine = machine
        self.command = [*machine.emulator, "-plugin", str(plugin), str(build(machine))]

    def run(self, *arguments: str) -> tuple[str, int]:
        """What the program prints, and the instructions that it ran."""
        done = subprocess.run(
            [*self.command, *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout, int(done.stderr.split()[-1])

    def kernels(self) -> list[str]:
        return self.run()[0].split()

    def a_vector(self, kernel: str) -> float:
        """Instructions for as many bytes as one vector of the machine holds."""
        _, before = self.run(kernel, "0")
        bytes_of_pass, total = self.run(kernel, str(PASSES))
        return (total - before) / (PASSES * int(bytes_of_pass)) * self.machine.vector


@cache
def counters() -> tuple[Counter, Counter]:
    """Of aarch64 and of x86-64, built once."""
    BUILD.mkdir(parents=True, exist_ok=True)
    plugin = build_plugin()
    return Counter(ARM, plugin), Counter(INTEL, plugin)


def run(smoke: bool) -> list[Row]:
    missing = [*ARM.missing(), *INTEL.missing()]
    if missing:
        return [NotMeasured("instructions of the kernels of aarch64", ", ".join(missing))]
    arm, intel = counters()
    names = arm.kernels()
    return [
        Claim(f"{name}, {ARM.set}, instructions", arm.a_vector(name),
              f"{INTEL.set}, instructions", intel.a_vector(name), "", BOUND)
        for name in (names[:1] if smoke else names)
    ]  # fmt: skip

"""The tensor hash: its kernels in C against XXH3_128 and the plain read of memory, and calls from
Python against what users write."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.harness import Claim, NotMeasured, Row, take_turns
from my_utils.tensors import tensor_hash

ROOT = Path(__file__).resolve().parent.parent
CALLS = 2000
MODEL = 288
"""tensors"""


def build(flags: list[str], name: str) -> Path:
    """Compiles the kernels as they are built for use, and the program with `flags`."""
    program = ROOT / "build" / "bench" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    flags_of = [sys.executable, str(ROOT / "csrc" / "flags.py")]
    listed = subprocess.run(
        [*flags_of, "--sources", "csrc/engine"], check=True, capture_output=True, text=True
    )
    wanted = ("cpu", "tensor", "parallel", "error")
    objects = []
    for source in listed.stdout.split():
        if not Path(source).name.startswith(wanted):
            continue
        given = subprocess.run([*flags_of, source], check=True, capture_output=True, text=True)
        target = program.parent / (Path(source).stem + ".o")
        command = ["gcc", *given.stdout.split(), "-Icsrc/engine", "-c", source, "-o", str(target)]
        subprocess.run(command, check=True, cwd=ROOT)
        objects.append(str(target))
    link = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O3", *flags, "-Icsrc/engine"]
    tail = ["-lpthread", "-ldl", "-lm", "-o", str(program)]
    source = "benchmarks/tensor_hash.c"
    subprocess.run([*link, source, *objects, *tail], check=True, cwd=ROOT)
    return program


def measure(program: Path, count: int, rounds: int) -> dict[str, float]:
    """ns of one pass over so many bytes, by side."""
    lines = subprocess.run(
        [str(program), str(count), str(rounds)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return {name: float(ns) for name, ns in (line.split() for line in lines)}


def cpu_has(flag: str) -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and f" {flag} " in cpuinfo.read_text()


def xxhash_folder() -> list[str]:
    """Where pyarrow has the header of xxHash, as flags of the compiler; none without pyarrow."""
    spec = importlib.util.find_spec("pyarrow")
    folders = spec.submodule_search_locations if spec else None
    return [f"-idirafter{folder}/include/arrow/vendored/xxhash" for folder in folders or ()]


def kernels(smoke: bool) -> list[Row]:
    claims: list[Row] = []
    rounds = 1 if smoke else 25
    variants = [("avx2", ["-mavx2"], 0.85)]
    if cpu_has("avx512dq"):
        variants.append(("avx512", ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"], 0.95))
    for kernel, flags, least in variants if cpu_has("avx2") else []:
        program = build([*flags, *xxhash_folder()], f"tensor_hash_{kernel}")
        small = measure(program, 1 << 20, rounds)
        if "xxh3_128" in small:
            claims.append(
                Claim(f"tensor_hash, {kernel}, 1 MiB", small[kernel] / 1e3, "xxh3_128 in C",
                      small["xxh3_128"] / 1e3, "µs", least, faster=True)
            )  # fmt: skip
        else:
            needs = "xxhash.h, of Debian's libxxhash-dev or of `pip install pyarrow`"
            claims.append(NotMeasured(f"tensor_hash, {kernel}, 1 MiB, against xxh3_128", needs))
        large = measure(program, 1 << 22 if smoke else 1 << 28, rounds)
        claims.append(
            Claim(f"tensor_hash, {kernel}, 256 MiB", large[kernel] / 1e6, "plain read",
                  large["read"] / 1e6, "ms", 0.85, faster=True)
        )  # fmt: skip
    return claims


def against_torch(smoke: bool) -> list[Claim]:
    x = torch.randn(1 << 18)
    calls = 10 if smoke else 100

    def many(function: Callable[[torch.Tensor], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(calls):
                function(x)

        return run

    sides = {"ours": many(tensor_hash), "torch": many(torch.hash_tensor)}
    times = take_turns(sides, calls=calls, rounds=1 if smoke else 15)
    return [
        Claim("tensor_hash, 1 MiB of float32", times["ours"] / 1e3, "torch.hash_tensor",
              times["torch"] / 1e3, "µs", 4, faster=True)
    ]  # fmt: skip


def small_tensors(smoke: bool) -> list[Claim]:
    x = torch.randn(64)
    many = [torch.randn(64) for _ in range(MODEL)]

    def loop() -> None:
        for _ in range(CALLS):
            pass

    def one() -> None:
        for _ in range(CALLS):
            tensor_hash(x)

    def seed() -> None:
        for _ in range(CALLS):
            hashlib.md5(x.detach().cpu().contiguous().numpy().tobytes())

    def listed() -> None:
        for _ in range(CALLS // MODEL):
            tensor_hash(many)

    rounds = 3 if smoke else 41
    times = take_turns({"loop": loop, "one": one, "seed": seed}, calls=CALLS, rounds=rounds)
    each = take_turns({"list": listed}, calls=CALLS // MODEL * MODEL, rounds=rounds)["list"]
    one_ns, seed_ns = times["one"] - times["loop"], times["seed"] - times["loop"]
    return [
        Claim("tensor_hash of 64 elements", one_ns, "0.2 µs", 200, "ns", 1),
        Claim("the same", one_ns, "hashlib.md5(… .tobytes())", seed_ns, "ns", 8, faster=True),
        Claim(f"each of a list of {MODEL}", each, "0.16 µs", 160, "ns", 1),
    ]


def run(smoke: bool) -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [*kernels(smoke), *against_torch(smoke), *small_tensors(smoke)]
    finally:
        torch.set_num_threads(threads)

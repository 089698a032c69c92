"""The tensor hash: its kernels in C against XXH3_128 and the plain read of memory, and calls from
Python against what users write and against what torch itself needs for them."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Claim, NotMeasured, Row, take_turns
from my_utils.tensors import tensor_hash, tensor_sums

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
    """ns of one pass over so many bytes, by side; and "huge_pages", see the program."""
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
    variants = [("avx2", ["-mavx2"], 0.85, 0.85)]
    if cpu_has("avx512dq"):
        avx512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
        variants.append(("avx512", avx512, 0.95, 0.95))
    for kernel, flags, least, least_large in variants if cpu_has("avx2") else []:
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
            Claim(f"tensor_hash, {kernel}, 256 MiB, {large['huge_pages']:.0%} huge pages",
                  large[kernel] / 1e6, "plain read", large["read"] / 1e6, "ms", least_large,
                  faster=True)
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


def layouts(smoke: bool) -> list[Claim]:
    """Parts that are not one run of bytes."""
    count, runs = 1 << 22 if smoke else 1 << 27, 256
    data = torch.randint(0, 127, (count,), dtype=torch.uint8)
    columns = data.view(-1, runs)
    matrix = data.view(torch.float32).view(4096, -1)
    sides: dict[str, Callable[[], object]] = {
        "columns": lambda: tensor_sums(columns, (len(columns), 2 * runs), (0, runs)),
        "transposed": lambda: tensor_hash(matrix.T),
        "copy": lambda: matrix.T.contiguous(),
    }
    times = take_turns(sides, calls=1, rounds=1 if smoke else 9)
    gib = (1 << 30) / count / 1e6
    return [
        Claim("columns in runs of 256 bytes, 1 GiB", times["columns"] * gib, "10 GB/s", 107, "ms",
              1),
        Claim("a transposed matrix, 1 GiB", times["transposed"] * gib, "torch's copy of it",
              times["copy"] * gib, "ms", 2, faster=True),
    ]  # fmt: skip


def torch_parts() -> Any:
    """The library made of ``torch_parts.c``, whose functions are called with the GIL held."""
    library = ROOT / "build" / "bench" / "torch_parts.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    include = [f"-I{ROOT / 'csrc' / 'binding'}", f"-I{sysconfig.get_path('include')}"]
    flags = ["-std=c11", "-O3", "-shared", "-fPIC", *include]
    source = str(ROOT / "benchmarks" / "torch_parts.c")
    subprocess.run(["gcc", *flags, source, "-o", str(library)], check=True)
    parts = ctypes.PyDLL(str(library))
    for function in (parts.view_each, parts.ask_each):
        function.argtypes = [ctypes.py_object, ctypes.py_object, ctypes.c_int]
    return parts


def small_tensors(smoke: bool) -> list[Claim]:
    x = torch.randn(64)
    many = [torch.randn(64) for _ in range(MODEL)]
    parts = torch_parts()
    exchange = torch.Tensor.__dlpack_c_exchange_api__  # type: ignore[attr-defined, unused-ignore]
    passes = CALLS // MODEL

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
        for _ in range(passes):
            tensor_hash(many)

    sides = {
        "loop": loop,
        "one": one,
        "view": lambda: parts.view_each(exchange, [x], CALLS),
        "is_neg": lambda: parts.ask_each(torch.Tensor.is_neg, [x], CALLS),
    }
    list_sides = {
        "list": listed,
        "view": lambda: parts.view_each(exchange, many, passes),
        "is_neg": lambda: parts.ask_each(torch.Tensor.is_neg, many, passes),
    }
    rounds = 3 if smoke else 401
    seed_ns = take_turns({"seed": seed}, calls=CALLS, rounds=3 if smoke else 41)["seed"]
    times = take_turns(sides, calls=CALLS, rounds=rounds)
    each = take_turns(list_sides, calls=passes * MODEL, rounds=rounds)
    one_ns = times["one"] - times["loop"]
    torch_ns, torch_each_ns = times["view"] + times["is_neg"], each["view"] + each["is_neg"]
    return [
        Claim("tensor_hash of 64 elements", one_ns, "0.2 µs", 200, "ns", 1),
        Claim("the same", one_ns, "DLPack view + is_neg", torch_ns, "ns", 1.15),
        Claim("the same", one_ns, "hashlib.md5(… .tobytes())", seed_ns - times["loop"], "ns", 8,
              faster=True),
        Claim(f"each of a list of {MODEL}", each["list"], "0.16 µs", 160, "ns", 1),
        Claim("the same", each["list"], "DLPack view + is_neg", torch_each_ns, "ns", 1.15),
    ]  # fmt: skip


def run(smoke: bool) -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [*kernels(smoke), *against_torch(smoke), *layouts(smoke), *small_tensors(smoke)]
    finally:
        torch.set_num_threads(threads)

"""The C module under ThreadSanitizer, in a program that embeds Python and has own threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from ...conftest import ROOT
from ...support import profile_rows

pytestmark = [pytest.mark.no_torch, pytest.mark.thorough, pytest.mark.timeout(900)]

ROUNDS, THREADS, LAPS = 12, 4, 20

CODE = """
import importlib.util, itertools, sys
spec = importlib.util.spec_from_file_location("my_utils._core", {core!r})
core = importlib.util.module_from_spec(spec)
sys.modules["my_utils._core"] = core
spec.loader.exec_module(core)
timer = core.Timer("embedded")
own = core.Timer("main")
turns = itertools.count()

def record():
    timer.start("outer")
    timer.start("inner")
    timer.stop("inner")
    core.log_event("now", "INSTANT")
    timer.stop("outer")
    timer.step()

def move():
    for number in range(4):
        own.set_step(number)
        own.start("moving")
        core.open_output(
            log_dir={folder!r} + "/" + "ab"[next(turns) % 2], max_csv_bytes=20000,
            io="background" if number == 3 else "inline",
        )
        core.output_state()
        core.troubles()
        timer.aggregates()
        core.set_time_offset_ns(number)
        own.stop("moving")
        own.step()

def end():
    core.close_output()
"""


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program, and the module: compiled once, and then only what has changed."""
    library = sysconfig.get_config_var("LDLIBRARY") or ""
    if shutil.which("gcc") is None or ".so" not in library:
        pytest.skip("needs gcc, and an interpreter with a shared library")
    built = ROOT / "build" / "tsan" / sys.implementation.cache_tag
    flags = "-fsanitize=thread -g -O1"
    subprocess.run(
        [
            sys.executable, "setup.py", "-q", "build_ext",
            f"--build-temp={built / 'temp'}", f"--build-lib={built / 'lib'}",
        ],
        cwd=ROOT, check=True, env={**os.environ, "CC": "gcc", "CFLAGS": flags, "LDFLAGS": flags},
    )  # fmt: skip
    [module] = (built / "lib" / "my_utils").glob("_core*.so")
    program = tmp_path_factory.mktemp("embedding") / "embedding"
    libraries = sysconfig.get_config_var("LIBDIR")
    subprocess.run(
        [
            "gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", *flags.split(),
            f"-I{sysconfig.get_path('include')}", str(ROOT / "tests/fakes/embedding.c"),
            "-o", str(program), f"-L{libraries}", f"-Wl,-rpath,{libraries}",
            f"-lpython{sysconfig.get_config_var('LDVERSION')}", "-lpthread",
        ],
        check=True,
    )  # fmt: skip
    return program, module


def test_nothing_races(sanitized: tuple[Path, Path], tmp_path: Path) -> None:
    program, module = sanitized
    code = CODE.format(core=str(module), folder=str(tmp_path))
    done = subprocess.run(
        [str(program), code, str(ROUNDS)],
        capture_output=True, text=True, timeout=600, check=False,
        env={
            **os.environ,
            "PYTHONHOME": sys.base_prefix,
            "PYTHONPATH": str(ROOT),
            # The interpreter is not built with it: what it does with memory cannot be judged.
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1 second_deadlock_stack=1",
        },
    )  # fmt: skip
    assert "ThreadSanitizer" not in done.stderr, done.stderr[:20000]
    assert done.returncode == 0, done.stderr
    rows = [
        row
        for path in tmp_path.glob("*/*.csv")
        for row in profile_rows.read(path)
        if row.kind == "END" and row.name in ("outer", "inner")
    ]
    assert len(rows) == 2 * ROUNDS * THREADS * LAPS

"""Installs a wheel where nothing else is and uses it: a timer, a trace, sums over an array."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from wheel_build import GLIBC
from wheel_pythons import debian_program, environment, of_this_machine, run

TRIAL = """
import hashlib
import platform
import sys

import numpy

from my_utils import GlobalLogger, MyTimer, _core

version, machine = sys.argv[1:]
assert sys.version.startswith(version + "."), sys.version
assert platform.machine() == machine, platform.machine()
assert _core.nvtx_state()["built"], "built without NVTX"
GlobalLogger().setup("logs", console=False, rank=0, world_size=1)
timer = MyTimer()
with timer.time_stage("stage"):
    pass
timer.step()
numbers = [numpy.arange(count, dtype="float32") for count in (10, 5_000, 70_000)]
assert _core.md5(numbers) == [hashlib.md5(x).hexdigest() for x in numbers]
assert _core.stats(numbers[2]).max == 69_999
assert _core.compare(numbers[2], numbers[2] + 1).max_abs == 1
print(platform.python_version())
"""


def attempt(wheel: Path, version: str, machine: str, tools: Path, folder: Path) -> str:
    """Tries the wheel; how, in words. RuntimeError where it does not work."""
    own = of_this_machine(version)
    if own and machine == platform.machine():
        program: list[str] = [str(environment(folder / "venv", own, str(wheel)))]
        env, how = {**os.environ}, ""
    else:
        program = debian_program(version, machine)
        unpack(wheel, version, machine, tools, folder / "site")
        env = {**os.environ, "PYTHONPATH": str(folder / "site"), "PYTHONNOUSERSITE": "1"}
        how = ", Debian's" + (", under QEMU" if machine != platform.machine() else "")
    ran = run(*program, "-c", TRIAL, version, machine, cwd=folder, env=env).splitlines()[-1]
    rows = next((folder / "logs").glob("*.csv"))
    trace = folder / "trace.json"
    run(*program, "-m", "my_utils.csv2trace", rows, "-o", trace, cwd=folder, env=env)
    if '"stage"' not in trace.read_text(encoding="utf-8"):
        raise RuntimeError("the trace lacks the stage")
    return f"installed and tried with {ran}{how}"


def unpack(wheel: Path, version: str, machine: str, tools: Path, site: Path) -> None:
    """Installs the wheel and what it requires for another interpreter, as its own pip would."""
    kind = f"cp{version.replace('.', '')}"
    platforms = [f"manylinux_{GLIBC[0]}_{minor}_{machine}" for minor in range(GLIBC[1], 4, -1)]
    options = [f"--platform={name}" for name in [*platforms, f"manylinux2014_{machine}"]]
    options += [f"--abi={abi}" for abi in (kind, "abi3", "none")]
    run(
        tools / "pip", "install", "-q", "--only-binary=:all:", "--implementation=cp",
        f"--python-version={version}", *options, f"--target={site}", wheel,
    )  # fmt: skip

"""A fresh virtual environment with torch and my_utils in it.

In the gate it takes its torch from that of the tests, by a `.pth` file, and my_utils is copied into
it, with the scripts that pip would write. `make thorough` installs both with pip.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ..conftest import ROOT

TORCH = importlib.util.find_spec("torch")


class Environment:
    """A virtual environment, and its commands in a folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.bin = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", *options, str(folder)], check=True)
        (self.site,) = folder.glob("lib/python*/site-packages")
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        self.variables = kept | {"PATH": f"{self.bin}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def run(self, command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=folder, env=self.variables, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def start(
        self, command: Sequence[str], folder: Path, more: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        """With `more` in its environment; its outputs are one pipe."""
        return subprocess.Popen(
            [str(self.bin / command[0]), *command[1:]],
            cwd=folder, env={**self.variables, **more}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def write_script(self, name: str, function: str) -> None:
        """As pip writes it for an entry point."""
        module, _, attribute = function.partition(":")
        path = self.bin / name
        path.write_text(
            f"#!{self.bin}/python\nimport sys\nfrom {module} import {attribute}\n"
            f"sys.exit({attribute}())\n"
        )
        path.chmod(0o755)


def with_torch_of_the_tests(folder: Path) -> Environment:
    made = Environment(folder, "--without-pip")
    assert TORCH is not None and TORCH.origin is not None
    (made.site / "of_the_tests.pth").write_text(f"{Path(TORCH.origin).parents[1]}\n")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "my_utils", made.site / "my_utils", ignore=ignored)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, function in {**scripts, "torchrun": "torch.distributed.run:main"}.items():
        made.write_script(name, function)
    return made


def installed(folder: Path) -> Environment:
    made = Environment(folder)
    made.variables |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    install = ["pip", "install", "-q", "--disable-pip-version-check", "-c", "constraints.txt"]
    wanted = [line for line in (ROOT / "constraints.txt").read_text().splitlines()
              if line.startswith("torch==")]  # fmt: skip
    index = os.environ.get("TORCH_INDEX", "")
    done = made.run([*install, *(["--index-url", index] if index else []), *wanted], ROOT)
    if done.returncode != 0:
        pytest.skip(f"pip installs no torch here: {done.stderr.strip().splitlines()[-1:]}")
    # Its own copy of the sources: building leaves files beside them, and other tests read those.
    sources = folder / "sources"
    unwanted = shutil.ignore_patterns(".*", "build", "*.so", "__pycache__")
    shutil.copytree(ROOT, sources, ignore=unwanted)
    done = made.run([*install, ".[torch]"], sources)
    assert done.returncode == 0, done.stderr
    return made

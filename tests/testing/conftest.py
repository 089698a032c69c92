"""Test suites that pytest runs in processes of their own, with the plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ..conftest import ROOT

PLUGIN = "my_utils.testing.plugin"
# What is installed beside it would be loaded too, and the plugin a second time by its entry point.
NO_OTHER_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
COUNT = re.compile(r"(\d+) (passed|failed|error|skipped|warning|xfailed)")


class Suite:
    """A folder with tests. `run` gives what pytest prints, `counts` what its last line counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("pytest.ini", "[pytest]\n")

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def start(
        self, *arguments: str, ranks: int = 0, plugin: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """ranks: how many torchrun starts."""
        launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"] if ranks else []
        with_plugin = ["-p", PLUGIN] if plugin else []
        outside = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, *launcher, "-m", "pytest", *with_plugin, *arguments],
            env={**outside, "PYTHONPATH": path, **NO_OTHER_PLUGINS, **env},
            cwd=self.folder, timeout=280, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def run(self, *arguments: str, ranks: int = 0, plugin: bool = True, **env: str) -> str:
        """What a run prints that ends with tests passed or failed."""
        done = self.start(*arguments, ranks=ranks, plugin=plugin, **env)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return done.stdout


def counts(output: str) -> dict[str, int]:
    """
    >>> counts("==== 1 failed, 2 passed in 0.10s ====")
    {'failed': 1, 'passed': 2}
    """
    last = output.rstrip().splitlines()[-1]
    return {word: int(number) for number, word in COUNT.findall(last)}


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)

"""What runs without torch, and what the rest says then."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import ROOT

pytestmark = pytest.mark.no_torch

# Of the public paths, those whose import needs torch, and those some of whose names do.
NEED_TORCH = ["my_utils.musa.musa_extension", "my_utils.torch_ops"]
NAMES_NEED_TORCH = [
    "my_utils.compare_tool",
    "my_utils.moduleProfiler",
    "my_utils.module_hook",
    "my_utils.testing",
    "my_utils.utils",
]

# torch and packages beside it are hidden where they are installed.
WITHOUT_TORCH = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors", "tensordict"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
"""

IMPORT_ALL = """
import importlib, json, pathlib, re, sys

page = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
said = {}
for path in sorted(set(re.findall(r"`(my_utils\\.[\\w.]+)`", page)) | {"my_utils.torch_ops"}):
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        said[path] = [str(error)]
        continue
    beside = ["DebugLayer"] if path == "my_utils.utils" else []
    for name in [*getattr(module, "__all__", ()), *beside]:
        try:
            getattr(module, name)
        except ImportError as error:
            said.setdefault(path, []).append(str(error))
assert "torch" not in sys.modules
print(json.dumps(said))
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_needs_torch_says_so_in_one_line_and_nothing_else_does() -> None:
    done = run(IMPORT_ALL, str(ROOT / "docs" / "names.md"))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert sorted(said) == sorted(NEED_TORCH + NAMES_NEED_TORCH)
    for path, texts in said.items():
        for text in texts:
            assert " needs " in text, path
            assert text.endswith("which is not installed: pip install torch"), path
            assert "\n" not in text


@pytest.mark.parametrize(
    ("purpose", "program"),
    [
        ("DebugLayer", "from my_utils import DebugLayer"),
        (
            "ControlRandom",
            "from my_utils.tensors.random_states.control_random import capture; capture()",
        ),
    ],
)
def test_what_is_used_without_torch_says_so(purpose: str, program: str) -> None:
    done = run(program)
    assert done.returncode != 0
    expected = f"{purpose} needs torch, which is not installed: pip install torch"
    assert done.stderr.splitlines()[-1] == f"ImportError: {expected}"


def test_a_dump_of_arrays_needs_no_safetensors(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    program = f"""
import numpy
from my_utils.dump_utils import DumpConfig, UniversalDumper, UniversalLoader
cfg = DumpConfig(root_dir={str(tmp_path)!r})
path = UniversalDumper(cfg).dump("here", {{"x": numpy.ones(3)}})
print(UniversalLoader(cfg.root_dir).load(path))
"""
    done = run(program)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == "{'x': array([1., 1., 1.])}\n"


def test_a_package_that_is_there_and_broken_keeps_its_own_error() -> None:
    program = """
from my_utils.core.extras import needs_torch
with needs_torch("this"):
    raise ModuleNotFoundError("No module named 'torch.missing'", name="torch.missing")
"""
    done = run(program)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'torch.missing'"


def test_stages_become_a_trace_without_torch(tmp_path: Path) -> None:
    program = f"""
from my_utils import GlobalLogger, MyTimer, csv_to_trace
GlobalLogger().setup({str(tmp_path)!r})
timer = MyTimer()
with timer.time_stage("forward"):
    pass
timer.step()
print(csv_to_trace({str(tmp_path)!r}, {str(tmp_path)!r} + "/out.json"))
assert "torch" not in sys.modules
"""
    done = run(program)
    assert done.returncode == 0, done.stderr

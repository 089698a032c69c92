"""Programs that musa-converter has written, really run, with a torch_musa that is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..support.torch_musa_stub import write_torch_musa

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("libcst", reason="libcst is not installed")

from my_utils.musa._converter_tree import convert
from my_utils.musa.converter import convert_project, main


@pytest.fixture
def stub(tmp_path: Path) -> dict[str, str]:
    """The environment in which the stub is found."""
    folder = tmp_path / "site"
    write_torch_musa(folder)
    (folder / "other").mkdir()
    (folder / "other/__init__.py").write_text("from . import cuda\n")
    (folder / "other/cuda.py").write_text("class Stream: pass\n")
    return {"PYTHONPATH": str(folder)}


def ported(folder: Path, files: dict[str, str], launch: str = "train.py") -> list[str]:
    """Writes a project and converts it; returns its notes."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    outcomes = list(convert_project(folder, [launch]))
    assert [each.error for each in outcomes if each.error] == []
    again = list(convert_project(folder, [launch]))
    assert sum(each.changes for each in again) == 0, "a second run changes something"
    return [note for each in outcomes for note in each.notes]


@pytest.mark.slow
def test_the_stub_hides_nothing(stub: dict[str, str], run_python: RunPython) -> None:
    for module in ("torch.musa", "torch.backends.mudnn"):
        done = run_python("-c", f"import torch_musa\nimport {module}", env=stub)
        assert "No module named" in done.stderr, module


# --- each way to name an object ---

# What a path leads to with torch_musa; those of other packages stay.
OBJECTS = {
    "torch.cuda.Stream": "torch_musa.core.stream.Stream",
    "torch.cuda.streams.Stream": "torch_musa.core.stream.Stream",
    "torch.cuda.is_available": "torch_musa.core.device.is_available",
    "torch.cuda.CUDAGraph": "torch_musa.musa_graph.graphs.MUSAGraph",
    "torch.cuda.graphs.CUDAGraph": "torch_musa.musa_graph.graphs.MUSAGraph",
    "torch.cuda.amp.autocast": "torch_musa.core.amp.autocast_mode.autocast",
    "torch.cuda.amp.grad_scaler.GradScaler": "torch_musa.core.amp.grad_scaler.GradScaler",
    "torch.cuda.random.manual_seed": "torch_musa.core.random.manual_seed",
    "torch.cuda.memory.memory_allocated": "torch_musa.core.memory.memory_allocated",
    "torch.cuda.nccl.version": "torch_musa.core.mccl.version",
    "torch.cuda.cudart": "torch_musa.core._lazy_init.musart",
    "torch.distributed.is_nccl_available": "torch_musa.is_mccl_available",
    "torch.backends.cudnn.version": "torch_musa.core.mudnn.version",
    "torch.utils.cpp_extension.CUDAExtension": "torch_musa.utils.musa_extension.MUSAExtension",
    "torch.utils.cpp_extension.BuildExtension": "torch_musa.utils.musa_extension.BuildExtension",
    "other.cuda.Stream": "other.cuda.Stream",
}
# Where the import and the use of what it binds stand; {0} and {1}.
PLACES = [
    "{0}\nFOUND = {1}\n",
    "def f():\n    {0}\n    return {1}\nFOUND = f()\n",
    "{0}\ndef f(cuda=None, amp=1):\n    return {1}\nFOUND = f()\n",
    "{0}\ndef f():\n    return [{1} for _ in range(1)][0]\nFOUND = f()\n",
    "class A:\n    {0}\n    FOUND = {1}\nFOUND = A.FOUND\n",
    "try:\n    {0}\nexcept ImportError:\n    raise\nFOUND = {1}\n",
    "if True:\n    {0}\nelse:\n    {0}\nFOUND = {1}\n",
    "import torch\n{0}\nalias = {1}\nFOUND = alias\n",
    "import torch, os\n{0}\nassert os and torch\nFOUND = {1}\n",
    "import other\n{0}\nassert other.cuda.Stream\nFOUND = {1}\n",
]


def forms(path: str) -> Iterator[tuple[str, str]]:
    """The imports of a path, and how it is named afterwards."""
    parts = path.split(".")
    for end in range(1, len(parts)):
        module, rest = ".".join(parts[:end]), ".".join(parts[end:])
        yield f"import {module}", path
        yield f"import {module} as z", f"z.{rest}"
        names = (f"from {module} import {parts[end]}", f"from {module} import {parts[end]} as z")
        yield names[0], rest
        yield names[1], ".".join(["z", *parts[end + 1 :]])


def programs() -> Iterator[tuple[str, str]]:
    for path, wanted in OBJECTS.items():
        for number, (statement, use) in enumerate(forms(path)):
            for place, text in enumerate(PLACES):
                is_hidden = place == 2 and use.split(".")[0] in ("cuda", "amp")
                if not is_hidden and (number + place) % 4 == 0:
                    yield text.format(statement, use), wanted


RUN = """
import json, sys
import torch, torch.distributed, torch.utils.cpp_extension, torch.cuda.amp, other.cuda
import torch_musa, torch_musa.utils.musa_extension
wrong = []
for number, (text, wanted) in enumerate(json.load(open("programs.json"))):
    names = {"__name__": "program"}
    try:
        exec(compile(text, f"program {number}", "exec"), names)
        found = f"{names['FOUND'].__module__}.{names['FOUND'].__qualname__}"
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    if found != wanted:
        wrong.append((text, wanted, found))
print(json.dumps(wrong))
"""


@pytest.mark.slow
def test_every_way_to_name_an_object(
    stub: dict[str, str], run_python: RunPython, tmp_path: Path
) -> None:
    """Four hundred programs: what each names is torch_musa's, or stays another package's."""
    converted = []
    for text, wanted in programs():
        new = convert(text.encode(), False)
        converted.append((new.data.decode(), wanted))
    for text, _ in converted[::5]:
        assert convert(text.encode(), False).changes == 0, "a second run changes something"
    assert len(converted) > 400
    (tmp_path / "programs.json").write_text(json.dumps(converted))
    done = run_python("-c", RUN, env=stub)
    assert done.returncode == 0, done.stderr
    wrong = json.loads(done.stdout)
    assert wrong == [], f"{len(wrong)} of {len(converted)}"


# --- whole programs ---

TRAIN = '''"""Trains."""
import os

os.environ["CUDA_VISIBLE_DEVICES"] = "0"
import torch
import torch.distributed as dist
import torch.backends.cudnn as cudnn
import torch.cuda
from torch.cuda import amp
from torch.cuda.amp import GradScaler
from torch.distributed import is_nccl_available

import lib

cudnn.benchmark = True
torch.backends.cudnn.deterministic = True
is_nccl_avai = is_nccl_available()
dist.init_process_group(
    backend="nccl" if dist.is_nccl_available() else "gloo",
    store=dist.HashStore(), rank=0, world_size=1,
)
model = torch.nn.Linear(2, 2).cuda()
use_cuda = torch.cuda.is_available()
with amp.autocast(enabled=use_cuda):
    loss = model(torch.ones(1, 2).cuda()).sum()
dist.all_reduce(loss.detach())
scaler = GradScaler(enabled=use_cuda)
print(f"Use CUDA: {use_cuda}", dist.get_backend(), is_nccl_avai, dist.Backend.NCCL)
print(os.environ.get("MUSA_VISIBLE_DEVICES"), loss.is_cuda, torch.backends.cudnn.benchmark)
print(lib.where(), lib.compat.cuda.memory_allocated(), type(scaler).__module__)
dist.destroy_process_group()  # else its threads may abort the exit
'''
LIBRARY = {
    "lib/__init__.py": "from . import compat\nfrom .compat import *\nfrom .where import where\n",
    "lib/compat.py": "__all__ = ['cuda']\ntry:\n    from torch import cuda\n"
    "except ImportError:\n    cuda = None\n",
    "lib/where.py": "from .compat import cuda\n\n\ndef where():\n"
    "    return cuda.current_device(), cuda.Stream.__name__, f'cuda:{0}'\n",
}


def test_a_training(stub: dict[str, str], run_python: RunPython, tmp_path: Path) -> None:
    notes = ported(tmp_path / "project", {"train.py": TRAIN, **LIBRARY})
    done = run_python("project/train.py", env=stub)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Use CUDA: True mccl True mccl",
        "0 True True",
        "(0, 'Stream', 'musa:0') 7 torch_musa.core.amp.grad_scaler",
    ]
    assert notes == ["line 29: torch_musa 2.7.1 has torch.backends.mudnn without 'benchmark'"]


def test_the_environment_is_set_before_torch_musa_reads_it(
    stub: dict[str, str], run_python: RunPython, tmp_path: Path
) -> None:
    reader = tmp_path / "site/torch_musa/core/__init__.py"
    reader.write_text("import os\nprint(os.environ.get('PYTORCH_MUSA_ALLOC_CONF'))\n")
    text = (
        '"""Trains."""\nimport os\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "cpu:unified"\n'
        "from torch import cuda\nimport torch_musa\nprint(cuda.device_count())\n"
    )
    ported(tmp_path / "project", {"train.py": text})
    done = run_python("project/train.py", env=stub)
    assert (done.stdout, done.returncode) == ("cpu:unified\n1\n", 0), done.stderr


def test_a_setup_script(stub: dict[str, str], run_python: RunPython, tmp_path: Path) -> None:
    text = (
        "from torch.utils.cpp_extension import (\n    BuildExtension,\n    CUDA_HOME,\n"
        "    CUDAExtension,\n)\nfrom torch.utils import cpp_extension as ce\n"
        "flags = {'cxx': [], 'nvcc': ['-O3']}\n"
        "print(CUDAExtension('a', [], extra_compile_args=flags), CUDA_HOME, ce.CUDA_HOME)\n"
        "print(BuildExtension.__module__, ce.load('b', [], extra_cuda_cflags=[]))\n"
        "print(ce.CppExtension.__module__)\n"
    )
    ported(tmp_path / "project", {"setup.py": text}, "setup.py")
    done = run_python("project/setup.py", env=stub)
    assert done.stdout.splitlines() == [
        "a /usr/local/musa /usr/local/musa",
        "torch_musa.utils.musa_extension b",
        "torch.utils.cpp_extension",
    ], done.stderr


def test_imports_by_string(stub: dict[str, str], run_python: RunPython, tmp_path: Path) -> None:
    text = (
        "import importlib\nfrom unittest import mock\n"
        "print(importlib.import_module('torch.cuda').__name__, __import__('torch.cuda').__name__)\n"
        "with mock.patch('torch.cuda.device_count', lambda: 5):\n"
        "    import torch\n    print(torch.cuda.device_count())\n"
    )
    ported(tmp_path / "project", {"train.py": text})
    done = run_python("project/train.py", env=stub)
    assert done.stdout == "torch_musa torch_musa\n5\n", done.stderr


def test_an_option_of_the_projects_own(
    stub: dict[str, str], run_python: RunPython, tmp_path: Path
) -> None:
    files = {
        "train.py": "import argparse, lib\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--is-cuda', action='store_true')\n"
        "print(lib.chosen(parser.parse_args(['--is-cuda'])))\n",
        "lib.py": "def chosen(args):\n    return args.is_cuda\n",
    }
    notes = ported(tmp_path / "project", files)
    assert run_python("project/train.py", env=stub).stdout == "True\n"
    assert notes == ["line 2: is_cuda is an attribute of this project, or of a tensor: left"]


# --- what has no counterpart is said ---


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("import torch\ntorch.cuda.nvtx.range_push('a')", "torch.cuda.nvtx"),
        ("import torch.cuda.nvtx as nvtx\nnvtx.mark('a')", "torch.cuda.nvtx"),
        ("from torch.cuda import nvtx\nnvtx.mark('a')", "torch.cuda.nvtx"),
        ("from torch.cuda.comm import gather\ngather()", "torch.cuda.comm"),
        ("import torch\ntorch.backends.cuda.matmul.allow_tf32 = 1", "torch.backends.cuda"),
        ("import torch\nc = torch.cuda\nc.jiterator.x()", "torch.cuda.jiterator"),
        ("import torch\ntorch._C._cuda_getDevice()", "torch._C._cuda_getDevice"),
        ("from unittest import mock\nmock.patch('torch.cuda.nvtx.mark')", "torch.cuda.nvtx.mark"),
        ("import torch\ntorch.cuda.synchronize()", None),
        ("import lib\nlib.cuda.CUDAGraph()", "CUDAGraph"),
        ("import torch.cuda._sanitizer", "torch.cuda._sanitizer"),
    ],
)
def test_what_torch_musa_lacks_stays_and_is_said(text: str, missing: str | None) -> None:
    converted = convert(f"{text}\n".encode(), False)
    if missing is None:
        assert converted.notes == ()
        return
    (note,) = converted.notes
    assert note.endswith("left") and missing in note
    lines = converted.data.decode().splitlines()
    line = int(note.split()[1].rstrip(":"))
    assert missing.rpartition(".")[2] in lines[line - 1]
    assert "musa" not in lines[line - 1]


def test_notes_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("import torch\nx = 'cuda'\ntorch.cuda.nvtx.mark('a')\n")
    assert main(["-r", str(tmp_path), "-l", str(tmp_path / "a.py")]) == 0
    said = capsys.readouterr().err
    assert f"look: {tmp_path}/a.py: line 3: torch_musa 2.7.1 has no counterpart" in said
    assert "1 to look at" in said

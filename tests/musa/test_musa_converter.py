"""Python scripts rewritten for torch_musa: by what they mean, not by what they look like."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from ..conftest import ROOT, RunPython

pytest.importorskip("libcst", reason="libcst is not installed")

from my_utils.musa._converter_tree import convert
from my_utils.musa.converter import convert_project, main

pytestmark = [pytest.mark.c_code, pytest.mark.no_torch]


def new(text: str, is_launched: bool = False) -> str:
    converted = convert(text.encode(), is_launched)
    again = convert(converted.data, is_launched)
    assert (again.data, again.changes) == (converted.data, 0), "a second run changes something"
    assert (converted.changes == 0) == (converted.data == text.encode())
    return converted.data.decode()


@pytest.mark.parametrize(
    ("old", "wanted"),
    [
        ("import torch\ntorch.cuda.is_available()", "import torch\ntorch.musa.is_available()"),
        (
            "import torch as th\nth.cuda.amp.autocast()",
            "import torch as th\nth.musa.amp.autocast()",
        ),
        ("import torch.cuda.amp as a\na.x", "import torch_musa.core.amp as a\na.x"),
        ("import torch.cuda\ntorch.cuda.x", "import torch, torch_musa\ntorch.musa.x"),
        ("from torch import cuda\ncuda.sync(cuda=1)", "from torch import musa\nmusa.sync(cuda=1)"),
        ("from torch import cuda as c\nc.x", "from torch import musa as c\nc.x"),
        ("from torch.cuda import Event\nEvent()", "from torch_musa import Event\nEvent()"),
        (
            "from torch.cuda import CUDAGraph\nCUDAGraph()",
            "from torch_musa import MUSAGraph\nMUSAGraph()",
        ),
        ("import torch\ntorch.cuda.CUDAGraph()", "import torch\ntorch.musa.MUSAGraph()"),
        (
            "import torch\ntorch.backends.cudnn.benchmark = True",
            "import torch\ntorch.backends.mudnn.benchmark = True",
        ),
        (
            "from torch.backends import cudnn\ncudnn.enabled",
            "from torch.backends import mudnn\nmudnn.enabled",
        ),
        ("import torch\ntorch.version.cuda", "import torch\ntorch.version.musa"),
        (
            "from torch.profiler import ProfilerActivity as P\nP.CUDA",
            "from torch.profiler import ProfilerActivity as P\nP.MUSA",
        ),
        ("from lib import *\ntorch.cuda.f()", "from lib import *\ntorch.musa.f()"),
        ("x = model.cuda()", "x = model.musa()"),
        ("x = f(y).cuda(0, non_blocking=True)", "x = f(y).musa(0, non_blocking=True)"),
        ("x = [t.cuda() for t in ts]", "x = [t.musa() for t in ts]"),
        ("x.is_cuda", "x.is_musa"),
        (
            "class M:\n  def cuda(self): return super().cuda()",
            "class M:\n  def musa(self): return super().musa()",
        ),
        ("d = 'cuda'", "d = 'musa'"),
        ('d = "cuda:0"', 'd = "musa:0"'),
        ('d = r"""cuda:12"""', 'd = r"""musa:12"""'),
        ('d = f"cuda:{rank}"', 'd = f"musa:{rank}"'),
        ('d = "cuda:" + str(0)', 'd = "musa:" + str(0)'),
        ('d = "cuda:%d" % 0', 'd = "musa:%d" % 0'),
        ('d = "cuda:{}".format(0)', 'd = "musa:{}".format(0)'),
        ("import torch\nimport torch.cuda\nf()", "import torch\nimport torch_musa\nf()"),
        (
            "import torch.backends.cudnn as cudnn\ncudnn.benchmark = True",
            "from torch.backends import mudnn as cudnn\ncudnn.benchmark = True",
        ),
        ("import torch.backends.cudnn\nf()", "import torch.backends\nf()"),
        (
            "from torch.cuda import Event, random\nrandom.seed(Event)",
            "from torch_musa import Event; from torch_musa.core import random\nrandom.seed(Event)",
        ),
        (
            "try:\n  from torch import cuda\nexcept ImportError:\n  cuda = None\ncuda.x",
            "try:\n  from torch import musa as cuda\nexcept ImportError:\n  cuda = None\ncuda.x",
        ),
        (
            "from torch import cuda\n__all__ = ['cuda_x', 'cuda']",
            "from torch import musa as cuda\n__all__ = ['cuda_x', 'cuda']",
        ),
        (
            "import torch.distributed as d\nd.Backend.NCCL, d.is_nccl_available()",
            "import torch.distributed as d\nd.Backend.MCCL, d.is_mccl_available()",
        ),
        ("Backend.NCCL", "Backend.MCCL"),
        ("cudnn = torch.backends.cudnn\ncudnn.x = 1", "cudnn = torch.backends.mudnn\ncudnn.x = 1"),
        ("c = torch.cuda\nc.CUDAGraph()", "c = torch.musa\nc.MUSAGraph()"),
        ("map(torch.Tensor.cuda, x)", "map(torch.Tensor.musa, x)"),
        ('init("NCCL")', 'init("MCCL")'),
        ('init("nccl")', 'init("mccl")'),
        ('init("cpu:gloo,cuda:nccl")', 'init("cpu:gloo,musa:mccl")'),
        ('e["CUDA_VISIBLE_DEVICES"] = "0"', 'e["MUSA_VISIBLE_DEVICES"] = "0"'),
        ('e["NCCL_DEBUG"]', 'e["MCCL_DEBUG"]'),
        ('x.type() == "torch.cuda.FloatTensor"', 'x.type() == "torch.musa.FloatTensor"'),
        (
            "from torch.utils.cpp_extension import BuildExtension, CUDAExtension\nCUDAExtension",
            "from torch_musa.utils.musa_extension import BuildExtension, MUSAExtension\n"
            "MUSAExtension",
        ),
        (
            "from torch.utils.cpp_extension import CUDA_HOME, CUDAExtension\nCUDAExtension()",
            "from torch_musa.utils.musa_extension import MUSA_HOME, MUSAExtension\nMUSAExtension()",
        ),
    ],
)
def test_what_means_cuda(old: str, wanted: str) -> None:
    assert new(old + "\n") == wanted + "\n"


def test_where_the_converter_of_torch_musa_differs() -> None:
    """The rows of the table in docs/port that a script can show: the user's names and prose stay,
    and what torch_musa lacks or cannot import does not come up."""
    lines = [
        ("from torch.distributed import is_nccl_available",
         "from torch.distributed import is_mccl_available"),
        ("has_nccl = is_nccl_available()", "has_nccl = is_mccl_available()"),
        ("use_cuda = torch.cuda.is_available()", "use_cuda = torch.musa.is_available()"),
        ('print(f"CUDA: {use_cuda}")  # CUDA', 'print(f"CUDA: {use_cuda}")  # CUDA'),
        ("numba.cuda.jit(f)", "numba.cuda.jit(f)"),
        ('run(["CUDAExecutionProvider"])', 'run(["CUDAExecutionProvider"])'),
        ("import torch.backends.cudnn as cudnn", "from torch.backends import mudnn as cudnn"),
        ("from torch.cuda.amp import autocast", "from torch_musa.core.amp import autocast"),
        ("torch.backends.cuda.matmul.allow_tf32 = True",
         "torch.backends.cuda.matmul.allow_tf32 = True"),
        ("torch.cuda.nvtx.mark('x')", "torch.cuda.nvtx.mark('x')"),
        ("from torch.utils.cpp_extension import CppExtension",
         "from torch.utils.cpp_extension import CppExtension"),
        ("cudnn.enabled, autocast, CppExtension", "cudnn.enabled, autocast, CppExtension"),
    ]  # fmt: skip
    head = '"""Trains."""\nfrom __future__ import annotations\nimport torch, numba\n'
    old, wanted = ("".join(line + "\n" for line in side) for side in zip(*lines, strict=True))
    assert new(head + old) == head + wanted
    launched = new(head + old, is_launched=True)
    assert launched.splitlines()[:3] == [*head.splitlines()[:2], "import torch_musa"]


@pytest.mark.parametrize(
    "text",
    [
        "# torch.cuda, x.cuda(), 'cuda:0'\nx = 1",
        '"""torch.cuda\n\ncuda\n"""',
        "'cuda'",
        "u = 'https://docs.nvidia.com/cuda/index.html'",
        "u = 'see torch.cuda for more'",
        "u = 'cuda is fast'",
        "u = 'cuda/ops.cu'",
        "u = ('cuda' ' is fast')",
        "u = f'cuda:{a} and {b}'",
        "u = b'cuda'",
        "u = 'cuda:x'",
        "u = 'ncclx'",
        "from numba import cuda\ncuda.jit(cuda.x)",
        "import numba\nnumba.cuda.jit()\nnumba.cuda()",
        "import cupy as cp\ncp.cuda.Device(0).use()",
        "if args.cuda: pass",
        "use_cuda = 1\ncuda_x = 2\nbarracuda = 3",
        "def cuda(): return cuda()",
        "cuda = True\nif cuda: pass",
        "from .cuda import x",
        "from . import cuda\ncuda.x()",
        "from torch.utils.cpp_extension import BuildExtension, CppExtension",
        "f(cuda=1)",
    ],
)
def test_what_only_looks_like_it(text: str) -> None:
    assert new(text + "\n") == text + "\n"


def test_layout_stays() -> None:
    text = 'import torch\r\n\r\nx  =  torch . cuda . f( "cuda" )   # cuda\r\n\tif_ = 1\r\n'
    text = text.replace("\tif_", "if_")
    assert new(text) == text.replace("torch . cuda", "torch . musa").replace('"cuda"', '"musa"')


def test_encodings() -> None:
    text = "# -*- coding: latin-1 -*-\nx = 'Größe'\nd = 'cuda'\n"
    assert convert(text.encode("latin-1"), False).data == text.replace("cuda", "musa").encode(
        "latin-1"
    )
    marked = "\ufeffd = 'cuda'\n".encode()
    assert convert(marked, False).data == marked.replace(b"cuda", b"musa")


def test_a_launched_script_is_the_projects_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no file of the same name in the working directory."""
    (tmp_path / "project").mkdir()
    for folder in (tmp_path, tmp_path / "project"):
        (folder / "train.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    list(convert_project("project", ["train.py"]))
    assert (tmp_path / "train.py").read_text() == "import torch\n"
    assert "import torch_musa" in (tmp_path / "project" / "train.py").read_text()


@pytest.mark.parametrize(
    ("old", "wanted"),
    [
        ("x = 1\n", "import torch_musa\nx = 1\n"),
        ("", "import torch_musa\n"),
        ("#!/bin/python\n# a\n\nx = 1\n", "#!/bin/python\n# a\n\nimport torch_musa\nx = 1\n"),
        ('"""Doc."""\nx = 1\n', '"""Doc."""\nimport torch_musa\nx = 1\n'),
        (
            '"""Doc."""\n\nfrom __future__ import annotations\n\nimport torch\n',
            '"""Doc."""\n\nfrom __future__ import annotations\nimport torch_musa\n\nimport torch\n',
        ),
        ("import torch\nimport torch_musa\n", "import torch\nimport torch_musa\n"),
        ("import os, torch_musa as t\n", "import os, torch_musa as t\n"),
        ("import torch\r\n", "import torch_musa\r\nimport torch\r\n"),
    ],
)
def test_the_launched_script_imports_torch_musa_once(old: str, wanted: str) -> None:
    assert new(old, is_launched=True) == wanted
    compile(wanted, "script", "exec")


LINES = [
    "import torch",
    "from torch import cuda",
    "from numba import cuda",
    "x = cuda",
    "x = torch.cuda",
    "x.cuda()",
    "cuda()",
    "'cuda'",
    "y = 'cuda:1'",
    "y = f'cuda:{x}'",
    "def cuda(cuda=1): return cuda",
    "class A:\n    cuda = 1\n    def cuda(self): return self.cuda",
    "for cuda in x: cuda.f()",
    "lambda cuda: cuda.is_cuda",
    "from torch.cuda import *",
    "import torch.cuda as cuda, torch.cuda",
]


@given(st.lists(st.sampled_from(LINES), max_size=8), st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_source_stays_python_and_settles(lines: list[str], is_launched: bool) -> None:
    compile(new("\n".join(lines) + "\n", is_launched), "script", "exec")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name, text in {
        "train.py": '"""Trains."""\nfrom __future__ import annotations\nx.cuda()\n',
        "lib/a.py": "d = 'cuda'\n",
        "lib/broken.py": "d = 'cuda'\ndef (\n",
        "lib/deep/b.py": "d = 'nccl'\n",
        "notes.txt": "cuda",
        ".git/c.py": "d = 'cuda'\n",
        "__pycache__/d.py": "d = 'cuda'\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def contents(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in root.rglob("*")
        if path.is_file()
    }


def test_a_project(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(project)
    (project / "lib/a.py").chmod(0o750)
    (project / "link.py").symlink_to("lib/a.py")
    assert main(["-r", str(project), "-l", "train.py", "-e", "lib/deep"]) == 1
    said = capsys.readouterr().err
    assert f"left: {project}/lib/broken.py: line 2" in said
    assert "3 files, 2 changed in 3 places" in said
    after = contents(project)
    assert after.pop("link.py") == "d = 'musa'\n"
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"train.py", "lib/a.py"}
    assert after["train.py"] == (
        '"""Trains."""\nfrom __future__ import annotations\nimport torch_musa\nx.musa()\n'
    )
    assert (project / "lib/a.py").stat().st_mode & 0o777 == 0o750
    (project / "lib/broken.py").unlink()
    command = ["-r", str(project), "-l", str(project / "train.py"), "--check"]
    assert main([*command, "-e", "lib/deep"]) == 0
    assert main(command) == 1


def test_dry_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(project)
    (project / "lib/broken.py").unlink()
    assert main(["-r", str(project), "-l", str(project / "train.py"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert f"--- {project}/lib/a.py\n+++ {project}/lib/a.py\n" in shown
    assert "-d = 'cuda'\n+d = 'musa'\n" in shown
    before.pop("lib/broken.py")
    assert contents(project) == before


def test_a_shell_script_is_started(project: Path) -> None:
    (project / "run.sh").write_text("python train.py\n")
    said = [each.error for each in convert_project(project, ["run.sh"]) if each.error]
    assert "import torch_musa" in said[0]


@pytest.mark.parametrize(
    "arguments", [[], ["-l", "x.py"], ["-r", "gone", "-l", "x.py"], ["-r", ".", "-l", "gone.py"],
                  ["-r", ".", "-l", "x.py", "-e", "gone"]]
)  # fmt: skip
def test_wrong_usage(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2


def test_without_a_launch_script_none_imports_torch_musa(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import torch\ntorch.cuda.synchronize()\n")
    assert main(["-r", str(tmp_path), "--quiet"]) == 0
    assert (tmp_path / "x.py").read_text() == "import torch\ntorch.musa.synchronize()\n"


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["-h"])
    said = capsys.readouterr().out
    for option in ("-r", "-l", "-e", "--dry-run", "--check", "--jobs", "--quiet"):
        line = said[said.index(f"  {option}") :].split("\n  -")[0]
        assert len(line.split()) >= 4, option
    assert "torch_musa" in said


def test_many_files_in_parallel(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"f{number}.py").write_text("import torch\ntorch.cuda.f('cuda')\n" * 3)
    (tmp_path / "f7.py").write_text("def (\n")
    outcomes = list(convert_project(tmp_path, ["f0.py"], jobs=2))
    assert [each.path.name for each in outcomes if each.error] == ["f7.py"]
    assert [each.path for each in outcomes] == sorted(tmp_path.glob("*.py"))
    for number in range(40):
        text = (tmp_path / f"f{number}.py").read_text()
        assert ("torch.musa.f('musa')" in text) == (number != 7)


def test_libcst_is_asked_for_when_it_is_needed(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    done = run_python(
        "-c",
        "import sys; sys.modules['libcst'] = None\n"
        "from my_utils.musa.converter import main\n"
        "sys.exit(main(['-r', '.', '-l', 'x.py']))",
    )
    assert done.returncode == 1
    assert "pip install libcst" in done.stderr


def test_this_projects_own_scripts(tmp_path: Path) -> None:
    """Real code: it stays Python, and a second run changes nothing."""
    for name in ("memory_snapshot.py", "pad.py"):
        text = (ROOT / "my_utils" / name).read_bytes()
        converted = convert(text, False)
        compile(converted.data, name, "exec")
        assert convert(converted.data, False).changes == 0, name


def test_as_a_module(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "my_utils.musa.converter", "-r", str(project), "-l", "train.py"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 1 and "changed" in done.stderr

"""How processes are reached, and that those which are not train as if nothing were there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from my_utils.run.environment import SITE_FOLDER

from ..conftest import ROOT, RunPython

STATE = """
import json, sys
print(json.dumps({"modules": sorted(sys.modules), "path": sys.path, "meta": len(sys.meta_path)}))
"""


def reached(tmp_path: Path, **more: str) -> dict[str, str]:
    report = tmp_path / "report"
    report.touch()
    path = os.pathsep.join([SITE_FOLDER, str(ROOT)])
    return {
        "PYTHONPATH": path,
        "MY_UTILS_RUN_REPORT": str(report),
        "MY_UTILS_RUN_PACKAGE": str(ROOT),
        "MY_UTILS_RUN_DIR": str(tmp_path / "run"),
        **more,
    }


@pytest.mark.no_torch
def test_it_imports_nothing(run_python: RunPython, tmp_path: Path) -> None:
    """A bare interpreter has loaded all that it uses."""
    bare = json.loads(run_python("-c", STATE).stdout)
    done = json.loads(run_python("-c", STATE, env=reached(tmp_path)).stdout)
    assert done["modules"] == bare["modules"]
    assert done["path"] == bare["path"]
    assert done["meta"] == bare["meta"] + 1
    assert (tmp_path / "report").read_text() == "python\n"


@pytest.mark.no_torch
@pytest.mark.parametrize("path", [f":{ROOT}", f"{ROOT}:", f"/x::{ROOT}:", str(ROOT)])
@pytest.mark.parametrize("off", ["1", "0"])
def test_the_script_finds_what_it_found(
    run_python: RunPython, tmp_path: Path, path: str, off: str
) -> None:
    """An empty entry means the working directory."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(STATE)
    settings = {"PYTHONPATH": path, "MY_UTILS_RUN": off}
    bare = json.loads(run_python("src/train.py", env=settings).stdout)
    done = run_python("-m", "my_utils.run", "--quiet", "src/train.py", env=settings)
    assert json.loads(done.stdout)["path"] == bare["path"]


@pytest.mark.no_torch
@pytest.mark.parametrize("off", ["0", "off", "no", "False", ""])
def test_off(run_python: RunPython, tmp_path: Path, off: str) -> None:
    bare = run_python("-c", STATE)
    done = run_python("-c", STATE, env=reached(tmp_path, MY_UTILS_RUN=off))
    assert done.stdout == bare.stdout
    assert (tmp_path / "report").read_text() == ""


@pytest.mark.no_torch
@pytest.mark.parametrize(
    "own", ["import os; os.environ['OWN'] = 'yes'", "raise RuntimeError('own')", "import nowhere"]
)
def test_the_users_own_sitecustomize_takes_its_place(
    run_python: RunPython, tmp_path: Path, own: str
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text(own + "\n")
    paths = [str(tmp_path / "own"), str(ROOT)]
    program = (
        "import os, sys; m = sys.modules.get('sitecustomize')\n"
        "print(m and m.__file__, os.environ.get('OWN'), sys.path[1])"
    )
    bare = run_python("-c", program, env={"PYTHONPATH": os.pathsep.join(paths)})
    settings = reached(tmp_path) | {"PYTHONPATH": os.pathsep.join([SITE_FOLDER, *paths])}
    done = run_python("-c", program, env=settings)
    assert (done.stdout, done.stderr, done.returncode) == (bare.stdout, bare.stderr, 0)
    assert ("own/sitecustomize.py yes" in done.stdout) == own.startswith("import os")


@pytest.mark.no_torch
def test_without_one_there_is_none(run_python: RunPython, tmp_path: Path) -> None:
    program = "import sys; print('sitecustomize' in sys.modules); import sitecustomize"
    bare = run_python("-c", program)
    done = run_python("-c", program, env=reached(tmp_path))
    assert (done.stdout, done.stderr) == (bare.stdout, bare.stderr)


def interpreters() -> list[str]:
    """All but those of this one's version, which my_utils may be built for."""
    found = [
        shutil.which(f"python{name}") for name in ("2.7", "3.6", "3.9", "3.10", "3.12", "3.13")
    ]
    pyenv = Path.home() / ".pyenv" / "versions"
    found += [str(path) for path in sorted(pyenv.glob("*/bin/python"))]
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}."
    return [name for name in found if name and "shims" not in name and mine not in name]


@pytest.mark.no_torch
@pytest.mark.parametrize("interpreter", interpreters() or [""])
def test_other_interpreters_notice_nothing(interpreter: str, tmp_path: Path) -> None:
    """Those for which my_utils was not built, with a torch that a script imports."""
    if not interpreter:
        pytest.skip("no other interpreter is installed")
    (tmp_path / "torch.py").write_text("import sys\nsys.stdout.write('torch\\n')\n")
    program = (
        "import sys, torch, torch as again\n"
        "sys.stdout.write('%d %s\\n' % (len(sys.meta_path), 'sitecustomize' in sys.modules))"
    )

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MY_UTILS"))}
        return subprocess.run(
            [interpreter, "-B", "-c", program],
            env={**kept, **variables}, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip

    bare = run()
    done = run(**reached(tmp_path, PYTHONPATH=SITE_FOLDER))
    assert (done.stdout, done.stderr, done.returncode) == (bare.stdout, bare.stderr, 0)
    assert done.stdout.startswith("torch\n")


@pytest.mark.no_torch
@pytest.mark.parametrize(
    ("program", "torches"),
    [
        ("import importlib.util as u; u.find_spec('torch'); import torch", 1),
        ("import importlib.util as u; u.find_spec('torch')", 0),
        ("import sys; sys.modules['torch'] = None", 0),
        ("import torch.nn", 1),
        ("import torch; import importlib; importlib.reload(torch)", 1),
        ("import threading as t; a = [t.Thread(target=__import__, args=('torch',)) for _ in 'ab']; "
         "[b.start() for b in a]; [b.join() for b in a]", 1),
        ("import importlib.util as u, sys; s = u.find_spec('torch'); "
         "s.loader = u.LazyLoader(s.loader); m = u.module_from_spec(s); sys.modules['torch'] = m; "
         "s.loader.exec_module(m); open('lazy', 'w').write(open('report').read()); m.nn", 1),
    ],
)  # fmt: skip
def test_torch_counts_when_it_has_been_executed(
    run_python: RunPython, tmp_path: Path, program: str, torches: int
) -> None:
    """A torch of a few lines, which itself tells what it sees."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("from . import nn\nprint(type(__loader__).__name__)\n")
    (package / "nn.py").touch()
    after = "\nimport sys; print([n for n in vars(sys.modules['torch'].__loader__) if 'exec' in n])"
    text = program + (after if torches else "")
    done = run_python("-c", text, env=reached(tmp_path))
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "report").read_text().splitlines()
    assert said.count("torch") == torches
    if torches:
        assert done.stdout.endswith("SourceFileLoader\n[]\n")
    if (tmp_path / "lazy").exists():
        assert "torch" not in (tmp_path / "lazy").read_text()


@pytest.mark.no_torch
def test_an_import_that_fails_may_be_repeated(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import flag\n")
    program = (
        "try: import torch\nexcept ImportError as error: print(error)\n"
        "open('flag.py', 'w').close(); import importlib; importlib.invalidate_caches()\n"
        "import torch"
    )
    done = run_python("-c", program, env=reached(tmp_path))
    assert (done.stdout, done.stderr) == ("No module named 'flag'\n", "")
    assert (tmp_path / "report").read_text().splitlines()[:2] == ["python", "torch"]


@pytest.mark.no_torch
def test_a_my_utils_of_the_script_is_left_alone(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()
    (tmp_path / "my_utils.py").write_text("print('mine')\n")
    (tmp_path / "train.py").write_text("import torch; print('torch'); import my_utils\n")
    settings = reached(tmp_path, PYTHONPATH=SITE_FOLDER)
    done = run_python("train.py", env=settings)
    assert (done.stdout, done.stderr) == ("torch\nmine\n", "")
    assert f"other {tmp_path}/my_utils.py" in (tmp_path / "report").read_text()


@pytest.mark.no_torch
@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_what_keeps_it_out_is_said(run_python: RunPython, tmp_path: Path, option: str) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    done = run_python("-m", "my_utils.run", "--", sys.executable, option, "train.py")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "nothing was recorded: no Python process reported" in done.stderr
    assert "-I, -E and -S" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list((tmp_path / "logs").iterdir())


@pytest.mark.no_torch
def test_a_program_without_torch_is_said(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    done = run_python("-m", "my_utils.run", "train.py")
    assert "a Python process ran without importing torch" in done.stderr
    quiet = run_python("-m", "my_utils.run", "--quiet", "train.py")
    assert (quiet.stdout, quiet.stderr) == ("trained\n", "")
    assert not re.search("run|latest", " ".join(os.listdir(tmp_path / "logs")))

"""A script in a rank's own process runs as Python itself would have run it."""

from __future__ import annotations

import signal
import zipfile
from pathlib import Path

import pytest

from ..conftest import RunPython

pytestmark = pytest.mark.no_torch

RANK = {"RANK": "0", "WORLD_SIZE": "1"}

STATE = """
import __main__, sys
names = sorted(vars(__main__))
spec = __spec__ and (__spec__.name, __spec__.origin, __spec__.parent)
print(names, __name__, __file__, __package__, __doc__, spec, type(__loader__).__name__)
print(sys.argv, sys.path, __builtins__, sys.modules["__main__"] is __main__)
print(globals().get("__annotations__"))
class Point: pass
import pickle
print(type(pickle.loads(pickle.dumps(Point()))) is Point, Point.__module__)
"""

SPAWN = """
import multiprocessing
def work(number): return number + 1
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1, 2]))
"""

ENDS = {
    "exit": "import sys; sys.exit(3)",
    "text": "raise SystemExit('last words')",
    "exception": "def deep():\n    1 / 0\ndeep()",
    "chain": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('mine') from e",
    "syntax": "x = = 1",
    "hook": "import sys; sys.excepthook = lambda *a: print(a[0].__name__); raise KeyError(1)",
    "atexit": "import atexit; atexit.register(print, 'bye'); raise OSError('x')",
    "thread": "import threading; threading.Thread(target=print, args=('thread',)).start()",
}


def lay_out(folder: Path, text: str) -> None:
    (folder / "train.py").write_text(text)
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").touch()
    (folder / "pkg" / "__main__.py").write_text(text)
    (folder / "pkg" / "train.py").write_text(text)
    (folder / "link.py").symlink_to(folder / "pkg" / "train.py")
    with zipfile.ZipFile(folder / "app.pyz", "w") as file:
        file.writestr("__main__.py", text)


FORMS = [
    ["train.py", "--lr", "-m", "0.1"],
    ["./pkg/train.py"],
    ["link.py", "--", "x"],
    ["pkg", "-o", "x"],
    ["app.pyz"],
    ["-m", "pkg", "--quiet"],
    ["-m", "pkg.train", "-m"],
    ["-m", "train"],
]


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
@pytest.mark.parametrize("switch", ["on", "off"])
def test_the_script_sees_what_it_would_see(
    run_python: RunPython, tmp_path: Path, form: list[str], switch: str
) -> None:
    lay_out(tmp_path, '"""Doc."""\n' + STATE)
    bare = run_python(*form)
    done = run_python("-m", "my_utils.run", *form, env=RANK | {"MY_UTILS_RUN": switch})
    assert bare.returncode == 0, bare.stderr
    assert (done.stdout, done.stderr) == (bare.stdout, bare.stderr)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("form", [["train.py"], ["-m", "pkg.train"]], ids=" ".join)
def test_it_ends_as_it_would_end(
    run_python: RunPython, tmp_path: Path, end: str, form: list[str]
) -> None:
    lay_out(tmp_path, ENDS[end] + "\n")
    bare = run_python(*form)
    done = run_python("-m", "my_utils.run", *form, env=RANK)
    own = [line for line in done.stderr.splitlines() if "my_utils" in line]
    assert own == []
    assert (done.stdout, done.returncode) == (bare.stdout, bare.returncode)
    if form == ["train.py"]:
        assert done.stderr == bare.stderr
    else:
        assert done.stderr.splitlines()[-1:] == bare.stderr.splitlines()[-1:]


@pytest.mark.parametrize("form", [["nowhere.py"], ["-m", "nowhere"], ["-m", "pkg.nowhere"]])
def test_what_is_missing(run_python: RunPython, tmp_path: Path, form: list[str]) -> None:
    lay_out(tmp_path, "")
    bare = run_python(*form)
    done = run_python("-m", "my_utils.run", *form, env=RANK)
    assert (done.stderr, done.returncode) == (bare.stderr, bare.returncode)


def test_ctrl_c_ends_it_by_the_signal(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, signal, time; os.kill(os.getpid(), 2)\n1 + 1\n")
    done = run_python("-m", "my_utils.run", "train.py", env=RANK)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


def test_its_spawned_children_find_it(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWN)
    done = run_python("-m", "my_utils.run", "train.py", env=RANK)
    assert (done.stdout, done.stderr) == ("[2, 3]\n", "")


def test_a_safe_path_stays_safe(run_python: RunPython, tmp_path: Path) -> None:
    lay_out(tmp_path, "import sys; print(sys.path)\n")
    for form in (["train.py"], ["pkg"], ["-m", "my_utils.run.report_file"]):
        bare = run_python("-P", *form)
        done = run_python("-P", "-m", "my_utils.run", *form, env=RANK)
        assert (done.stdout, done.returncode) == (bare.stdout, bare.returncode), done.stderr

"""The parent of a command: signals, exit statuses, the terminal; programs without torch."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from ..conftest import ROOT, RunPython

pytestmark = pytest.mark.no_torch

PASSED_ON = ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT"]

LISTENER = """
import os, signal, sys
def heard(number, frame):  # a second print may not begin in the first
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), heard)
print("ready", flush=True)
for line in sys.stdin:
    print("line", line.strip(), flush=True)
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "my_utils.run", *arguments]


# Not by a preexec_fn: for that the process is forked, with the threads that torch has by then.
STARTER = """
import fcntl, os, signal, sys, termios
terminal, defaults, ignored, *command = sys.argv[1:]
for names, handler in (defaults, signal.SIG_DFL), (ignored, signal.SIG_IGN):
    for name in names.split():
        signal.signal(getattr(signal, name), handler)
if terminal:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(command[0], command)
"""


def started(*words: str, terminal: bool = False, ignored: str = "") -> list[str]:
    """The command `words`, started as a shell does: signals do what they always do.

    Whoever started the tests may ignore some, as nohup does, and Python ignores two. terminal: its
    standard input becomes its terminal. ignored: names of signals that it is to ignore.
    """
    defaults = " ".join([*PASSED_ON, "SIGPIPE", "SIGXFSZ"])
    return [sys.executable, "-c", STARTER, "yes" if terminal else "", defaults, ignored, *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_the_command_has_the_descriptors_of_its_caller(tmp_path: Path) -> None:
    """As bash passes those of `my_utils run train.py <(zcat data.gz)`."""
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "print(os.read(int(sys.argv[1]), 9), sorted(map(int, os.listdir('/proc/self/fd'))))"
    )
    reader, writer = os.pipe()

    def output(*words: str) -> str:
        os.write(writer, b"hello\n")
        return subprocess.run(
            [*words, "train.py", str(reader)], cwd=tmp_path, env=environment(),
            pass_fds=[reader], stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip

    bare = output(sys.executable)
    assert "hello" in bare
    assert output(*command("--quiet")) == bare
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    "options",
    ["-O -u -X faulthandler -W error", "-OOuXutf8 -Wignore -b", "-sP -B",
     "--check-hash-based-pycs always -v", ""],
)  # fmt: skip
def test_options_of_python_are_the_scripts(
    run_python: RunPython, tmp_path: Path, options: str
) -> None:
    (tmp_path / "train.py").write_text(
        "import _imp, sys\n"
        "print(sys.flags, sys._xoptions, sys.warnoptions, sys.stdout.write_through,"
        " _imp.check_hash_based_pycs, sys.argv)"
    )
    for form in (["train.py"], ["-m", "train"]):
        bare = run_python(*options.split(), *form, "-O")
        done = run_python(*options.split(), "-m", "my_utils", "run", "--quiet", *form, "-O")
        assert (done.returncode, done.stdout) == (bare.returncode, bare.stdout)
    command = ["--", sys.executable, "train.py", "-O"]
    done = run_python(*options.split(), "-m", "my_utils", "run", "--quiet", *command)
    assert done.stdout == run_python("train.py", "-O").stdout


@pytest.mark.parametrize("option", ["-E", "-S"])
def test_options_that_would_keep_the_recording_out_are_left_off(
    run_python: RunPython, tmp_path: Path, option: str
) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    words = ["-m", "my_utils.run", "-o", str(tmp_path / "out"), str(tmp_path / "train.py")]
    path = os.pathsep.join([str(ROOT), sysconfig.get_path("platlib")])  # -S finds no other
    done = run_python(option, *words, cwd=ROOT, env={"PYTHONPATH": path})
    assert done.stdout == "ran\n"
    assert "a Python process ran without importing torch" in done.stderr


@pytest.mark.parametrize("status", [0, 1, 3, 255])
def test_it_ends_with_the_status_of_the_script(
    run_python: RunPython, tmp_path: Path, status: int
) -> None:
    (tmp_path / "train.py").write_text(f"import sys; sys.exit({status})")
    assert run_python("-m", "my_utils.run", "train.py").returncode == status
    assert run_python("-m", "my_utils.run", "--", "sh", "-c", f"exit {status}").returncode == status


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGSEGV", "SIGINT", "SIGQUIT", "SIGUSR1"])
def test_it_ends_by_the_signal_of_the_script(
    run_python: RunPython, tmp_path: Path, name: str
) -> None:
    program = (
        "import os, signal\n"
        "for name in ('SIGINT', 'SIGQUIT'):\n"  # which whoever started the tests may ignore
        "    signal.signal(getattr(signal, name), signal.SIG_DFL)\n"
        f"os.kill(os.getpid(), signal.{name})"
    )
    (tmp_path / "train.py").write_text(program)
    done = run_python("-m", "my_utils.run", "train.py")
    assert done.returncode == -getattr(signal, name)
    assert not list(tmp_path.glob("core*"))


def test_an_exception_is_shown_as_python_shows_it(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def step():\n    raise ValueError('mine')\nstep()\n")
    bare = run_python("train.py")
    done = run_python("-m", "my_utils.run", "--quiet", "train.py")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", bare.stderr)


def test_it_passes_signals_on_once_each(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LISTENER)
    process = subprocess.Popen(
        started(*command("--quiet", "train.py", *PASSED_ON)),
        cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,  # no terminal: nothing but this test sends signals
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for name in PASSED_ON:
        process.send_signal(getattr(signal, name))
        assert process.stdout.readline() == f"{name}\n"
    out, _ = process.communicate("end\n")
    assert (out, process.returncode) == ("line end\n", 0)


def test_ctrl_c_comes_once(tmp_path: Path) -> None:
    """A terminal sends SIGINT to the whole foreground group, so the parent must not repeat it."""
    (tmp_path / "train.py").write_text(LISTENER)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        started(*command("--quiet", "train.py", "SIGINT"), terminal=True),
        cwd=tmp_path, env=environment(), stdin=follower, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.write(leader, b"\x03")
    assert process.stdout.readline() == "SIGINT\n"
    os.write(leader, b"after\n")
    assert process.stdout.readline() == "line after\n"
    os.write(leader, b"\x04")
    out, _ = process.communicate()
    assert (out, process.returncode) == ("", 0)
    os.close(leader)
    os.close(follower)


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As under nohup."""
    program = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    (tmp_path / "train.py").write_text(program)
    done = subprocess.run(
        ["nohup", *command("--quiet", "train.py")],
        cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == "True\n"


def test_the_status_is_known_where_children_are_ignored(tmp_path: Path) -> None:
    program = "import signal; print(signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN); exit(7)"
    (tmp_path / "train.py").write_text(program)
    done = subprocess.run(
        started(*command("--quiet", "train.py"), ignored="SIGCHLD"),
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (7, "True\n", "")


def test_the_script_has_the_default_handlers(run_python: RunPython, tmp_path: Path) -> None:
    program = (
        "import signal\n"
        "print([(s.name, str(signal.getsignal(s))) for s in sorted(signal.valid_signals())"
        " if isinstance(s, signal.Signals)], signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    )
    (tmp_path / "train.py").write_text(
        program.replace("signal.getsignal(s)", "signal.getsignal(s)")
    )
    bare = run_python("train.py")
    ran = run_python("-m", "my_utils.run", "--quiet", "train.py")
    at = re.compile(r" at 0x[0-9a-f]+")
    assert at.sub("", ran.stdout) == at.sub("", bare.stdout) != ""


def test_it_inherits_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os; print([os.isatty(fd) for fd in range(3)], os.tcgetpgrp(0) == os.getpgrp())"
    )
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        started(*command("--quiet", "train.py"), terminal=True), cwd=tmp_path, env=environment(),
        stdin=follower, stdout=follower, stderr=follower,
    )  # fmt: skip
    assert process.wait(100) == 0
    assert select.select([leader], [], [], 0)[0]
    assert os.read(leader, 4096) == b"[True, True, True] True\r\n"
    os.close(leader)
    os.close(follower)


@pytest.mark.parametrize(("word", "status"), [("no_such_program", 127), ("./plain.txt", 126)])
def test_a_command_that_cannot_start(
    run_python: RunPython, tmp_path: Path, word: str, status: int
) -> None:
    (tmp_path / "plain.txt").write_text("text")
    done = run_python("-m", "my_utils.run", "--", word)
    assert done.returncode == status
    (line,) = done.stderr.splitlines()  # not why nothing was recorded, too
    assert line.startswith(f"my_utils run: error: cannot run {word}: ")
    assert not list((tmp_path / "logs").iterdir())
    bare = run_python("-m", "my_utils.run", "--", word, env={"MY_UTILS_RUN": "0"})
    assert bare.returncode == status


@pytest.mark.parametrize("switch", ["0", "1"])
def test_a_command_ignores_no_signal_that_only_python_ignores(tmp_path: Path, switch: str) -> None:
    """A pipe ends `yes`, for example, as it does without `my_utils run`."""
    words = ["grep", "SigIgn", "/proc/self/status"]
    settings = {**environment(), "MY_UTILS_RUN": switch}
    bare, done = (
        subprocess.run(
            started(*command_line), cwd=tmp_path, env=settings, stdout=subprocess.PIPE, check=True,
        ).stdout
        for command_line in (words, command("--quiet", "--", *words))
    )  # fmt: skip
    assert done == bare


def test_off_is_the_bare_command(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys; print(os.getpid(), sys.argv, os.environ['PYTHONPATH'])"
    )
    program = (
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen({['-m', 'my_utils.run', 'train.py', '--a']!r}, executable="
        "sys.executable, stdout=subprocess.PIPE, text=True)\n"
        "print(child.communicate()[0].split()[0] == str(child.pid))"
    )
    # The child's argv[0] stands in place of the interpreter's name.
    program = program.replace("['-m'", f"[{sys.executable!r}, '-m'")
    done = run_python("-c", program, env={"MY_UTILS_RUN": "off"})
    assert done.stdout == "True\n", done.stderr
    assert not (tmp_path / "logs").exists()


def test_a_shell_script_is_a_command(run_python: RunPython, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text('#!/bin/sh\necho "$@"; exit 4\n')
    script.chmod(0o755)
    done = run_python("-m", "my_utils.run", "--quiet", "--", "./train.sh", "-o", "x y")
    assert (done.returncode, done.stdout, done.stderr) == (4, "-o x y\n", "")
    refused = run_python("-m", "my_utils.run", "./train.sh", "-o")
    assert refused.returncode == 2
    assert "./train.sh is not a Python script" in refused.stderr
    assert "my_utils run -- ./train.sh -o" in refused.stderr

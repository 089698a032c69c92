"""`my_utils` as a user types it, rightly and wrongly. Each test starts the real command."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import my_utils
from my_utils.cli.command import load
from my_utils.cli.table import COMMANDS, OLD_NAMES, Command
from my_utils.core.command_line import closest

from ..conftest import ROOT, RunPython
from ..support.on_terminal import on_terminal, plain
from ..support.profile_rows import COLUMNS
from ..support.schemas import loads_checked

HEAVY = {"torch", "numpy", "pandas", "matplotlib", "rich", "msgspec", "jinja2", "shtab", "difflib"}
ROWS = "".join(
    f'{n}.0,,h,{n},a,START,,"node_id={n + 1}"\n{n}.5,,h,{n},a,END,500.000000,"node_id={n + 1}"\n'
    for n in range(30)
)


def is_there(command: Command) -> bool:
    try:
        return importlib.util.find_spec(f"my_utils.{command.module}") is not None
    except ModuleNotFoundError:
        return False


# Those that other packages bring are demanded once these are there.
THERE = [command for command in COMMANDS if is_there(command)]
OURS = [command for command in THERE if command.words[0] != "run"]  # which takes another's
NAMES = {id(command): " ".join(command.words) for command in COMMANDS}
OLD_FORMS = {
    "trace": "my_utils.csv2trace", "timeline": "my_utils.timeline",
    "ncu": "my_utils.ncu_analyze_from_csv",
    "port cuda": "my_utils.musa.simple_porting", "port scripts": "my_utils.musa.converter",
}  # fmt: skip


def commands(chosen: list[Command]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("command", chosen, ids=lambda each: NAMES[id(each)])


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "profile_rank_0.csv").write_text(",".join(COLUMNS) + "\n" + ROWS)
    return folder


# --- help ---


@pytest.mark.parametrize("words", [["--help"], [], ["port", "--help"], ["reprot"], ["--version"]])
def test_the_list_of_commands_needs_argparse_alone(words: list[str], run_python: RunPython) -> None:
    program = f"""
import sys
from my_utils.cli.command import main
try:
    main({words!r})
finally:
    print("loaded", *sorted({HEAVY - {"difflib"}!r} & set(sys.modules)))
    print("difflib" in sys.modules)
"""
    loaded = run_python("-c", program).stdout.splitlines()[-2:]
    assert loaded == ["loaded", str(words == ["reprot"])]


def test_the_list_has_every_command(run_python: RunPython) -> None:
    done = run_python("-m", "my_utils", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for command in COMMANDS:
        line = rf"^  {re.escape(NAMES[id(command)])} +{re.escape(command.help)}$"
        assert re.search(line, done.stdout, re.MULTILINE), command
    bare = run_python("-m", "my_utils")
    assert (bare.returncode, bare.stdout, bare.stderr) == (2, "", done.stdout)


@commands(THERE)
def test_every_help_fits_and_has_examples(command: Command, run_python: RunPython) -> None:
    words = ["-m", "my_utils", *command.words, "--help"]
    done = run_python(*words, env={"COLUMNS": "40"})
    assert (done.returncode, done.stderr) == (0, "")
    for part in ("\nexamples:\n", "\nexit status:\n", "--version", "--no-color"):
        assert part in done.stdout
    text, _, rest = done.stdout.partition("\nexamples:\n")
    if command.words == ("run",):  # its usage is the forms to type, which are not wrapped
        text = text.partition("\n\n")[2]
    prose = [line for line in text.splitlines() if line.strip() and line.strip()[0] not in "-["]
    assert [line for line in prose if len(line) > 40 and " " in line.strip()] == []
    assert re.search(r"^  130  ", rest, re.MULTILINE)


@commands(OURS)
def test_the_examples_can_be_typed(command: Command) -> None:
    own = load(command).command_parser()
    assert own.examples
    for example in own.examples:
        typed = re.search(rf"my_utils {NAMES[id(command)]}([^|>)]*)", example)
        assert typed is not None, example
        own.parse_args(shlex.split(typed[1]))


@pytest.mark.parametrize("name", OLD_FORMS)
def test_old_forms_are_the_same_command(name: str, run_python: RunPython) -> None:
    new = run_python("-m", "my_utils", *name.split(), "--help")
    old = run_python("-m", OLD_FORMS[name], "--help")
    assert (old.returncode, old.stdout) == (0, new.stdout)


@pytest.mark.parametrize("words", [["--version"], ["report", "--version"], ["port", "--version"]])
def test_the_version(words: list[str], run_python: RunPython) -> None:
    done = run_python("-m", "my_utils", *words)
    assert (done.returncode, done.stdout) == (0, f"my_utils {my_utils.__version__}\n")


# --- what is typed wrongly ---


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("reprot", "unknown command 'reprot'; did you mean report?"),
        ("REPORT", "unknown command 'REPORT'; did you mean report?"),
        ("csv2trace logs", "unknown command 'csv2trace'; did you mean trace?"),
        ("musa-converter", "did you mean port scripts?"),
        ("help", "did you mean --help?"),
        ("logs", "unknown command 'logs'; it is a path: my_utils why logs"),
        ("xyzzy", "unknown command 'xyzzy'"),
        ("''", "unknown command ''"),
        ("--hlep", "unrecognized arguments: --hlep; did you mean --help?"),
        ("--quiet report", "options come after the command: my_utils report --quiet"),
        ("port", "usage: my_utils port COMMAND"),
        ("port cdua", "'cdua' is not one of cuda, scripts; did you mean cuda?"),
        ("report --jsn", "unrecognized arguments: --jsn; did you mean --json?"),
        ("report --ranks 1to3", "--ranks: ranks must be"),
        ("report --ranks", "--ranks: expected one argument"),
        ("report --steps 20:10", "an empty range of steps: '20:10'"),
        ("report --engine locla", "'locla' is not one of local, ray; did you mean local?"),
        ("report -o page.htlm", "page.htlm: unknown suffix '.htlm'; known are"),
        ("report -o logs", "logs is a directory, not a file"),
        ("trace -o trace.pftracee", "known are .json, .pftrace"),
        ("trace -o trace", "trace: a suffix is missing"),
        ("trace -o logs", "logs is a directory, not a file"),
        ("trace --format xml", "'xml' is not one of json, perfetto"),
        ("trace --json -o -", "cannot both go to standard output"),
        ("timeline -o x.gif", "known are .png, .svg and .pdf"),
        ("live --hung soon", "must be seconds above 0, not 'soon'"),
        ("live --quiet", "--quiet needs --once or --hung"),
        ("capture --store x:1 logs", "give either LOGS or --store"),
        ("capture --backend nsys", "'nsys' is not one of torch, cuda, memory, none"),
        ("diverge one", "the following arguments are required: B"),
        ("ncu", "the following arguments are required: A"),
        ("ncu a.csv -o x.csv --csv y.csv", "-o and --csv name the same output twice"),
        ("demo --steps 1", "1 is less than 4"),
        ("env everything", "unrecognized arguments: everything"),
        ("completion bsh", "'bsh' is not one of bash, zsh, fish; did you mean bash?"),
    ],
)
def test_wrong_words(typed: str, said: str, logs: Path, run_python: RunPython) -> None:
    done = run_python("-m", "my_utils", *shlex.split(typed))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(logs.parent) == ["logs"]


@pytest.mark.parametrize("command", ["report", "trace", "timeline", "live --once", "capture"])
@pytest.mark.parametrize("logs_typed", ["", "nonesuch", "empty"])
def test_no_logs(command: str, logs_typed: str, tmp_path: Path, run_python: RunPython) -> None:
    (tmp_path / "empty").mkdir()
    done = run_python("-m", "my_utils", *command.split(), *logs_typed.split())
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert (logs_typed or "no run found") in done.stdout + done.stderr
    assert os.listdir(tmp_path) == ["empty"]


def test_every_slip_of_a_finger_finds_a_command() -> None:
    names = [NAMES[id(command)] for command in COMMANDS]
    for name in names:
        for at in range(len(name) - 1):
            swapped = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
            dropped = name[:at] + name[at + 1 :]
            for typed in (swapped, dropped):
                if len(name) > 4:
                    assert closest(typed, names) == f"; did you mean {name}?", typed


def test_old_names_lead_to_commands() -> None:
    known = {*NAMES.values(), "--help", "--version"}
    assert set(OLD_NAMES.values()) <= known
    assert not set(OLD_NAMES) & {command.words[0] for command in COMMANDS}


# --- outputs ---


def test_json_writes_no_file(logs: Path, run_python: RunPython) -> None:
    for command in ("trace", "timeline", "report", "live --once"):
        done = run_python("-m", "my_utils", *command.split(), "--json")
        assert loads_checked(command.split()[0], done.stdout), done.stderr
        assert os.listdir(logs.parent) == ["logs"]
        assert sorted(os.listdir(logs)) == ["profile_rank_0.csv"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["trace -o {}.json", "timeline -o {}.png", "report -o {}.html", "report -o {}.json"]
)
def test_outputs_are_followed_and_never_replaced(
    command: str, logs: Path, run_python: RunPython
) -> None:
    words = command.format("out").split()
    name = words[-1]
    (logs.parent / "real").write_text("old")
    (logs.parent / name).symlink_to("real")
    assert run_python("-m", "my_utils", *words).returncode == 0
    assert (logs.parent / name).is_symlink()
    content = (logs.parent / "real").read_bytes()
    assert len(content) > 100
    (logs.parent / name).unlink()
    os.mkfifo(logs.parent / name)
    reader = subprocess.Popen(["cat", name], cwd=logs.parent, stdout=subprocess.PIPE)
    assert run_python("-m", "my_utils", *words).returncode == 0
    read, _ = reader.communicate()
    assert len(read) > 100
    assert (logs.parent / name).is_fifo()


# --- how it ends ---


@pytest.mark.parametrize("command", ["trace {} -o out.json", "ncu {}"])
def test_ctrl_c(command: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "input")
    process = subprocess.Popen(
        [sys.executable, "-m", "my_utils", *command.format("input").split()],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with open(tmp_path / "input", "w"):  # once this is open, the command waits for its input
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in said
    assert said.splitlines()[-1:] == ["interrupted"]
    assert os.listdir(tmp_path) == ["input"]


@pytest.mark.parametrize("words", [["--help"], ["env"], ["trace", "--help"], ["trace", "-o", "-"]])
def test_a_reader_that_goes(words: list[str], logs: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", *words, "--no-color"] if words[0] != "--help"
        else [sys.executable, "-m", "my_utils", *words],
        cwd=logs.parent, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=write, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(write)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("columns", [20, 40])
def test_narrow_terminals(columns: int, logs: Path) -> None:
    for words in (["--help"], ["trace", "--no-color"], ["env"], ["report", "--steps", "x"]):
        status, shown = on_terminal(
            ["-m", "my_utils", *words], logs.parent, with_output=True, columns=columns
        )
        assert status == (2 if "x" in words else 0)
        assert "Traceback" not in plain(shown)
        if "--no-color" in words:
            assert not re.search(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", shown)

"""`my_utils run`: runs a training and records its stages, without a change of the script."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ..analysis.live.alerts.options import add_alerts, check_alerts
from ..core.command_line import EXIT_USAGE, CommandParser, fail, parser
from ..core.environment import read_switch
from ..core.ranges import checked, parse_ranks, parse_steps
from . import in_process
from .agreement import Place, given_place, launcher_began_s
from .closing import closing_lines, print_lines
from .environment import (
    DIR,
    HOSTS,
    ID,
    REPLICAS,
    REPORT,
    SITE_FOLDER,
    is_on,
    mark_process_tree,
    reach,
)
from .folder import (
    RUNS,
    drop_if_empty,
    has_foreign_run_file,
    held_by,
    make,
    name_of_run,
    note_status,
    reserve_somewhere,
    write_run_file,
)
from .hosts.listening import Hosts
from .parent import Child, cannot_run, end_as
from .python_options import options_for_script
from .report_file import Reported, read_reports
from .unreached import Lookout

if TYPE_CHECKING:
    from .alerting import Alerting
    from .sender import Sender

_USAGE = """\
my_utils run [options] train.py [arguments …]
       my_utils run [options] -m pkg.train [arguments …]
       my_utils run [options] -- torchrun --nproc-per-node 8 train.py [arguments …]
       my_utils run --repeat 5 --against 'COMMAND' [options] -- COMMAND [arguments …]
       torchrun [options of torchrun] -m my_utils.run [options] train.py [arguments …]"""

_DESCRIPTION = """\
Runs a training script, or a command that starts one, and records the stages of each rank. The
script is not edited, and what it computes, prints and returns does not change. At the end the
verdict goes to standard error; the exit status is that of the script or the command."""

_EXAMPLES = [
    "my_utils run train.py --lr 0.1",
    "my_utils run -o logs/first -- torchrun --nproc-per-node 2 train.py",
    "my_utils run --capture 1 -- accelerate launch train.py",
    "my_utils run -- ./train.sh",
    "my_utils run --alert https://hooks.slack.com/services/… train.py",
    "my_utils run --repeat 5 --against 'train.py --compile' train.py",
]
_STATUSES = "the status of the script or the command, or its signal\n2  wrong arguments"
_NOTES = "With MY_UTILS_RUN=0 in the environment nothing is recorded."

_FILES_OF_PYTHON = (".py", ".pyc", ".pyz", ".pyw")
CAPTURED = 22, 24  # after the warm-up of most runs
REPEAT_LEAST = 2  # of one run a side nothing is known of how much runs differ
_WITH_VALUES = (
    "-o", "--output", "--capture", "--capture-steps", "--capture-every", "--capture-times",
    "--repeat", "--against", "--alert", "--alert-goodput", "--watch-replicas",
    "--to",
)  # fmt: skip


class _Program(NamedTuple):
    """The program to run. form: "script", "module" or "command"; words: it and its arguments."""

    form: str
    words: list[str]

    def command(self) -> list[str]:
        if self.form == "command":
            return self.words
        options = options_for_script(sys.orig_argv)
        return [sys.executable, *options, *(["-m"] if self.form == "module" else []), *self.words]


class _Options(NamedTuple):
    """repeat: how often each command runs, 0 if one runs once. against: the other command."""

    output: str | None
    quiet: bool
    gpu_times: bool
    capture: frozenset[int] | None
    repeat: int = 0
    against: _Program | None = None
    capture_steps: tuple[int, int] = CAPTURED
    capture_every: int | None = None
    capture_times: int = 1
    alert: str | None = None
    alert_goodput: float | None = None
    watch_replicas: int | None = None
    to: str | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv`, by default that of this process; returns the exit status.

    Ends this process by a signal where a signal ended the command, and replaces it by the command
    where MY_UTILS_RUN is off. In a process that a launcher has started as a rank, a script or a
    module runs in this process. Raises SystemExit with status 2 for a wrong command line.
    """
    options, program = _parse(list(sys.argv[1:] if argv is None else argv))
    if options.against is not None:
        return _run_against(options, program, options.against)
    if program.form != "command" and _is_rank():
        return _run_here(options, program)
    if not is_on():
        return _replace_process(program.command())
    return _run_below(options, program)


# --- the command line ---


def command_parser() -> CommandParser:
    """Of the options before the program."""
    chosen = parser(
        "run",
        _DESCRIPTION,
        _EXAMPLES,
        statuses=_STATUSES,
        notes=_NOTES,
        usage=_USAGE,
        allow_abbrev=False,
    )
    add = chosen.add_argument
    add("-o", "--output", metavar="DIR",
        help=f"folder of the run (default: new, in {RUNS}/, named by script and time)")  # fmt: skip
    add("--quiet", action="store_true", help="print no verdict at the end")
    add("--no-gpu-times", action="store_true", help="record no CUDA events for the stages")
    add("--capture", type=checked(parse_ranks), metavar="RANKS",
        help="capture steps of these ranks with torch's profiler; the traces go to captures/ in "
        "the run's folder")  # fmt: skip
    add("--capture-steps", type=checked(_captured), metavar="A:B",
        help=f"with --capture: the first of its steps and the one after the last (default: "
        f"{CAPTURED[0]}:{CAPTURED[1]})")  # fmt: skip
    add("--capture-every", type=_steps_between, metavar="STEPS",
        help="with --capture: capture again so many steps later")  # fmt: skip
    add("--capture-times", type=_steps_between, metavar="N",
        help="with --capture-every: how often in all (default: 2)")  # fmt: skip
    add("--watch-replicas", type=_steps_between, metavar="STEPS",
        help="in each so many steps, hash the parameters on all ranks, and say if replicas "
        "differ")  # fmt: skip
    add_alerts(chosen)
    add(
        "--to",
        type=_address,
        metavar="ADDRESS",
        help="copy the run's files there each minute and at the end: to s3://bucket/run, another "
        "address of fsspec, or a folder; my_utils why ADDRESS reads those of all hosts",
    )
    add("--repeat", type=_several, metavar="N",
        help=f"with --against: run each of the two commands N times ({REPEAT_LEAST} or more), in "
        "turns, into A-1, B-1 and so on in the folder, and show how they differ")  # fmt: skip
    add("--against", type=_words, metavar="'COMMAND'",
        help="the command B to compare with; split as in a shell, but without one")  # fmt: skip
    return chosen


def _captured(text: str) -> tuple[int, int]:
    return parse_steps(text, "--capture-steps", bounded=True)


def _steps_between(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 step or more, not {text}")
    return int(text)


def _address(text: str) -> str:
    from ..core.run_files.stores import check_address

    try:
        check_address(text)
    except (ValueError, ImportError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _several(text: str) -> int:
    if not text.isdecimal() or int(text) < REPEAT_LEAST:
        raise argparse.ArgumentTypeError(f"must be {REPEAT_LEAST} or more, not {text}")
    return int(text)


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("must name a command")
    return words


def _parse(argv: list[str]) -> tuple[_Options, _Program]:
    chosen = command_parser()
    head, program = _split(argv)
    given = chosen.parse_args(head)
    if program is None or not program.words:
        chosen.error("pass what to run: train.py, -m MODULE, or -- COMMAND")
    if program.form == "script" and not _is_for_python(program.words[0]):
        chosen.error(
            f"{program.words[0]} is not a Python script; put a command after --: "
            f"my_utils run -- {' '.join(program.words)}"
        )
    if (given.repeat is None) != (given.against is None):
        chosen.error("--repeat and --against need each other: two commands, N times each")
    _check_captures(chosen, given)
    if given.to is not None and given.against is not None:
        chosen.error("--to sends one run: not with --against")
    check_alerts(chosen, given)
    capture = None if given.capture is None else frozenset(given.capture)
    return _Options(
        given.output, given.quiet, not given.no_gpu_times, capture, given.repeat or 0,
        None if given.against is None else _other_program(given.against),
        given.capture_steps or CAPTURED, given.capture_every,
        given.capture_times or (1 if given.capture_every is None else 2),
        given.alert, given.alert_goodput, given.watch_replicas, given.to,
    ), program  # fmt: skip


def _check_captures(chosen: CommandParser, given: argparse.Namespace) -> None:
    for name in ("steps", "every"):
        if getattr(given, f"capture_{name}") is not None and given.capture is None:
            chosen.error(f"--capture-{name} needs --capture, which names the ranks")
    if given.capture_times is not None and given.capture_every is None:
        chosen.error("--capture-times needs --capture-every, which says how many steps later")
    first, end = given.capture_steps or CAPTURED
    if given.capture_every is not None and given.capture_every <= end - first:
        chosen.error(
            f"--capture-every must be above the {end - first} steps of a capture, not "
            f"{given.capture_every}"
        )


def _other_program(words: list[str]) -> _Program:
    """What --against names: a script by its name, a module after -m, else a command."""
    if words[0] == "-m":
        return _Program("module", words[1:])
    is_script = words[0].endswith(_FILES_OF_PYTHON)
    return _Program("script" if is_script else "command", words)


def _split(argv: list[str]) -> tuple[list[str], _Program | None]:
    """The options of this command, and the program to run."""
    index = 0
    while index < len(argv):
        word = argv[index]
        if word == "--":
            return argv[:index], _Program("command", argv[index + 1 :])
        if word == "-m":
            return argv[:index], _Program("module", argv[index + 1 :])
        if not word.startswith("-") or word == "-":
            return argv[:index], _Program("script", argv[index:])
        index += 2 if word in _WITH_VALUES else 1
    return argv, None


def _is_for_python(path: str) -> bool:
    if path.endswith(_FILES_OF_PYTHON) or os.path.isdir(path):
        return True
    if os.path.isfile(path):
        return not os.access(path, os.X_OK)
    return shutil.which(path) is None  # Python says that there is no such file


def _is_rank() -> bool:
    """Whether a launcher has started this very process as one of its ranks."""
    variables = os.environ
    return (
        {"RANK", "WORLD_SIZE"} <= variables.keys()
        or "OMPI_COMM_WORLD_RANK" in variables
        or ("SLURM_PROCID" in variables and variables.get("SLURM_NTASKS", "1") != "1")
    )


def _refuse(message: str) -> NoReturn:
    raise SystemExit(fail("run", message, EXIT_USAGE))


# --- in this process ---


def _run_here(options: _Options, program: _Program) -> int:
    if options.capture is not None:
        _refuse("put --capture before the launcher: my_utils run --capture 1 -- torchrun …")
    if options.alert is not None:
        _refuse("put --alert before the launcher: my_utils run --alert TARGET -- torchrun …")
    if options.to is not None:
        _refuse("put --to before the launcher: my_utils run --to ADDRESS -- torchrun …")
    if is_on():
        _arm(options)
    if program.form == "module":
        in_process.run_module(program.words[0], program.words[1:])
    else:
        in_process.run_script(program.words[0], program.words[1:])
    return 0


def _arm(options: _Options) -> None:
    from .attach import auto, prints_verdict

    if options.output is not None and given_place() is None:
        # Other ranks of this launch, and attempts before it, may have begun to write.
        folder = _free_folder(options.output, launcher_began_s())
        mark_process_tree(folder, uuid.uuid4().hex)
    if not options.gpu_times:
        os.environ.update(reach({}, gpu_times=False))
    if options.watch_replicas is not None:
        os.environ[REPLICAS] = str(options.watch_replicas)
    prints_verdict(not options.quiet)
    auto()


# --- in a child ---


def _run_below(options: _Options, program: _Program) -> int:
    command = program.command()
    try:
        place, made = _place(options, command)
    except OSError as error:
        print_lines([f"my_utils run: nothing is recorded: {_no_folder(error)}"])
        return _replace_process(command)
    return end_as(_record(options, command, place, _find_script(program), made=made))


def _no_folder(error: OSError) -> str:
    return f"no folder can be made in {RUNS}, nor for temporary files ({error.strerror})"


def _find_script(program: _Program) -> str | None:
    return None if program.form == "command" else program.words[0]


def _record(
    options: _Options, command: Sequence[str], place: Place, script: str | None, *, made: bool
) -> int:
    """Runs the command as a child, and says how it went. Its status, -n where signal n ended it.
    made: by this run, which removes its folder if nothing was recorded."""
    with _report_file() as report:
        environment = reach(os.environ, gpu_times=options.gpu_times)
        if options.watch_replicas is not None:
            environment[REPLICAS] = str(options.watch_replicas)
        environment.update({DIR: str(place.folder), ID: place.run_id, REPORT: str(report or "")})
        if report is None and not options.quiet:
            del environment[REPORT]  # rank 0 prints the verdict where no parent does
        _announce(place, script, command)
        try:
            _ask_for_capture(place, options)
            hosts = _hosts(report)
            try:
                child = Child(command, environment)
            except OSError as error:
                if hosts is not None:
                    hosts.end()
                return cannot_run(command, error)
            with child:
                _start(hosts)
                alerting = _alerting(options, place, report)
                sender = _sender(options, place, report)
                lookout = None if report is None or options.quiet else _lookout(report)
                status = child.wait()
                if lookout is not None:
                    lookout.end()
            reported = Reported()
            if report is not None:
                with contextlib.suppress(OSError):
                    reported = read_reports(report)
            for folder in {place.folder, *map(Path, reported.agreed_places())}:
                note_status(folder, status, reported.exits_of_ranks())
            if hosts is not None:
                with contextlib.suppress(KeyboardInterrupt):
                    hosts.end()
            if sender is not None:
                sender.command_has_ended()
            if report is not None and not options.quiet:
                _close(reported, None if hosts is None else hosts.judges)
            if alerting is not None:
                alerting.end(status, reported, was_asked=child.was_signalled)
            if sender is not None:
                sender.end()
        finally:
            drop_if_empty(place.folder, place.run_id, made=made)
    return status


def _run_against(options: _Options, program: _Program, other: _Program) -> int:
    from .against import run_in_turns  # which brings numpy

    if _is_rank():
        _refuse("put --against before the launcher: my_utils run --against … -- torchrun …")
    if not is_on():
        _refuse("--against compares records, and MY_UTILS_RUN=0 records nothing")
    programs = {"A": program, "B": other}
    commands = {side: each.command() for side, each in programs.items()}
    scripts = {tuple(each.command()): _find_script(each) for each in programs.values()}
    try:
        whole, _ = _place(options, commands["A"])
    except OSError as error:
        _refuse(_no_folder(error))

    def record(command: Sequence[str], folder: Path) -> int:
        alone = options._replace(output=str(folder), quiet=True)
        place, made = _place(alone, command)
        return _record(alone, command, place, scripts[tuple(command)], made=made)

    return end_as(run_in_turns(whole.folder, commands, options.repeat, record, quiet=options.quiet))


def _place(options: _Options, command: Sequence[str]) -> tuple[Place, bool]:
    """Where the run writes, and whether its folder is new. OSError if no folder can be made."""
    run_id = uuid.uuid4().hex
    if options.output is None:
        folder, reason = reserve_somewhere(name_of_run(command), Path.cwd() / RUNS)
        if reason:
            print_lines([f"my_utils run: cannot write to {RUNS} ({reason}): files go to {folder}"])
        return Place(folder, run_id), True
    folder = _free_folder(options.output)
    try:
        return Place(folder, run_id), make(folder)
    except OSError as error:
        _refuse(f"cannot write to {options.output}: {error.strerror}")


def _free_folder(output: str, before_s: float | None = None) -> Path:
    """The folder that the user has chosen; refused if it has files of another run, or a run.json
    that is not of a run. before_s: as for `held_by`."""
    folder = Path(output).absolute()
    try:
        file, foreign = held_by(folder, before_s), has_foreign_run_file(folder)
    except OSError as error:
        _refuse(f"cannot write to {output}: {error.strerror}")
    if file is not None:
        _refuse(f"{output} holds another run ({file}); -o takes a folder without one")
    if foreign:
        _refuse(f"{output} holds a run.json that is not of a run; a run would replace it")
    return folder


@contextlib.contextmanager
def _report_file() -> Iterator[Path | None]:
    """None if it cannot be made, which is said."""
    with contextlib.ExitStack() as stack:
        path = None
        try:
            temporary = tempfile.TemporaryDirectory(
                prefix="my_utils-run-", ignore_cleanup_errors=True
            )
            path = Path(stack.enter_context(temporary)) / "report"
            path.touch()
        except OSError as error:
            path = None
            print_lines([f"my_utils run: processes cannot report to this one: {error.strerror}"])
        yield path


def _announce(place: Place, script: str | None, command: Sequence[str]) -> None:
    about = {
        "script": script,
        "command": list(command),
        "started": time.time(),
        "world_size": None,
        "run_id": place.run_id,
        "torch": None,
    }
    try:
        write_run_file(place.folder, about)
    except OSError as error:
        print_lines([f"my_utils run: cannot write {place.folder}/run.json: {error.strerror}"])


def _ask_for_capture(place: Place, options: _Options) -> None:
    """Leaves the request in the run's folder, where its ranks find it when they begin."""
    from ..core.ranges import as_ranges
    from ..profilers.capture.on_demand.control_file import Request, add_request, new_id

    if options.capture is None:
        return
    first, end = options.capture_steps
    try:
        request = Request(
            id=new_id(), ranks=as_ranges(options.capture), steps=end - first, first_step=first,
            every=options.capture_every, times=options.capture_times, at_start=True,
            time=time.time(),
        )  # fmt: skip
        add_request(Path(place.folder), request)
    except OSError as error:
        print_lines([f"my_utils run: cannot ask for a capture: {error.strerror}"])


def _alerting(options: _Options, place: Place, report: Path | None) -> Alerting | None:
    if options.alert is None:
        return None
    from .alerting import Alerting

    try:
        return Alerting(options.alert, options.alert_goodput, place, report)
    except RuntimeError as error:  # no more threads may be started
        print_lines([f"my_utils run: nobody is told of trouble: {error}"])
        return None


def _sender(options: _Options, place: Place, report: Path | None) -> Sender | None:
    if options.to is None:
        return None
    from ..core.run_files.stores import shown
    from .sender import Sender

    try:
        if report is not None:  # else a line has said that no process can report where it writes
            return Sender(options.to, report, place.run_id, quiet=options.quiet)
    except OSError as error:
        print_lines([f"my_utils run: nothing is sent to {shown(options.to)}: {error.strerror}"])
    return None


def _hosts(report: Path | None) -> Hosts | None:
    """None where the files of other hosts do not come to that of rank 0."""
    if report is None or not read_switch(HOSTS, default=True):
        return None
    try:
        return Hosts(report)
    except (OSError, RuntimeError) as error:
        print_lines([f"my_utils run: several hosts are not put together: {error}"])
        return None


def _start(hosts: Hosts | None) -> None:
    with contextlib.suppress(RuntimeError):  # no more threads may be started
        if hosts is not None:
            hosts.start()


def _lookout(report: Path) -> Lookout | None:
    with contextlib.suppress(RuntimeError):  # no more threads may be started
        return Lookout(report)
    return None


def _close(reported: Reported, judges: bool | None) -> None:
    """Says how it went. A second Ctrl-C leaves that out."""
    with contextlib.suppress(OSError, KeyboardInterrupt):
        print_lines(closing_lines(reported, judges))


# --- bare ---


def _replace_process(command: Sequence[str]) -> int:
    """As if the command had been typed alone."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if SITE_FOLDER in entries:
        os.environ["PYTHONPATH"] = os.pathsep.join(e for e in entries if e != SITE_FOLDER)
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        return cannot_run(command, error)

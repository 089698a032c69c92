"""The common parts of all commands: parser, options, exit statuses.

>>> def example_parser():
...     chosen = parser("report", "Says which rank cost the time.", ["my_utils report logs --json"])
...     add_logs(chosen)
...     add_ranks(chosen)
...     return chosen
>>> example_parser().parse_args(["logs", "--ranks", "0,3-5"]).ranks == {0, 3, 4, 5}
True

`parser` brings `--no-color`, `--version` and `--help`; the others are added where they mean
something. Where the user names no log directory, `logs` is empty: `run_files.newest.found_logs`
says which run is meant. Outputs are written by `open_output`, and `Progress` shows how far it is.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import re
import sys
import textwrap

from .outputs import check_suffix
from .printable import printable_lines
from .ranges import checked, parse_ranks, parse_steps
from .terminal import terminal_columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, NoReturn


EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

PROGRAM = "my_utils"
WIDTH_MAX = 100

_ITEM = re.compile(r"(  \S.*?  +)(\S.*)")


def parser(
    prog: str,
    description: str,
    examples: Sequence[str] = (),
    *,
    statuses: str = "",
    notes: str = "",
    usage: str | None = None,
    allow_abbrev: bool = True,
) -> CommandParser:
    """A parser for the command `my_utils PROG`, which the old form of the command uses too.

    description: one sentence or some; wrapped. examples: command lines, shown in the help.
    statuses: the exit statuses, a line each as `0  fine`; 2 and 130 are added. notes: more text.
    """
    listed = [f"  {line.strip()}" for line in statuses.splitlines() if line.strip()]
    numbers = {line.split()[0] for line in listed}
    if "2" not in numbers:
        listed.append("  2  wrong arguments")
    if "130" not in numbers:
        listed.append("  130  interrupted by Ctrl-C")
    shown = [f"  {line}" for line in examples]
    parts = [["examples:", *shown] if shown else [], ["exit status:", *listed]]
    texts = ["\n".join(part) for part in parts if part]
    chosen = CommandParser(
        prog=f"{PROGRAM} {prog.removeprefix(PROGRAM).strip()}".strip(),
        usage=usage,
        description=description,
        epilog="\n\n".join(filter(None, [*texts, notes])),
        formatter_class=_HelpFormatter,
        allow_abbrev=allow_abbrev,
    )
    chosen.examples = tuple(examples)
    chosen.statuses = _by_number(listed)
    chosen.add_argument("--no-color", action="store_true", help="no colours, like NO_COLOR")
    chosen.add_argument("--version", action=_Version, help="print the version and exit")
    return chosen


def _by_number(lines: Iterable[str]) -> dict[int, str]:
    """A line that begins with no number goes on with the one before."""
    found: dict[int, str] = {}
    for line in lines:
        number, _, text = line.strip().partition(" ")
        if number.isdigit():
            found[int(number)] = text.strip()
        elif found:
            found[list(found)[-1]] += f" {line.strip()}"
    return found


class CommandParser(argparse.ArgumentParser):
    """Reports an error in one line, with the closest known word. statuses: what the exit statuses
    mean."""

    examples: tuple[str, ...] = ()
    statuses: dict[int, str] = {}  # noqa: RUF012 - each parser has its own

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        chosen, rest = self.parse_known_args(args, namespace)
        if rest:
            options = [word.partition("=")[0] for word in rest if word.startswith("-")]
            meant = (closest(option, self._option_string_actions) for option in options)
            hint = next(filter(None, meant), "")
            self.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return chosen

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\ntry: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        raise argparse.ArgumentError(
            action, f"{value!r} is not one of {', '.join(known)}{closest(str(value), known)}"
        )


def closest(word: str, known: Iterable[str]) -> str:
    """The end of a message with the known word closest to `word`; "" if none is close.

    >>> closest("reprot", ["run", "report"])
    '; did you mean report?'
    """
    import difflib  # takes longer than all the rest, and only mistakes need it

    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


# --- the options ---


def add_logs(
    chosen: argparse.ArgumentParser,
    *,
    several: bool = True,
    text: str = "log directory, profile CSV, journal or glob",
) -> None:
    """`logs`: a list, empty if the user names none; without `several` a text or None."""
    chosen.add_argument(
        "logs",
        nargs="*" if several else "?",
        metavar="LOGS",
        help=f"{text}; a folder of runs means its newest run (default: the newest run here, at "
        "most two levels deep)",
    )


def add_output(
    chosen: argparse.ArgumentParser,
    text: str = "where to write; - is standard output",
    *,
    suffixes: Sequence[str] = (),
    default: str | None = None,
    metavar: str = "FILE",
    old: Sequence[str] = (),
    folder: bool = False,
) -> None:
    """`-o`, `--output`, and its `old` names. suffixes: the known ones, if a name must have one.
    folder: the option is a folder."""

    def check(given: str) -> str:
        try:
            if not folder and os.path.isdir(given):
                raise ValueError(f"{given} is a directory, not a file")
            if suffixes:
                check_suffix(given, suffixes)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return given

    chosen.add_argument(
        "-o", "--output", *old, dest="output", type=check, default=default, metavar=metavar,
        help=text,
    )  # fmt: skip


def add_ranks(chosen: argparse.ArgumentParser, text: str = "only these ranks") -> None:
    """`--ranks`: a set, None for all."""
    chosen.add_argument("--ranks", type=checked(parse_ranks), metavar="0,3-5", help=text)


def add_steps(
    chosen: argparse._ActionsContainer,
    text: str = "only steps from 10 to before 20",
    parse: Callable[[str], Any] = parse_steps,
) -> None:
    """`--steps`: the first and the one after the last, None for all."""
    chosen.add_argument("--steps", type=checked(parse), metavar="10:20", help=text)


def add_part(chosen: argparse.ArgumentParser, *, at: bool = False) -> None:
    """`--steps`, or `--since` or `--between` in its place. at: `--at` too."""
    from .moments import parse_moment

    part = chosen.add_mutually_exclusive_group()
    add_steps(part)
    moment = checked(parse_moment)
    if at:
        part.add_argument("--at", type=moment, metavar="WHEN",
            help="the part of the run that WHEN is in: a step, 14:05, 'Tue 24 Nov 14:05', or 3h "
            "before its end")  # fmt: skip
    part.add_argument("--since", type=moment, metavar="WHEN",
        help="only steps from a moment on: a step, 14:05, 'Tue 24 Nov 14:05', or 3h before the "
        "end")  # fmt: skip
    part.add_argument("--between", type=moment, nargs=2, metavar="WHEN",
        help="only steps from the first moment to before the second")  # fmt: skip


def add_json(
    chosen: argparse.ArgumentParser,
    text: str = "print JSON to standard output, and write no file unless -o names one",
) -> None:
    chosen.add_argument("--json", action="store_true", help=text)


def add_warmup(chosen: argparse.ArgumentParser, text: str) -> None:
    chosen.add_argument("--warmup", type=_count, metavar="N", help=text)


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {value}")
    return value


def check_outputs(chosen: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends the command if `--json` and `-o` both use standard output."""
    if args.json and args.output == "-":
        chosen.error("--json and -o - cannot both go to standard output")


def add_quiet(
    chosen: argparse.ArgumentParser, text: str = "print only the results, no progress"
) -> None:
    chosen.add_argument("--quiet", action="store_true", help=text)


class _Version(argparse.Action):
    """Reads the version only when the option is used."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, chosen: argparse.ArgumentParser, *_: object) -> NoReturn:
        from .. import __version__

        print(f"{PROGRAM} {__version__}")
        chosen.exit()


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs and the items of lists, and leaves command lines as they are. Takes the
    width of the terminal, up to 100 columns."""

    def __init__(self, prog: str) -> None:
        width = min(terminal_columns(), WIDTH_MAX) - 2
        super().__init__(prog, max_help_position=min(28, max(width // 3, 6)), width=max(width, 20))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = [self._filled(part, width) for part in text.split("\n\n")]
        return textwrap.indent("\n\n".join(parts), indent)

    def _filled(self, part: str, width: int) -> str:
        if "\n " not in f"\n{part}":
            return textwrap.fill(" ".join(part.split()), width)
        lines = [line for whole in part.splitlines() for line in _wrapped_item(whole, width)]
        return "\n".join(lines)


def _wrapped_item(line: str, width: int) -> list[str]:
    """A line of a list, the rest of its text below the text; command lines are never broken."""
    item = _ITEM.match(line)
    if item is None:
        return [line]
    indent = " " * min(len(item[1]), width // 2)
    return textwrap.wrap(item[2], width, initial_indent=item[1], subsequent_indent=indent)


# --- how commands end ---


def run_cli(command: Callable[[], int], *, any_text: bool = True) -> int:
    """The status of the command: 130 after Ctrl-C, which is said, and 0 if the reader of its
    output has gone, as `head` does.

    any_text: standard output shows what its encoding lacks as escapes, such as bytes of a name that
    are not UTF-8; not for a command in which a training prints.
    """
    try:
        with _closed_streams(), _escapes_on_stdout() if any_text else contextlib.nullcontext():
            try:
                return command()
            finally:
                sys.stdout.flush()
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # What is still buffered has nowhere to go; the interpreter must not try it at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return 0


@contextlib.contextmanager
def _closed_streams() -> Iterator[None]:
    """What is written to a stream that was closed, as by `>&-`, goes nowhere."""
    with contextlib.ExitStack() as stack:
        for redirect, stream in (
            (contextlib.redirect_stdout, sys.stdout),
            (contextlib.redirect_stderr, sys.stderr),
        ):
            if stream is None:
                nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                stack.enter_context(redirect(nowhere))
        yield


@contextlib.contextmanager
def _escapes_on_stdout() -> Iterator[None]:
    stream, errors = sys.stdout, getattr(sys.stdout, "errors", "")
    if errors not in ("strict", "surrogateescape") or not hasattr(stream, "reconfigure"):
        yield
        return
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        stream.reconfigure(errors=errors)


def say(command: str, text: str) -> None:
    """Prints each line of the text to standard error, after the name of the command."""
    for line in printable_lines(text).splitlines():
        print(f"{PROGRAM} {command}: {line}", file=sys.stderr, flush=True)


def fail(command: str, error: BaseException | str, status: int = EXIT_FAILED) -> int:
    """Says why the command failed; returns the exit status.

    >>> import contextlib
    >>> with contextlib.redirect_stderr(sys.stdout):
    ...     fail("why", FileNotFoundError(2, "No such file or directory", "logs"))
    my_utils why: error: logs: No such file or directory
    1
    """
    text = error if isinstance(error, str) else error_text(error)
    say(command, "\n".join(f"error: {line}" for line in text.splitlines()))
    return status


def check_inputs(command: str, paths: Iterable[str | os.PathLike[str]]) -> None:
    """Ends the command with status 2 where a path does not exist and matches nothing as a glob;
    `-` is standard input."""
    for path in map(os.fsdecode, paths):
        if path != "-" and not os.path.lexists(path) and not glob.glob(path):
            raise SystemExit(fail(command, f"{path}: no such file or directory", EXIT_USAGE))


def error_text(error: BaseException) -> str:
    """What to say of an error: a file's comes with the path that the user gave. Control characters
    but line ends are escapes in it.

    >>> error_text(FileNotFoundError(2, "No such file or directory", "logs"))
    'logs: No such file or directory'
    """
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = str(error) or type(error).__name__
    return printable_lines(text)

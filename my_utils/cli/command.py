"""`my_utils COMMAND …`: finds the command and calls its module.

Only argparse is needed before the module is known, so that the list of commands is there at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from ..core.command_line import (
    EXIT_USAGE,
    CommandParser,
    closest,
    fail,
    parser,
    run_cli,
)
from .table import COMMANDS, OLD_NAMES, Command, find_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


_EXAMPLES = (
    "my_utils run train.py",
    "my_utils why",
    "my_utils report logs -o report.html",
    "my_utils trace --steps 10:20 -o trace.pftrace",
    "my_utils live --once",
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status.

    argv: the arguments, by default those of the process. A command that finds wrong arguments, or
    prints its help, raises SystemExit, as argparse does.

    >>> main(["env", "--json", "--quiet"])  # doctest: +SKIP
    """
    words = list(sys.argv[1:] if argv is None else argv)
    return run_cli(lambda: _run(words), any_text=False)


def _run(words: list[str]) -> int:
    top = top_parser()
    if not words:
        top.print_help(sys.stderr)
        return EXIT_USAGE
    group = find_group(words[0])
    if not group:
        _refuse(top, words)
    for command in sorted(group, key=lambda command: -len(command.words)):
        count = len(command.words)
        if tuple(words[:count]) == command.words:
            return _start(command, words[count:])
    return _help_of_group(words[0], group, words[1:])


def _start(command: Command, rest: list[str]) -> int:
    try:
        module = load(command)
    except ImportError as error:
        return fail(" ".join(command.words), error)
    status: int = module.main(rest)
    return status


def load(command: Command) -> ModuleType:
    """The module of the command. ImportError names the extra where a package is missing."""
    from ..core.extras import needs_torch

    with needs_torch(f"my_utils {' '.join(command.words)}"):
        return importlib.import_module(f"my_utils.{command.module}")


# --- unknown commands ---


def top_parser() -> CommandParser:
    """The parser of what comes before a command."""
    return parser(
        "",
        "Times, traces, captures, checks and compares PyTorch training runs.\n\n"
        f"{_format_list(COMMANDS)}\n\n"
        "my_utils COMMAND --help has the options of each, and its exit statuses.",
        _EXAMPLES,
        statuses="0  fine",
        usage="my_utils COMMAND ...",
    )


def _format_list(commands: Sequence[Command]) -> str:
    widest = max(len(" ".join(command.words)) for command in commands)
    lines = [f"  {' '.join(each.words):{widest}}  {each.help}" for each in commands]
    return "\n".join(["commands:", *lines])


def _refuse(top: CommandParser, words: list[str]) -> None:
    """Ends with what may have been meant; --help and --version end well."""
    word = words[0]
    if word.startswith("-"):
        name = next((later for later in words[1:] if find_group(later)), None)
        if name is None or word in ("-h", "--help", "--version"):
            top.parse_args([word])
        top.error(f"options come after the command: my_utils {name or 'COMMAND'} {word}")
    meant = OLD_NAMES.get(word.lower())
    names = [" ".join(each.words) for each in COMMANDS] + [each.words[0] for each in COMMANDS]
    hint = f"; did you mean {meant}?" if meant else closest(word, names)
    if os.path.exists(word):
        hint = f"; it is a path: my_utils why {word}"
    top.error(f"unknown command {word!r}{hint}")


def _help_of_group(name: str, group: Sequence[Command], rest: list[str]) -> int:
    chosen = parser(
        name, f"One of several.\n\n{_format_list(group)}", usage=f"my_utils {name} COMMAND ..."
    )
    if not rest:
        chosen.print_help(sys.stderr)
        return EXIT_USAGE
    if rest[0].startswith("-"):
        chosen.parse_args(rest[:1])
    known = [command.words[1] for command in group]
    return chosen.error(f"{rest[0]!r} is not one of {', '.join(known)}{closest(rest[0], known)}")

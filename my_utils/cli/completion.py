"""Prints the script with which a shell completes `my_utils`: commands, options, files.

eval "$(my_utils completion bash)"          # in ~/.bashrc
my_utils completion zsh > "${fpath[1]}/_my_utils"
my_utils completion fish > ~/.config/fish/completions/my_utils.fish
"""

from __future__ import annotations

from ..core.command_line import CommandParser, fail, parser
from ..core.extras import require
from .command import load, top_parser
from .table import COMMANDS, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


SHELLS = ("bash", "zsh", "fish")

# By what an argument is called in the help, whether it is completed with files or with folders.
_FILES = {"A", "B", "CHECKPOINT", "FILE", "INPUT", "LAUNCH", "LOGS", "ROOT", "RUN", "TRACE.json"}
_FOLDERS = {"DIR", "DIRS"}


def command_parser() -> CommandParser:
    chosen = parser(
        "completion",
        "Prints the completion script of a shell. It needs shtab: pip install shtab.",
        [
            'eval "$(my_utils completion bash)"',
            "my_utils completion zsh > ~/.zfunc/_my_utils",
            "my_utils completion fish > ~/.config/fish/completions/my_utils.fish",
        ],
        statuses="0  fine\n1  shtab is not installed",
    )
    chosen.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    chosen = command_parser().parse_args(argv)
    try:
        shtab = require("shtab", "completion")
    except ImportError as error:
        return fail("completion", error)
    print(shtab.complete(whole_parser(shtab), chosen.shell))
    return 0


def whole_parser(shtab: Any) -> CommandParser:
    """A parser that has all commands with all their options. A command whose packages are missing
    is there by its name."""
    top = top_parser()
    commands = top.add_subparsers(metavar="COMMAND")
    groups: dict[str, Any] = {}
    for first in dict.fromkeys(command.words[0] for command in COMMANDS if len(command.words) == 2):
        group = commands.add_parser(first, help="a group of commands")
        groups[first] = group.add_subparsers(metavar="COMMAND")
    for command in COMMANDS:
        if len(command.words) == 1 and command.words[0] in groups:
            continue  # its group completes the commands that begin with it
        groups.get(command.words[0], commands).add_parser(
            command.words[-1], parents=_parents(command, shtab), add_help=False, help=command.help
        )
    return top


def _parents(command: Command, shtab: Any) -> list[CommandParser]:
    try:
        own = load(command).command_parser()
    except (ImportError, AttributeError):
        return []
    for action in own._actions:  # argparse has no other list of them
        if action.metavar in _FILES:
            action.complete = shtab.FILE
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY
    return [own]

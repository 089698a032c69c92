"""`my_utils why logs`: the verdict on a run and, where it hangs, where its ranks stand."""

from __future__ import annotations

from collections.abc import Sequence

from ..verdict.command import command_parser, main as judge_command
from .hang import find_hang

__all__ = ["command_parser", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status. docs/runs/verdict.md has the options."""
    return judge_command(argv, find_hang)

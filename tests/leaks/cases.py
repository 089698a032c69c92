"""The leak cases of `my_utils._core`: at least one for every entry point.

A case is a generator: it sets up, yields the callable to repeat, and cleans up. `@case` names the
entry points that the callable runs through: `function`, `Type` for a constructor, `Type.method`.
Paths that end in an exception deserve a case of their own.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from my_utils import _core

from .harness import case


@case("FormatError")
def format_error(folder: Path) -> Iterator[Callable[[], object]]:
    yield lambda: _core.FormatError("line 1: no comma")


DEAD_PROCESS = """
import os, sys
from my_utils import _core
_core.open_output(log_dir=sys.argv[1])
timer = _core.Timer("train")
timer.start("open")
with timer.time_stage("drained"):
    pass
timer.step()
with timer.time_stage("in the journal"):
    pass
os._exit(0)
"""


def dead_journal(folder: Path) -> Path:
    """The journal that a process left behind which ended without a word."""
    subprocess.run([sys.executable, "-c", DEAD_PROCESS, str(folder)], check=True)
    (journal,) = folder.glob("*.journal")
    return journal


@case("recover_rows", repeat=100)
def recover_rows_of_the_dead(folder: Path) -> Iterator[Callable[[], object]]:
    journal = dead_journal(folder)
    yield lambda: _core.recover_rows(journal)


@case("read_journal", repeat=100)
def read_journal_of_the_dead(folder: Path) -> Iterator[Callable[[], object]]:
    journal = dead_journal(folder)
    yield lambda: _core.read_journal(journal)


@case("recover_rows", "read_journal", repeat=200)
def journals_that_are_none(folder: Path) -> Iterator[Callable[[], object]]:
    foreign = folder / "foreign.journal"
    foreign.write_bytes(bytes(9000))

    def action() -> None:
        for function in (_core.recover_rows, _core.read_journal):
            for path, error in ((foreign, _core.FormatError), (folder / "gone", OSError)):
                with contextlib.suppress(error):
                    function(path)
                    raise AssertionError(f"{path} was read")

    yield action

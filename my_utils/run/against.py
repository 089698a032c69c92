"""Two commands run in turns and compared: `my_utils run --repeat N --against 'COMMAND' -- …`.

The turns are A B B A A B B A …, so that what drifts over the hours (a clock that slows down as it
warms up, a neighbour that comes) reaches both alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ..analysis.diff.comparison import compare_files
from .closing import print_lines

Record = Callable[[Sequence[str], Path], int]  # runs a command into a folder; its status


def turns(repeat: int) -> Iterator[tuple[str, int]]:
    """Which side is next, and its number.

    >>> [f"{side}-{number}" for side, number in turns(3)]
    ['A-1', 'B-1', 'B-2', 'A-2', 'A-3', 'B-3']
    """
    for number in range(1, repeat + 1):
        for side in "AB" if number % 2 else "BA":
            yield side, number


def run_in_turns(
    folder: Path, commands: Mapping[str, Sequence[str]], repeat: int, record: Record, *, quiet: bool
) -> int:
    """Runs both commands so many times, each into a separate folder, and says how B differs.

    commands: of "A" and "B". quiet: only a run that fails is said. Returns 0, or the status of the
    run that failed: it is named, and none comes after it.
    """
    for side, number in turns(repeat):
        name = f"{side}-{number}"
        if not quiet:
            print_lines([f"my_utils run: {name} of {repeat} each"])
        status = record(commands[side], folder / name)
        if status != 0:
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            print_lines([f"my_utils run: {folder / name} ended {how}: no more runs, no comparison"])
            return status
    if not quiet:
        numbers = range(1, repeat + 1)
        a, b = ([str(folder / f"{side}-{number}") for number in numbers] for side in "AB")
        again = f"again: my_utils diff {folder}/A-* --with {folder}/B-*"
        print_lines([*compare_files(a, b).found.lines(), again])
    return 0

"""Prints the table of docs/traces/traces.md: the slices of real traces of other tools that go into
a merge and come out of it.

    python -m tests.clients.slices_table [--places]

`--places` prints a row for each process and thread instead of one for each tool.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

from my_utils.csv2trace import ConversionWarning

from .foreign_traces import (
    OPEN,
    TOOLS,
    Slice,
    arrows_in,
    arrows_out,
    events_of,
    lost,
    merged,
    slices_in,
    slices_out,
    sum_of,
)


def by_place(slices: Counter[Slice], names: set[str]) -> Counter[tuple[str, str | None]]:
    found: Counter[tuple[str, str | None]] = Counter()
    for (name, process, thread, _), count in slices.items():
        if name in names:
            found[process, thread] += count
    return found


def rows_of(traces: list[Path], folder: Path, began_s: int, places: bool) -> list[list[object]]:
    """What goes in, what comes out as JSON and as protobuf, and what of it is lost."""
    wanted, arrows = sum_of(slices_in, traces), sum_of(arrows_in, traces)
    points = {e["name"] for trace in traces for e in events_of(trace) if e["ph"] in "iIRnsft"}
    names = {one[0] for one in wanted} - points
    outs = [merged(folder, *traces, suffix=s, began_s=began_s) for s in (".json", ".pftrace")]
    found = [slices_out(out) for out in outs]
    there = [wanted.total() - len(lost(wanted, each)) for each in found]
    if places:
        before, *after = (by_place(each, names) for each in (wanted, *found))
        return [
            [*place, before[place], *(each[place] for each in after)]
            for place in sorted(before, key=str)
        ]
    threads = {one[1:3] for one in wanted if one[2]}
    is_open = sum(count for one, count in wanted.items() if one[3] == OPEN)
    processes = {one[1] for one in wanted}
    drawn = [(arrows & arrows_out(out)).total() for out in outs]
    return [[len(processes), len(threads), wanted.total(), is_open, *there,
             arrows.total(), *drawn]]  # fmt: skip


def main() -> None:
    warnings.simplefilter("ignore", ConversionWarning)
    for tool in TOOLS:
        with tempfile.TemporaryDirectory() as name:
            began_s, folder = int(time.time()), Path(name)
            for row in rows_of(tool(folder), folder, began_s, "--places" in sys.argv[1:]):
                print("|", tool.__name__, "|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main()

"""The ranks of a run as lines of text."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence

from ._live_ranks import Found, Rank, Thread
from ._live_suspects import Suspect, describe_seconds

GROUP_ABOVE = 16
LINES_OF_SUSPECTS = 10
LAST_SHOWN = 3
_COLORS = {"running": "32", "silent": "33", "dead": "31", "closed": "2", "bold": "1", "dim": "2"}


class View:
    """Lays a snapshot out as text. `color`: with ANSI colours. `group`: ranks that do the same on
    one line; None does so above 16 ranks."""

    def __init__(self, *, color: bool = False, group: bool | None = None) -> None:
        self.color = color
        self.group = group

    def lines(
        self, log_dir: str, found: Found, suspects: Sequence[Suspect], missing: Sequence[int]
    ) -> list[str]:
        """One string a line, without line ends."""
        lines = [self._title(log_dir, found.ranks)]
        if not found.ranks:
            lines.append("no rank has left a journal or a heartbeat here yet")
        group = len(found.ranks) > GROUP_ABOVE if self.group is None else self.group
        if found.ranks:
            lines += ["", *self._table(found.ranks, suspects, group)]
        lines += self._suspects(suspects)
        if missing:
            lines += ["", f"no file of {_count(missing, 'rank')}: {number_ranges(missing)}"]
        if found.problems:
            lines.append("")
            lines += [f"left out {problem.file}: {problem.reason}" for problem in found.problems]
        return [visible(line, keep_colors=self.color) for line in lines]

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{_COLORS[style]}m{text}\x1b[0m" if self.color else text

    def _title(self, log_dir: str, ranks: Sequence[Rank]) -> str:
        states = [rank.state for rank in ranks]
        counts = [
            f"{states.count(state)} {state}"
            for state in ("running", "silent", "dead", "closed")
            if state in states
        ]
        now = time.strftime("%H:%M:%S")
        return self._paint(f"{log_dir}  {now}  {', '.join(counts)}".rstrip(), "bold")

    def _table(
        self, ranks: Sequence[Rank], suspects: Sequence[Suspect], group: bool
    ) -> Iterator[str]:
        marked = {suspect.rank.label for suspect in suspects}
        rows = [_row(members) for members in _groups(ranks, marked, group)]
        widths = [max(len(row[column]) for row in [_HEAD, *rows]) for column in range(4)]
        yield self._paint(_join("  ", _HEAD, widths), "dim")
        for members, row in zip(_groups(ranks, marked, group), rows, strict=True):
            mark = "! " if members[0].label in marked else "  "
            line = _join(mark, row, widths)
            yield self._paint(line, members[0].state) if mark == "! " else line
            if len(members) == 1:
                yield from _other_threads(members[0], sum(widths) + 10)

    def _suspects(self, suspects: Sequence[Suspect]) -> Iterator[str]:
        if not suspects:
            return
        yield ""
        for suspect in suspects[:LINES_OF_SUSPECTS]:
            name = self._paint(f"rank {suspect.rank.name}", suspect.rank.state)
            yield f"! {name}: {'; '.join(suspect.reasons)}"
        if len(suspects) > LINES_OF_SUSPECTS:
            rest = [suspect.rank.rank for suspect in suspects[LINES_OF_SUSPECTS:]]
            yield f"! and {_count(rest, 'more rank')}: {number_ranges(rest)}"


_HEAD = ("rank", "state", "step", "for", "in")


def _join(mark: str, row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
    cells[2] = row[2].rjust(widths[2])
    cells[3] = row[3].rjust(widths[3])
    return mark + "  ".join([*cells, row[4]]).rstrip()


def _groups(ranks: Sequence[Rank], marked: set[str], group: bool) -> list[list[Rank]]:
    """Ranks that do the same, at most; suspects stand alone."""
    groups: dict[object, list[Rank]] = {}
    for rank in ranks:
        alone = not group or rank.label in marked
        key = rank.label if alone else (rank.worker > 0, rank.state, rank.step, rank.stack)
        groups.setdefault(key, []).append(rank)
    return list(groups.values())


def _row(members: Sequence[Rank]) -> tuple[str, str, str, str, str]:
    first = members[0]
    name = first.name if len(members) == 1 else _group_name(members)
    step = "-" if first.step is None else str(first.step)
    ages = [rank.open_s for rank in members if rank.open_s is not None]
    age = describe_seconds(max(ages)) if ages else "-"
    where = " > ".join(part or "(name unknown)" for part in first.stack) or "no stage"
    if len(members) == 1:
        where += _last_stages(first)
    return name, _state(first), step, age, where


def _group_name(members: Sequence[Rank]) -> str:
    workers = f", {_count(members, 'worker')}" if members[0].worker else f" ({len(members)})"
    return number_ranges(sorted({rank.rank for rank in members})) + workers


def _state(rank: Rank) -> str:
    if rank.state == "silent" and rank.beat_age_s is not None:
        return f"silent for {describe_seconds(rank.beat_age_s)}"
    return rank.state


def _last_stages(rank: Rank) -> str:
    thread = rank.main or next((thread for thread in rank.threads if thread.last), None)
    if thread is None or not thread.last:
        return ""
    last = [
        f"{stage.name} {describe_seconds(stage.duration_ms / 1000)}"
        for stage in thread.last[:LAST_SHOWN]
    ]
    return "   after " + ", ".join(last)


def _other_threads(rank: Rank, indent: int) -> Iterator[str]:
    for thread in rank.threads:
        if thread is rank.main or not thread.open:
            continue
        stack = " > ".join(stage.name or "(name unknown)" for stage in thread.open)
        age = describe_seconds(thread.open[-1].open_s)
        yield f"{'':{indent}}{_thread_name(thread)}: {stack} for {age}"


def _thread_name(thread: Thread) -> str:
    name = thread.name or f"thread {thread.tid}"
    return f"{name} [{thread.tag}]" if thread.tag else name


def _count(items: Sequence[object], noun: str) -> str:
    return f"{len(items)} {noun}" if len(items) == 1 else f"{len(items)} {noun}s"


def number_ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers in short.

    >>> number_ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def visible(line: str, *, keep_colors: bool = False) -> str:
    """Names come from files: what would steer a terminal is shown as an escape."""
    shown = []
    for part in line.split("\x1b["):
        shown.append("".join(c if c.isprintable() else ascii(c)[1:-1] for c in part))
    if not keep_colors:
        return "\\x1b[".join(shown)
    return "".join(
        [shown[0], *(f"\x1b[{part}" if _is_color(part) else f"\\x1b[{part}" for part in shown[1:])]
    )


def _is_color(part: str) -> bool:
    number, found, _ = part.partition("m")
    return bool(found) and number in {"0", *_COLORS.values()}


def fit(lines: Sequence[str], size: os.terminal_size) -> list[str]:
    """What fits on a screen: long lines are cut, and the last line says how many more there are."""
    room = max(2, size.lines - 1)
    shown = list(lines[:room])
    if len(lines) > room:
        shown[-1] = f"... {len(lines) - room + 1} more lines: choose with --ranks, or use --once"
    return [_cut(line, size.columns) for line in shown]


def _cut(line: str, columns: int) -> str:
    """Colours take no room, and a cut line ends without one."""
    width, at = 0, 0
    while at < len(line):
        if line.startswith("\x1b[", at):
            at = line.index("m", at) + 1
            continue
        if width == columns:
            return line[: at - 1] + "…" + ("\x1b[0m" if "\x1b[" in line else "")
        width += 1
        at += 1
    return line

"""The ranks of a run as a screen, laid out by rich: suspects red, ranks that wait dim, and above 16
ranks the hosts and the ranks to look at first."""

from __future__ import annotations

import io
import os
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...core.colours import stage_colour
from ...core.run_files.state import Rank
from ...core.units import age_text, bytes_text
from .history import History
from .memory import Memory
from .poll import Snapshot
from .view import GROUP_ABOVE, left_out_lines, state_text, title_text, visible
from .waits.places import stack_text
from .waits.standing import Waiting

RANKS_SHOWN = 10  # of many
HOSTS_SHOWN = 8
REASONS_SHOWN = 4
WIDE = 110  # columns; with less there are no bars and no memory
SUSPECT = "bold red"
WAITING = "dim"
_HEAD = ("rank", "state", "step", "steps/s", "waits", "still", "in")
_HEAD_WIDE = ("rank", "state", "step", "steps/s", "", "waits", "still", "RSS", "GPU", "in")


@dataclass
class Extras:
    """What a frame shows besides the ranks: lines above them, stacks after them, and one line at
    the bottom."""

    above: Sequence[str] = ()
    below: str = ""
    stacks: Sequence[str] = ()


@dataclass
class Screen:
    """Lays polls out. color: with colours. every: a row for each rank, however many there are.
    memory: says how much a rank uses; it is asked for the ranks in the table only."""

    history: History
    memory: Callable[[Rank], Memory]
    color: bool = True
    every: bool = False

    def lines(self, seen: Snapshot, extras: Extras, size: os.terminal_size) -> list[str]:
        """One string a line, at most as many as the terminal has but one, with ANSI styles."""
        shown = io.StringIO()
        console = Console(
            file=shown,
            force_terminal=True,
            no_color=not self.color,
            width=size.columns,
            height=size.lines,
            highlight=False,
            color_system="truecolor" if self.color else None,
            legacy_windows=False,
        )
        for part in self._parts(seen, extras, size.columns):
            console.print(part, overflow="ellipsis", no_wrap=True, crop=True)
        lines = shown.getvalue().splitlines()
        height = max(2, size.lines - 1)
        below = [visible(extras.below)[: size.columns]] if extras.below else []
        if len(lines) > height - len(below):
            left = len(lines) - height + len(below) + 1
            more = f"... {left} more lines: choose with --ranks, or use --once"
            lines = [*lines[: height - len(below) - 1], more[: size.columns]]
        return lines + below

    def _parts(self, seen: Snapshot, extras: Extras, columns: int) -> Iterator[Text | Table]:
        ranks = seen.found.ranks
        yield Text(visible(title_text(seen)), "bold")
        for line in extras.above:
            yield Text(visible(line))
        if not ranks:
            yield Text("no rank has left a journal or a heartbeat here yet")
        for suspect in seen.suspects[:REASONS_SHOWN]:
            text = f"! rank {suspect.rank.name}: {'; '.join(suspect.reasons)}"
            yield Text(visible(text), SUSPECT)
        if ranks:
            yield Text()
            yield from self._tables(seen, columns)
        for line in left_out_lines(seen):
            yield Text(visible(line))
        for line in extras.stacks:
            yield Text(line)

    def _tables(self, seen: Snapshot, columns: int) -> Iterator[Text | Table]:
        ranks = [rank for rank in seen.found.ranks if rank.worker == 0]
        suspects = [suspect.rank.label for suspect in seen.suspects]
        waiting = {one.rank.label: one for one in seen.waiting}
        is_long = len(ranks) > GROUP_ABOVE and not self.every
        if is_long:
            yield self._hosts(ranks, suspects)
            yield Text()
        shown = self._worst(ranks, suspects) if is_long else ranks
        yield self._table(shown, suspects, waiting, columns >= WIDE)
        if len(shown) < len(ranks):
            yield Text(f"and {len(ranks) - len(shown)} more ranks: --all shows them", "dim")

    def _worst(self, ranks: Sequence[Rank], suspects: Sequence[str]) -> list[Rank]:
        """The suspects, then the ranks that wait least, or have been without progress longest."""
        order = {label: place for place, label in enumerate(suspects)}

        def key(rank: Rank) -> tuple[int, float, float]:
            wait = self.history.wait(rank.label)
            return (
                order.get(rank.label, len(order)),
                1.0 if wait is None else wait,
                -(rank.still_s or 0.0),
            )

        return sorted(ranks, key=key)[:RANKS_SHOWN]

    def _table(
        self,
        ranks: Sequence[Rank],
        suspects: Collection[str],
        waiting: Mapping[str, Waiting],
        wide: bool,
    ) -> Table:
        table = _new_table(_HEAD_WIDE if wide else _HEAD, {"rank", "state", "in", ""})
        for rank in ranks:
            role = SUSPECT if rank.label in suspects else WAITING if rank.label in waiting else ""
            mark = "! " if rank.label in suspects else "  "
            still = "-" if rank.still_s is None else age_text(rank.still_s)
            begin = [
                f"{mark}{rank.name}",
                state_text(rank),
                "-" if rank.step is None else str(rank.step),
                _rate(self.history.rate(rank.label)),
            ]
            wait = _share(self.history.wait(rank.label))
            if wide:
                memory = self.memory(rank)
                bars = [self.history.spark(rank.label), wait]
                end = [still, _bytes(memory.resident), _bytes(memory.device)]
            else:
                bars, end = [wait], [still]
            cells = [Text(visible(cell)) for cell in (*begin, *bars, *end)]
            table.add_row(*cells, _place(rank, waiting.get(rank.label)), style=role)
        return table

    def _hosts(self, ranks: Sequence[Rank], suspects: Sequence[str]) -> Table:
        """The hosts with suspects first, then those whose ranks wait least."""
        hosts: dict[str, list[Rank]] = {}
        for rank in ranks:
            hosts.setdefault(rank.host or "(no name)", []).append(rank)
        table = _new_table(("host", "ranks", "suspects", "steps/s", "waits", "still"), {"host"})
        rows = sorted(
            (self._host(name, members, suspects) for name, members in hosts.items()),
            key=lambda row: row[0],
        )
        for (minus_suspects, *_), cells in rows[:HOSTS_SHOWN]:
            table.add_row(*map(Text, cells), style=SUSPECT if minus_suspects else "")
        if len(rows) > HOSTS_SHOWN:
            table.add_row(Text(f"  and {len(rows) - HOSTS_SHOWN} more hosts", "dim"))
        return table

    def _host(
        self, name: str, ranks: Sequence[Rank], suspects: Sequence[str]
    ) -> tuple[tuple[int, float, float], tuple[str, ...]]:
        """The place of a host in the order, and its cells."""
        found = sum(rank.label in suspects for rank in ranks)
        rates = [rate for rank in ranks if (rate := self.history.rate(rank.label)) is not None]
        waits = [wait for rank in ranks if (wait := self.history.wait(rank.label)) is not None]
        wait = statistics.fmean(waits) if waits else None
        still_s = max((rank.still_s or 0.0 for rank in ranks), default=0.0)
        cells = (
            visible(f"{'! ' if found else '  '}{name}"),
            str(len(ranks)),
            str(found) if found else "",
            _rate(min(rates, default=None)),
            _share(wait),
            age_text(still_s),
        )
        return (-found, 1.0 if wait is None else wait, -still_s), cells


def _new_table(head: Sequence[str], left: Collection[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in head:
        if title == "in":
            table.add_column(title, overflow="ellipsis", no_wrap=True, ratio=1)
        else:
            table.add_column(title, justify="left" if title in left else "right", no_wrap=True)
    return table


def _place(rank: Rank, waiting: Waiting | None) -> Text:
    """The open stages, with a mark in the colour that the innermost has in every picture."""
    stack = rank.stack
    mark = Text("■ ", stage_colour(stack[-1])) if stack and stack[-1] else Text("  ")
    return mark + Text(visible(waiting.text if waiting else stack_text(stack)))


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _bytes(count: int | None) -> str:
    return "-" if count is None else bytes_text(count)

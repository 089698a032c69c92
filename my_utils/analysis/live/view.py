"""The ranks of a run as lines of text."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from ...core.ranges import as_ranges, ranges_text, ranks_text
from ...core.run_files.copied import as_named
from ...core.run_files.files import HEARTBEAT_SILENT_S
from ...core.run_files.state import Rank
from ...core.tables import table_lines
from ...core.units import age_text
from .collectives import Collectives
from .hang import Hang
from .poll import Snapshot
from .root_causes import gone_ranks
from .waits.places import stack_text, where
from .waits.standing import Suspect, Waiting
from .waits.text import cause_lines, unknown_line, waiting_line

GROUP_ABOVE = 16
LINES_OF_SUSPECTS = 10
HEAD_LINES = 6  # of a hang: who holds up the others
LAST_SHOWN = 3
RANGES_SHOWN = 12
CLOCK_AHEAD_S = 5.0
LOSSY_SHOWN = 8
_COLORS = {"suspect": "31", "waiting": "2", "bold": "1", "dim": "2"}


class View:
    """Lays a snapshot out as text. `color`: with ANSI colours. `group`: ranks that do the same on
    one line; None does so above 16 ranks. `table`: lays a table out."""

    def __init__(
        self,
        *,
        color: bool = False,
        group: bool | None = None,
        table: Callable[[Sequence[Sequence[str]], Collection[int]], list[str]] = table_lines,
    ) -> None:
        self.color = color
        self.group = group
        self.table = table

    def lines(self, seen: Snapshot, at: Mapping[int, str] | None = None) -> list[str]:
        """One string a line, without line ends. at: where ranks are in their Python code."""
        found = seen.found
        lines = [self._paint(title_text(seen), "bold")]
        by_dumps: list[str] = []
        if seen.collectives is not None:
            by_dumps = collective_lines(seen.collectives, found.ranks, at)
            lines += ["", *by_dumps, ""]
        if not found.ranks:
            lines.append("no rank has left a journal or a heartbeat here yet")
        if seen.hang is not None and found.ranks:
            lines.append(self._paint(_head_text(seen), "bold"))
            lines += self.held_up_lines(seen, at, HEAD_LINES - 1 - len(by_dumps))
        is_long = seen.hang is not None or len(found.ranks) > GROUP_ABOVE
        group = is_long if self.group is None else self.group
        if found.ranks:
            lines += ["", *self._table(seen, group)]
        if seen.hang is None:
            lines += self._suspects(seen.suspects)
        lines += left_out_lines(seen)
        return [visible(line, keep_colors=self.color) for line in lines]

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{_COLORS[style]}m{text}\x1b[0m" if self.color else text

    def _table(self, seen: Snapshot, group: bool) -> Iterator[str]:
        order = {suspect.rank.label: place for place, suspect in enumerate(seen.suspects)}
        waiting = {one.rank.label: one for one in seen.waiting}
        groups = _groups(seen.found.ranks, order, waiting, group)
        rows = [_row(members, waiting.get(members[0].label)) for members in groups]
        head, *lines = self.table([_HEAD, *rows], {0, 1, 4})
        yield self._paint(f"  {head}", "dim")
        for members, line in zip(groups, lines, strict=True):
            if members[0].label in order:
                yield self._paint(f"! {line}", "suspect")
            elif members[0].label in waiting:
                yield self._paint(f"  {line}", "waiting")
            else:
                yield f"  {line}"
            if len(members) == 1:
                yield from _other_threads(members[0], len("  ") + head.rindex(_HEAD[4]))

    def _suspects(self, suspects: Sequence[Suspect]) -> Iterator[str]:
        """After an empty line, of each why it stands out."""
        if not suspects:
            return
        yield ""
        for suspect in suspects[:LINES_OF_SUSPECTS]:
            name = self._paint(f"rank {suspect.rank.name}", "suspect")
            yield f"! {name}: {'; '.join(suspect.reasons)}"
        yield from _more_line(suspects[LINES_OF_SUSPECTS:])

    def held_up_lines(
        self, seen: Snapshot, at: Mapping[int, str] | None, most: int
    ) -> Iterator[str]:
        """Who holds the others up, where it is and since when it stands still; those that stand out
        for the same reasons in the same place in one line, and none that the dumps name. most:
        lines, but for one that says how many are left out."""
        by_dumps = seen.collectives.named if seen.collectives is not None else frozenset()
        alike: dict[object, list[Suspect]] = {}
        for one in seen.suspects:
            if one.rank.rank not in by_dumps:
                key = one.kinds, one.reasons, one.rank.step, one.rank.stack
                alike.setdefault(key, []).append(one)
        groups = list(alike.values())
        shown = max(0, most if len(groups) <= most else most - 1)
        for own in groups[:shown]:
            first = own[0].rank
            name = f"rank {first.name}" if len(own) == 1 else ranks_text(_sorted(own), RANGES_SHOWN)
            place = _place([one.rank for one in own], (at or {}).get(first.rank, ""))
            yield f"! {self._paint(name, 'suspect')}{place}: {'; '.join(own[0].reasons)}"
        yield from _more_line([one for own in groups[shown:] for one in own])


def standstill_lines(seen: Snapshot, at: Mapping[int, str] | None = None) -> list[str]:
    """Since when the run stands still and where, and who holds the others up: by the dumps of the
    run, if there are any, then by the stages."""
    assert seen.hang is not None
    found = seen.collectives
    by_dumps: list[str] = []
    if found is not None and found.nodes:
        by_dumps = collective_lines(found, seen.found.ranks, at)
    held_up = View().held_up_lines(seen, at, HEAD_LINES - 1 - len(by_dumps))
    return [visible(line) for line in (_head_text(seen), *by_dumps, *held_up)]


def _head_text(seen: Snapshot) -> str:
    """`hang_text`, in the past where no process lives."""
    assert seen.hang is not None
    text = hang_text(seen.hang)
    lives = any(rank.alive for rank in seen.found.ranks)
    return text if lives else text.replace("hangs", "hung", 1)


def _more_line(rest: Sequence[Suspect]) -> Iterator[str]:
    if rest:
        yield f"! and {_count(rest, 'more rank')}: {_numbers(_sorted(rest))}"


def _sorted(suspects: Sequence[Suspect]) -> list[int]:
    return sorted(one.rank.rank for one in suspects)


def title_text(seen: Snapshot) -> str:
    """The directories, the time, and how many ranks there are of each state."""
    states = [rank.state for rank in seen.found.ranks]
    counts = [
        f"{states.count(state)} {state}"
        for state in ("running", "silent", "dead", "closed")
        if state in states
    ]
    log_dirs, now = ", ".join(as_named(seen.log_dirs)), time.strftime("%H:%M:%S")
    return f"{log_dirs}  {now}  {', '.join(counts)}".rstrip()


def _place(ranks: Sequence[Rank], at: str) -> str:
    """Where ranks are, and since when without progress. at: the line of the first one's code."""
    first = ranks[0]
    hosts = {rank.host for rank in ranks}
    parts = [f" on {first.host}" if first.host else ""]
    if len(hosts) > 1:
        parts = [f" on {len(hosts)} hosts"]
    if first.step is not None:
        parts.append(f"step {first.step}")
    if first.stack:
        parts.append(f"in {where(first)}")
    if at:
        name = "" if len(ranks) == 1 else f"rank {first.name} "
        parts.append(f"{name}at {at}")
    if first.moved_ns is not None and first.still_s is not None:
        parts.append(_since(first.moved_ns, first.still_s))
    return ", ".join(parts)


def _since(moved_ns: int, still_s: float) -> str:
    return f"since {clock_text(moved_ns)} ({age_text(still_s)})"


def clock_text(time_ns: int) -> str:
    """Unix time as local time, with the date where it is not today's."""
    moment = time.localtime(time_ns / 1e9)
    is_today = moment[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", moment)


def hang_text(hang: Hang) -> str:
    """The verdict in one line."""
    longest = hang.longest
    if not hang.hung:
        if longest is None:
            return "moves: no stage is known of any rank that lives"
        still = age_text(longest.still_s or 0.0)
        return f"moves: rank {longest.name} has made no progress for {still}, the longest of all"
    since = "" if hang.since_ns is None else f" since {clock_text(hang.since_ns)}"
    if hang.crowd is None:
        return f"hangs{since}"
    step, stack = hang.crowd
    at_step = "" if step is None else f"step {step}, "
    elsewhere = hang.elsewhere
    there = [rank for rank in hang.waiting if (rank.step, rank.stack) == (step, stack)]
    line = f"hangs{since}: {at_step}in {stack_text(stack)}, {_ranks_text(there)}"
    if elsewhere:
        line += f"; elsewhere {_ranks_text(elsewhere)}"
        behind = [rank for rank in elsewhere if (rank.step or 0) < (step or 0)]
        line += f", in an earlier step {_ranks_text(behind)}" if behind else ""
    return line


def _ranks_text(ranks: Sequence[Rank]) -> str:
    count = "rank" if len(ranks) == 1 else f"{len(ranks)} ranks:"
    return f"{count} {_numbers(rank.rank for rank in ranks)}"


def collective_lines(
    found: Collectives, ranks: Sequence[Rank], at: Mapping[int, str] | None = None
) -> list[str]:
    """Who holds the others up by the dumps of the flight recorder, and in which call: at most six
    lines. at: where ranks are in their Python code."""
    dumps = f"by {_count(found.dumps, 'dump')} in {found.place}"
    if not found.nodes:
        return [f"no collective is under way, {dumps}"]
    causes = found.causes
    since = [_since(cause.node.call.created_ns, cause.waited_s) for cause in causes]
    lives = any(rank.alive for rank in ranks)  # that all are dead accuses none
    main = [rank for rank in ranks if rank.worker == 0]
    gone = gone_ranks(ranks)
    places = {
        one.rank: f"in {where(one)}" if one.alive else one.state
        for one in main
        if lives or one.rank in gone
    }
    for rank, code in (at or {}).items():
        places[rank] = f"{places[rank]}, at {code}" if rank in places else f"at {code}"
    head = "who holds the others up" if causes else "nobody is known to hold the others up"
    return [
        f"{head}, {dumps}:",
        *cause_lines(causes, places, since),
        *waiting_line(found.nodes, found.named),
        *unknown_line(found.without_dump, found.still.stale, found.named),
    ]


def left_out_lines(seen: Snapshot) -> Iterator[str]:
    """Ranks and files that are not in the table, and why."""
    if seen.missing:
        yield ""
        yield f"no file of {_count(seen.missing, 'rank')}: {_numbers(seen.missing)}"
    if seen.found.earlier:
        numbers = sorted({rank.rank for rank in seen.found.earlier})
        yield ""
        count = _count(numbers, "rank")
        yield f"left by an earlier run, not shown: {count}: {_numbers(numbers)}"
    if lossy := [rank for rank in seen.found.ranks if rank.dropped]:
        yield ""
        counts = ", ".join(f"{rank.dropped} of rank {rank.name}" for rank in lossy[:LOSSY_SHOWN])
        more = lossy[LOSSY_SHOWN:]
        yield f"lost records: {counts}" + (f" and of {_count(more, 'rank')}" if more else "")
    # One that was copied is older than its file says, which looks like a clock that is behind: so
    # only a heartbeat counts that the rank itself has written just now.
    ahead = [
        rank
        for rank in seen.found.ranks
        if rank.state == "running"
        and (rank.beat_age_s or 0.0) <= HEARTBEAT_SILENT_S
        and abs(rank.clock_ahead_s or 0.0) > CLOCK_AHEAD_S
    ]
    if ahead:
        yield ""
        yield _clock_line(ahead)
    problems = [*seen.found.problems, *(seen.collectives.problems if seen.collectives else ())]
    if problems:
        yield ""
        for problem in problems:
            yield f"left out {problem.file}: {problem.reason}"


def _clock_line(ranks: Sequence[Rank]) -> str:
    worst = max(ranks, key=lambda rank: abs(rank.clock_ahead_s or 0.0))
    seconds = worst.clock_ahead_s or 0.0
    side = "ahead" if seconds > 0 else "behind"
    hosts = {rank.host for rank in ranks}
    return (
        f"clocks of {_count(sorted(hosts), 'host')} differ from the file server's, {worst.host}'s "
        f"most: it is {age_text(abs(seconds))} {side}"
    )


_HEAD = ("rank", "state", "step", "for", "in")


def _groups(
    ranks: Sequence[Rank],
    suspects: Mapping[str, int],
    waiting: Mapping[str, Waiting],
    group: bool,
) -> list[list[Rank]]:
    """Ranks that do the same, at most; the first suspects have a line each."""
    groups: dict[object, list[Rank]] = {}
    for rank in ranks:
        place = suspects.get(rank.label)
        alone = not group or (place is not None and place < LINES_OF_SUSPECTS)
        role = (place is None, rank.label in waiting, rank.worker > 0)
        place_in_run = (*role, rank.state, rank.step, rank.stack)
        groups.setdefault(rank.label if alone else place_in_run, []).append(rank)
    return list(groups.values())


def _row(members: Sequence[Rank], waiting: Waiting | None) -> tuple[str, str, str, str, str]:
    first, name = members[0], members[0].name
    if len(members) > 1:
        workers = f", {_count(members, 'worker')}" if first.worker else f" ({len(members)})"
        name = _numbers(sorted({rank.rank for rank in members})) + workers
    step = "-" if first.step is None else str(first.step)
    ages = [rank.open_s for rank in members if rank.open_s is not None]
    age = age_text(max(ages)) if ages else "-"
    place = where(first) if waiting is None else waiting.text
    if len(members) == 1:
        place += _last_stages(first)
    return name, state_text(first), step, age, place


def state_text(rank: Rank) -> str:
    """The state, with the seconds of a silence."""
    if rank.state == "silent" and rank.beat_age_s is not None:
        return f"silent for {age_text(rank.beat_age_s)}"
    return rank.state


def _last_stages(rank: Rank) -> str:
    thread = rank.main or next((thread for thread in rank.threads if thread.last), None)
    if thread is None or not thread.last:
        return ""
    last = [
        f"{stage.name} {age_text(stage.duration_ms / 1000)}" for stage in thread.last[:LAST_SHOWN]
    ]
    return "   after " + ", ".join(last)


def _other_threads(rank: Rank, indent: int) -> Iterator[str]:
    for thread in rank.threads:
        if thread is rank.main or not thread.open:
            continue
        name = thread.name or f"thread {thread.tid}"
        name = f"{name} [{thread.tag}]" if thread.tag else name
        stack = stack_text([stage.name for stage in thread.open])
        yield f"{'':{indent}}{name}: {stack} for {age_text(thread.open[-1].open_s)}"


def _count(items: Sequence[object], noun: str) -> str:
    return f"{len(items)} {noun}" if len(items) == 1 else f"{len(items)} {noun}s"


def _numbers(numbers: Iterable[int]) -> str:
    """The numbers as ranges, the first RANGES_SHOWN of them."""
    return ranges_text(as_ranges(numbers), RANGES_SHOWN)


def visible(line: str, *, keep_colors: bool = False) -> str:
    """Names come from files, so control characters of terminals are shown as escapes."""
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

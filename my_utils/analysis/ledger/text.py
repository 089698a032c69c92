"""The ledger for a terminal: two or three lines below a verdict, or the whole table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.units import count_text, percent_text, time_text
from .ledger import Attempt, Ledger
from .rows import COMPUTE, GOODPUT, IN_VAIN, LAUNCH, LAUNCHER, ROWS

SHOWN_FROM = 0.10  # of the time outside the kept steps, from which on a verdict's reader sees it
LISTED = 0.01  # what is less counts into "other"
GAP = "   "
_JOINED = {LAUNCHER: LAUNCH}  # shown as one


def ledger_lines(ledger: Ledger, width: int = 100) -> list[str]:
    """What became of the time that was not goodput; nothing where that is little. The shares add up
    to 100 %."""
    if 1 - ledger.goodput < SHOWN_FROM:
        return []
    shares: dict[str, float] = {}
    for row in ROWS:
        if row not in GOODPUT:
            name = _JOINED.get(row, row)
            shares[name] = shares.get(name, 0.0) + ledger.share(row)
    order = sorted(shares, key=lambda name: -shares[name])
    listed = {name: shares[name] for name in order if shares[name] >= LISTED}
    listed["other"] = sum(shares.values()) - sum(listed.values())
    goodput, *thousandths = _thousandths([ledger.goodput, *listed.values()])
    parts = [
        f"{name} {_percent(share)}{_more(name, ledger)}"
        for name, share in zip(listed, thousandths, strict=True)
        if share
    ]
    lines = [f"{f'goodput {_percent(goodput)} of {_whole(ledger)}':<45} {parts[0]}", ""]
    for part in parts[1:]:
        if lines[-1] and len(lines[-1]) + len(GAP) + len(part) > width:
            lines.append("")
        lines[-1] += f"{GAP if lines[-1] else '  '}{part}"
    return [line for line in lines if line]


def table_lines(ledger: Ledger) -> list[str]:
    """The whole ledger: of each row its share, and of all ranks the mean, the least and the
    most."""
    return list(_table(ledger))


def _table(ledger: Ledger) -> Iterator[str]:
    shares = dict(zip(ROWS, _thousandths([ledger.share(row) for row in ROWS]), strict=True))
    goodput, compute = sum(shares[row] for row in GOODPUT), shares[COMPUTE]
    yield f"LEDGER of {_whole(ledger)}: goodput {_percent(goodput)}, compute {_percent(compute)}"
    yield f"  {'row':<14}{'share':>8}{'mean':>10}{'least':>10}{'most':>10}"
    for row, ns in zip(ROWS, ledger.ns.T, strict=True):
        if ns.any():
            figures = (float(ns.mean()), float(ns.min()), float(ns.max()))
            columns = "".join(f"{time_text(one * 1e-6):>10}" for one in figures)
            yield f"  {row:<14}{_percent(shares[row]):>8}{columns}"
    mean = time_text(float(ledger.wall_ns.mean()) * 1e-6)
    yield f"  {'sum':<14}{_percent(sum(shares.values())):>8}{mean:>10}"
    if ledger.launch:
        means = {part: ns / len(ledger.ranks) for part, ns in ledger.launch.items()}
        parts = [f"{part} {time_text(ns * 1e-6)}" for part, ns in means.items() if ns]
        yield f"  {LAUNCH}: {', '.join(parts)}"
    for one in ledger.culprits:
        more = f", which takes longer in {one.row}" if one.row else ""
        yield f"  {time_text(one.wait_ns * 1e-6)} waited for rank {one.rank}{more}"
    sizes = [one.ranks for one in ledger.attempts]
    if len(set(sizes)) > 1:
        yield f"  ranks by attempt: {', '.join(map(str, sizes))}"
    for attempt in ledger.attempts:
        if attempt.in_vain is not None:
            yield f"  {_in_vain(attempt)} in vain"
    yield from (f"  {note}" for note in ledger.notes)


def _thousandths(shares: Sequence[float]) -> list[int]:
    """Shares of a whole as whole numbers that add up to 1000: those that lose most by it are
    rounded up.

    >>> _thousandths([1 / 3, 1 / 3, 1 / 3])
    [334, 333, 333]
    """
    exact = [1000 * share for share in shares]
    found = [int(one) for one in exact]
    order = sorted(range(len(exact)), key=lambda at: found[at] - exact[at])
    for at in order[: max(1000 - sum(found), 0)]:
        found[at] += 1
    return found


def _percent(thousandths: int) -> str:
    return percent_text(thousandths / 1000)


def _whole(ledger: Ledger) -> str:
    """
    >>> import numpy as np
    >>> from my_utils.analysis.ledger.ledger import Attempt, Ledger
    >>> wall_ns = np.array([14 * 10**9] * 2)
    >>> _whole(Ledger([0, 1], 0, np.zeros((2, 0)), wall_ns, [Attempt(1, 0, 9, None, 2)]))
    '2 x 14 s'
    """
    wall = time_text(float(ledger.wall_ns.mean()) * 1e-6)
    attempts = len(ledger.attempts)
    more = f", {count_text(attempts, 'attempt')}" if attempts > 1 else ""
    return f"{len(ledger.ranks)} x {wall}{more}"


def _more(name: str, ledger: Ledger) -> str:
    if name == LAUNCH:
        each_ns = ledger.total_ns(LAUNCHER, LAUNCH) / len(ledger.ranks) / len(ledger.attempts)
        return f", {time_text(each_ns * 1e-6)}{' an attempt' if len(ledger.attempts) > 1 else ''}"
    if name == IN_VAIN:
        steps = [_in_vain(one) for one in ledger.attempts if one.in_vain is not None]
        return f": {'; '.join(steps[:2])}"
    return ""


def _in_vain(attempt: Attempt) -> str:
    first, last = attempt.in_vain or (0, 0)
    return f"steps {first}-{last} of attempt {attempt.number}"

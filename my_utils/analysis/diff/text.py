"""A difference in words, as a table for a review, and as JUnit XML."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from ...core.printable import printable
from ...core.ranges import as_ranges, ranges_text
from ...core.units import bytes_text, percent_text, points_text, time_text
from ..ledger.rows import GOODPUT

if TYPE_CHECKING:  # result imports this module
    from .gates import GateResult
    from .result import Difference, FigureDifference, StageDifference

STAGES_SHOWN = 4
ROWS_SHOWN = 3  # of the ledgers
GOODPUT_DIFFERS = 0.01  # of all time: what is less is not said
NOTES_SHOWN = 4
RANGES_SHOWN = 8
FINE = 0.0005  # a margin below which figures have two decimals
MOST = 10.0  # the largest share that is worth its figures
NOTABLE = 0.03  # of all steps: what single steps take longer is worth a line from there on
_TAGS = {"failed": "failure", "undecided": "error"}
_MORE = f"more than {100 * MOST:.0f} %"


def share_text(share: float, digits: int = 1, *, sign: bool = False) -> str:
    """A share in percent, up to what is worth its figures.

    >>> share_text(0.0413), share_text(12.0)
    ('4.1 %', 'more than 1000 %')
    >>> change_text(0.0413), change_text(-0.002)
    ('+4.1 %', '−0.2 %')
    """
    return _MORE if share > MOST else percent_text(share, digits, sign=sign)


change_text = functools.partial(share_text, sign=True)


def terminal_lines(found: Difference) -> list[str]:
    if found.step is None:
        return [f"NOT COMPARED: {printable(found.reason or '')}", *_notes(found)]
    return [_sentence(found), *(f"  {line}" for line in _below(found)), *_notes(found)]


def _sentence(found: Difference) -> str:
    step = found.step
    assert step is not None
    digits = 1 if step.margin >= FINE else 2
    usually = " in a usual step" if _at_times(found) else ""
    runs = "within these runs only" if found.within else f"{found.runs[0]} × {found.runs[1]} runs"
    margin = f"(± {share_text(step.margin, digits)}, {runs})"
    if found.status == "no difference":
        head = (
            f"No difference is found{usually}: B takes {change_text(step.share, digits)} {margin}; "
            f"it could have seen {share_text(step.sees, digits)}"
        )
    else:
        head = f"B is {share_text(abs(step.share), digits)} {found.status}{usually} {margin}"
    shown = found.different[:STAGES_SHOWN]
    if not shown and found.status == "no difference":
        return f"{head}."
    return f"{head}: {', '.join(_parts(found, shown, digits))}."


def _parts(found: Difference, shown: Sequence[StageDifference], digits: int) -> Iterator[str]:
    """Stages and the rest, rounded so that they add up to what is said of the step; in ms where
    shares of a step of A say little."""
    assert found.step is not None
    in_ms = abs(found.step.share) > MOST
    rest = _amount(found.step.share, found, digits, in_ms)
    of_it = " of it" if found.status != "no difference" else ""
    for at, one in enumerate(shown):
        amount = _amount(one.interval.share, found, digits, in_ms)
        rest -= amount
        of_all = of_it if at == 0 else ""
        where = f"in `{printable(one.stage)}`{_where(one, found)}"
        yield f"{_amount_text(amount, digits, in_ms)}{of_all} {where}"
    if shown:
        yield f"{_amount_text(rest, digits, in_ms)} elsewhere"
    else:
        yield "no stage stands out"


def _amount(share: float, found: Difference, digits: int, in_ms: bool) -> float:
    return round(share * found.a_ns * 1e-6, 1) if in_ms else round(100 * share, digits)


def _amount_text(amount: float, digits: int, in_ms: bool) -> str:
    return change_ms_text(amount) if in_ms else points_text(amount / 100, digits)


def change_ms_text(milliseconds: float) -> str:
    """
    >>> change_ms_text(200.04), change_ms_text(-3.3)
    ('+200.0 ms', '−3.3 ms')
    """
    return f"{milliseconds:+.1f} ms".replace("-", "−")


def _where(one: StageDifference, found: Difference) -> str:
    if max(found.ranks) < 2 or found.ranks[0] != found.ranks[1]:
        return ""
    if not one.ranks:
        return " on all ranks"
    text = ranges_text(as_ranges(one.ranks), RANGES_SHOWN)
    return f" on rank {text}" if len(one.ranks) == 1 else f" on ranks {text}"


def _below(found: Difference) -> Iterator[str]:
    left_out = f", first {found.warmup} left out as warm-up" if found.warmup else ""
    yield (
        f"A {time_text(found.a_ns * 1e-6, 4)}, B {time_text(found.b_ns * 1e-6, 4)} a step: "
        f"{found.steps} steps of each run{left_out}, without what single steps take longer"
    )
    yield from _above(found)
    yield from (_figure(one) for one in found.figures)
    yield from _of_the_jobs(found)
    if found.within:
        yield (
            "two runs of the same code differ by more than their steps show; for a claim about "
            "code take several of each:"
        )
        yield "my_utils run --repeat 5 --against 'COMMAND OF B' -- COMMAND OF A"


def _above(found: Difference) -> Iterator[str]:
    """What single steps take longer, and with it all steps."""
    at_times = sorted(_at_times(found), key=lambda one: -abs(one.above.share))
    if not at_times:
        return
    parts = [
        f"{change_ms_text((one.b_above_ns - one.a_above_ns) * 1e-6)} in `{printable(one.stage)}`"
        for one in at_times[:STAGES_SHOWN]
    ]
    yield (
        f"with that A {time_text(found.a_whole_ns * 1e-6, 4)}, "
        f"B {time_text(found.b_whole_ns * 1e-6, 4)} a step: {_in_all(found)}; "
        f"single steps: {', '.join(parts)}"
    )


def _at_times(found: Difference) -> list[StageDifference]:
    """The stages that take single steps longer, where that is much on a side or differs."""
    return [
        one for one in found.stages
        if one.above.differs
        or max(one.a_above_ns / found.a_whole_ns, one.b_above_ns / found.b_whole_ns) >= NOTABLE
    ]  # fmt: skip


def _in_all(found: Difference) -> str:
    whole = found.whole
    assert whole is not None
    decided = "" if whole.differs else ", not decided: such steps are few and differ"
    return f"{change_text(whole.share)} (± {share_text(whole.margin)}{decided})"


def _of_the_jobs(found: Difference) -> Iterator[str]:
    """Goodput, and the rows that changed most; nothing where it is about the same."""
    if not found.ledger or abs(found.ledger[0].b - found.ledger[0].a) < GOODPUT_DIFFERS:
        return
    goodput, *rows = found.ledger
    others = (one for one in rows if one.row not in GOODPUT)
    most = sorted(others, key=lambda one: -abs(one.b - one.a))[:ROWS_SHOWN]
    changed = [one for one in most if abs(one.b - one.a) >= GOODPUT_DIFFERS]
    more = [f"{one.row} {percent_text(one.a)} and {percent_text(one.b)}" for one in changed]
    yield (
        f"goodput of the jobs: A {percent_text(goodput.a)}, B {percent_text(goodput.b)}"
        f"{': ' if more else ''}{', '.join(more)}"
    )


def _figure(one: FigureDifference) -> str:
    off = "" if one.interval is None else f" ± {share_text(one.interval.margin)}"
    change = f"({change_text(one.share)}{off})"
    if one.name == "memory":
        return f"memory at its highest: A {bytes_text(one.a)}, B {bytes_text(one.b)} {change}"
    return f"{one.name}: A {one.a:,.1f}, B {one.b:,.1f} {change}"


def _notes(found: Difference) -> list[str]:
    return [f"  note: {printable(note)}" for note in found.notes[:NOTES_SHOWN]]


# --- gates ---


def gate_line(result: GateResult) -> str:
    """One line for a gate: what it decided, and from which interval."""
    head = f"{result.status.upper()}: {printable(result.gate.text)}"
    if result.interval is None:
        return f"{head}: {result.reason}"
    low, high = (
        change_text(result.interval.low),
        change_text(result.interval.high),
    )
    return f"{head}: B is at {change_text(result.interval.share)}, between {low} and {high}"


# --- Markdown ---


def markdown(found: Difference, gates: Sequence[GateResult] = ()) -> str:
    first, *rest = terminal_lines(found)
    lines = [f"**{_escaped(first)}**", "", *(f"- {_escaped(line.strip())}" for line in rest)]
    if gates:
        lines += ["", *(f"- {_escaped(gate_line(one))}" for one in gates)]
    if found.stages:
        lines += ["", "| Stage | A | B | Of a step of A | Differs | Ranks |", f"|{'---|' * 6}"]
        lines += [_row(one, found) for one in found.stages]
    return "\n".join(lines) + "\n"


def _row(one: StageDifference, found: Difference) -> str:
    interval = one.interval
    cells = [
        f"`{_escaped(printable(one.stage))}`",
        time_text(one.a_ns * 1e-6, 4),
        time_text(one.b_ns * 1e-6, 4),
        f"{change_text(interval.share, 2)} ± {share_text(interval.margin, 2)}",
        "yes" if interval.differs else "",
        _where(one, found).removeprefix(" on ") if interval.differs else "",
    ]
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


# --- JUnit XML ---


def junit(found: Difference, gates: Sequence[GateResult]) -> str:
    """The whole file, for CI systems: one test for each gate, or one test without gates. A failed
    gate is a failure, an undecided one an error."""
    failures = sum(one.status == "failed" for one in gates)
    errors = sum(one.status == "undecided" for one in gates)
    cases = [_case(one) for one in gates] or [_only(found)]
    errors += not gates and found.step is None
    text = escape("\n".join(printable(line) for line in found.lines()))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuite name="my_utils diff" tests="{len(cases)}" failures="{failures}" '
        f'errors="{errors}">\n{"".join(cases)}  <system-out>{text}</system-out>\n</testsuite>\n'
    )


def _case(one: GateResult) -> str:
    head = f'  <testcase classname="my_utils.diff" name={quoteattr(printable(one.gate.text))}'
    if one.status == "passed":
        return f"{head}/>\n"
    tag, message = _TAGS[one.status], quoteattr(printable(gate_line(one)))
    return f"{head}><{tag} message={message}/></testcase>\n"


def _only(found: Difference) -> str:
    head = '  <testcase classname="my_utils.diff" name="comparison"'
    if found.step is not None:
        return f"{head}/>\n"
    return f"{head}><error message={quoteattr(printable(found.reason or ''))}/></testcase>\n"

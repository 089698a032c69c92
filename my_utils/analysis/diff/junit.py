"""Gates as JUnit XML for CI systems: one test for each gate, or one test without gates."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from ...core.printable import printable
from .gates import GateResult
from .result import Difference
from .text import gate_line

_TAGS = {"failed": "failure", "undecided": "error"}


def junit(found: Difference, gates: Sequence[GateResult]) -> str:
    """The whole file. A failed gate is a failure, an undecided one an error."""
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

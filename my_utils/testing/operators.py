"""Runs a test under NanInfTracker or CompareWithCPU, and fails it for what they find."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from .plugin import CHECKS

if TYPE_CHECKING:
    from ..profilers.operators.compare_mode import CompareWithCPU
    from ..profilers.operators.nan_inf_mode import NanInfTracker

MARKER = "my_utils_check"


def read_checks(item: pytest.Item, by_option: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Names of checks with their arguments: those of the closest marker, or without one those of
    the option. ValueError for an unknown name."""
    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return [(name, {}) for name in by_option]
    for name in marker.args:
        if name not in CHECKS:
            raise ValueError(f"{MARKER} must be {' or '.join(CHECKS)}, not {name!r:.100}")
    return [(name, dict(marker.kwargs)) for name in marker.args]


def run_checked(
    checks: Sequence[tuple[str, dict[str, Any]]],
) -> Generator[None, Any, Any]:
    """Runs the test, for which it yields, under the checks."""
    __tracebackhide__ = True
    with contextlib.ExitStack() as stack:
        for name, arguments in checks:
            stack.enter_context(_checked(name, arguments))
        result = yield
    return result


@contextlib.contextmanager
def _checked(name: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Fails the test if the check finds something in the block; the text has the first finding."""
    if name == "NanInfTracker":
        from ..profilers.operators.nan_inf_mode import NanInfTracker

        with NanInfTracker(**arguments) as tracker:
            yield
        _judge_nan_inf(tracker)
    else:
        from ..profilers.operators.compare_mode import CompareWithCPU

        with CompareWithCPU(**{"verbose": False, **arguments}) as compare:
            yield
        _judge_compare(compare)


def _judge_nan_inf(tracker: NanInfTracker) -> None:
    first = tracker.first
    if first is not None and first.role == "producer":  # else the test itself made the NaN
        pytest.fail(
            f"NanInfTracker: {first.title} gave {first.nan} NaN, {first.pos_inf} +Inf, "
            f"{first.neg_inf} -Inf of {first.elements} elements in step {first.step}; the captured "
            "output has its inputs",
            pytrace=False,
        )


def _judge_compare(compare: CompareWithCPU) -> None:
    summary = compare.summary
    if summary.failed:
        worst = summary.worst()[0]
        pytest.fail(
            f"CompareWithCPU: {summary.failed} calls of operators differ, most of {worst.op}; the "
            f"captured output has their inputs\n{summary.table()}",
            pytrace=False,
        )

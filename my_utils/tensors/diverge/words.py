"""Common parts of difference reports: which checks differ, and how they are listed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .result import CallCheck, TensorCheck, Verdict


def differs(verdict: Verdict | None) -> bool:
    return verdict is Verdict.DIFFERENT


def only_different(checks: Iterable[TensorCheck]) -> list[TensorCheck]:
    return [check for check in checks if differs(check.verdict)]


def listed(checks: Sequence[TensorCheck]) -> str:
    shown = [f"{check.path or 'the tensor'} ({check.why})" for check in checks[:4]]
    return ", ".join(shown) + (f" and {len(checks) - 4} more" if len(checks) > 4 else "")


def inside(parent: CallCheck, child: CallCheck) -> str:
    """The name of a module as seen from the one around it."""
    return child.name.removeprefix(f"{parent.name}.") if parent.name else child.name

"""The oldest torch and the newest give the same answers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from my_utils.core.older_torch import (  # noqa: E402
    close_lost_session,
    end_stale_session,
    event_kinds,
    is_python_function,
    kinds_from_tree,
)


def profiled(**options: Any) -> Any:
    linear = torch.nn.Linear(3, 3)
    with torch.profiler.profile(profile_memory=True, **options) as profile:
        with torch.profiler.record_function("a block"):
            linear(torch.ones(2, 3)).sum().backward()
        profile.step()
    return profile


def test_the_kinds_are_those_of_torch() -> None:
    results = profiled().profiler.kineto_results
    kinds: dict[str, set[str]] = {}
    for kind_of in (event_kinds(results), kinds_from_tree(results)):
        for event in results.events():
            kind = kind_of(event)
            kinds.setdefault(event.name(), set()).add(kind if kind.startswith("cpu_") else "")
    assert kinds["aten::addmm"] == kinds["AddmmBackward0"] == {"cpu_op"}
    assert kinds["[memory]"] == {"cpu_instant_event"}
    assert kinds["a block"] == {""}
    assert all(len(found) == 1 for found in kinds.values()), kinds


def test_python_functions_are_no_operators() -> None:
    events = profiled(with_stack=True).events()
    functions = {event.name for event in events if is_python_function(event)}
    assert not any(name.startswith("aten::") for name in functions)
    left = {event.name for event in events} - functions
    assert "aten::addmm" in left
    assert not any(".py(" in name or "built-in" in name for name in left)


@pytest.mark.parametrize("with_stack", [False, True])
def test_after_a_stop_in_another_thread_both_threads_can_profile(with_stack: bool) -> None:
    def of_another(function: Any) -> None:
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()

    def count(found: list[int]) -> None:
        end_stale_session()
        with torch.profiler.profile(with_stack=with_stack) as fresh:
            torch.ones(2)
        found.append(sum(event.name == "aten::ones" for event in fresh.events()))

    found: list[int] = []
    for _ in range(2):
        lost = torch.profiler.profile(with_stack=with_stack)
        lost.start()
        of_another(lambda lost=lost: close_lost_session(lost))
        of_another(lambda: count(found))
        count(found)
        count(found)
    assert found == [1] * 6

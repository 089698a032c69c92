"""Notices that the program opens a torch profiler while one of this package runs.

torch gives its one session to whoever asks last: it drops the first one's events in silence, and to
export them afterwards is a crash. The slot keeps our own profilers apart. A
`torch.profiler.profile` of the program's own knows no slot, so both of its ways into a session are
watched while one of ours is open.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

# Methods of torch.autograd.profiler.profile, each called before its session begins.
_WAYS_IN = ("_prepare_trace", "_start_trace")


def watch(own: Any, stolen: Callable[[], object]) -> Callable[[], None]:
    """Calls `stolen` when a profiler other than `own`, a torch.profiler.profile, is about to take
    the session, in the thread that takes it. Returns what ends the watch."""
    from torch.autograd.profiler import profile

    put: dict[str, tuple[Any, Any]] = {}
    for name in _WAYS_IN:
        original = getattr(profile, name, None)
        if original is None:
            continue  # of another torch, where the loss is noticed at the end
        wrapper = _watched(original, own, stolen)
        put[name] = original, wrapper
        setattr(profile, name, wrapper)

    def end() -> None:
        for name, (original, wrapper) in put.items():
            if profile.__dict__.get(name) is wrapper:
                setattr(profile, name, original)
        put.clear()  # the wrappers hold our profiler, and whoever holds this would

    return end


def _watched(original: Any, own: Any, stolen: Callable[[], object]) -> Any:
    @functools.wraps(original)
    def wrapper(session: Any, *args: Any, **kwargs: Any) -> Any:
        if session is not own.profiler:
            stolen()
        return original(session, *args, **kwargs)

    return wrapper

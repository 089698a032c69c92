"""The rules of capture windows in plain Python, to compare the C engine with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Event:
    name: str
    iter: int | None = None
    mb: int | None = None
    role: str | None = None
    rank: int | None = None


PAST = 2  # iterations after which any function shows that a gate was missed


@dataclass
class Window:
    """An armed or open window: the fields of its spec, and what it has seen."""

    spec: dict[str, Any]
    trigger: str = ""
    opener: Event | None = None  # as long as its call runs
    first_iter: int | None = None
    calls: int = 0
    stopping: bool = False

    def passes(self, event: Event) -> bool:
        roles, ranks = self.spec.get("roles"), self.spec.get("ranks")
        return (not roles or event.role in roles) and (not ranks or event.rank in ranks)

    def at(self, gate: str, event: Event) -> bool:
        wanted_iter, wanted_mb = self.spec.get(f"{gate}_iter"), self.spec.get(f"{gate}_mb")
        fits_mb = wanted_mb is None or event.mb in (None, wanted_mb)
        return wanted_iter in (None, event.iter) and fits_mb

    def beyond(self, gate: str, event: Event, by: int) -> bool:
        wanted = self.spec.get(f"{gate}_iter")
        return wanted is not None and event.iter is not None and event.iter >= wanted + by

    def named(self, gate: str, event: Event) -> bool:
        return event.name in self.spec.get(f"{gate}_profile_names", ())


@dataclass
class Model:
    """The view of one thread, whose calls nest and whose events are made anew for each report.
    `log` holds what the backend and the outcomes must show, in order."""

    armed: list[Window] = field(default_factory=list)
    open: Window | None = None
    log: list[tuple[str, str]] = field(default_factory=list)
    calls: list[Event] = field(default_factory=list)  # of the trigger, while a window is open

    def arm(self, spec: dict[str, Any]) -> bool:
        """False when the window of that id is open."""
        name = spec["window_id"]
        if self.open is not None and self.open.spec["window_id"] == name:
            return False
        for window in list(self.armed):
            if window.spec["window_id"] == name:
                self.armed.remove(window)
                self.log.append(("disarmed", name))
        self.armed.append(Window(spec))
        return True

    def disarm(self, name: str) -> None:
        if self.open is not None and self.open.spec["window_id"] == name:
            self._close("disarmed")
        for window in list(self.armed):
            if window.spec["window_id"] == name:
                self.armed.remove(window)
                self.log.append(("disarmed", name))

    def enter(self, event: Event) -> None:
        self._visit(event, "ENTER", raised=False)

    def exit(self, event: Event, raised: bool) -> None:
        self._visit(event, "EXIT", raised)

    def _close(self, outcome: str) -> None:
        assert self.open is not None
        name = self.open.spec["window_id"]
        self.open = None
        self.log += [("stop", name), (outcome, name)]

    def _visit(self, event: Event, edge: str, raised: bool) -> None:
        later: list[tuple[str, str]] = []
        if edge == "ENTER" and self._is_followed(event):
            assert self.open is not None
            name = self.open.spec["window_id"]
            self.open = None
            self.log.append(("stop", name))
            later.append(("abandoned", name))
        ended = self._ended_call(event) if edge == "EXIT" else None
        closing = self._outcome(event, edge, raised, ended)
        if closing is not None:
            assert self.open is not None
            name = self.open.spec["window_id"]
            self.open = None
            self.log.append(("stop", name))
            later.append((closing, name))
        for window in list(self.armed):
            later += self._try_open(window, event, edge)
        if edge == "ENTER" and self._keeps(event):
            self.calls.append(event)
        self.log += sorted(later)

    def _keeps(self, event: Event) -> bool:
        window = self.open
        return window is not None and window.opener is not None and event.name == window.trigger

    def _is_followed(self, event: Event) -> bool:
        """A later iteration begins where the opener should have ended."""
        window = self.open
        if window is None or window.opener is None or not self._keeps(event):
            return False
        if window.spec["stop_policy"] != "ON_TRIGGER_FUNC_EXIT":
            return False
        first = window.opener.iter
        return first is not None and event.iter is not None and event.iter > first

    def _ended_call(self, event: Event) -> Event | None:
        """The innermost call that the end fits."""
        if not self._keeps(event):
            return None
        for call in reversed(self.calls):
            pairs = [(call.iter, event.iter), (call.mb, event.mb), (call.role, event.role)]
            pairs.append((call.rank, event.rank))
            if all(None in pair or pair[0] == pair[1] for pair in pairs):
                self.calls = [other for other in self.calls if other is not call]
                return call
        return None

    def _outcome(self, event: Event, edge: str, raised: bool, ended: Event | None) -> str | None:
        window = self.open
        if window is None:
            return None
        policy = window.spec["stop_policy"]
        normal = "raised" if raised else "done"
        if ended is not None and ended is window.opener:
            window.opener = None
            if raised or policy == "ON_TRIGGER_FUNC_EXIT":
                return normal
        if not window.passes(event):
            return None
        if policy == "ON_STOP_PROFILE_NAME":
            if window.named("stop", event) and window.at("stop", event):
                window.stopping = True
                if raised or edge == window.spec.get("stop_edge", "EXIT"):
                    return normal
            by = 1 if window.named("stop", event) else PAST
            if window.beyond("stop", event, window.spec["max_iters"] if window.stopping else by):
                return "overrun"
        return "overrun" if self._is_too_long(window, event, edge) else None

    def _is_too_long(self, window: Window, event: Event, edge: str) -> bool:
        most = int(window.spec["max_iters"])
        if event.iter is not None:
            if window.first_iter is None:
                window.first_iter = event.iter
            return event.iter - window.first_iter >= most
        prolongs = window.spec["stop_policy"] != "ON_TRIGGER_FUNC_EXIT" or window.opener is not None
        if prolongs and edge == "ENTER" and event.name == window.trigger:
            window.calls += 1
        return window.calls >= most

    def _try_open(self, window: Window, event: Event, edge: str) -> list[tuple[str, str]]:
        name = window.spec["window_id"]
        if not window.passes(event):
            return []
        if window.beyond("start", event, 1 if window.named("start", event) else PAST):
            self.armed.remove(window)
            return [("late", name)]
        if not window.named("start", event):
            return []
        if edge != window.spec.get("start_edge", "ENTER") or not window.at("start", event):
            return []
        self.armed.remove(window)
        if self.open is not None:
            return [("overlapped", name)]
        self.open = window
        window.trigger, window.first_iter = event.name, event.iter
        window.opener = event if edge == "ENTER" else None
        self.calls.clear()
        self.log.append(("start", name))
        return []

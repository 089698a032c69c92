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


@dataclass
class Window:
    """An armed or open window: the fields of its spec, and what it has seen."""

    spec: dict[str, Any]
    trigger: str = ""
    depth: int = 0

    def passes(self, event: Event) -> bool:
        roles, ranks = self.spec.get("roles"), self.spec.get("ranks")
        return (not roles or event.role in roles) and (not ranks or event.rank in ranks)

    def at(self, gate: str, event: Event) -> bool:
        wanted_iter, wanted_mb = self.spec.get(f"{gate}_iter"), self.spec.get(f"{gate}_mb")
        return wanted_iter in (None, event.iter) and wanted_mb in (None, event.mb)

    def beyond(self, gate: str, event: Event) -> bool:
        wanted = self.spec.get(f"{gate}_iter")
        return wanted is not None and event.iter is not None and event.iter > wanted

    def named(self, gate: str, event: Event) -> bool:
        return event.name in self.spec.get(f"{gate}_profile_names", ())


@dataclass
class Model:
    """One thread's view. `log` holds what the backend and the outcomes must show, in order."""

    armed: list[Window] = field(default_factory=list)
    open: Window | None = None
    log: list[tuple[str, str]] = field(default_factory=list)

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
        closing = self._outcome(event, edge, raised)
        later: list[tuple[str, str]] = []
        if closing is not None:
            assert self.open is not None
            name = self.open.spec["window_id"]
            self.open = None
            self.log.append(("stop", name))
            later.append((closing, name))
        for window in list(self.armed):
            later += self._try_open(window, event, edge)
        self.log += sorted(later)

    def _outcome(self, event: Event, edge: str, raised: bool) -> str | None:
        window = self.open
        if window is None:
            return None
        policy = window.spec["stop_policy"]
        ended = False
        if window.depth > 0 and event.name == window.trigger:
            window.depth += 1 if edge == "ENTER" else -1
            ended = window.depth == 0
        normal = "raised" if raised else "done"
        if ended and (raised or policy == "ON_TRIGGER_FUNC_EXIT"):
            return normal
        if policy != "ON_STOP_PROFILE_NAME" or not window.named("stop", event):
            return None
        if not window.passes(event):
            return None
        if window.at("stop", event) and (raised or edge == window.spec.get("stop_edge", "EXIT")):
            return normal
        return "overrun" if window.beyond("stop", event) else None

    def _try_open(self, window: Window, event: Event, edge: str) -> list[tuple[str, str]]:
        name = window.spec["window_id"]
        if not window.named("start", event) or not window.passes(event):
            return []
        if window.beyond("start", event):
            self.armed.remove(window)
            return [("late", name)]
        if edge != window.spec.get("start_edge", "ENTER") or not window.at("start", event):
            return []
        self.armed.remove(window)
        if self.open is not None:
            return [("overlapped", name)]
        self.open = window
        window.trigger, window.depth = event.name, int(edge == "ENTER")
        self.log.append(("start", name))
        return []

"""Who held up the others in a run that was ended in a standstill."""

from __future__ import annotations

from collections.abc import Sequence

from .collectives import dumps_in
from .poll import SnapshotRequest, take_snapshot, usual_of
from .recorded import Recorded
from .view import HEAD_LINES, standstill_lines, visible


def ended_standing_lines(log_dirs: Sequence[str], after_s: float) -> list[str]:
    """At most six lines; none where no rank had made others wait for so long when the run ended.
    OSError when a directory cannot be listed."""
    recorded = Recorded(log_dirs)
    request = SnapshotRequest(tuple(log_dirs), None, after_s, after_s, dumps_in(log_dirs))
    seen = take_snapshot(request, usual_of(recorded))
    ranks = seen.found.ranks
    if ranks and all(one.state == "closed" and not recorded.error(one) for one in ranks):
        return []  # what took so long has ended
    if not any(cause.node is not None or cause.waiting for cause in seen.causes):
        return []
    return [visible(line) for line in standstill_lines(seen)][:HEAD_LINES]

"""The work of a rank inside a meeting that ranks leave one by one.

Under DDP that broadcasts buffers, and under FSDP, ranks meet in `forward` and again in `backward`.
A rank that is slow in forward leaves it late, and the others wait for it in backward: over the sum
of both its own work and their wait cancel. So each meeting is looked at by itself. A rank waits in
it no longer than until the last one enters, counted on its own clock from the end of the last
meeting of the step before, which all leave together. What is longer than that, and than the
shortest stay of a rank in that step, is the rank's own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .kinds import kind_of_stage
from .run_data import Matrix, RunData

ONE_RUN = 0.01  # of a step: a stage that ran once in it takes as long as from its begin to its end

Integers = npt.NDArray[np.int64]


def own_inside(
    run: RunData, rows: Integers, columns: Integers, meetings: Integers, together: list[bool]
) -> Matrix:
    """Rank × step × meeting, ns; 0 if it is not known.

    It is known of a meeting before the last one of a step, in which these ranks compute, which runs
    once in a step, and which they do not leave together; and only if they leave the last one
    together. columns: the judged steps. meetings: the stages in which all of these ranks meet.
    """
    found = np.zeros((len(rows), len(columns), len(meetings)))
    if len(rows) < 2 or len(meetings) < 2:
        return found
    here = np.ix_(rows, columns)
    entered = run.begins[here][..., meetings] - run.step_begins[here][..., None]
    places = np.nanmedian(entered, axis=(0, 1)) if np.isfinite(entered).any((0, 1)).all() else None
    if places is None or not together[int(places.argmax())]:
        return found
    left = run.ends[..., meetings[int(places.argmax())]][np.ix_(rows, np.maximum(columns - 1, 0))]
    left[:, columns == 0] = np.nan
    step_ns = float(np.nanmean(run.step_ns[here]))
    for at, stage in enumerate(meetings.tolist()):
        stay = run.totals[..., stage][here]
        lengths = run.ends[..., stage][here] - run.begins[..., stage][here]
        once = float(np.nan_to_num(np.abs(lengths - stay)).mean()) <= ONE_RUN * step_ns
        computes = kind_of_stage(run.stages[stage]) != "communication"
        if at != int(places.argmax()) and not together[at] and computes and once:
            found[..., at] = _longer_than_its_wait(run.begins[..., stage][here] - left, stay)
    return found


def _longer_than_its_wait(entered: Matrix, stay: Matrix) -> Matrix:
    """Both rank × step, ns. entered: since the meeting before.

    The second of these ranks waits for the first, the third one takes longer itself:

    >>> entered, stay = np.array([[5.0], [1.0], [5.0]]), np.array([[6.0], [10.0], [9.0]])
    >>> _longer_than_its_wait(entered, stay).ravel().tolist()
    [0.0, 0.0, 3.0]
    """
    own = np.maximum(stay - (entered.max(0) - entered), stay.min(0))
    result: Matrix = np.nan_to_num(own - own.min(0), nan=0.0)
    return result

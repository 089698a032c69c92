"""Finds the rank that comes last to collectives for which ranks wait, as in FSDP.

A rank that comes late to one of them comes to the next as early as the others, who waited for it.
So what the others lose at a collective is how much later than they it came, less what was late at
the one before already. It is added up over the collectives of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .run_data import Matrix


@dataclass
class Lateness:
    """row: of the rank for which the others wait most. place: of the collective at which they do,
    None where several have a part in it. is_last: of each step, whether the rank came last there;
    if there is no place, whether it made the others wait most. waited_ns: of each step."""

    row: int
    place: int | None
    is_last: npt.NDArray[np.bool_]
    waited_ns: Matrix


def lateness_of(moments: Matrix, bound_ns: float, near: float) -> Lateness:
    """moments: rank × step × (begin, then collectives), ns. near: the share of what a rank costs
    that a collective and the next one must have.

    >>> moments = np.array([[[0.0, 5e6, 30e6, 34e6]], [[0.0, 5e6, 10e6, 34e6]]])
    >>> late = lateness_of(moments, 1e6, 0.5)
    >>> late.row, late.place, late.waited_ns.tolist()
    (0, 1, [20000000.0])
    """
    gaps = _gaps(moments)
    new = np.maximum(gaps[..., 1:] - np.maximum(gaps[..., :-1], 0), 0)
    usual = np.median(new, axis=1)
    row = int(usual.sum(1).argmax())
    place = int(usual[row].argmax())
    if usual[row, place : place + 2].sum() <= near * usual[row].sum():
        whole = new.sum(2)
        is_last = (whole.argmax(0) == row) & (whole[row] > bound_ns)
        return Lateness(row, None, is_last, whole[row])
    waited = new[row, :, place : place + 2].sum(1)
    return Lateness(row, place, new[row, :, place] > bound_ns, waited)


def _gaps(moments: Matrix) -> Matrix:
    """How much later than the last of the others each rank comes; negative where it is not last."""
    order = np.sort(moments, axis=0)
    last, second = order[-1], order[-2]
    gaps: Matrix = np.where(moments == last, moments - second, moments - last)
    return gaps

"""How many FLOPs a step needs, and what the devices could do in a second, where ranks say so.

The utilisation is that of appendix B of "PaLM: Scaling Language Modeling with Pathways" (Chowdhery
et al., 2022): the FLOPs that the model needs, without those of rematerialisation, a second, over
the peak of all devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ...core.units import figure_text, percent_text

_SIZES = ((1e18, "EFLOP/s"), (1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"))


class ModelFlops(NamedTuple):
    """Of all ranks together. peak: FLOPs a second, None where a rank names none."""

    a_step: float
    peak: float | None


def find_model_flops(ranks: Iterable[Iterable[Mapping[str, str]]]) -> ModelFlops | None:
    """From what each rank recorded of its workload, of which the last counts; None where a rank did
    not say it, for then the sum is unknown.

    >>> one = [{"num_workers": "2"}, {"flops_a_step": "2e12", "peak_flops": "1e14"}]
    >>> find_model_flops([one, one]), find_model_flops([one, []])
    (ModelFlops(a_step=4000000000000.0, peak=200000000000000.0), None)
    """
    steps, peaks = [], []
    for rows in ranks:
        said = [row for row in rows if "flops_a_step" in row]
        steps.append(_number(said[-1], "flops_a_step") if said else None)
        peaks.append(_number(said[-1], "peak_flops") if said else None)
    a_step = _sum(steps)
    return None if a_step is None else ModelFlops(a_step, _sum(peaks))


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _number(row: Mapping[str, str], name: str) -> float | None:
    try:
        value = float(row.get(name, ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def utilisation(flops: ModelFlops | None, step_ns: float) -> float | None:
    """The share of the peak; None where it is not known."""
    if flops is None or flops.peak is None or step_ns <= 0:
        return None
    return flops.a_step / (step_ns * 1e-9) / flops.peak


def utilisation_text(flops: ModelFlops | None, step_ns: float) -> str:
    """In a line of a verdict; "" where nothing is known.

    >>> utilisation_text(ModelFlops(2e12, 1e14), 50e6)
    'MFU 40.0 %'
    >>> utilisation_text(ModelFlops(2e12, None), 50e6)
    '40 TFLOP/s'
    >>> utilisation_text(ModelFlops(2e12, 1e13), 50e6)
    'MFU 400.0 %, more than the peak_flops that was set'
    """
    if flops is None or step_ns <= 0:
        return ""
    share = utilisation(flops, step_ns)
    if share is None:
        a_second = flops.a_step / (step_ns * 1e-9)
        size, unit = next((one for one in _SIZES if a_second >= one[0]), (1e6, "MFLOP/s"))
        return f"{figure_text(a_second / size, 3)} {unit}"
    too_much = ", more than the peak_flops that was set" if share > 1 else ""
    return f"MFU {percent_text(share)}{too_much}"

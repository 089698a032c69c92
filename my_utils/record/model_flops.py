"""What a step computes and what the device could, for the model FLOPs utilisation of a verdict."""

from __future__ import annotations

import math

from ..core.arguments import wrong_type
from .log.logger import GlobalLogger

ROW = "my_utils.workload"


def set_model_flops(flops_a_step: float, peak_flops: float | None = None) -> None:
    """Records how many FLOPs the model needs in a step, on this rank.

    flops_a_step: forward and backward, of all micro-batches of a step of this rank; with model
        parallelism its share. What is computed again for activation checkpointing is not in it.
    peak_flops: what the rank's device can do at most in a second, in the type that the model
        computes in, such as 989e12 for a dense product of bfloat16 on an H100 SXM. By default there
        are FLOPs a second in the verdict, and no utilisation: no peak is guessed.

    Each rank calls it once, after `GlobalLogger().setup()` or anywhere under `my_utils run`.
    `my_utils why`, `live` and `report` show the FLOPs a second of all ranks, and their share of the
    peaks. TypeError or ValueError names the argument. Thread-safe.

    >>> set_model_flops(6 * 125e6 * 8192, peak_flops=989e12)
    """
    pairs = {"flops_a_step": _above_0("flops_a_step", flops_a_step)}
    if peak_flops is not None:
        pairs["peak_flops"] = _above_0("peak_flops", peak_flops)
    GlobalLogger().instant(ROW, pairs)


def _above_0(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "an int or a float", value)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be above 0 and finite, not {value!r}")
    return float(value)

"""When the buckets of DDP were ready inside backward, on all ranks: input of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Bucket:
    """modules: a text that names what is in it. kind: "bucket" of DDP, else that of a collective in
    which ranks wait for each other before they continue."""

    bytes: int
    modules: str
    kind: str = "bucket"


@dataclass
class ReadyTimes:
    """Of N of the run's steps, in which ranks looked at their buckets.

    columns: which of the run's columns these are. begins: when the backward began that the times
    count from, rank × N, ns, each on its rank's own clock, counted from the begin of the run.
    ready: from then until the bucket had its last gradient, rank × N × bucket, ns. Both NaN where a
    rank did not look. buckets: in the order in which they are reduced. gpu_error_ns: None where
    the host says when; else the GPU does, and this is the bound of the error of its moments, the
    median step's.
    """

    columns: npt.NDArray[np.int64]
    begins: npt.NDArray[np.float64]
    ready: npt.NDArray[np.float64]
    buckets: Sequence[Bucket]
    stage: str = "backward"
    gpu_error_ns: float | None = None

"""Tracks the results of collectives, so that a NaN of another rank is not searched for here."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .finite import Counts, is_clean
from .inputs import distinct_tensors
from .policy import OpPlan


class Arrivals:
    """The memory that the collectives of a step have filled, with the collective's name, where what
    this rank gave to it was clean. Memory that is given back is forgotten. For one thread."""

    def __init__(self) -> None:
        self._filled: dict[int, tuple[StorageWeakRef, str]] = {}

    def clear(self) -> None:
        """For the next step."""
        self._filled.clear()

    def run(self, plan: OpPlan, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs a collective. What it fills may be there later, so it is not read here."""
        tensors = distinct_tensors((args, kwargs))
        clean = is_clean(tensors) or self.source(tensors) is not None
        result = plan.func(*args, **kwargs)
        if clean:
            name = _plain_name(plan)
            for tensor in (*tensors, *distinct_tensors(result)):
                storage = tensor.untyped_storage()
                self._filled.setdefault(
                    storage._cdata, (StorageWeakRef(storage), name)
                )  # the first one: a wait for it changes nothing
        return result

    def source(self, value: Any) -> str | None:
        """The collective that has filled one of these tensors which is not clean now."""
        for tensor in distinct_tensors(value):
            filled = self._filled.get(_storage_of(tensor))
            if filled is None or filled[0].expired():
                continue
            counts = Counts()
            counts.add(tensor)
            if counts.nan:
                return filled[1]
        return None


def _storage_of(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # of a tensor without one
        return 0


def _plain_name(plan: OpPlan) -> str:
    """ "all_reduce", for "c10d.allreduce_" and "_c10d_functional.all_reduce"."""
    name = plan.short.partition(".")[2].rstrip("_")
    for short in ("all", "reduce_"):
        if name.startswith(short) and name[len(short) :][:1].isalpha() and "_" not in name:
            return f"{short.rstrip('_')}_{name[len(short) :]}"
    return name

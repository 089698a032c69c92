"""The files of a run reduced by the workers of a Ray cluster, when they outgrow one machine.

Each task reads and reduces some ranks as it is done here; what comes back is small. All nodes
must see the files under the same paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..common.tables import needed
from ..trace.inputs import FileSet
from .load import ReadRank, read_ranks
from .purpose import PURPOSE

__all__ = ["in_batches_on_ray"]

RANKS_A_TASK = 32


def in_batches_on_ray(
    file_sets: Sequence[FileSet], steps: tuple[int, int], parquet: str | None
) -> Iterator[list[ReadRank]]:
    """The ranks, read and reduced on the cluster that this process is connected to, or that
    `RAY_ADDRESS` names, as they come.

    A task whose worker dies is run again by Ray.
    """
    ray = needed("ray", f"{PURPOSE} --engine ray", "ray")
    if not ray.is_initialized():
        ray.init(address="auto", log_to_driver=False)
    reduce = ray.remote(scheduling_strategy="SPREAD")(_reduce)
    waiting = [
        reduce.remote(file_sets[first : first + RANKS_A_TASK], steps, parquet)
        for first in range(0, len(file_sets), RANKS_A_TASK)
    ]
    while waiting:
        done, waiting = ray.wait(waiting)
        yield ray.get(done[0])


def _reduce(
    file_sets: Sequence[FileSet], steps: tuple[int, int], parquet: str | None
) -> list[ReadRank]:
    return list(read_ranks(file_sets, steps, parquet))

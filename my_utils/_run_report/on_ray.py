"""The files of a run reduced by the workers of a Ray cluster, when they outgrow one machine.

Each task reads some ranks and reduces them with the statements of `cells`; what comes back is small
and is absorbed here. All nodes must see the files under the same paths.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .._tables import needed
from .._trace_inputs import FileSet
from .cells import Cells
from .load import EVER, Loaded, load
from .ranks import PURPOSE, RankFacts

__all__ = ["load_on_ray"]

RANKS_A_TASK = 32


def load_on_ray(
    file_sets: Sequence[FileSet],
    cells: Cells,
    steps: tuple[int, int] = EVER,
    parquet: str | None = None,
) -> Loaded:
    """`load` on the cluster that this process is connected to, or that `RAY_ADDRESS` names.

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
    loaded = Loaded(cells)
    while waiting:
        done, waiting = ray.wait(waiting)
        partial, facts = ray.get(done[0])
        cells.absorb(partial)
        for one in facts:
            loaded.facts[one["rank"]] = RankFacts(**one)
    return loaded


def _reduce(
    file_sets: Sequence[FileSet], steps: tuple[int, int], parquet: str | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    cells = Cells()
    try:
        loaded = load(file_sets, cells, steps, parquet)
        return cells.partial(), [dataclasses.asdict(one) for one in loaded.facts.values()]
    finally:
        cells.close()

"""The totals of all ranks at one of them, and what of it stays small at any number of ranks.

>>> means = {0: {"time/iter": 20.0}, 1: {"time/iter": 50.0}}
>>> summarize(means, {0: "node-a", 1: "node-a"}, worst=1)
[StageSummary(stage='iter', device='cpu', hosts={'node-a': 35.0}, worst=[(1, 50.0)])]
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ...core.identity import attempt_from_environment
from ...core.ranks import current_rank, world_size
from ...core.store import default_store, own_connection
from ...core.warnings import warn_once
from .totals import Means, StageTotal

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class RankTotals(msgspec.Struct, frozen=True):
    """What one rank has added up, by the path of the stage."""

    host: str
    totals: dict[str, StageTotal]


class TotalsBoard:
    """Each rank's totals under a separate key in torch's store: nobody waits for anybody.

    name: of the timer, different for each that a rank has. What an earlier attempt of the job left
    in the store is not read. The store comes from `init_process_group`; until then, and without it,
    a rank knows itself alone. Each rank keeps one key, of some hundred bytes. Not thread-safe.
    """

    def __init__(self, name: str) -> None:
        self._prefix = f"my_utils/exporters/{attempt_from_environment() or 1}/{name}"
        self._store: Store | None = None

    def put(self, mine: RankTotals) -> None:
        store = self._connection()
        if store is not None:
            store.set(self._key(current_rank()), msgspec.json.encode(mine).decode())

    def read(
        self, mine: RankTotals, on_error: Callable[[Exception], object]
    ) -> dict[int, RankTotals]:
        """By rank, those that have put theirs. What cannot be read is left out, and goes to
        `on_error`."""
        found, store = {current_rank(): mine}, self._connection()
        if store is None:
            if world_size() > 1:
                warn_once(
                    "exporters without a store",
                    "torch.distributed is not initialized: the times of this rank alone are sent",
                )
            return found
        for rank in set(range(world_size())) - {current_rank()}:
            if store.check([self._key(rank)]):
                try:
                    found[rank] = msgspec.json.decode(store.get(self._key(rank)), type=RankTotals)
                except msgspec.DecodeError as error:
                    on_error(ValueError(f"the totals of rank {rank} cannot be read: {error}"))
        return found

    def _connection(self) -> Store | None:
        if self._store is None:
            shared = default_store()
            self._store = None if shared is None else own_connection(shared)
        return self._store

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/{rank}"


class RankMeans:
    """The mean times of each rank since the last look, in ms. Not thread-safe."""

    def __init__(self) -> None:
        self._of_rank: dict[int, Means] = {}

    def since_last(self, ranks: dict[int, RankTotals]) -> dict[int, dict[str, float]]:
        """By rank and the names of `Means`; ranks without a call since then are left out."""
        found = {}
        for rank, said in sorted(ranks.items()):
            means = self._of_rank.setdefault(rank, Means()).since_last(said.totals)
            if means:
                found[rank] = means
        return found


class StageSummary(NamedTuple):
    """Mean times of a stage in ms. device: "cpu" or "gpu". hosts: the mean of the ranks there.
    worst: the ranks with the longest times, the longest first."""

    stage: str
    device: str
    hosts: dict[str, float]
    worst: list[tuple[int, float]]


def summarize(
    means: dict[int, dict[str, float]], hosts: dict[int, str], worst: int
) -> list[StageSummary]:
    """means: by rank and the names of `Means`. hosts: the host of each rank."""
    of_stage: dict[str, dict[int, float]] = {}
    for rank, stages in means.items():
        for name, mean in stages.items():
            of_stage.setdefault(name, {})[rank] = mean
    return [_summary(name, ranks, hosts, worst) for name, ranks in of_stage.items()]


def _summary(name: str, ranks: dict[int, float], hosts: dict[int, str], worst: int) -> StageSummary:
    kind, _, stage = name.partition("/")
    of_host: dict[str, list[float]] = {}
    for rank, mean in ranks.items():
        of_host.setdefault(hosts[rank], []).append(mean)
    longest = sorted(ranks.items(), key=lambda each: (-each[1], each[0]))[:worst]
    averages = {host: fmean(times) for host, times in of_host.items()}
    return StageSummary(stage, "gpu" if kind == "gpu_time" else "cpu", averages, longest)


class Named:
    """At most `most` names: the first that come keep their place."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the name is among them; it is added while there is room."""
        if len(self._names) < self._most:
            self._names.add(name)
        return name in self._names

"""Sends stage times of all ranks to a receiver of OpenTelemetry's protocol (OTLP): their totals at
one rank, and what of them stays small at any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ... import _core
from ...core.arguments import check_int, check_str
from ...core.identity import attempt_from_environment
from ...core.public import public
from ...core.ranks import check_ranks, current_rank, host_name, is_chosen, world_size
from ...core.store import default_store, own_connection
from ...core.warnings import warn_once
from .exporter import Snapshot, StageExporter
from .gauges import GaugeSender
from .totals import Means, Source, StageTotal

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# Together below the 2,000 series that the SDK takes of a metric, with the other hosts and the GPU.
STAGES_MAX = 30
HOSTS_MAX = 32
OTHER_HOSTS = "other"


@public("my_utils.record.exporters")
class OtlpExporter(StageExporter):
    """Sends mean stage times as metrics of OpenTelemetry: a figure a host, and the worst ranks.

    source: a `MyTimer` or `TimeManager`. All ranks have an exporter; one of them sends for all.
    endpoint: the address that takes metrics, such as `http://collector:4318/v1/metrics`. None
        means what the variables of OpenTelemetry say, `OTEL_EXPORTER_OTLP_ENDPOINT` and others.
    every_s: the interval at which a thread reads the times and sends them, until `step()` is called
        for the first time.
    every_steps: of so many calls of `step()`, one is sent.
    ranks: the ranks that take part; None is all of them. The lowest one sends.
    worst: how many ranks are named for each stage.

    Ranks pass their totals on through the store of `torch.distributed`, without a collective, over
    a separate connection; without `init_process_group` the sender sends only its own. Timers need
    different tags, and only one `TimeManager` of a rank can have such an exporter.

    The metrics are gauges: the mean of the calls since the last point, in seconds, with the
    attributes `stage`, `timer` (the tag) and `device` (`cpu` or `gpu`):

    - `my_utils.stage.duration`, with `host`: the mean of the ranks there
    - `my_utils.stage.worst.duration`, with `place`, from 1: that of the slowest rank, the second …
    - `my_utils.stage.worst.rank`, with `place`: which rank that is
    - `my_utils.step` and `my_utils.ranks`, without attributes but `timer`: the step of the sender,
      and how many ranks had a call

    At any number of ranks these are at most 30 stages × (33 hosts + 2 × `worst`) × 2 devices: more
    hosts share the name `other`, and more stages are left out, with one warning.

    ImportError without the extra `otlp`; TypeError and ValueError name the argument.
    """

    _needs_all = False

    def __init__(
        self,
        source: Source,
        endpoint: str | None = None,
        *,
        every_s: float = 10.0,
        every_steps: int = 1,
        ranks: int | Iterable[int] | None = None,
        worst: int = 3,
    ) -> None:
        chosen = check_ranks("ranks", ranks)
        super().__init__(source, every_s=every_s, every_steps=every_steps, ranks=chosen)
        if endpoint is not None:
            check_str("endpoint", endpoint)
        self._worst = check_int("worst", worst, 1)
        if isinstance(source, _core.TimeRecorder):
            self._timer, name = "", "manager"
        else:
            self._timer, name = source.tag, f"timer/{source.tag}"
        self._board = TotalsBoard(name)
        self._means: dict[int, Means] = {}  # by rank
        self._stages, self._hosts = Named(STAGES_MAX), Named(HOSTS_MAX)
        sends = is_chosen((min(chosen) if chosen else 0,))
        self._sender = None
        if self._active and sends:
            self._sender = GaugeSender(endpoint, GAUGES, "OtlpExporter")
        self._begin()

    def _write(self, snapshot: Snapshot) -> None:
        mine = RankTotals(host_name(), snapshot.totals)
        if self._sender is None:
            self._board.put(mine)
            return
        ranks = self._board.read(mine, self._count_failure)
        means = self._since_last(ranks)
        hosts = {rank: self._host(ranks[rank].host) for rank in means}
        for summary in summarize(means, hosts, self._worst):
            if self._stages.has(summary.stage):
                self._set(self._sender, summary)
            else:
                warn_once(
                    "OtlpExporter stages",
                    f"OtlpExporter sends {STAGES_MAX} stages; {summary.stage!r} and others not",
                )
        self._sender.set("my_utils.step", snapshot.step, timer=self._timer)
        self._sender.set("my_utils.ranks", len(means), timer=self._timer)
        self._sender.send()

    def _since_last(self, ranks: dict[int, RankTotals]) -> dict[int, dict[str, float]]:
        """Mean times in ms, by rank and the names of `Means`; ranks without a call since then are
        left out."""
        found = {}
        for rank, said in sorted(ranks.items()):
            means = self._means.setdefault(rank, Means()).since_last(said.totals)
            if means:
                found[rank] = means
        return found

    def _host(self, name: str) -> str:
        return name if self._hosts.has(name) else OTHER_HOSTS

    def _set(self, sender: GaugeSender, summary: StageSummary) -> None:
        of_stage = {"stage": summary.stage, "device": summary.device, "timer": self._timer}
        for host, mean_ms in summary.hosts.items():
            sender.set("my_utils.stage.duration", mean_ms * 1e-3, **of_stage, host=host)
        for place, (rank, mean_ms) in enumerate(summary.worst, 1):
            worst = {**of_stage, "place": place}
            sender.set("my_utils.stage.worst.duration", mean_ms * 1e-3, **worst)
            sender.set("my_utils.stage.worst.rank", rank, **worst)

    def _end(self) -> None:
        if self._sender is not None:
            self._sender.close()


GAUGES = {
    "my_utils.stage.duration": ("s", "Mean of the calls of a stage on a host."),
    "my_utils.stage.worst.duration": ("s", "Mean of the calls of a stage on the slowest ranks."),
    "my_utils.stage.worst.rank": ("", "Which ranks these are."),
    "my_utils.step": ("", "The step of the rank that sends."),
    "my_utils.ranks": ("", "Ranks that had a call since the point before."),
}


# --- the totals of all ranks ---


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
    """means: by rank and the names of `Means`. hosts: the host of each rank.

    >>> means = {0: {"time/iter": 20.0}, 1: {"time/iter": 50.0}}
    >>> summarize(means, {0: "node-a", 1: "node-a"}, worst=1)
    [StageSummary(stage='iter', device='cpu', hosts={'node-a': 35.0}, worst=[(1, 50.0)])]
    """
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

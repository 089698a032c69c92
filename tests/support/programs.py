"""Training programs that are simulated: ranks × streams × collectives. It shares no code with the
package: a program is a list of calls a rank, and time passes by the rules of streams alone.

Times are arrays with a value a step, in ms; steps do not touch each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]
COMPUTE, SHARED, OUT, IN = 0, 1, 2, 3  # streams: own work, collectives, sending, receiving


@dataclass
class Call:
    """One call of a rank. work: what it takes without waiting, of a collective its transfer.
    after: calls of the same rank that must have ended. group: who meets in it; kind: "work",
    "meet", "send" or "receive". ran: in which steps it runs."""

    rank: int
    stream: int
    name: str
    kind: str
    work: Times
    after: list[Call] = field(default_factory=list)
    group: tuple[int, ...] = ()
    meeting: int = -1
    ran: npt.NDArray[np.bool_] | None = None
    began: Times | None = None
    ended: Times | None = None


class Program:
    """The calls of all ranks. stage, host: of each rank."""

    def __init__(self, ranks: int, steps: int, rng: np.random.Generator, noise: float) -> None:
        self.ranks, self.steps, self.rng, self.noise = ranks, steps, rng, noise
        self.calls: list[Call] = []
        self.stage = [0] * ranks
        self.host = [rank // 4 for rank in range(ranks)]
        self.has_stages = False
        self._met: dict[tuple[object, ...], int] = {}
        self._turns: dict[tuple[object, ...], int] = {}
        self._last: dict[tuple[int, int], Call] = {}

    def work(self, rank: int, name: str, ms: float, after: Iterable[Call | None] = ()) -> Call:
        noise = self.rng.lognormal(0.0, self.noise, self.steps)
        tail = np.where(self.rng.random(self.steps) < 0.01, 1.0 + self.rng.random(self.steps), 1.0)
        return self._add(Call(rank, COMPUTE, name, "work", ms * noise * tail), after)

    def meet(
        self, rank: int, name: str, ms: float, group: tuple[int, ...],
        after: Iterable[Call | None] = (), stream: int = SHARED,
    ) -> Call | None:  # fmt: skip
        """All ranks of the group call it as often as each other; the first one sets its time. A
        group of one calls nothing: None."""
        if len(group) < 2:
            return None
        call = Call(rank, stream, name, "meet", np.zeros(self.steps), group=group)
        self._number(call, (name, group), rank, ms)
        return self._add(call, after)

    def send(self, rank: int, to: int, name: str, after: Iterable[Call | None] = ()) -> Call:
        call = Call(rank, OUT, f"{name}-send", "send", np.full(self.steps, 0.02), group=(rank, to))
        self._number(call, (name, (rank, to)), rank, 0.0)
        return self._add(call, after)

    def receive(
        self, rank: int, of: int, name: str, ms: float, after: Iterable[Call | None] = (),
        stream: int = COMPUTE,
    ) -> Call:  # fmt: skip
        call = Call(rank, stream, f"{name}-recv", "receive", np.zeros(self.steps), group=(of, rank))
        self._number(call, (name, (of, rank)), rank, ms)
        return self._add(call, after)

    def _number(self, call: Call, what: tuple[object, ...], rank: int, ms: float) -> None:
        turn = self._turns.get((*what, rank), 0)
        self._turns[(*what, rank)] = turn + 1
        call.meeting = self._met.setdefault((*what, turn), len(self._met))
        if call.kind != "send":
            seed = np.random.default_rng((call.meeting, self.steps, int(self.noise * 1e6)))
            call.work = ms * seed.lognormal(0.0, 2 * self.noise, self.steps)

    def _add(self, call: Call, after: Iterable[Call | None]) -> Call:
        before = self._last.get((call.rank, call.stream))
        call.after = [one for one in (before, *after) if one is not None]
        self._last[call.rank, call.stream] = call
        self.calls.append(call)
        return call

    def run(self) -> Times:
        """Sets when all calls begin and end; the length of each step."""
        waiting = {id(call): len({id(one) for one in call.after}) for call in self.calls}
        followers: dict[int, list[Call]] = {}
        members: dict[int, list[Call]] = {}
        for call in self.calls:
            for one in {id(one): one for one in call.after}.values():
                followers.setdefault(id(one), []).append(call)
            if call.kind != "work":
                members.setdefault(call.meeting, []).append(call)
        missing = {number: len(those) for number, those in members.items()}
        ready = deque(call for call in self.calls if not waiting[id(call)])
        while ready:
            call = ready.popleft()
            call.began = np.zeros(self.steps)
            for one in call.after:
                assert one.ended is not None
                call.began = np.maximum(call.began, one.ended)
            ended = []
            if call.kind in ("work", "send"):
                call.ended = call.began + call.work
                ended.append(call)
            if call.kind != "work":
                missing[call.meeting] -= 1
                if not missing[call.meeting]:
                    ended += _finished(members[call.meeting])
            for done in ended:
                for one in followers.get(id(done), ()):
                    waiting[id(one)] -= 1
                    if not waiting[id(one)]:
                        ready.append(one)
        ends = [call.ended for call in self.calls if call.ended is not None]
        assert len(ends) == len(self.calls), "the program hangs"
        return np.asarray(np.max(ends, axis=0))

    def columns(self) -> dict[str, npt.NDArray[np.int64]]:
        """A row a call and step, times in ns, each step after the one before it."""
        length = self.run()
        origin = np.concatenate([[0.0], np.cumsum(length + 0.5)[:-1]])
        names = sorted({call.name for call in self.calls})
        parts: dict[str, list[npt.NDArray[np.int64]]] = {}
        for call in self.calls:
            assert call.began is not None and call.ended is not None
            ran = np.arange(self.steps) if call.ran is None else np.flatnonzero(call.ran)
            side = {"send": 1, "receive": 2}.get(call.kind, 0)
            row = {
                "rank": np.full(len(ran), call.rank),
                "lane": np.full(len(ran), call.stream),
                "step": ran,
                "name": np.full(len(ran), names.index(call.name)),
                "begin_ns": np.rint((origin + call.began)[ran] * 1e6).astype(np.int64),
                "end_ns": np.rint((origin + call.ended)[ran] * 1e6).astype(np.int64),
                "meeting": ran + self.steps * call.meeting if call.meeting >= 0 else ran * 0 - 1,
                "side": np.full(len(ran), side),
            }
            for key, values in row.items():
                parts.setdefault(key, []).append(values)
        self.names = tuple(names)
        return {key: np.concatenate(values) for key, values in parts.items()}


def _finished(members: list[Call]) -> list[Call]:
    """Everybody leaves when the last one has come and the transfer is done; senders have gone."""
    begun = np.max([call.began for call in members if call.began is not None], axis=0)
    ended = []
    for call in members:
        if call.kind != "send":
            call.ended = begun + call.work
            ended.append(call)
    return ended


# --- layouts: each takes an empty program and fills it ---


def ddp(program: Program) -> None:
    everyone = tuple(range(program.ranks))
    for rank in everyone:
        program.work(rank, "input", 1.0)
        program.work(rank, "forward", 8.0)
        reduced = []
        for _ in range(4):
            part = program.work(rank, "backward", 4.0)
            reduced.append(program.meet(rank, "all_reduce", 2.0, everyone, [part]))
        program.work(rank, "optimizer", 1.5, reduced)


def _sharded(program: Program, groups: list[tuple[int, ...]], across: bool) -> None:
    layers = 4
    for group in groups:
        for place, rank in enumerate(group):
            program.work(rank, "input", 1.0)
            gathered = [program.meet(rank, "all_gather", 1.0, group)]
            for layer in range(layers):
                if layer + 1 < layers:
                    gathered.append(program.meet(rank, "all_gather", 1.0, group))
                program.work(rank, "forward", 2.5, [gathered[layer]])
            last: list[Call | None] = []
            for _ in range(layers):
                again = program.meet(rank, "all_gather", 1.0, group)
                part = program.work(rank, "backward", 5.0, [again])
                last.append(program.meet(rank, "reduce_scatter", 1.2, group, [part]))
                if across:
                    mates = tuple(one[place] for one in groups)
                    last.append(program.meet(rank, "all_reduce", 0.8, mates))
            program.work(rank, "optimizer", 1.0, last)


def fsdp(program: Program) -> None:
    _sharded(program, [tuple(range(program.ranks))], across=False)


def hsdp(program: Program) -> None:
    half = program.ranks // 2
    _sharded(program, [tuple(range(half)), tuple(range(half, program.ranks))], across=True)


def _tensor(program: Program, groups: list[tuple[int, ...]], across: bool) -> None:
    for group in groups:
        for place, rank in enumerate(group):
            program.work(rank, "input", 1.0)
            for name, ms in (("forward", 2.0), ("backward", 4.0)):
                for _ in range(4):
                    program.work(rank, name, ms)
                    program.meet(rank, "tp_all_reduce", 0.6, group, stream=COMPUTE)
            if across:
                mates = tuple(one[place] for one in groups)
                program.meet(rank, "dp_all_reduce", 3.0, mates, stream=COMPUTE)
            program.work(rank, "optimizer", 1.0)


def tp(program: Program) -> None:
    _tensor(program, [tuple(range(program.ranks))], across=False)


def tp_dp(program: Program) -> None:
    size = 2 if program.ranks < 8 else 4
    groups = [tuple(range(at, at + size)) for at in range(0, program.ranks, size)]
    _tensor(program, groups, across=True)


def _pipeline(program: Program, pp: int, tensor: int, chunks: int = 1) -> None:
    """Stages outside, then data parallel, then tensor parallel; 1F1B for one chunk."""
    dp = program.ranks // (pp * tensor)
    program.has_stages = True
    micro = 2 * pp

    def number(stage: int, replica: int, shard: int) -> int:
        return (stage * dp + replica) * tensor + shard

    for stage in range(pp):
        for replica in range(dp):
            team = tuple(number(stage, replica, shard) for shard in range(tensor))
            for shard, rank in enumerate(team):
                program.stage[rank] = stage
                nodes = [number(other, replica, shard) for other in range(pp)]
                order = (
                    _interleaved(micro, chunks) if chunks > 1 else _one_f_one_b(pp, stage, micro)
                )
                for way, chunk in order:
                    _part(program, nodes, stage, rank, team, way, chunk, chunks)
                mates = tuple(number(stage, other, shard) for other in range(dp))
                if dp > 1:
                    program.meet(rank, "dp_all_reduce", 3.0, mates, stream=COMPUTE)
                program.work(rank, "optimizer", 1.0)


def _one_f_one_b(pp: int, stage: int, micro: int) -> list[tuple[str, int]]:
    warm = min(pp - stage - 1, micro)
    steady = [one for _ in range(micro - warm) for one in (("forward", 0), ("backward", 0))]
    return [("forward", 0)] * warm + steady + [("backward", 0)] * warm


def _interleaved(micro: int, chunks: int) -> list[tuple[str, int]]:
    forward = [("forward", chunk) for chunk in range(chunks) for _ in range(micro)]
    backward = [("backward", chunk) for chunk in reversed(range(chunks)) for _ in range(micro)]
    return forward + backward


def _part(
    program: Program, nodes: list[int], stage: int, rank: int, team: tuple[int, ...], way: str,
    chunk: int, chunks: int,
) -> None:  # fmt: skip
    last = len(nodes) - 1
    name = f"{way}{chunk}" if chunks > 1 else way
    forward = way == "forward"
    is_first = stage == 0 and chunk == 0
    is_last = stage == last and chunk == chunks - 1
    starts, stops = (is_first, is_last) if forward else (is_last, is_first)
    step = 1 if forward else -1
    wraps_in = stage == (0 if forward else last)
    came = None
    if not starts:
        of = nodes[(stage - step) % len(nodes)]
        call = f"{way}{chunk - step if wraps_in else chunk}" if chunks > 1 else way
        came = program.receive(rank, of, call, 0.1, stream=IN if chunks > 1 else COMPUTE)
    done = program.work(rank, name, (3.0 if forward else 6.0) / chunks, [came])
    done = program.meet(rank, "tp_all_reduce", 0.4, team, [done], stream=COMPUTE) or done
    if not stops:
        program.send(rank, nodes[(stage + step) % len(nodes)], name, [done])


def pp(program: Program) -> None:
    _pipeline(program, min(4, program.ranks), 1)


def interleaved(program: Program) -> None:
    _pipeline(program, min(4, program.ranks), 1, chunks=2)


def three_d(program: Program) -> None:
    _pipeline(program, 2, 2 if program.ranks >= 4 else 1)


def expert(program: Program) -> None:
    everyone = tuple(range(program.ranks))
    size = min(4, program.ranks)
    for rank in everyone:
        group = tuple(range(rank // size * size, rank // size * size + size))
        program.work(rank, "input", 1.0)
        for name, ms in (("forward", 1.5), ("backward", 3.0)):
            for _ in range(3):
                program.work(rank, name, ms)
                program.meet(rank, "all_to_all", 0.5, group, stream=COMPUTE)
                program.work(rank, f"expert_{name}", ms)
                program.meet(rank, "all_to_all", 0.5, group, stream=COMPUTE)
        program.meet(rank, "all_reduce", 3.0, everyone, stream=COMPUTE)
        program.work(rank, "optimizer", 1.0)


LAYOUTS: dict[str, Callable[[Program], None]] = {
    "ddp": ddp, "fsdp": fsdp, "hsdp": hsdp, "tp": tp, "tp_dp": tp_dp, "pp": pp,
    "interleaved": interleaved, "3d": three_d, "ep": expert,
}  # fmt: skip

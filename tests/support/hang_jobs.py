"""Jobs of many layouts that hang by a planted fault, and the dumps of torch's flight recorder that
their ranks leave.

Each rank has a list of operations. Its host issues them in order, some ahead of the device, and
waits for the device where the program says so. On the device, each communicator is a stream: an
operation starts when those before it in its stream have ended, and all earlier ones that the main
stream waits for. A collective ends when all members have started the same one, a send when its
receive has started, or at once in jobs whose sends are buffered.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

BEGAN_S = 1_750_000_000.0
TICK_S = 0.002
HUNG_S = 600.0
PAUSE_S = 20.0

FAULTS = (
    "late", "dead", "swallowed", "skip", "skip send", "skip recv", "swap", "size", "dtype",
    "other group", "stuck", "two", "late, one lost", "late, early dump",
)  # fmt: skip
HEALTHY = ("slow", "moment")


@dataclass(frozen=True)
class Op:
    """What a rank calls. role: of the group; "" for a pause of the host. peers: way and place in
    the group of each send and receive that are called as one. waits: whether the main stream waits
    for it at once, or only at the next operation that does. host: whether the host waits, too."""

    role: str
    name: str
    size: int = 0
    dtype: str = "BFloat16"
    peers: tuple[tuple[str, int], ...] = ()
    waits: bool = True
    host: bool = False
    pause_s: float = 0.0


@dataclass(eq=False)
class Issued:
    op: Op
    record: int
    seq: int  # of the group's collectives
    peer_seq: int
    created_s: float
    ordinals: tuple[int, ...] = ()  # of each send and receive with its peer
    started: bool = False
    done: bool = False


@dataclass(eq=False)
class Rank:
    number: int
    groups: dict[str, tuple[int, ...]]
    program: list[Op]
    slow: int = 1
    skew_s: float = 0.0
    at: int = 0
    wakes_s: float = 0.0
    stops_at: int = -1
    sticks_at: int = -1
    issued: list[Issued] = field(default_factory=list)
    open: list[Issued] = field(default_factory=list)
    counts: Counter[Any] = field(default_factory=Counter)


# --- layouts: the groups and the program of each rank ---

_Made = tuple[list[dict[str, tuple[int, ...]]], Callable[[int], list[Op]]]
_Layout = Callable[[random.Random], _Made]


def _split(world: int, *sizes: tuple[str, int]) -> list[dict[str, tuple[int, ...]]]:
    """The groups of ranks in a grid, the first dimension the innermost."""
    groups: list[dict[str, tuple[int, ...]]] = [
        {"world": tuple(range(world))} for _ in range(world)
    ]
    stride = 1
    for role, size in sizes:
        for rank in range(world):
            first = rank - rank // stride % size * stride
            if size > 1:
                groups[rank][role] = tuple(range(first, first + size * stride, stride))
        stride *= size
    return groups


def _ddp(draw: random.Random) -> _Made:
    world = draw.choice([4, 6, 8, 16, 32])
    buckets = [draw.choice([1024, 4096, 9000, 2_000_000]) + n for n in range(draw.randint(2, 5))]
    buffers = draw.random() < 0.3

    def step(rank: int) -> list[Op]:
        ops = [Op("world", "broadcast", 77)] if buffers else []
        ops += [Op("world", "all_reduce", n, "Float", waits=False) for n in buckets]
        return [*ops, Op("world", "all_reduce", 1, "Float", host=True)]

    return _split(world), step


def _fsdp(draw: random.Random) -> _Made:
    shard, replicas = draw.choice([(4, 1), (8, 1), (4, 2), (8, 2), (4, 4), (16, 1)])
    layers = draw.randint(2, 4)
    groups = _split(shard * replicas, ("mesh_shard", shard), ("mesh_replicate", replicas))
    sizes = [4096 * (n + 1) + 13 for n in range(layers)]

    def step(rank: int) -> list[Op]:
        ops = [Op("mesh_shard", "_all_gather_base", n, waits=False) for n in sizes]
        for n in reversed(sizes):
            ops.append(Op("mesh_shard", "_all_gather_base", n))
            ops.append(Op("mesh_shard", "_reduce_scatter_base", n * shard, "Float", waits=False))
            ops.append(Op("mesh_replicate", "all_reduce", n, "Float", waits=False))
        ops.append(Op("mesh_shard", "all_reduce", 1, "Float"))
        return [*ops, Op("world", "all_reduce", 1, "Float", host=draw.random() < 0.5)]

    return groups, step


def _three_dimensions(draw: random.Random) -> _Made:
    tp, pp, dp = draw.choice(
        [(2, 2, 2), (2, 4, 1), (1, 4, 2), (2, 2, 4), (4, 2, 2), (1, 2, 4), (2, 4, 2), (4, 4, 4)]
    )
    groups = _split(tp * pp * dp, ("TENSOR", tp), ("DATA", dp), ("PIPELINE", pp))
    micros, layers = draw.choice([3, 4, 6]), draw.choice([1, 2])
    is_batched, sequence = draw.random() < 0.5, draw.random() < 0.5

    def layer() -> list[Op]:
        if sequence:
            return [
                Op("TENSOR", "_all_gather_base", 512),
                Op("TENSOR", "_reduce_scatter_base", 1024),
            ]
        return [Op("TENSOR", "all_reduce", 8192)]

    def step(rank: int) -> list[Op]:
        stage = rank // (tp * dp)
        work = layer() * layers
        ops: list[Op] = [Op("TENSOR", "broadcast", 65)] if stage in (0, pp - 1) else []
        for way in _one_f_one_b(stage, pp, micros):
            if way == "work":
                ops += work
            elif is_batched or len(way) == 1:
                one = way if len(way) > 1 else (way[0],)
                ops.append(_peers("PIPELINE", one, len(way) > 1))
            else:
                in_turn = way if stage % 2 else way[::-1]  # so that two do not both send first
                ops += [_peers("PIPELINE", (one,), False) for one in in_turn]
        ops += [Op("DATA", "_reduce_scatter_base", 30_000, "Float", waits=False)]
        if stage in (0, pp - 1) and pp > 1:
            ops.append(Op("EMBEDDING", "all_reduce", 999, "Float"))
        ops += [Op("MODEL", "all_reduce", 1, "Float"), Op("DATA", "_all_gather_base", 15_000)]
        if draw_loss:
            ops.append(Op("world", "all_reduce", 1, "Float", host=True))
        return ops

    draw_loss = draw.random() < 0.6
    for rank, own in enumerate(groups):
        place = rank // tp % dp
        own["MODEL"] = tuple(r for r in range(len(groups)) if r // tp % dp == place)
        if pp > 1:
            chain = own["PIPELINE"]
            if rank in (chain[0], chain[-1]):
                own["EMBEDDING"] = (chain[0], chain[-1])
    return groups, step


def _one_f_one_b(stage: int, pp: int, micros: int) -> Iterator[Any]:
    """Sends and receives, and "work", of a stage in a step of one forward, one backward."""
    warm = min(pp - stage - 1, micros)
    first, last = stage == 0, stage == pp - 1
    for _ in range(warm):
        if not first:
            yield (("recv", stage - 1),)
        yield "work"
        yield (("send", stage + 1),)
    if micros > warm and not first:
        yield (("recv", stage - 1),)
    for number in range(micros - warm):
        yield "work"
        if not last:
            yield (("send", stage + 1), ("recv", stage + 1))
        yield "work"
        is_over = number == micros - warm - 1
        if not first:
            yield (("send", stage - 1),) if is_over else (("send", stage - 1), ("recv", stage - 1))
    for _ in range(warm):
        yield (("recv", stage + 1),)
        yield "work"
        if not first:
            yield (("send", stage - 1),)


def _peers(role: str, peers: tuple[tuple[str, int], ...], batched: bool) -> Op:
    waits = batched or peers[0][0] == "recv"
    return Op(role, "coalesced" if batched else peers[0][0], 4096, peers=peers, waits=waits)


def _interleaved(draw: random.Random) -> _Made:
    """A pipeline with two chunks of the model on each rank, so that its ends are joined."""
    pp, dp = draw.choice([(2, 2), (4, 1), (4, 2), (8, 1), (3, 2)])
    groups = _split(pp * dp, ("dp", dp), ("pp", pp))
    micros = pp * draw.choice([1, 2])

    def step(rank: int) -> list[Op]:
        stage, ops = rank // dp, []
        for chunk in range(2):
            for _ in range(micros):
                if stage or chunk:
                    ops.append(_peers("pp", (("recv", (stage - 1) % pp),), False))
                if stage < pp - 1 or chunk == 0:
                    ops.append(_peers("pp", (("send", (stage + 1) % pp),), False))
        ops.append(Op("dp", "all_reduce", 5000, "Float"))
        return [*ops, Op("world", "all_reduce", 1, "Float", host=True)]

    return groups, step


def _experts(draw: random.Random) -> _Made:
    ep, edp = draw.choice([(4, 2), (4, 1), (2, 4), (8, 2), (4, 4)])
    groups = _split(ep * edp, ("ep", ep), ("edp", edp))
    layers = draw.choice([2, 3])

    def step(rank: int) -> list[Op]:
        ops = []
        for _ in range(2 * layers):
            ops += [Op("ep", "all_to_allv", 300 + draw.randrange(99)) for _ in range(2)]
        ops += [Op("edp", "_reduce_scatter_base", 8000, "Float", waits=False)]
        ops += [Op("world", "all_reduce", 6000, "Float", waits=False)]
        return [*ops, Op("world", "all_reduce", 1, "Float")]

    return groups, step


def _context(draw: random.Random) -> _Made:
    """Rings of batched sends and receives, in which each rank has a place."""
    cp, dp = draw.choice([(4, 1), (4, 2), (2, 4), (8, 1), (4, 4)])
    groups = _split(cp * dp, ("cp", cp), ("dp", dp))

    def step(rank: int) -> list[Op]:
        place = rank % cp
        around = (("send", (place + 1) % cp), ("recv", (place - 1) % cp))
        ops = []
        for _ in range(2):
            ops += [_peers("cp", around, True)] * (cp - 1) + [Op("cp", "all_reduce", 640)]
        ops.append(Op("dp", "all_reduce", 70_000, "Float", waits=False))
        return [*ops, Op("world", "all_reduce", 1, "Float", host=True)]

    return groups, step


def _pairs(draw: random.Random) -> _Made:
    """Two pipeline stages of pairs, whose programs differ; and a barrier of all now and then."""
    world = draw.choice([8, 12, 16])
    groups = _split(world, ("tp", 2), ("dp", world // 4))
    half = world // 2
    for rank, own in enumerate(groups):
        own["pp"] = (rank % half, rank % half + half)

    def step(rank: int) -> list[Op]:
        front = rank < half
        calls = [Op("tp", "_all_gather_base", 4096), Op("tp", "_reduce_scatter_base", 6100)]
        ops = (calls if front else calls[::-1]) * 2
        ops.insert(4 if front else 0, _peers("pp", (("send", 1) if front else ("recv", 0),), False))
        ops.append(Op("dp", "all_reduce", 12_345, "Float", waits=False))
        return [*ops, Op("world", "barrier", 1, "Byte", host=True)]

    return groups, step


LAYOUTS: dict[str, _Layout] = {
    "ddp": _ddp,
    "fsdp": _fsdp,
    "3d": _three_dimensions,
    "interleaved": _interleaved,
    "experts": _experts,
    "context": _context,
    "pairs": _pairs,
}


class Job:
    """A job and its fault. culprits: who holds the others up; empty for one that only is slow."""

    def __init__(self, layout: str, fault: str, seed: int) -> None:
        draw = self.draw = random.Random(f"{layout} {fault} {seed}")
        groups, step = LAYOUTS[layout](draw)
        self.steps = draw.randint(4, 6)
        self.fault = fault
        self.culprits: set[int] = set()
        self.lost: set[int] = set()
        self.dead: set[int] = set()
        self.early: tuple[int, float] | None = None
        self.early_dump: tuple[float, list[Issued]] | None = None
        self.now_s = BEGAN_S
        self.ahead = draw.choice([2, 4, 8, 16])
        self.buffered = draw.random() < 0.4 or layout == "interleaved"
        skew_s = draw.choice([0.0, 0.0, 2.0])
        self.ranks = []
        state = draw.getstate()
        for number, own in enumerate(groups):
            draw.setstate(state)  # what a program draws is the same on all ranks
            program = [op for _ in range(self.steps) for op in step(number) if op.role in own]
            self.ranks.append(Rank(number, own, program, skew_s=skew_s * (number % 2)))
        draw.seed(f"{layout} {fault} {seed} run")
        self._plant(fault)

    @property
    def world(self) -> int:
        return len(self.ranks)

    def _plant(self, fault: str) -> None:
        draw = self.draw
        victims = draw.sample(self.ranks, 2 if fault == "two" else 1)
        self.culprits = {rank.number for rank in victims}
        others = [rank.number for rank in self.ranks if rank not in victims]
        if fault == "late, one lost":
            self.lost = {draw.choice(others)}
        if fault == "late, early dump":
            self.early = draw.choice(others), 0.0
        if fault in HEALTHY:
            self._plant_pauses(victims[0], fault)
            self.culprits = set()
            return
        for rank in victims:
            program = rank.program
            a_step = len(program) // self.steps
            at = draw.randrange(len(program) - 2 * a_step, len(program) - a_step)
            self._plant_in(fault.partition(",")[0], rank, at)

    def _plant_pauses(self, rank: Rank, fault: str) -> None:
        """Before each step of one rank; the job is cut off in the middle of one."""
        pause_s = PAUSE_S if fault == "slow" else 2.0
        a_step = len(rank.program) // self.steps
        for step in range(self.steps - 1, 0, -1):
            rank.program.insert(step * a_step, Op("", "", pause_s=pause_s))
        self.cut_at = self.draw.randint(2, self.steps - 1), pause_s * self.draw.uniform(0.5, 0.95)

    def _plant_in(self, fault: str, rank: Rank, at: int) -> None:
        draw, program = self.draw, rank.program
        places = [n for n in range(at, len(program)) if not program[n].peers]
        first = places[0]
        op = program[first]
        if fault in ("late", "two", "dead"):
            rank.stops_at = at
            if fault == "dead":
                self.lost = self.dead = {rank.number}
        elif fault == "swallowed":
            program[at] = Op("world", "all_reduce", 1, "Float")
            rank.stops_at = at + 1
        elif fault == "skip":
            del program[first]
        elif fault in ("skip send", "skip recv"):
            way = fault.removeprefix("skip ")
            found = [
                n for n in range(at, len(program)) if [one[0] for one in program[n].peers] == [way]
            ]
            if not found:
                del program[first]
            else:
                del program[found[0]]
        elif fault == "swap":
            found = [n for n in places if n + 1 in places and program[n] != program[n + 1]]
            n = found[0] if found else first
            if found:
                program[n], program[n + 1] = program[n + 1], program[n]
            else:
                del program[n]
        elif fault in ("size", "dtype"):
            n = next(n for n in places if program[n].name not in ("all_to_allv", "barrier"))
            op = program[n]
            other = "Half" if op.dtype != "Half" else "Float"
            program[n] = (
                replace(op, size=op.size + draw.choice([1, 17, 4096]))
                if fault == "size"
                else replace(op, dtype=other)
            )
        elif fault == "other group":
            roles = [role for role in rank.groups if role != op.role]
            if roles:
                program[first] = replace(op, role=draw.choice(sorted(roles)))
            else:
                del program[first]
        elif fault == "stuck":
            rank.sticks_at = first

    # --- running ---

    def go(self) -> bool:
        """Until it hangs, or is cut off. Whether it hangs by its fault."""
        if self.early is not None:
            self.early = self.early[0], BEGAN_S + self.draw.uniform(0.02, 0.08)
        while True:
            self.now_s += TICK_S
            moved = False
            for rank in self.draw.sample(self.ranks, len(self.ranks)):
                moved |= self._issue(rank)
            for rank in self.ranks:
                moved |= self._advance(rank)
            if self.early and self.early_dump is None and self.now_s >= self.early[1]:
                own = self.ranks[self.early[0]].issued
                self.early_dump = self.now_s, [replace(one) for one in own]
            if moved:
                continue
            if self.fault in HEALTHY and self._is_cut():
                return True
            wakes = [r.wakes_s for r in self.ranks if r.wakes_s > self.now_s]
            if not wakes:
                break
            self.now_s = min(wakes)
        return any(rank.open or rank.at < len(rank.program) for rank in self.ranks)

    def _is_cut(self) -> bool:
        step, after_s = self.cut_at
        slow = [rank for rank in self.ranks if rank.wakes_s > self.now_s]
        if slow and sum(not op.role for op in slow[0].program[: slow[0].at]) == step:
            self.now_s += after_s
            return True
        return False

    def _issue(self, rank: Rank) -> bool:
        if rank.at >= len(rank.program) or rank.at == rank.stops_at or self.now_s < rank.wakes_s:
            return False
        if len(rank.open) >= self.ahead or any(one.op.host for one in rank.open):
            return False
        op = rank.program[rank.at]
        rank.at += 1
        if not op.role:
            if rank.open:  # the host sees the device's end before it pauses
                rank.at -= 1
                return False
            rank.wakes_s = self.now_s + op.pause_s
            return True
        rank.counts[op.role, bool(op.peers)] += 1
        ordinals = []
        for peer in op.peers:
            ordinals.append(rank.counts[op.role, peer])
            rank.counts[op.role, peer] += 1
        record = (
            rank.issued[-1].record + max(1, self._records(rank.issued[-1])) if rank.issued else 0
        )
        one = Issued(
            op, record, rank.counts[op.role, False], rank.counts[op.role, True],
            self.now_s + rank.skew_s + self.draw.uniform(0, TICK_S / 2), tuple(ordinals),
        )  # fmt: skip
        rank.issued.append(one)
        rank.open.append(one)
        return True

    @staticmethod
    def _records(one: Issued) -> int:
        return len(one.op.peers) + 1 if len(one.op.peers) > 1 else 1

    def _advance(self, rank: Rank) -> bool:
        moved, streams, blocked = False, set[Any](), False
        for one in list(rank.open):
            stream = one.op.role, tuple(peer for _, peer in one.op.peers)
            may_start = stream not in streams and not blocked
            streams.add(stream)
            if may_start and not one.started:
                one.started = moved = True
            if one.started and self._ends(rank, one):
                one.done = moved = True
                rank.open.remove(one)
            elif one.op.waits:
                blocked = True
        return moved

    def _ends(self, rank: Rank, one: Issued) -> bool:
        if (
            rank.sticks_at >= 0
            and one.op == rank.program[rank.sticks_at]
            and (one is rank.issued[rank.sticks_at] if rank.sticks_at < len(rank.issued) else False)
        ):
            return False
        members = rank.groups[one.op.role]
        if one.op.peers:
            return all(
                self._answered(rank, members, one, peer, ordinal)
                for peer, ordinal in zip(one.op.peers, one.ordinals, strict=True)
            )
        return all(self._has_started(self.ranks[other], one) for other in members)

    def _has_started(self, other: Rank, one: Issued) -> bool:
        return any(
            own.started
            and own.op.role == one.op.role
            and not own.op.peers
            and own.seq == one.seq
            and (own.op.name, own.op.size, own.op.dtype)
            == (
                one.op.name,
                one.op.size if one.op.name != "all_to_allv" else own.op.size,
                one.op.dtype,
            )
            for own in reversed(other.issued)
        )

    def _answered(
        self, rank: Rank, members: tuple[int, ...], one: Issued, peer: tuple[str, int], ordinal: int
    ) -> bool:
        if self.buffered and peer[0] == "send":
            return True
        own = members.index(rank.number)
        back = ("recv" if peer[0] == "send" else "send", own)
        return any(
            other.started
            and other.op.role == one.op.role
            and (back, ordinal) in zip(other.op.peers, other.ordinals, strict=True)
            for other in reversed(self.ranks[members[peer[1]]].issued)
        )

    # --- writing ---

    def write(self, folder: Path, after_s: float = HUNG_S) -> dict[int, float]:
        """The dumps so long after the last move; the times that their files must get."""
        draw = self.draw
        ring = draw.choice([None, None, None, 32, 20])
        only_active = ring is None and draw.random() < 0.15
        first, times = draw.choice([0, 0, 3000]), {}
        if self.fault in HEALTHY:
            after_s, ring, only_active = 0.0, None, False
        names = self._names()
        described = draw.random() < 0.8
        has_started = draw.random() < 0.5
        for rank in self.ranks:
            if rank.number in self.lost:
                continue
            issued, written_s = rank.issued, self.now_s + after_s + draw.uniform(0, 1)
            if self.early and self.early_dump and rank.number == self.early[0]:
                written_s, issued = self.early_dump
            written = self._entries(rank, issued, names, first, described, has_started)
            status = self._status(rank, issued, first)
            if only_active:
                written = [entry for entry in written if not entry["retired"]]
            if ring:
                written = written[-ring:]
            content = {
                "version": "2.10",
                "pg_config": {
                    names[role, members]: {
                        "name": names[role, members],
                        "desc": self._described(role, described),
                        "ranks": str(list(members)),
                    }
                    for role, members in rank.groups.items()
                },
                "pg_status": status,
                "entries": written,
            }
            path = folder / f"dump_{rank.number}"
            path.write_bytes(pickle.dumps(content, protocol=2))
            times[rank.number] = written_s + rank.skew_s
        return times

    def _names(self) -> dict[tuple[str, tuple[int, ...]], str]:
        names: dict[tuple[str, tuple[int, ...]], str] = {}
        for role in dict.fromkeys(role for rank in self.ranks for role in rank.groups):
            for rank in self.ranks:
                if role in rank.groups:
                    names.setdefault((role, rank.groups[role]), str(len(names)))
        return names

    @staticmethod
    def _described(role: str, described: bool) -> str:
        if role == "world":
            return "default_pg"
        return role if described else "undefined"

    def _status(self, rank: Rank, issued: list[Issued], first: int) -> dict[str, Any]:
        found = {}
        for number, role in enumerate(rank.groups):
            last = [one for one in issued if one.op.role == role]
            seq = 0
            if last:
                seq = (last[-1].peer_seq if last[-1].op.peers else last[-1].seq) + first
            found[str(number)] = {
                "last_enqueued_collective": seq or -1,
                "last_started_collective": -1,
                "last_completed_collective": -1,
            }
        return found

    def _entries(
        self, rank: Rank, issued: list[Issued], names: Any, first: int, described: bool,
        has_started: bool,
    ) -> list[dict[str, Any]]:  # fmt: skip
        found = []
        for one in issued:
            members = rank.groups[one.op.role]
            own = members.index(rank.number)
            parts = []
            for way, peer in one.op.peers:
                arrow = "->" if way == "send" else "<-"
                parts.append((f"{way} {own}{arrow}{peer}", one.op.size))
            if len(parts) != 1:
                parts.append((one.op.name, one.op.size))
            for number, (name, size) in enumerate(parts):
                is_last = number == len(parts) - 1
                state = "completed" if one.done else "scheduled"
                if has_started and one.started and not one.done:
                    state = "started"
                if not is_last:
                    state = "scheduled"
                found.append({
                    "record_id": one.record + number + 2 * first,
                    "pg_id": list(rank.groups).index(one.op.role),
                    "process_group": (
                        names[one.op.role, members], self._described(one.op.role, described)
                    ),
                    "collective_seq_id": one.seq + first,
                    "p2p_seq_id": one.peer_seq and one.peer_seq + first,
                    "profiling_name": f"nccl:{name}",
                    "time_created_ns": int(one.created_s * 1e9),
                    "input_sizes": [[size]] if name != "coalesced" else [],
                    "input_dtypes": [one.op.dtype] if name != "coalesced" else [],
                    "output_sizes": [[size]],
                    "output_dtypes": [one.op.dtype],
                    "state": state,
                    "time_discovered_started_ns": None,
                    "time_discovered_completed_ns": None,
                    "retired": one.done,
                    "timeout_ms": 600_000,
                    "is_p2p": bool(one.op.peers),
                })  # fmt: skip
        return found

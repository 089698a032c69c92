"""Programs of ranks that call collectives of many groups, run until they stand still or are cut off
in the middle; and the dumps of torch's flight recorder that they leave.

The device of a rank takes its calls one after another, in the order in which the host makes them. A
collective ends when all members have come to it with the same call, a send when the other side has
come to its receive, or at once in a run whose sends end alone. The host runs some calls ahead of
the device.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TICK_NS = 1_000_000
BEGAN_NS = 1_700_000_000 * 10**9
HUNG_S = 600.0
STEPS = 6
Call = tuple[str, str, int]  # role, operation, elements; of a pipeline "send" or "recv", and peer

FAULTS = ("late", "dead", "skip", "swap", "shape", "other group", "stuck", "two", "lost")


@dataclass
class Layout:
    """Ranks in tp × pp × dp; expert: a group over tp × dp besides."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    expert: bool = False

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank % self.tp, rank // self.tp // self.dp, rank // self.tp % self.dp

    def groups(self, rank: int) -> dict[str, list[int]]:
        """The members of the groups of a rank, by role."""
        tp, pp, dp = self.place(rank)
        chosen: dict[str, Callable[[int, int, int], bool]] = {
            "default_pg": lambda t, p, d: True,
            "TENSOR": lambda t, p, d: (p, d) == (pp, dp),
            "PIPELINE": lambda t, p, d: (t, d) == (tp, dp),
            "DATA": lambda t, p, d: (t, p) == (tp, pp),
            "EXPERT": lambda t, p, d: p == pp,
        }
        found = {
            role: [other for other in range(self.world) if is_in(*self.place(other))]
            for role, is_in in chosen.items()
        }
        if not self.expert:
            del found["EXPERT"]
        return {role: own for role, own in found.items() if len(own) > 1 or role == "default_pg"}

    def program(self, rank: int, steps: int = STEPS) -> list[Call]:
        """What the rank calls, step by step."""
        groups = self.groups(rank)
        pp = self.place(rank)[1]
        step: list[Call] = []
        for micro in range(3):
            if self.pp > 1 and pp > 0:
                step.append(("PIPELINE", "recv", pp - 1))
            for layer in range(2):
                step.append(("TENSOR", "all_reduce", 4096))
                step.append(("EXPERT", "all_to_all", 512 + layer))
            if self.pp > 1 and pp < self.pp - 1:
                step.append(("PIPELINE", "send", pp + 1))
            step.append(("TENSOR", "broadcast", 64 + micro))
        step += [("DATA", "_reduce_scatter_base", 8192), ("default_pg", "all_reduce", 1)]
        step += [("DATA", "_all_gather_base", 1024), ("TENSOR", "all_reduce", 2)]
        return [call for call in step if call[0] in groups] * steps


@dataclass
class Rank:
    """One rank: its program, what it has called, and what of it has ended."""

    number: int
    program: list[Call]
    groups: dict[str, list[int]]
    calls: list[dict[str, Any]] = field(default_factory=list)
    queue: deque[dict[str, Any]] = field(default_factory=deque)
    counts: dict[str, int] = field(default_factory=dict)
    peers: dict[tuple[str, int], int] = field(default_factory=dict)
    stops_at: int | None = None  # the call that the host does not come to
    sticks_at: int | None = None  # the call that the device does not end
    slow: int = 1  # ticks between two of its calls
    skew_ns: int = 0


class Run:
    """A run of all ranks; `culprits` are those that hold the others up."""

    def __init__(self, layout: Layout, seed: int) -> None:
        self.layout = layout
        self.random = random.Random(seed)
        self.tick = 0
        self.ahead = self.random.choice([3, 8, 14])
        self.culprits: set[int] = set()
        self.gone: set[int] = set()
        self.sends_end_alone = self.random.random() < 0.4
        self.early: tuple[int, int] | None = None  # a rank whose dump is of this tick
        self.early_calls: list[dict[str, Any]] = []
        self.ranks = [
            Rank(number, layout.program(number), layout.groups(number))
            for number in range(layout.world)
        ]
        skew_ns = self.random.choice([0, 5 * 10**9])
        for rank in self.ranks:
            rank.skew_ns = skew_ns * (2 * rank.number // layout.world) - skew_ns // 2

    def plant(self, fault: str) -> None:
        """A fault in the last steps of one rank, or of two."""
        victims = self.random.sample(self.ranks, 2 if fault == "two" else 1)
        if self.random.random() < 0.3:
            others = [rank.number for rank in self.ranks if rank not in victims]
            self.early = self.random.choice(others), self.random.randrange(20, 90)
        for rank in victims:
            at = self.random.randrange(len(rank.program) // 2, len(rank.program) * 5 // 6)
            self.culprits.add(rank.number)
            self._plant(fault, rank, at)

    def _plant(self, fault: str, rank: Rank, at: int) -> None:
        program = rank.program
        if fault in ("late", "dead", "two", "lost"):
            rank.stops_at = at
        if fault == "dead":
            self.gone.add(rank.number)
        if fault == "lost":
            others = [other.number for other in self.ranks if other is not rank]
            self.gone.add(self.random.choice(others))
        collectives = [i for i in range(at, len(program)) if program[i][0] != "PIPELINE"]
        first = collectives[0]
        role, name, elements = program[first]
        if fault == "skip":
            del program[first]
        elif fault == "swap":
            at = next(i for i in collectives if program[i + 1] != program[i])
            program[at], program[at + 1] = program[at + 1], program[at]
        elif fault == "shape":
            at = next(i for i in collectives if program[i][1] != "all_to_all")
            program[at] = (program[at][0], program[at][1], program[at][2] + 17)
        elif fault == "other group":
            role = next(own for own in sorted(rank.groups) if own not in (role, "PIPELINE"))
            program[first] = (role, name, elements)
        elif fault == "stuck":
            rank.sticks_at = first

    def go(self, ticks: int | None = None) -> bool:
        """Until nothing moves, or for so many ticks. Whether it still moves."""
        still = 0
        while still < 200 and (ticks is None or self.tick < ticks):
            self.tick += 1
            moved = False
            for rank in self.random.sample(self.ranks, len(self.ranks)):
                moved |= self._issue(rank)
            for rank in self.ranks:
                moved |= self._end(rank)
            still = 0 if moved else still + 1
            if self.early is not None and self.early[1] == self.tick:
                self.early_calls = [dict(call) for call in self.ranks[self.early[0]].calls]
        return still < 200

    def _issue(self, rank: Rank) -> bool:
        at = len(rank.calls)
        is_due = at < len(rank.program) and len(rank.queue) < self.ahead and at != rank.stops_at
        if not is_due or self.tick % rank.slow:
            return False
        role, name, size = rank.program[at]
        is_peer = name in ("send", "recv")
        counter = f"{role} peers" if is_peer else role
        rank.counts[counter] = rank.counts.get(counter, 0) + 1
        call = {
            "record": at,
            "role": role,
            "name": name,
            "size": size,
            "seq": rank.counts[counter],
            "created": BEGAN_NS + self.tick * TICK_NS + rank.skew_ns,
            "done": False,
        }
        if is_peer:
            order = rank.peers.get((name, size), 0)
            rank.peers[name, size] = order + 1
            call["order"] = order
        rank.calls.append(call)
        rank.queue.append(call)
        return True

    def _end(self, rank: Rank) -> bool:
        if not rank.queue:
            return False
        call = rank.queue[0]
        if self.sends_end_alone and "order" in call:
            return self._end_alone(rank, call)
        with_it = [self.ranks[other] for other in self._members(rank, call)]
        heads = [other.queue[0] if other.queue else None for other in with_it]
        if not all(head is not None and self._match(call, head) for head in heads):
            return False
        for other in with_it:
            if other.sticks_at != other.queue[0]["record"]:
                other.queue.popleft()["done"] = True
        return True

    def _end_alone(self, rank: Rank, call: dict[str, Any]) -> bool:
        peer = self.ranks[rank.groups[call["role"]][call["size"]]]
        own = rank.groups[call["role"]].index(rank.number)
        match = ("send", own, call["order"])
        is_sent = call["name"] == "send" or any(
            (other["name"], other["size"], other["order"]) == match and other["done"]
            for other in peer.calls
            if "order" in other
        )
        if is_sent:
            rank.queue.popleft()["done"] = True
        return is_sent

    def _members(self, rank: Rank, call: dict[str, Any]) -> list[int]:
        members = rank.groups[call["role"]]
        return [rank.number, members[call["size"]]] if "order" in call else members

    def _match(self, call: dict[str, Any], other: dict[str, Any]) -> bool:
        if "order" in call:
            return other is call or (other["name"], other.get("order")) == (
                "recv" if call["name"] == "send" else "send",
                call["order"],
            )
        return all(call[key] == other[key] for key in ("role", "name", "seq", "size"))

    def write(self, folder: Path, after_s: float) -> dict[int, float]:
        """The dumps, some seconds after the last tick; the time of each, which its file is to
        have."""
        ring = self.random.choice([None, None, 24, 18])
        only_active = ring is None and self.random.random() < 0.3
        first = self.random.choice([0, 5000])
        times = {}
        for rank in self.ranks:
            if rank.number in self.gone:
                continue
            is_early = self.early is not None and rank.number == self.early[0]
            calls = self.early_calls if is_early else rank.calls
            calls = calls[-ring:] if ring else calls
            if only_active:
                calls = [call for call in calls if not call["done"]]
            path = folder / f"dump_{rank.number}"
            path.write_bytes(pickle.dumps(self._content(rank, calls, first), protocol=2))
            tick = self.early[1] if self.early is not None and is_early else self.tick
            wait_s = 0.0 if is_early else after_s + self.random.uniform(0, 0.5)
            times[rank.number] = (BEGAN_NS + tick * TICK_NS) / 1e9 + wait_s
        return times

    def _content(self, rank: Rank, calls: list[dict[str, Any]], first: int) -> dict[str, Any]:
        known = self.early_calls if self.early and self.early[0] == rank.number else rank.calls
        counts = Counter(call["role"] for call in known if "order" not in call)
        roles = ["default_pg", "TENSOR", "DATA", "PIPELINE", "EXPERT"]
        return {
            "version": "2.10",
            "pg_config": {
                _name(role, members): {"name": "", "desc": role, "ranks": str(members)}
                for role, members in rank.groups.items()
            },
            "pg_status": {
                str(roles.index(role)): {"last_enqueued_collective": counts.get(role, 0) + first}
                for role in rank.groups
            },
            "entries": [_entry(rank, call, roles, first) for call in calls],
        }


def _name(role: str, members: list[int]) -> str:
    return "0" if role == "default_pg" else f"{role} {members[0]} {len(members)}"


def _entry(rank: Rank, call: dict[str, Any], roles: list[str], first: int) -> dict[str, Any]:
    members = rank.groups[call["role"]]
    is_peer = "order" in call
    name = call["name"]
    if is_peer:
        arrow = "->" if name == "send" else "<-"
        name = f"{name} {members.index(rank.number)}{arrow}{call['size']}"
    sizes = [[4096, 512]] if is_peer else [[call["size"]]]
    return {
        "record_id": call["record"] + 3 * first,
        "pg_id": roles.index(call["role"]),
        "process_group": (_name(call["role"], members), call["role"]),
        "collective_seq_id": 0 if is_peer else call["seq"] + first,
        "p2p_seq_id": call["seq"] + first if is_peer else 0,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": call["created"],
        "input_sizes": sizes,
        "input_dtypes": ["Float"],
        "state": "completed" if call["done"] else "scheduled",
        "retired": call["done"],
        "is_p2p": is_peer,
    }

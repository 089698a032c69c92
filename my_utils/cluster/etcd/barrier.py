"""One participant in a barrier in etcd.

A round gathers members until one transaction writes its end into the state. All participants read
the result from there, so all get the same one.

A participant that has come is a member: it holds a separate key under a lease. A full set of
members is not enough. After a crash the keys of the run before stay until their leases end,
so a restarted rank could pass although its peers are dead. So the last participant to come writes
a call, and every member answers it. The round opens when all members have answered the same call.
Only a process that was a member when the call was written, and that lives now, can answer it:

    come      the state is still this round           -> write the key, count the members
    call      the state and the call are as seen      -> write the call
    answer    so is the call, and the key is mine     -> write the answer, count the answers
    open      the state is still this round           -> the next round, with this one's end

When the lease of a key ends, its member was alive if the key was written after this participant
came. An older key may belong to the run before. So members write their keys again and again. Up
to CALLS_MAX ranks, every participant that comes writes a call, and all members write to answer it.
In larger jobs members write at intervals only.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...core.warnings import warn_once
from .client import Connection, Interrupted, Lost, Unreachable
from .rounds import (
    KEPT_S,
    EtcdBarrierTimeout,
    Holder,
    Keys,
    Outcome,
    State,
    given_up,
)

CALLS_MAX = 64  # ranks: up to here each new member costs an answer of every other
SIGNS_A_SECOND = 100  # of all ranks together
RESPONSE_S = 3.0  # the least time for members to answer before a round is given up,
ANSWERS_A_SECOND = 500  # but in large jobs no less than the ranks take at this rate
GRACE_S = 5.0  # how long after the deadline a new member still causes another call
LEAST_PAUSE_S = 0.01
OPEN = Outcome("open")


@dataclass(frozen=True)
class Terms:
    """The arguments of `etcd_barrier`, checked.

    name: the rank, or a separate name. who: where it runs, for messages.
    """

    keys: Keys
    name: str
    who: str
    timeout_s: float
    interval_s: float
    lease_s: float
    restart_s: float


@dataclass
class _View:
    """What one transaction read.

    count: how many members there are. call: the number of the last call, 0 without one. members:
    who each of them is. answered: those that answered a call. The last two are read on request
    only.
    """

    state: State
    count: int
    call: int
    members: dict[str, str] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)


class Participant:
    """Comes to the barrier, waits, and leaves: `run` is called once."""

    def __init__(self, etcd: Connection, terms: Terms) -> None:
        self.etcd = etcd
        self.rpc = etcd.rpc
        self.terms = terms
        self.keys = terms.keys
        self.name = terms.name
        self.value = msgspec.json.encode(Holder(secrets.token_hex(8), terms.who))  # of its key
        self.began = time.monotonic()
        self.deadline = etcd.deadline = self.began + terms.timeout_s
        self.round = ""
        self.lease = 0
        self.ttl_s = terms.lease_s
        self.came = 0  # the revision at which the key was written; 0 before
        self.watch_from = 0
        self.answered = 0  # the last call that this member answered
        self.next_keep_alive = 0.0
        self.next_sign = 0.0
        self.next_judgement = 0.0
        self.gone: dict[str, tuple[float, str]] = {}  # until when it may come again, and who it is

    def run(self) -> None:
        """Returns when all have come; EtcdBarrierError and its kinds otherwise."""
        try:
            outcome = self._wait()
        finally:
            self._leave()
        outcome.raise_error(self.keys)

    def _wait(self) -> Outcome:
        while True:
            try:
                return self._take_part()
            except Interrupted as error:
                self.watch_from = max(self.watch_from, error.revision)
            except Lost:
                self.lease = self.came = 0
                self.etcd.close()
            except Unreachable as error:
                self._pause(error)

    def _pause(self, error: Unreachable) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self.keys.error(
                f"etcd cannot be reached after {time.monotonic() - self.began:.1f} s, and who is "
                f"missing is not known: {error}",
                EtcdBarrierTimeout,
            ) from error
        warn_once("etcd unreachable", f"etcd cannot be reached, trying again: {error}")
        time.sleep(min(max(self.terms.interval_s, LEAST_PAUSE_S), left))

    def _take_part(self) -> Outcome:
        if not self.came:
            outcome = self._come()
            if outcome is not None:
                return outcome
        self.etcd.watch(**Keys.whole(self.keys.control))  # the state and the calls
        outcome = self._look()
        if outcome is None:
            self._watch_members()
        while outcome is None:
            self._sleep()
            outcome = self._look() or self._judge()
        return outcome

    def _leave(self) -> None:
        """Deletes its key at once. If etcd cannot be reached, the lease ends by itself."""
        if self.lease:
            with contextlib.suppress(Exception):
                self.etcd.revoke(self.lease)

    # --- coming ---

    def _come(self) -> Outcome | None:
        """Becomes a member of the round that gathers. Returns the outcome of the round in which it
        was before, if that one has ended meanwhile."""
        if not self.lease:
            self.lease, self.ttl_s = self.etcd.grant(max(1, round(self.terms.lease_s)))
            self.next_keep_alive = time.monotonic() + self.ttl_s / 3
        while True:
            response = self.etcd.transaction([], [self._get(key=self.keys.state)])
            entries = response.responses[0].response_range.kvs
            if not entries:
                self._found()
                continue
            state = State.of(entries[0])
            outcome = state.outcome(self.round)
            if outcome is not None:
                return outcome
            if self._join(state):
                return None

    def _found(self) -> None:
        """Writes the first state of a name, under a lease for as long as it is remembered."""
        lease, _ = self.etcd.grant(KEPT_S)
        absent = self._compare(self.keys.state, create_revision=0)
        done = self.etcd.transaction(
            [absent], [self._put(self.keys.state, State.first(), lease)]
        ).succeeded
        if not done:
            self.etcd.revoke(lease)

    def _join(self, state: State) -> bool:
        members = self.keys.members(state.round)
        response = self.etcd.transaction(
            [self._same(state)],
            [self._put(members + self.name.encode(), self.value, self.lease)],
        )
        if not response.succeeded:
            return False
        if state.round != self.round:
            self.gone.clear()
        self.round = state.round
        self.came = int(response.header.revision)
        self.watch_from = self.came + 1
        self.answered = 0
        self._has_signed()
        return True

    def _has_signed(self) -> None:
        """Sets when the key is next written again, as a sign of life."""
        every_s = max(self.ttl_s / 3, self.keys.world_size / SIGNS_A_SECOND)
        self.next_sign = time.monotonic() + every_s

    # --- waiting ---

    def _watch_members(self) -> None:
        """Keys of members that were deleted since this one came end a wait, too."""
        self.etcd.watch(
            **Keys.whole(self.keys.members(self.round)),
            filters=[self.rpc.WatchCreateRequest.NOPUT],
            prev_kv=True,
            start_revision=self.watch_from,
        )

    def _sleep(self) -> None:
        """Waits for an event or the next thing to do, and keeps the lease alive."""
        if time.monotonic() >= self.next_keep_alive:
            self._keep_alive()
        until = min(self.next_keep_alive, max(self._end_of_wait(), self.next_judgement))
        events = self.etcd.events(until - time.monotonic())
        while events is not None:
            for event in events:
                self._take(event)
            events = self.etcd.events(0)

    def _take(self, event: Any) -> None:
        """Notes who is gone; of keys of members there are no events but that they were deleted."""
        is_members = event.key.startswith(self.keys.members(self.round))
        if is_members and event.prev_mod_revision > self.came:
            name = _name_of(event.key)
            if name != self.name:
                due = time.monotonic() + self.terms.restart_s
                self.gone.setdefault(name, (due, Holder.of(event.prev_value).who))

    def _keep_alive(self) -> None:
        self.etcd.keep_alive(self.lease)
        self.next_keep_alive = time.monotonic() + self.ttl_s / 3
        if time.monotonic() >= self.next_sign:
            self._has_signed()
            self.etcd.transaction([self._mine()], [self._put_own()])

    # --- one poll of etcd ---

    def _look(self) -> Outcome | None:
        """Does what is due now. Returns the outcome once the round has ended."""
        world_size = self.keys.world_size
        while True:
            view = self._read()
            if isinstance(view, Outcome):
                return view
            may_call = view.count >= world_size or world_size <= CALLS_MAX
            if view.call < self.came and may_call:
                view.call = self._call(view.state, view.call)
                if not view.call:
                    continue
            if view.call < self.came:
                return None
            answers = self._answer(view.state, view.call)
            if not answers:
                continue
            if answers < world_size:
                return None
            if self._end(view.state, OPEN):
                return OPEN

    def _read(self, names_for: int = 0) -> _View | Outcome:
        """The state, this member's key, the number of members and the call, as of one revision; or
        the outcome, if the round has ended. Raises if another process has the key.

        names_for: the number of a call; reads the members, and those that answered this call.
        """
        all_members = Keys.whole(self.keys.members(self.round))
        gets = [
            self._get(key=self.keys.state),
            self._get(key=self._own_key()),
            self._get(**all_members, count_only=not names_for),
            self._get(key=self.keys.call),
        ]
        if names_for:
            answers = Keys.whole(self.keys.answers(self.round, names_for))
            gets.append(self._get(**answers, keys_only=True))
        response = self.etcd.transaction([], gets)
        states, own, members, call, *answered = [each.response_range for each in response.responses]
        if not states.kvs:
            raise Lost("the state of the barrier")
        state = State.of(states.kvs[0])
        outcome = state.outcome(self.round)
        if outcome is not None:
            return outcome
        if state.round != self.round or not own.kvs:
            raise Lost("the round, or the key of this member")
        self._check_is_mine(own.kvs[0].value)
        return _View(
            state=state,
            count=int(members.count),
            call=int(call.kvs[0].mod_revision) if call.kvs else 0,
            members={_name_of(kv.key): Holder.of(kv.value).who for kv in members.kvs},
            answered=[_name_of(kv.key) for each in answered for kv in each.kvs],
        )

    def _check_is_mine(self, value: bytes) -> None:
        holder = Holder.of(value)
        if holder.id != Holder.of(self.value).id:
            raise self.keys.error(
                f"another process joined as rank {self.name} ({holder.who}) and replaced this one "
                f"({self.terms.who})"
            )

    def _call(self, state: State, seen: int) -> int:
        """Writes a call. Returns its number, or 0 if another member was quicker."""
        response = self.etcd.transaction(
            [self._same(state), self._compare(self.keys.call, mod_revision=seen)],
            [self._put(self.keys.call, self.name.encode(), self.lease)],
        )
        return int(response.header.revision) if response.succeeded else 0

    def _answer(self, state: State, call: int) -> int:
        """How many members have answered the call, with this one; 0 if there is a newer call."""
        answers = self.keys.answers(self.round, call)
        operations = [self._get(**Keys.whole(answers), count_only=True)]
        if call != self.answered:
            own = self._put(answers + self.name.encode(), b"", self.lease)
            operations = [own, self._put_own(), *operations]
        response = self.etcd.transaction(
            [self._same(state), self._mine(), self._compare(self.keys.call, mod_revision=call)],
            operations,
        )
        if not response.succeeded:
            return 0
        if call != self.answered:
            self.answered = call
            self._has_signed()
        return int(response.responses[-1].response_range.count)

    def _end(self, state: State, outcome: Outcome, *others: Any) -> bool:
        """Writes how the round ended; False if it has ended already. Renews the lease of the
        state, so that the state stays until all have read it."""
        self.etcd.keep_alive(state.lease)
        put = self._put(self.keys.state, state.after(outcome), state.lease)
        return bool(self.etcd.transaction([self._same(state), *others], [put]).succeeded)

    # --- giving up ---

    def _end_of_wait(self) -> float:
        """When the time is over, or the time in which a member that left may come again."""
        return min([self.deadline, *(due for due, _ in self.gone.values())])

    def _judge(self) -> Outcome | None:
        """Gives the round up when the time is over, or when a member left and did not come back."""
        now = time.monotonic()
        if now < max(self._end_of_wait(), self.next_judgement):
            return None
        self.next_judgement = now + 2 * self._response_s()
        view = self._call_members()
        if view is None:
            return None
        self.gone = {name: lost for name, lost in self.gone.items() if name not in view.members}
        if now < self._end_of_wait():
            return None
        response = self.etcd.transaction(
            [], [self._get(**Keys.whole(self.keys.all), keys_only=True, limit=10_000)]
        )
        used = response.responses[0].response_range.kvs
        outcome = given_up(
            self.keys,
            "timeout" if now >= self.deadline else "gone",
            by=self.name,
            waited_s=time.monotonic() - self.began,
            present=view.members,
            answered=view.answered,
            gone={name: who for name, (_, who) in self.gone.items()},
            other_sizes=self.keys.other_sizes(kv.key for kv in used),
        )
        nobody_came = [self._compare(self.keys.call, mod_revision=view.call)]
        if time.monotonic() > self.deadline + GRACE_S:
            nobody_came = []
        return outcome if self._end(view.state, outcome, *nobody_came) else None

    def _call_members(self) -> _View | None:
        """The members, and those that answer; None if another writes a call or the round ended."""
        view = self._read()
        if isinstance(view, Outcome) or view.call > self.answered:
            return None
        call = self._call(view.state, view.call)
        if not call or not self._answer(view.state, call):
            return None
        end = time.monotonic() + self._response_s()
        while True:
            view = self._read(call)
            if isinstance(view, Outcome) or view.call != call:
                return None
            if len(view.answered) >= len(view.members) or time.monotonic() >= end:
                return view
            time.sleep(0.01 + self.keys.world_size / 10_000)

    def _response_s(self) -> float:
        return max(RESPONSE_S, self.keys.world_size / ANSWERS_A_SECOND)

    # --- requests ---

    def _own_key(self) -> bytes:
        return self.keys.members(self.round) + self.name.encode()

    def _put_own(self) -> Any:
        return self._put(self._own_key(), self.value, self.lease)

    def _mine(self) -> Any:
        return self._compare(self._own_key(), value=self.value)

    def _same(self, state: State) -> Any:
        return self._compare(self.keys.state, value=state.raw)

    def _compare(self, key: bytes, **equal: Any) -> Any:
        """That one property of the key is equal: value, mod_revision, create_revision."""
        (what,) = equal
        targets = {"value": "VALUE", "mod_revision": "MOD", "create_revision": "CREATE"}
        compare = self.rpc.Compare
        target = compare.CompareTarget.Value(targets[what])
        return compare(result=compare.EQUAL, target=target, key=key, **equal)

    def _put(self, key: bytes, value: bytes, lease: int) -> Any:
        put = self.rpc.PutRequest(key=key, value=value, lease=lease)
        return self.rpc.RequestOp(request_put=put)

    def _get(self, **what: Any) -> Any:
        return self.rpc.RequestOp(request_range=self.rpc.RangeRequest(**what))


def _name_of(key: bytes) -> str:
    return key.rpartition(b"/")[2].decode()

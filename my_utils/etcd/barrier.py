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

import secrets
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from ..common.warnings import warn_once
from .client import Connection, LeaseLost, Unreachable, Watch
from .member import Member, View
from .rounds import (
    KEPT_S,
    Broken,
    EtcdBarrierError,
    EtcdBarrierTimeout,
    Holder,
    Keys,
    Opened,
    Record,
    State,
    TimedOut,
    broken,
    error_of,
)

CALLS_MAX = 64  # ranks: up to here each new member costs an answer of every other
SIGNS_A_SECOND = 100  # of all ranks together
RESPONSE_S = 3.0  # the least time for members to answer before a round is given up,
ANSWERS_A_SECOND = 500  # but in large jobs no less than the ranks take at this rate
GRACE_S = 5.0  # how long after the deadline a new member still causes another call
LEAST_PAUSE_S = 0.01
OPEN = Opened()


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


class _Lost(Exception):
    """This participant's key is gone, or its round is unknown: it has to come again."""


class Participant(Member):
    """Comes to the barrier, waits, and leaves: `run` is called once."""

    def __init__(self, etcd: Connection, terms: Terms) -> None:
        value = msgspec.json.encode(Holder(secrets.token_hex(8), terms.who))
        super().__init__(etcd, terms.keys, terms.name, value)
        self.terms = terms
        self.began = time.monotonic()
        self.deadline = etcd.deadline = self.began + terms.timeout_s
        self.ttl_s = terms.lease_s
        self.came = 0  # the revision at which the key was written; 0 before
        self.watch_from = 0
        self.answered = 0  # the last call that this member answered
        self.next_keep_alive = 0.0
        self.next_sign = 0.0
        self.next_judgement = 0.0
        self.gone: dict[str, tuple[float, str]] = {}  # since when, and who

    def run(self) -> None:
        """Returns when all have come; EtcdBarrierError and its kinds otherwise."""
        try:
            record = self._wait()
        finally:
            self._leave()
        if not isinstance(record, Opened):
            raise error_of(record, self.keys.prefix, self.keys.world_size)

    def _wait(self) -> Record:
        while True:
            try:
                return self._take_part()
            except (_Lost, LeaseLost):
                self.lease = self.came = 0
            except Unreachable as error:
                self._pause(error)

    def _pause(self, error: Unreachable) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise EtcdBarrierTimeout(
                f"etcd_barrier {self.keys.prefix!r}: etcd cannot be reached after "
                f"{time.monotonic() - self.began:.1f} s, and who is missing is not known: {error}",
                self.keys.prefix,
                self.keys.world_size,
            ) from error
        warn_once("etcd unreachable", f"etcd cannot be reached, trying again: {error}")
        time.sleep(min(max(self.terms.interval_s, LEAST_PAUSE_S), left))

    def _take_part(self) -> Record:
        if not self.came:
            record = self._come()
            if record is not None:
                return record
        with self.etcd.watch(self._ranges(), self.watch_from) as watch:
            while True:
                record = self._look() or self._judge()
                if record is not None:
                    return record
                self._sleep(watch)

    def _leave(self) -> None:
        """Deletes its key at once. If etcd cannot be reached, the lease ends by itself."""
        if not self.lease:
            return
        try:
            self.etcd.revoke(self.lease)
        except Exception:
            return

    # --- coming ---

    def _come(self) -> Record | None:
        """Becomes a member of the round that gathers. Returns the record of the round in which it
        was before, if that one has ended meanwhile."""
        if not self.lease:
            self.lease, self.ttl_s = self.etcd.grant(max(1, round(self.terms.lease_s)))
            self.next_keep_alive = time.monotonic() + self.ttl_s / 3
        while True:
            state = self._read().state
            if state is None:
                self._found()
                continue
            record = state.record(self.round)
            if record is not None:
                return record
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
        self.next_sign = time.monotonic() + self._sign_every_s()
        return True

    def _sign_every_s(self) -> float:
        return max(self.ttl_s / 3, self.keys.world_size / SIGNS_A_SECOND)

    # --- waiting ---

    def _ranges(self) -> list[Any]:
        """The keys whose changes end a wait: the state, the calls, and deleted keys of members."""
        create = self.rpc.WatchCreateRequest
        return [
            create(**Keys.whole(self.keys.control)),
            create(
                **Keys.whole(self.keys.members(self.round)),
                filters=[create.NOPUT],
                prev_kv=True,
            ),
        ]

    def _sleep(self, watch: Watch) -> None:
        """Waits for an event or the next thing to do, and keeps the lease alive."""
        if time.monotonic() >= self.next_keep_alive:
            self._keep_alive()
        moments = [self.next_keep_alive, max(self.deadline, self.next_judgement)]
        moments += [max(self._due(since), self.next_judgement) for since, _ in self.gone.values()]
        try:
            response = watch.get(min(moments) - time.monotonic())
            while response is not None:
                self._take(response)
                response = watch.get(0)
        except EOFError as error:
            raise self.etcd.lost(str(error)) from error

    def _take(self, response: Any) -> None:
        if response.compact_revision:
            self.watch_from = int(response.compact_revision)
        if response.canceled:
            raise self.etcd.lost(response.cancel_reason or "the watch was cancelled")
        members = self.keys.members(self.round)
        for event in response.events:
            deleted = event.type == event.DELETE and event.kv.key.startswith(members)
            if deleted and event.prev_kv.mod_revision > self.came:
                name = event.kv.key[len(members) :].decode()
                if name != self.name:
                    who = Holder.of(event.prev_kv.value).who
                    self.gone.setdefault(name, (time.monotonic(), who))

    def _keep_alive(self) -> None:
        if self.etcd.keep_alive(self.lease) <= 0:
            raise _Lost
        now = time.monotonic()
        self.next_keep_alive = now + self.ttl_s / 3
        if now >= self.next_sign:
            self.next_sign = now + self._sign_every_s()
            self.etcd.transaction([self._mine()], [self._put_own()])

    def _due(self, since: float) -> float:
        return since + self.terms.restart_s

    # --- one poll of etcd ---

    def _look(self) -> Record | None:
        """Does what is due now. Returns the record once the round has ended."""
        while True:
            view = self._read()
            record = self._ended(view)
            if record is not None:
                return record
            assert view.state is not None
            if self._has_to_call(view):
                view.call = self._call(view.state, view.call)
                if not view.call:
                    continue
            if view.call < self.came:
                return None
            answers = self._answer(view.state, view.call)
            if not answers:
                continue
            if answers < self.keys.world_size:
                return None
            if self._end(view.state, OPEN):
                return OPEN

    def _ended(self, view: View) -> Record | None:
        """The record of this round, if it has ended. Raises if another process has the key."""
        if view.state is None:
            raise _Lost
        record = view.state.record(self.round)
        if record is not None:
            return record
        if view.state.round != self.round or view.own is None:
            raise _Lost
        if Holder.of(view.own).id != Holder.of(self.value).id:
            who = Holder.of(view.own).who
            raise EtcdBarrierError(
                f"etcd_barrier {self.keys.prefix!r}: another process joined as rank "
                f"{self.name} ({who}) and replaced this one ({self.terms.who})",
                self.keys.prefix,
                self.keys.world_size,
            )
        return None

    def _has_to_call(self, view: View) -> bool:
        world_size = self.keys.world_size
        return view.call < self.came and (view.count >= world_size or world_size <= CALLS_MAX)

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
            self.next_sign = time.monotonic() + self._sign_every_s()
        return int(response.responses[-1].response_range.count)

    def _end(self, state: State, record: Record, *others: Any) -> bool:
        """Writes how the round ended; False if it has ended already. Renews the lease of the
        state, so that the state stays until all have read it."""
        self.etcd.keep_alive(state.lease)
        put = self._put(self.keys.state, state.after(record), state.lease)
        return bool(self.etcd.transaction([self._same(state), *others], [put]).succeeded)

    # --- giving up ---

    def _judge(self) -> Record | None:
        """Gives the round up when the time is over, or when a member left and did not come back."""
        now = time.monotonic()
        due = any(now >= self._due(since) for since, _ in self.gone.values())
        if now < self.next_judgement or not (due or now >= self.deadline):
            return None
        self.next_judgement = now + 2 * self._response_s()
        view = self._call_members()
        if view is None:
            return None
        self.gone = {name: lost for name, lost in self.gone.items() if name not in view.members}
        late = now >= self.deadline
        if not late and not any(now >= self._due(since) for since, _ in self.gone.values()):
            return None
        return self._give_up(view, late)

    def _give_up(self, view: View, late: bool) -> Record | None:
        assert view.state is not None
        waited_s = time.monotonic() - self.began
        record = broken(
            TimedOut if late else Broken,
            by=f"rank {self.name}" if self.name.isdigit() else self.name,
            waited_s=waited_s,
            world_size=self.keys.world_size,
            present=view.members,
            answered=view.answered,
            gone={name: who for name, (_, who) in self.gone.items()},
            other_sizes=self._other_sizes(),
        )
        nobody_came = [self._compare(self.keys.call, mod_revision=view.call)]
        if time.monotonic() > self.deadline + GRACE_S:
            nobody_came = []
        return record if self._end(view.state, record, *nobody_came) else None

    def _call_members(self) -> View | None:
        """The members, and those that answer; None if another writes a call or the round ended."""
        view = self._read()
        if self._ended(view) is not None or view.state is None or view.call > self.answered:
            return None
        call = self._call(view.state, view.call)
        if not call or not self._answer(view.state, call):
            return None
        end = time.monotonic() + self._response_s()
        while True:
            view = self._read(call)
            if self._ended(view) is not None or view.call != call:
                return None
            if len(view.answered) >= len(view.members) or time.monotonic() >= end:
                return view
            time.sleep(0.01 + self.keys.world_size / 10_000)

    def _response_s(self) -> float:
        return max(RESPONSE_S, self.keys.world_size / ANSWERS_A_SECOND)

    def _other_sizes(self) -> list[int]:
        response = self.etcd.transaction(
            [], [self._get(**Keys.whole(self.keys.all), keys_only=True, limit=10_000)]
        )
        return self.keys.other_sizes(kv.key for kv in response.responses[0].response_range.kvs)

"""The requests of a barrier's participant to etcd, about its own key and its round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .client import Connection
from .rounds import Holder, Keys, State


@dataclass
class View:
    """What one transaction read.

    own: the value of this member's key. count: how many members there are. call: the number of the
    last call, 0 without one. members: who each of them is. answered: those that answered a
    call. The last two are read on request only.
    """

    state: State | None
    own: bytes | None
    count: int
    call: int
    members: dict[str, str] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)


class Member:
    """A member of a round, and the requests that are built from it.

    value: what is written there, which no other process writes. lease: what it is written under.
    """

    def __init__(self, etcd: Connection, keys: Keys, name: str, value: bytes) -> None:
        self.etcd = etcd
        self.rpc = etcd.rpc
        self.keys = keys
        self.name = name
        self.value = value
        self.round = ""
        self.lease = 0

    def _read(self, names_for: int = 0) -> View:
        """The state, this member's key, the number of members and the call, as of one revision.

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
        state, own, members, call, *answered = [each.response_range for each in response.responses]
        return View(
            state=State.of(state.kvs[0]) if state.kvs else None,
            own=own.kvs[0].value if own.kvs else None,
            count=int(members.count),
            call=int(call.kvs[0].mod_revision) if call.kvs else 0,
            members={_name_of(kv.key): Holder.of(kv.value).who for kv in members.kvs},
            answered=[_name_of(kv.key) for each in answered for kv in each.kvs],
        )

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

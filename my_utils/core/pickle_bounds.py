"""Checks whether torch's loader for weights can read a pickle of plain data without harm.

That loader trusts the file in depth and size. A deeply nested tuple as a key ends the process, and
one that holds itself twice in each of forty steps takes forever to hash. The check here reads only
the pickle's operations, and makes nothing.

>>> import pickle
>>> check_pickle(pickle.dumps({"x": [1.5, ("y",)]}, protocol=2))
>>> deep = b")" + b"\\x85" * 1000  # an empty tuple in a tuple in a tuple …
>>> check_pickle(b"\\x80\\x02}" + deep + b"K\\x01s.")
Traceback (most recent call last):
my_utils.core.pickle_bounds.OutOfBounds: it is nested more than 300 deep
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import Any

DEPTH_MAX = 300
EXPANDED_MAX = 1 << 28  # values, each counted as often as it is reached
KEY_MAX = 1000  # values in one key


class OutOfBounds(ValueError):
    """A pickle that would take too much memory, time or depth, or is none of plain data."""


class _Value:
    """What an operation made: how deep it is nested, and of how many values it consists."""

    __slots__ = ("depth", "expanded", "held", "kind")

    def __init__(self, kind: str = "") -> None:
        self.depth = 1
        self.expanded = 1
        self.held = False  # in another one: it must not grow any more
        self.kind = kind

    def add(self, part: _Value) -> None:
        if self.held:
            raise OutOfBounds("a value in it contains itself, or grows after its container")
        part.held = True
        self.depth = max(self.depth, part.depth + 1)
        self.expanded += part.expanded
        if self.depth > DEPTH_MAX:
            raise OutOfBounds(f"it is nested more than {DEPTH_MAX} deep")
        if self.expanded > EXPANDED_MAX:
            raise OutOfBounds(f"it has more than {EXPANDED_MAX} values")

    def add_key(self, key: _Value) -> None:
        if key.expanded > KEY_MAX:
            raise OutOfBounds(f"a key in it has more than {KEY_MAX} values")
        self.add(key)


_NUMBERS = frozenset(["BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG"])
_LEAVES = _NUMBERS | {
    *["NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"],
    *["SHORT_BINSTRING", "BINSTRING", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "EMPTY_TUPLE"],
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
    """The stack and the memo of an unpickler, without the values."""

    def __init__(self) -> None:
        self.stack: list[_Value] = []
        self.marks: list[int] = []
        self.memo: dict[int, _Value] = {}

    def do(self, name: str, argument: Any) -> None:
        if name in _LEAVES:
            self.stack.append(_Value("number" if name in _NUMBERS else ""))
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name == "MARK":
            self.marks.append(len(self.stack))
        elif name == "GLOBAL":
            self.stack.append(_Value(argument.rpartition(" ")[2]))
        elif name in _TUPLES:
            self._tuple(len(self.stack) - _TUPLES[name])
        elif name == "TUPLE":
            self._tuple(self.marks.pop())
        else:
            self._grow(name)

    def _tuple(self, first: int) -> None:
        parts = self._taken(first)
        made = _Value(parts[0].kind if len(parts) == 1 else "")
        for part in parts:
            made.add(part)
        self.stack.append(made)

    def _taken(self, first: int) -> list[_Value]:
        if first < 0:
            raise OutOfBounds("it is damaged")
        parts = self.stack[first:]
        del self.stack[first:]
        return parts

    def _grow(self, name: str) -> None:
        if name in ("APPENDS", "SETITEMS", "ADDITEMS"):
            parts = self._taken(self.marks.pop())
        elif name in ("APPEND", "BUILD", "REDUCE", "NEWOBJ", "BINPERSID"):
            parts = self._taken(len(self.stack) - 1)
        elif name == "SETITEM":
            parts = self._taken(len(self.stack) - 2)
        else:
            raise OutOfBounds(f"{name} is in it, which torch.save does not write")
        if name == "BINPERSID":
            self.stack.append(_Value())
        elif name in ("REDUCE", "NEWOBJ"):
            self._call(parts[0])
        else:
            self._put(name, parts)

    def _call(self, arguments: _Value) -> None:
        function = self.stack.pop()
        if function.kind == "bytearray" and arguments.kind == "number":
            raise OutOfBounds("a bytearray in it is made from a size")
        made = _Value()
        made.add(arguments)
        self.stack.append(made)

    def _put(self, name: str, parts: list[_Value]) -> None:
        into = self.stack[-1]
        for place, part in enumerate(parts):
            is_key = name == "ADDITEMS" or (name.startswith("SETITEM") and place % 2 == 0)
            (into.add_key if is_key else into.add)(part)


def check_pickle(data: bytes) -> None:
    """OutOfBounds for a pickle that is nested too deep, is too large, or has operations that
    `torch.save` does not write."""
    machine = _Machine()
    try:
        for name, argument in _operations(data):
            machine.do(name, argument)
    except OutOfBounds:
        raise
    except (IndexError, KeyError, ValueError, OverflowError, UnicodeError) as error:
        raise OutOfBounds(f"it is damaged ({error})") from None


def _operations(data: bytes) -> Iterator[tuple[str, Any]]:
    for operation, argument, _ in pickletools.genops(data):
        if operation.name == "STOP":
            return
        if operation.name != "PROTO":
            yield operation.name, argument

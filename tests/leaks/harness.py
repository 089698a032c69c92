"""Finds the entry points of the C module, runs a case many times, and measures what stays behind.

A leak grows with every repetition, while caches and pools fill once. So a case runs in rounds, and
passes as soon as a whole round leaves nothing behind; it fails when no round does.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 8
Setup = Callable[[Path], Iterator[Callable[[], object]]]


@dataclass(frozen=True)
class Case:
    """What to repeat, and the entry points that it stands for."""

    name: str
    covers: tuple[str, ...]
    repeat: int
    setup: Setup


CASES: dict[str, Case] = {}


def case(*covers: str, repeat: int = 1000) -> Callable[[Setup], Setup]:
    """Registers a generator that takes a folder, yields the callable to repeat, and cleans up."""

    def register(setup: Setup) -> Setup:
        name = setup.__name__
        assert name not in CASES, f"two leak cases are named {name}"
        CASES[name] = Case(name, covers, repeat, setup)
        return setup

    return register


def types_of(module: types.ModuleType) -> list[type]:
    """Every type that the module made: what it exports, under whatever path its users know it,
    and what says that it is of the module."""
    exported = {value for value in vars(module).values() if isinstance(value, type)}
    inner = {cls for cls in _subclasses(object) if cls.__module__ == module.__name__}
    return sorted(exported | inner, key=lambda cls: cls.__qualname__)


def _subclasses(cls: type) -> Iterator[type]:
    children: list[type] = type.__subclasses__(cls)
    for child in children:
        yield child
        yield from _subclasses(child)


ENTRY_TYPES = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.BuiltinFunctionType,
    classmethod,
    staticmethod,
)
# Slots that every type has by itself, or that cannot leak on their own.
PLAIN_SLOTS = {"__getattribute__", "__delattr__", "__setattr__", "__del__", "__delete__"}


def entry_points(module: types.ModuleType) -> set[str]:
    """`function`, `Type` for its constructor, and `Type.method` for methods and properties."""
    found = {
        name
        for name, value in vars(module).items()
        if isinstance(value, types.BuiltinFunctionType) and not name.startswith("_")
    }
    for cls in types_of(module):
        if not cls.__flags__ & (1 << 7):  # Py_TPFLAGS_DISALLOW_INSTANTIATION
            found.add(cls.__qualname__)
        for name, value in vars(cls).items():
            if isinstance(value, ENTRY_TYPES) and _is_public(name):
                found.add(f"{cls.__qualname__}.{name}")
    return found


def _is_public(name: str) -> bool:
    if name in PLAIN_SLOTS or name in {"__new__", "__init__", "__dict__", "__weakref__"}:
        return False
    return not name.startswith("_") or name.startswith("__")


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (field, ctypes.c_size_t)
        for field in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _heap_meter() -> Callable[[], int] | None:
    """Bytes that malloc has handed out, exact where glibc can say so (2.33 and newer)."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return None
    mallinfo2.restype = _Mallinfo2

    def measure() -> int:
        info = mallinfo2()
        return int(info.uordblks + info.hblkhd)

    return measure


@dataclass(frozen=True)
class Meter:
    """One thing that must not grow; `each` is the growth for one repetition that is a leak."""

    name: str
    measure: Callable[[], int]
    each: float


def meters() -> list[Meter]:
    heap = _heap_meter()
    found = [
        Meter("Python blocks", sys.getallocatedblocks, 0.5),
        Meter("open files", lambda: len(os.listdir("/proc/self/fd")), 0.02),
        Meter("mappings", lambda: _count_lines("/proc/self/maps"), 0.05),
        Meter("threads", lambda: len(os.listdir("/proc/self/task")), 0.02),
        # The kernel counts pages lazily and obmalloc takes arenas of 1 MiB: a coarse meter.
        Meter("resident bytes", _resident_bytes, 1200),
    ]
    if heap is not None:
        found.append(Meter("C heap bytes", heap, 4))
    return found


def _count_lines(path: str) -> int:
    return Path(path).read_bytes().count(b"\n")


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _round(action: Callable[[], object], repeat: int, watched: list[Meter]) -> list[int]:
    """How much each meter grew over one round."""
    gc.collect()
    before = [meter.measure() for meter in watched]
    for _ in range(repeat):
        action()
    gc.collect()
    return [meter.measure() - start for meter, start in zip(watched, before, strict=True)]


def find_leaks(action: Callable[[], object], repeat: int) -> list[str]:
    """One line for each meter that grew in every round; empty when `action` leaks nothing."""
    watched = meters()
    for _ in range(min(repeat, 50)):
        action()
    growth: dict[str, list[int]] = {meter.name: [] for meter in watched}
    suspects = watched
    for _ in range(ROUNDS):
        grown = _round(action, repeat, suspects)
        for meter, amount in zip(suspects, grown, strict=True):
            growth[meter.name].append(amount)
        suspects = [
            meter
            for meter, amount in zip(suspects, grown, strict=True)
            if amount > meter.each * repeat
        ]
        if not suspects:
            break
    return [
        f"{meter.name} grew by {growth[meter.name]} in rounds of {repeat}" for meter in suspects
    ]


@contextmanager
def prepared(item: Case, folder: Path) -> Iterator[Callable[[], object]]:
    """The callable of a case, with its clean-up afterwards."""
    yield from item.setup(folder)

"""Objects for the tests of dumps, and what it means that two of them are the same."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple

from my_utils.dump_utils import DumpConfig, UniversalDumper, UniversalLoader


class Colour(enum.Enum):
    RED = 1
    GREEN = "g"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Right(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Point(NamedTuple):
    x: float
    y: Any = None


Pair = collections.namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Sample:
    name: str
    values: list[Any] = dataclasses.field(default_factory=list)
    made: list[str] = dataclasses.field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.made.append("__post_init__")


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    left: Any
    right: Any = None


@dataclasses.dataclass
class Output(collections.OrderedDict[str, Any]):
    """As the outputs of models in some libraries: a dict and a dataclass in one."""

    logits: Any = None
    loss: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            collections.OrderedDict.__setitem__(self, field.name, getattr(self, field.name))


class Batch(collections.UserDict[str, Any]):
    """As the batches of some tokenizers: attributes beside the content, which they also show."""

    def __init__(self, data: dict[str, Any], encodings: Any = None) -> None:
        super().__init__(data)
        self._encodings = encodings

    def __getattr__(self, name: str) -> Any:
        return self.data[name]

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data, "encodings": self._encodings}


class AttrDict(dict[Any, Any]):
    """Items that are written as attributes; nothing of its own runs when a dump is read."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("was called")

    __setattr__ = __setitem__

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Steps(list[Any]):
    def append(self, value: Any) -> None:
        raise AssertionError("was called")


class Slotted(dict[Any, Any]):
    """Of which dict has not all."""

    __slots__ = ("more",)


class Plain:
    """Of a class that only pickle knows what to do with."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def round_trip(obj: Any, folder: Path, *, verify: bool = True, **options: Any) -> Any:
    """Dumped and loaded; `options` of DumpConfig, or of load."""
    of_load = {name: options.pop(name) for name in ("allow_pickle", "types") if name in options}
    dumper = UniversalDumper(DumpConfig(root_dir=folder, strict=True, **options))
    dump_dir = dumper.dump(stage="test", obj=obj)
    assert dump_dir is not None
    dumper.close()
    return UniversalLoader(folder).load(dump_dir, verify=verify, **of_load)


def assert_same(found: Any, wanted: Any, seen: dict[int, tuple[Any, Any]] | None = None) -> None:
    """Of the same types and values in the same order, with the same objects in the same places."""
    seen = {} if seen is None else seen
    assert type(found) is type(wanted), f"{type(found)} is not {type(wanted)}"
    if id(wanted) in seen:
        if isinstance(wanted, list | dict | set) or dataclasses.is_dataclass(wanted):
            assert seen[id(wanted)][1] is found, "an object that was shared is not"
        return
    seen[id(wanted)] = (wanted, found)
    if isinstance(wanted, float):
        assert struct.pack("<d", found) == struct.pack("<d", wanted)
    elif isinstance(wanted, complex):
        assert_same(found.real, wanted.real)
        assert_same(found.imag, wanted.imag)
    elif isinstance(wanted, collections.UserDict | collections.UserList | collections.ChainMap):
        assert_same(vars(found), vars(wanted), seen)
    elif isinstance(wanted, set | frozenset):
        assert found == wanted or any(_is_nan(value) for value in wanted)
    elif isinstance(wanted, dict):
        assert len(found) == len(wanted)
        for (key, value), (wanted_key, wanted_value) in zip(
            found.items(), wanted.items(), strict=True
        ):
            assert_same(key, wanted_key, seen)
            assert_same(value, wanted_value, seen)
        if hasattr(wanted, "__dict__"):
            assert_same(vars(found), vars(wanted), seen)
    elif isinstance(wanted, list | tuple | collections.deque):
        assert len(found) == len(wanted)
        for value, wanted_value in zip(found, wanted, strict=True):
            assert_same(value, wanted_value, seen)
    elif dataclasses.is_dataclass(wanted) and not isinstance(wanted, type):
        for field in dataclasses.fields(wanted):
            assert_same(getattr(found, field.name), getattr(wanted, field.name), seen)
    elif type(wanted).__module__ in ("torch", "torch.nn.parameter"):
        _assert_same_of_torch(found, wanted)
    elif type(wanted).__module__ == "numpy":
        _assert_same_of_numpy(found, wanted)
    else:
        assert found == wanted


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | complex) and (math.isnan(value.real) or math.isnan(value.imag))


def _assert_same_of_torch(found: Any, wanted: Any) -> None:
    torch = sys.modules["torch"]
    if not isinstance(wanted, torch.Tensor):
        assert found == wanted
        return
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.requires_grad == wanted.requires_grad
    assert tensor_bytes(found) == tensor_bytes(wanted)


def tensor_bytes(tensor: Any) -> bytes:
    """Row-major, by way of a plain copy."""
    torch = sys.modules["torch"]
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    plain = torch.empty(plain.shape, dtype=plain.dtype).copy_(plain)
    return bytes(plain.reshape(-1).view(torch.uint8).numpy()) if plain.numel() else b""


def _assert_same_of_numpy(found: Any, wanted: Any) -> None:
    numpy = sys.modules["numpy"]
    assert found.dtype == wanted.dtype
    if isinstance(wanted, numpy.dtype):
        return
    assert found.shape == wanted.shape
    if wanted.dtype == object:
        assert_same(list(found.flat), list(wanted.flat))
    else:
        assert found.tobytes() == wanted.tobytes()

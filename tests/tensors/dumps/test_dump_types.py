"""Types that come back from a dump as they went in, without torch."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import math
import pathlib
import struct
import sys
import types
import uuid
import zoneinfo
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from my_utils.dump_utils import DumpConfig, DumpError, StandIn, UniversalDumper, UniversalLoader

from ...conftest import RunPython
from ...support.dump_values import (
    AttrDict,
    Batch,
    Colour,
    Frozen,
    Level,
    Output,
    Pair,
    Plain,
    Point,
    Right,
    Sample,
    Slotted,
    Steps,
    assert_same,
    round_trip,
)

pytestmark = pytest.mark.no_torch

ODD_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000001234))[0]

VALUES: dict[str, Any] = {
    "None and bools": [None, True, False],
    "ints": [0, -1, 2**63, -(2**64), 10**700, -(2**70_000)],
    "one huge int": 2**20_000,
    "floats": [0.0, -0.0, 1e300, 5e-324, math.inf, -math.inf, math.nan, ODD_NAN, 0.1],
    "floats in one line": [0.5, 1e22, -0.0],
    "complex": [1j, complex(-0.0, math.inf), complex(math.nan, 1)],
    "str": ["", "text", "日本語", '"\\/\b\n\0', "\ud800", "\ud83d\ude00", "😀", "\u2028"],
    "bytes": [b"", b"short", bytes(range(256)), bytearray(b"mutable"), bytearray(1000)],
    "list": [[], [1], [[], [[]]], [1, "a", None]],
    "tuple": [(), (1,), ((), ((),)), (1, [2])],
    "sets": [set(), {1, 2}, frozenset(), frozenset({"a", (1, 2)}), {1, "a", None}],
    "dict": {"b": 1, "a": {"c": {}}, "": 0, "a/b~c": [1]},
    "dict of other keys": {1: "int", "1": "str", None: 0, (1, 2): 3, 1.5: 4, b"x": 5, False: 6},
    "dict that looks like a form": {"$tensor": "x", "digest": "y"},
    "dict with surrogates": {"\ud800": 1, "plain": "\udfff"},
    "keys with slashes": {"a/b": [[1, None, "x"]], "a": {"b": [[2]]}, "~1": {"": []}},
    "ordered": collections.OrderedDict([("z", 1), (2, [3])]),
    "defaultdict": collections.defaultdict(list, {"a": [1]}),
    "defaultdict without": collections.defaultdict(None, {1: 2}),
    "counter": collections.Counter("abca"),
    "deque": [collections.deque([1, [2]], maxlen=3), collections.deque()],
    "namespaces": [types.SimpleNamespace(a=1, b=[2]), argparse.Namespace(lr=0.1)],
    "enums": [Colour.RED, Colour.GREEN, Level.HIGH, Right.READ, Right.READ | Right.RUN, Right(0)],
    "enum keys": {Colour.RED: 1, Level.LOW: 2},
    "namedtuples": [Point(1.5), Point(1.0, [Pair(1, (2,))])],
    "dataclasses": [Sample("a", [1, Frozen("l")]), Frozen((1,), {2})],
    "dict and dataclass": Output(logits=[1, 2], loss=0.5),
    "kin of containers": [
        collections.UserDict(a=[1], b=2),
        collections.UserList([1, (2,)]),
        collections.UserString("text"),
        collections.ChainMap({"a": 1}, {"b": [2]}),
    ],
    "subclasses of containers": [
        Batch({"ids": [1, 2], "$tensor": 3}, encodings=[4]),
        AttrDict({"a": [1], (2, 3): {}}),
        Steps([1, Batch({})]),
    ],
    "moments": [
        datetime.datetime(2024, 2, 29, 12, 30, 1, 999_999),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=-5))),
        datetime.datetime.min,
        datetime.date(1, 1, 1),
        datetime.time(23, 59, fold=1),
        datetime.timedelta(days=-1, microseconds=1),
        datetime.timezone(datetime.timedelta(minutes=30), "odd"),
    ],
    "zones": [
        zoneinfo.ZoneInfo("UTC"),
        datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("UTC")),
    ],
    "paths": [pathlib.Path("a/b"), pathlib.PurePosixPath("/x"), pathlib.PureWindowsPath("c:\\y")],
    "numbers": [decimal.Decimal("1.10"), fractions.Fraction(1, 3), decimal.Decimal("NaN")],
    "others": [slice(1, None, -1), range(3, 10, 2), ..., NotImplemented, uuid.UUID(int=5)],
}


@pytest.mark.parametrize("name", VALUES)
def test_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    value = VALUES[name]
    if name == "numbers":
        assert str(round_trip(value, tmp_path)) == str(value)
    elif name == "bytes":
        pytest.importorskip("safetensors", reason="safetensors is not installed")
        assert_same(round_trip(value, tmp_path), value)
    else:
        assert_same(round_trip(value, tmp_path), value)


def test_a_subclass_of_a_container_may_hold_itself(tmp_path: Path) -> None:
    batch, steps = Batch({}), Steps([1])
    batch["steps"] = steps
    list.append(steps, (batch, steps))
    found = round_trip(batch, tmp_path)
    assert found["steps"][1] == (found, found["steps"]) and found.steps is found["steps"]


def test_a_subclass_that_is_not_there_is_stood_in_for(tmp_path: Path) -> None:
    class Local(dict[str, Any]):
        pass

    class Items(list[Any]):
        pass

    class User(collections.UserDict[str, Any]):
        pass

    found = round_trip([Local(a=[1]), Items([2]), User(b=3)], tmp_path)
    assert [one.value for one in found] == [{"a": [1]}, [2], {"data": {"b": 3}}]
    mine = round_trip([Local(a=[1])], tmp_path, types=[Local])
    assert type(mine[0]) is Local and mine[0] == {"a": [1]}
    assert "$pickle" in tree_of(Slotted(a=1), tmp_path)


def tree_of(obj: Any, folder: Path) -> str:
    dump_dir = UniversalDumper(DumpConfig(root_dir=folder, strict=True)).dump("s", obj)
    assert dump_dir is not None
    return Path(dump_dir, "tree.json").read_text(encoding="utf-8")


def test_defaults_of_a_defaultdict_work_again(tmp_path: Path) -> None:
    found = round_trip(collections.defaultdict(list), tmp_path)
    found["new"].append(1)
    assert found == {"new": [1]}


def test_no_constructor_runs(tmp_path: Path) -> None:
    sample = Sample("a")
    sample.made.clear()
    assert round_trip(sample, tmp_path).made == []


def test_attributes_beside_the_fields_are_kept(tmp_path: Path) -> None:
    sample = Sample("a")
    sample.note = [sample]  # type: ignore[attr-defined]
    found = round_trip(sample, tmp_path)
    assert found.note[0] is found
    ordered: Any = collections.OrderedDict(a=1)
    ordered._metadata = {"version": 2}  # as state_dict() has it
    assert round_trip(ordered, tmp_path)._metadata == {"version": 2}


def test_shared_objects_are_shared_again(tmp_path: Path) -> None:
    inner: list[Any] = [1]
    pair = (inner, inner)
    found = round_trip({"a": inner, "b": [inner, pair], 3: pair, "c": Frozen(inner)}, tmp_path)
    assert found["a"] is found["b"][0] is found["c"].left is found[3][0]
    assert found["b"][1] is found[3]


def test_cycles(tmp_path: Path) -> None:
    items: list[Any] = []
    items.append(items)
    mapping: dict[Any, Any] = {"me": items}
    mapping[1] = mapping
    items.append((items, mapping, frozenset({1})))
    frozen = Frozen(items)
    items.append({"frozen": frozen, 2: [frozen]})
    found = round_trip(items, tmp_path)
    assert found[0] is found
    assert found[1][0] is found
    assert found[1][1]["me"] is found
    assert found[1][1][1] is found[1][1]
    assert found[2]["frozen"] is found[2][2][0]
    assert found[2]["frozen"].left is found


def test_a_tuple_that_contains_itself(tmp_path: Path) -> None:
    holder: list[Any] = []
    mapping: dict[Any, Any] = {}
    loop = (holder, mapping)
    holder.append(loop)
    mapping["loop"] = loop
    mapping[1] = Point(1.0, [loop])
    found = round_trip(loop, tmp_path)
    assert found[0][0] is found
    assert found[1]["loop"] is found
    assert found[1][1].y[0] is found


def test_a_cycle_of_tuples_only_is_a_note_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    holder: list[Any] = []
    loop = (holder,)
    holder.append((loop,))
    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path))
    dump_dir = dumper.dump("s", loop)
    assert dump_dir is not None
    assert dumper.unsupported == 1
    found = UniversalLoader(tmp_path).load(dump_dir)
    assert isinstance(found[0][0][0], StandIn)


def test_what_pickle_takes_needs_leave(tmp_path: Path) -> None:
    obj = {"plain": [Plain(a=1), Plain(a=2)]}
    with pytest.raises(DumpError, match=r"pickle_00000\.pkl: .*allow_pickle=True"):
        round_trip(obj, tmp_path)
    found = round_trip(obj, tmp_path, allow_pickle=True)
    assert [item.a for item in found["plain"]] == [1, 2]


def test_what_nothing_takes_leaves_a_note(tmp_path: Path, caplog: Any) -> None:
    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path))
    dump_dir = dumper.dump("s", {"a": 1, "g": (i for i in range(3)), "b": 2})
    assert dump_dir is not None
    assert dumper.unsupported == 1
    found = UniversalLoader(tmp_path).load(dump_dir)
    assert (found["a"], found["b"]) == (1, 2)
    assert found["g"].type_name == "builtins:generator"
    assert "could not be dumped" in repr(found["g"])
    with pytest.raises(DumpError, match="/root/g: builtins:generator cannot be dumped: pickle"):
        UniversalDumper(DumpConfig(root_dir=tmp_path, strict=True)).dump(
            "s", {"g": (i for i in range(3))}
        )


def test_classes_that_are_not_there_are_stood_in_for(run_python: RunPython, tmp_path: Path) -> None:
    """Another process has not imported the classes; it imports nothing for a dump."""
    dump_dir = UniversalDumper(DumpConfig(root_dir=tmp_path, strict=True)).dump(
        "s", [Sample("a", [1]), Point(1.0, 2), Colour.RED]
    )
    program = f"""
import json, sys
from my_utils.dump_utils import UniversalLoader
found = UniversalLoader({str(tmp_path)!r}).load({dump_dir!r})
assert "tests.support.dump_values" not in sys.modules
print(json.dumps([[repr(type(f)), f.type_name, f.value, f.reason] for f in found]))
"""
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    first, second, third = json.loads(done.stdout)
    assert first[1] == "tests.support.dump_values:Sample"
    assert first[2] == {"name": "a", "values": [1], "made": ["__post_init__"]}
    assert "import it, or pass types=" in first[3]
    assert second[2] == [1.0, 2]
    assert third[2] == 1
    assert len(done.stderr.splitlines()) == 1  # one warning


def test_types_that_the_caller_passes(tmp_path: Path) -> None:
    class Local(enum.Enum):
        A = 1

    assert type(round_trip(Local.A, tmp_path)) is StandIn
    assert round_trip(Local.A, tmp_path, types=[Local]) is Local.A
    with pytest.raises(TypeError, match="types must be classes, not 3"):
        UniversalLoader(tmp_path).load("x", types=[3])  # type: ignore[list-item]


def test_a_module_with_a_getattr_is_not_asked(tmp_path: Path) -> None:
    """Looking a class up must not run code, such as a lazy import."""
    asked: list[str] = []

    def ask(name: str) -> Any:
        asked.append(name)
        return Colour

    module: Any = types.ModuleType("lazy_module")
    module.__getattr__ = ask
    sys.modules["lazy_module"] = module
    try:
        name = Colour.__module__
        Colour.__module__ = "lazy_module"
        dump_dir = UniversalDumper(DumpConfig(root_dir=tmp_path)).dump("s", Colour.RED)
        assert dump_dir is not None
        assert isinstance(UniversalLoader(tmp_path).load(dump_dir), StandIn)
    finally:
        Colour.__module__ = name
        del sys.modules["lazy_module"]
    assert "Colour" not in asked


def test_limits_cut_and_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    obj: dict[str, Any] = {
        "text": "x" * 50,
        "list": list(range(50)),
        "tuple": (1,) * 50,
        "short": [1, 2],
    }
    obj |= {"set": set(range(50)), "dict": {i: i for i in range(50)}, "bytes": b"y" * 50}
    dumper = UniversalDumper(
        DumpConfig(root_dir=tmp_path, max_string=10, max_items=20, strict=True)
    )
    dump_dir = dumper.dump("s", obj)
    assert dump_dir is not None
    loader = UniversalLoader(tmp_path)
    assert loader.manifest(dump_dir)["truncated"] == 6
    found = loader.load(dump_dir)
    assert found["text"] == "x" * 10
    assert found["list"] == list(range(20))
    assert found["tuple"] == (1,) * 20
    assert found["set"] == set(range(20))
    assert found["dict"] == {i: i for i in range(20)}
    assert found["bytes"] == b"y" * 10
    assert found["short"] == [1, 2]
    assert sum("cut when dumped" in record.message for record in caplog.records) == 1


def test_a_cut_object_may_be_shared(tmp_path: Path) -> None:
    long: list[Any] = list(range(50))
    long[5] = long
    found = round_trip({"a": long, "b": (long,)}, tmp_path, max_items=10)
    assert found["a"] is found["b"][0] is found["a"][5]


class OwnList(list[int]):
    pass


class OwnDict(dict[str, int]):
    pass


class OwnOrderedDict(collections.OrderedDict[str, int]):
    pass


@dataclasses.dataclass
class OutputLike(collections.OrderedDict[str, int]):
    loss: float = 0.5


_MANY = {f"key{number}": number for number in range(50)}
_KEPT = dict(list(_MANY.items())[:20])


@pytest.mark.parametrize(
    ("obj", "kept"),
    [
        (OwnList(range(50)), OwnList(range(20))),
        (OwnDict(_MANY), OwnDict(_KEPT)),
        (OwnOrderedDict(_MANY), OwnOrderedDict(_KEPT)),
        (collections.OrderedDict(_MANY), collections.OrderedDict(_KEPT)),
        (collections.Counter(_MANY), collections.Counter(_KEPT)),
        (collections.defaultdict(int, _MANY), collections.defaultdict(int, _KEPT)),
        (collections.UserDict(_MANY), collections.UserDict(_KEPT)),
        (collections.UserList(range(50)), collections.UserList(range(20))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_max_items_cuts_what_derives_from_containers(obj: Any, kept: Any, tmp_path: Path) -> None:
    own = [OwnList, OwnDict, OwnOrderedDict]
    found = round_trip({"a": obj, "b": [obj]}, tmp_path, max_items=20, types=own)
    assert type(found["a"]) is type(kept) and found["a"] == kept
    assert found["b"][0] is found["a"]


def test_a_cut_dataclass_of_items_keeps_its_fields(tmp_path: Path) -> None:
    obj = OutputLike(2.5)
    obj.update(_MANY)
    obj.more = [obj]  # type: ignore[attr-defined]
    found = round_trip(obj, tmp_path, max_items=20, types=[OutputLike])
    assert type(found) is OutputLike and dict(found) == _KEPT
    assert found.loss == 2.5 and found.more[0] is found  # type: ignore[attr-defined]


def test_an_ordered_subclass_keeps_the_order_that_it_was_given(tmp_path: Path) -> None:
    obj = OwnOrderedDict(a=1, b=2, c=3)
    obj.move_to_end("a")
    assert list(round_trip(obj, tmp_path, types=[OwnOrderedDict])) == ["b", "c", "a"]


@pytest.mark.parametrize(
    "make",
    [lambda: Sample("s"), lambda: OwnList([1]), lambda: collections.OrderedDict(a=1),
     types.SimpleNamespace, argparse.Namespace],
)  # fmt: skip
@pytest.mark.parametrize("name", ["$a", "$ref", "$dict", "not ascii \udc80"])
def test_attributes_have_any_names(make: Any, name: str, tmp_path: Path) -> None:
    """setattr takes them, and so do names that come from a file."""
    obj = make()
    vars(obj)[name] = [1, {"x": 2}]
    found = round_trip({"a": obj, "b": vars(obj)[name]}, tmp_path, types=[Sample, OwnList])
    assert vars(found["a"]) == vars(obj)
    assert found["b"] is vars(found["a"])[name]


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"a": x}, lambda x: (x,), Point, Sample])
def test_a_branch_that_is_too_deep_is_left_out(tmp_path: Path, wrap: Any) -> None:
    deep: Any = "the end"
    for _ in range(130):
        deep = wrap(deep)
    obj = {"before": [1, {2}], "deep": deep, "after": {"x": (1, [2.5])}}
    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path, max_depth=100))
    dump_dir = dumper.dump("s", obj)
    assert dump_dir is not None and (dumper.failed, dumper.unsupported) == (0, 1)
    found = UniversalLoader(tmp_path).load(dump_dir)
    assert_same({**found, "deep": None}, {**obj, "deep": None})
    tree = (Path(dump_dir) / "tree.json").read_text()
    assert tree.count("is nested deeper than max_depth, 100") == 1
    assert_same(round_trip(obj, tmp_path, max_depth=300), obj)


def test_what_is_too_deep_at_one_place_is_whole_at_another(tmp_path: Path) -> None:
    shared = [[1], "x"]
    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path, max_depth=3))
    dump_dir = dumper.dump("s", [[[shared]], shared])
    assert dump_dir is not None
    found = UniversalLoader(tmp_path).load(dump_dir)
    assert type(found[0][0][0]) is StandIn
    assert "is nested deeper than max_depth, 3" in found[0][0][0].reason
    assert found[1] == shared


def test_the_example_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    cfg = DumpConfig(root_dir="./dump_dataset", enable=True, save_tensor_cpu=True)
    dumper = UniversalDumper(cfg)
    dump_dir = dumper.dump(stage="after_tokenize", obj={"x": 1}, data_id=42, branch="train")

    loader = UniversalLoader(root_dir="./dump_dataset")
    obj = loader.load(dump_dir)

    assert obj == {"x": 1}
    (sample,) = (tmp_path / "dump_dataset").iterdir()
    assert sample.name == "sample_42"
    (folder,) = sample.iterdir()
    assert folder.name.endswith("__after_tokenize__train")


plain = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=60)
    | st.complex_numbers() | st.dates() | st.datetimes() | st.timedeltas() | st.times()
    | st.sampled_from([*Colour, *Level, Right.READ | Right.WRITE])
    | st.text(st.characters(categories=["Cs", "L"]), max_size=3)
)  # fmt: skip
keys = st.none() | st.integers() | st.text(max_size=5) | st.sampled_from([*Colour]) | st.tuples(
    st.integers(), st.text(max_size=2)
)  # fmt: skip


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=5)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=5)
        | st.dictionaries(st.text(max_size=5), inner, max_size=5)
        | st.frozensets(keys, max_size=4)
        | st.sets(keys, max_size=4)
        | st.builds(Point, st.floats(), inner)
        | st.builds(Frozen, inner, inner)
        | st.builds(Sample, st.text(), st.lists(inner, max_size=2))
        | st.builds(collections.OrderedDict, st.lists(st.tuples(keys, inner), max_size=3))
        | st.builds(collections.deque, st.lists(inner, max_size=3))
        | inner.map(lambda value: [value, value])
    )


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.recursive(plain, containers, max_leaves=25))
def test_any_nested_object_comes_back(tmp_path: Path, obj: Any) -> None:
    assert_same(round_trip(obj, tmp_path), obj)

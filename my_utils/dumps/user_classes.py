"""Enums, named tuples and dataclasses.

No constructor of theirs runs when they are read: see `loader`.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import json
import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .form import class_name
from .plain import optional_text, str_text

if TYPE_CHECKING:
    from .loader import Decoder, Reader
    from .tree import Tree, Writer


def find_class(decoder: Decoder, name: str) -> type | None:
    """Given by the caller, or in a module that is imported; no attribute is computed."""
    if name in decoder.classes:
        return decoder.classes[name]
    module_name, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module_name)
    for part in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    if isinstance(found, type) and class_name(found) == name:
        return found
    return None


def write_enum(tree: Tree, obj: enum.Enum, path: str) -> None:
    tree.out.append(
        f'{{"$enum": {str_text(class_name(type(obj)))}, "name": {optional_text(obj.name)}, '
        '"value": '
    )
    with tree.inside(path, patchable=False):
        tree.node(obj.value, path + "/value")
    tree.out.append("}")


def read_enum(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    type_name = decoder.text(decoder.node(body))
    kind = find_class(decoder, type_name)
    value = decoder.whole(decoder.node(node["value"]))
    if kind is None or not issubclass(kind, enum.Enum):
        return decoder.stand_in(type_name, value)
    members = kind.__members__
    name = node["name"]
    if name is not None and type(name) is not str:
        name = decoder.node(name)
    if name in members:
        return members[name]
    parts = [] if name is None else decoder.text(name).split("|")
    if issubclass(kind, enum.Flag) and members and all(part in members for part in parts):
        first = next(iter(members.values()))
        nothing = operator.xor(first, first)
        return functools.reduce(operator.or_, (members[part] for part in parts), nothing)
    return decoder.stand_in(type_name, value, f"it has no member {name} here")


def write_named_tuple(tree: Tree, obj: Any, path: str) -> None:
    if tree.seen(obj, path):
        return
    tree.out.append(
        f'{{"$namedtuple": {str_text(class_name(type(obj)))}, '
        f'"names": {json.dumps(obj._fields)}, "values": '
    )
    values = tuple(obj)
    tree.values(values, path + "/values", patchable=False, unfinished=obj)
    tree.out.append("}")


def read_named_tuple(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    type_name = decoder.text(decoder.node(body))
    values = decoder.values(node["values"])
    kind = find_class(decoder, type_name)
    if kind is None:
        return decoder.stand_in(type_name, tuple(values))
    if not _is_named_tuple(kind) or list(kind._fields) != node["names"]:  # type: ignore[attr-defined]
        return decoder.stand_in(type_name, tuple(values), "its fields are others here")
    if len(values) != len(node["names"]):
        raise decoder.wrong("$namedtuple: has another number of values than names")
    return tuple.__new__(kind, values)


def _is_named_tuple(cls: type) -> bool:
    fields = getattr(cls, "_fields", None)
    return (
        issubclass(cls, tuple)
        and cls.__mro__[1] is tuple
        and isinstance(fields, tuple)
        and all(type(name) is str for name in fields)
    )


def write_dataclass(tree: Tree, obj: Any, path: str) -> None:
    if tree.seen(obj, path):
        return
    names = [field.name for field in dataclasses.fields(obj)]
    fields = {name: getattr(obj, name) for name in names if hasattr(obj, name)}
    others = {k: v for k, v in getattr(obj, "__dict__", {}).items() if k not in fields}
    items = items_of(obj) if isinstance(obj, dict) else []
    kept, place = tree.cut(items, path, "dict")
    tree.out.append(f'{{"$dataclass": {str_text(class_name(type(obj)))}, "fields": ')
    tree.fields(fields, place + "/fields")
    if others:
        tree.out.append(', "attributes": ')
        tree.mapping(others, place + "/attributes")
    if isinstance(obj, dict):
        tree.out.append(', "items": ')
        tree.pairs(kept, place + "/items")
    tree.out.append("}")
    tree.end_cut(items, kept)


def read_dataclass(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    type_name = decoder.text(decoder.node(body))
    result, reason = _new_instance(decoder, type_name, node)
    if reason is not None:
        result = decoder.made(node, decoder.stand_in(type_name, {}, reason))
        decoder.put_items(result.value.__setitem__, node["fields"])
    else:
        decoder.made(node, result)
        decoder.put_items(functools.partial(object.__setattr__, result), node["fields"])
    target = result.value if reason is not None else getattr(result, "__dict__", None)
    if "attributes" in node and target is not None:
        decoder.put_mapping(target.__setitem__, node["attributes"])
    if "items" in node:
        store = _dict_setter(result if reason is None else result.value)
        decoder.put_pairs(store, node["items"])
    return result


def _new_instance(decoder: Decoder, type_name: str, node: dict[str, Any]) -> tuple[Any, str | None]:
    """An instance without content; or why there can be none."""
    kind = find_class(decoder, type_name)
    if kind is None:
        return None, ""
    if not dataclasses.is_dataclass(kind):
        return None, "it is not a dataclass here"
    names = {field.name for field in dataclasses.fields(kind)}
    if type(node["fields"]) is not dict or not names >= node["fields"].keys():
        return None, "its fields are others here"
    base = _dataclass_base(kind)
    if base is None or (base is not object) != ("items" in node):
        return None, "it derives from something else here"
    try:
        return base.__new__(kind), None  # type: ignore[call-overload]
    except TypeError as error:
        return None, f"there can be no instance: {error}"


def _dataclass_base(cls: type) -> type | None:
    """object, dict or OrderedDict for classes whose instances are made of nothing else."""
    for base in cls.__mro__:
        if base in (object, dict, collections.OrderedDict):
            return base
        if not base.__flags__ & 1 << 9:  # a type made in C
            return None
    return None


def items_of(obj: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """What a subclass of dict holds, in its order, whatever methods it has."""
    kind = collections.OrderedDict if isinstance(obj, collections.OrderedDict) else dict
    return list(kind.items(obj))


def _dict_setter(result: Any) -> Callable[[Any, Any], None]:
    base = collections.OrderedDict if isinstance(result, collections.OrderedDict) else dict
    return functools.partial(base.__setitem__, result)


def writer_of(cls: type) -> Writer | None:
    if issubclass(cls, enum.Enum):
        return write_enum
    if _is_named_tuple(cls):
        return write_named_tuple
    if dataclasses.is_dataclass(cls) and _dataclass_base(cls) is not None:
        return write_dataclass
    return None


READERS: dict[str, Reader] = {
    "$enum": read_enum,
    "$namedtuple": read_named_tuple,
    "$dataclass": read_dataclass,
}

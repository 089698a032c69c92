"""Enums, named tuples, dataclasses, classes that derive from a container, and encodings.

A class that derives from a container may add no state but attributes. That is `UserDict` and its
kin, whose content is in their attributes, and subclasses of dict and list, which have items beside
these. transformers' BatchEncoding is one; the encodings in it come from Rust, and are the JSON that
`tokenizers` itself makes of them. A class that has its own way to be pickled, or slots, may hold
more than what is seen here, and is left to pickle.

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

from .form import class_name, parse_json
from .plain import optional_text, str_text

if TYPE_CHECKING:
    from .loader import Decoder, Reader
    from .tree import Member, Tree, Writer


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
    kind, name = str_text(class_name(type(obj))), optional_text(obj.name)
    tree.form(path, {"$enum": kind, "name": name, "value": (tree.frozen_node, obj.value)})


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
    if not tree.seen(obj, path):
        kind, names = str_text(class_name(type(obj))), json.dumps(obj._fields)
        values = tree.frozen(tuple(obj), obj)
        tree.form(path, {"$namedtuple": kind, "names": names, "values": values})


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
    members: dict[str, Member] = {
        "$dataclass": str_text(class_name(type(obj))),
        "fields": (tree.mapping, fields),
    }
    if others:
        members["attributes"] = tree.mapping, others
    _write_content(tree, obj, path, dict if isinstance(obj, dict) else None, members)


def read_dataclass(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    return _read_content(decoder, node, body, _new_dataclass)


def _new_dataclass(kind: type | None, node: dict[str, Any]) -> tuple[Any, str | None]:
    """An instance without content; or why there can be none."""
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
    return _new_instance(base, kind)


def _new_instance(base: Any, kind: type) -> tuple[Any, str | None]:
    try:
        return base.__new__(kind), None
    except TypeError as error:
        return None, f"there can be no instance: {error}"


def _is_made_in_c(cls: type) -> bool:
    return not cls.__flags__ & 1 << 9


def _dataclass_base(cls: type) -> type | None:
    """object, dict or OrderedDict for classes whose instances are made of nothing else."""
    for base in cls.__mro__:
        if base in (object, dict, collections.OrderedDict):
            return base
        if _is_made_in_c(base):
            return None
    return None


def items_of(obj: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """What a subclass of dict holds, in its order, whatever methods it has."""
    return list(_dict_kind(obj).items(obj))


def _item_setter(result: Any) -> Callable[[Any, Any], None]:
    return functools.partial(_dict_kind(result).__setitem__, result)


def _dict_kind(obj: object) -> type[dict[Any, Any]]:
    return collections.OrderedDict if isinstance(obj, collections.OrderedDict) else dict


# --- classes that derive from a container ---


_OF_ATTRIBUTES: tuple[type, ...] = (
    *(collections.UserDict, collections.UserList, collections.UserString, collections.ChainMap),
)
_OF_ITEMS: tuple[type, ...] = (dict, collections.OrderedDict, list)
_OWN_PICKLING = ("__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")


def _base(cls: type) -> type | None:
    """The container whose content, with the attributes, is all that an instance has."""
    for base in cls.__mro__:
        if base in (*_OF_ATTRIBUTES, *_OF_ITEMS):
            return base
        own = vars(base)
        if _is_made_in_c(base) or own.get("__slots__"):
            return None
        if any(name in own for name in _OWN_PICKLING):
            return None
    return None


def write_subclass(tree: Tree, obj: Any, path: str) -> None:
    if tree.seen(obj, path):
        return
    members: dict[str, Member] = {
        "$subclass": str_text(class_name(type(obj))),
        "attributes": (tree.mapping, vars(obj)),
    }
    _write_content(tree, obj, path, _base(type(obj)), members)


def _write_content(
    tree: Tree, obj: Any, path: str, base: type | None, members: dict[str, Member]
) -> None:
    """The members, and the values or items that the base has beside them."""
    content: list[Any] = []
    if base is list:
        content = list(list.__iter__(obj))
    elif base in _OF_ITEMS:
        content = items_of(obj)
    kept, place = tree.cut(content, path, "list" if base is list else "dict")
    if base is list:
        members["values"] = tree.values, kept
    elif base in _OF_ITEMS:
        members["items"] = tree.pairs, kept
    tree.form(place, members)
    tree.end_cut(content, kept)


def read_subclass(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    return _read_content(decoder, node, body, _new_subclass)


def _read_content(
    decoder: Decoder,
    node: dict[str, Any],
    body: Any,
    make: Callable[[type | None, dict[str, Any]], tuple[Any, str | None]],
) -> Any:
    """An instance with its fields, attributes, and values or items; a stand-in has one dict of them
    all, or of a subclass its values or items alone."""
    type_name = decoder.text(decoder.node(body))
    result, reason = make(find_class(decoder, type_name), node)
    if reason is None:
        content = decoder.made(node, result)
        attributes = getattr(result, "__dict__", None)
        set_field: Callable[[Any, Any], None] = functools.partial(object.__setattr__, result)
    else:
        content = [] if make is _new_subclass and "values" in node else {}
        has_base = make is _new_subclass and ("values" in node or "items" in node)
        attributes = {} if has_base else content
        set_field = attributes.__setitem__
        result = decoder.made(node, decoder.stand_in(type_name, content, reason))
    if make is _new_dataclass:  # which has checked their names
        decoder.put_mapping(set_field, node["fields"])
    if "attributes" in node and attributes is not None:
        decoder.put_mapping(attributes.__setitem__, node["attributes"])
    if "values" in node:
        put = functools.partial(_put_in_list, content)
        decoder.put(put, enumerate(decoder.array(node["values"])))
    elif "items" in node:
        decoder.put_pairs(_item_setter(content), node["items"])
    return result


def _put_in_list(result: list[Any], index: int, value: Any) -> None:
    if index < list.__len__(result):
        list.__setitem__(result, index, value)
    else:
        list.append(result, value)


def _new_subclass(kind: type | None, node: dict[str, Any]) -> tuple[Any, str | None]:
    """An instance without content; or why there can be none."""
    if kind is None:
        return None, ""
    base = _base(kind)
    content = "values" if base is list else "items" if base in _OF_ITEMS else "attributes"
    wanted = next((name for name in ("values", "items") if name in node), "attributes")
    if base is None or content != wanted or kind in _OF_ITEMS:
        return None, "it derives from something else here"
    return _new_instance(base if base in _OF_ITEMS else object, kind)


def write_encoding(tree: Tree, obj: Any, path: str) -> None:
    """What a fast tokenizer says of a text; its state is JSON."""
    state = obj.__getstate__().decode()
    if not tree.seen(obj, path):
        tree.out.append(f'{{"$token_encoding": {str_text(state)}}}')


def read_encoding(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    state = decoder.text(decoder.node(body))
    kind = getattr(sys.modules.get("tokenizers"), "Encoding", None)
    if kind is None:
        return decoder.stand_in(
            "tokenizers:Encoding", parse_json(state.encode(), "a token encoding")
        )
    result = kind()
    result.__setstate__(state.encode())
    return result


def writer_of(cls: type) -> Writer | None:
    if issubclass(cls, enum.Enum):
        return write_enum
    if _is_named_tuple(cls):
        return write_named_tuple
    if dataclasses.is_dataclass(cls) and _dataclass_base(cls) is not None:
        return write_dataclass
    return write_subclass if _base(cls) is not None else None


LATE_WRITERS: dict[tuple[str, str], Writer] = {("tokenizers", "Encoding"): write_encoding}

READERS: dict[str, Reader] = {
    "$enum": read_enum,
    "$namedtuple": read_named_tuple,
    "$dataclass": read_dataclass,
    "$subclass": read_subclass,
    "$token_encoding": read_encoding,
}

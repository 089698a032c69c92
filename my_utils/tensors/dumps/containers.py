"""Lists, tuples, sets, dicts, the containers of `collections`, and namespaces."""

from __future__ import annotations

import collections
import json
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .form import class_name
from .plain import optional_text

if TYPE_CHECKING:
    from .loader import Decoder, Reader
    from .tree import Member, Tree, Writer


def write_list(tree: Tree, obj: list[Any], path: str) -> None:
    if not tree.seen(obj, path):
        kept, place = tree.cut(obj, path, "list")
        tree.values(kept, place)
        tree.end_cut(obj, kept)


def _write_frozen(tree: Tree, obj: Any, values: Any, path: str) -> None:
    if tree.seen(obj, path):
        return
    kind = type(obj).__name__
    kept, place = tree.cut(values, path, kind)
    tree.out.append(f'{{"${kind}": ')  # in place of `form`, which takes longer
    tree.values(kept, f"{place}/${kind}", patchable=False, unfinished=obj)
    tree.out.append("}")
    tree.end_cut(values, kept)


def write_tuple(tree: Tree, obj: tuple[Any, ...], path: str) -> None:
    if not obj:
        tree.out.append('{"$tuple": []}')  # there is one empty tuple
    else:
        _write_frozen(tree, obj, obj, path)


def write_set(tree: Tree, obj: Any, path: str) -> None:
    _write_frozen(tree, obj, _in_order(obj), path)


def read_set(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    result = decoder.made(node, set())
    result.update(decoder.values(body))
    return result


def _in_order(items: Iterable[Any]) -> list[Any]:
    """Sorted if it is possible, so that trees of equal sets are equal."""
    values = list(items)
    kinds = set(map(type, values))
    if len(kinds) == 1 and kinds <= {int, str, float, bytes}:
        values.sort()
    return values


def write_deque(tree: Tree, obj: collections.deque[Any], path: str) -> None:
    if tree.seen(obj, path):
        return
    values = list(obj)
    kept, place = tree.cut(values, path, "deque")
    tree.form(place, {"$deque": (tree.values, kept), "maxlen": json.dumps(obj.maxlen)})
    tree.end_cut(values, kept)


def read_deque(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    maxlen = node["maxlen"]
    if maxlen is not None and len(decoder.array(body)) > decoder.size(maxlen):
        raise decoder.wrong("$deque: has more items than its limit")
    result: collections.deque[Any] = collections.deque(maxlen=maxlen)
    decoder.made(node, result)
    decoder.fill(result, decoder.array(body))
    return result


def write_dict(tree: Tree, obj: dict[Any, Any], path: str) -> None:
    if tree.seen(obj, path):
        return
    limit = tree.config.max_items
    if limit is None or len(obj) <= limit:
        tree.mapping(obj, path)
        return
    items = list(obj.items())
    kept, place = tree.cut(items, path, "dict")
    tree.mapping(dict(kept), place)
    tree.end_cut(items, kept)


def read_dict(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    result = decoder.made(node, {})
    decoder.put_pairs(result.__setitem__, body)
    return result


_SPECIAL_DICTS: dict[type, str] = {
    collections.OrderedDict: "$ordered_dict",
    collections.Counter: "$counter",
    collections.defaultdict: "$defaultdict",
}


def _special_dict_reader(kind: Callable[[], Any]) -> Reader:
    return lambda decoder, node, body: _read_special_dict(decoder, node, body, kind())


def write_special_dict(tree: Tree, obj: Any, path: str, **members: Member) -> None:
    if tree.seen(obj, path):
        return
    tag, items = _SPECIAL_DICTS[type(obj)], list(obj.items())
    kept, place = tree.cut(items, path, tag[1:])
    attributes = getattr(obj, "__dict__", None)
    if attributes:
        members = {"attributes": (tree.mapping, dict(attributes)), **members}
    tree.form(place, {tag: (tree.pairs, kept), **members})
    tree.end_cut(items, kept)


def _read_special_dict(decoder: Decoder, node: dict[str, Any], body: Any, result: Any) -> Any:
    decoder.made(node, result)
    decoder.put_pairs(result.__setitem__, body)
    if "attributes" in node:
        decoder.put_mapping(result.__dict__.__setitem__, node["attributes"])
    return result


# Factories of a defaultdict that are restored although the caller does not name them.
_FACTORIES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        list, dict, set, int, float, str, tuple, bool, bytes, frozenset, complex,
        collections.OrderedDict,
    )
}  # fmt: skip


def write_defaultdict(tree: Tree, obj: Any, path: str) -> None:
    factory = obj.default_factory
    name = None
    if factory is not None:
        name = getattr(factory, "__name__", "")
        if _FACTORIES.get(name) is not factory:
            name = class_name(factory)
    write_special_dict(tree, obj, path, factory=optional_text(name))


def read_defaultdict(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    name, factory = node["factory"], None
    if name is not None:
        factory = _FACTORIES.get(decoder.text(name)) or decoder.classes.get(name)
        if factory is None:
            decoder.notes.append(f"the factory {name} of a defaultdict was left out")
    return _read_special_dict(decoder, node, body, collections.defaultdict(factory))


def write_namespace(tree: Tree, obj: Any, path: str) -> None:
    if not tree.seen(obj, path):
        kind = f'"{class_name(type(obj))}"'
        tree.form(path, {"$namespace": kind, "fields": (tree.mapping, vars(obj))})


def read_namespace(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    if body == "argparse:Namespace":
        import argparse

        result: Any = argparse.Namespace()
    elif body == "types:SimpleNamespace":
        result = types.SimpleNamespace()
    else:
        raise decoder.wrong("$namespace: is of no known class")
    decoder.made(node, result)
    decoder.put_mapping(result.__dict__.__setitem__, node["fields"])
    return result


WRITERS: dict[type, Writer] = {
    list: write_list,
    tuple: write_tuple,
    set: write_set,
    frozenset: write_set,
    collections.deque: write_deque,
    dict: write_dict,
    collections.OrderedDict: write_special_dict,
    collections.Counter: write_special_dict,
    collections.defaultdict: write_defaultdict,
    types.SimpleNamespace: write_namespace,
}

LATE_WRITERS: dict[tuple[str, str], Writer] = {("argparse", "Namespace"): write_namespace}

READERS: dict[str, Reader] = {
    "$tuple": lambda decoder, node, body: tuple(decoder.values(body)),
    "$set": read_set,
    "$frozenset": lambda decoder, node, body: frozenset(decoder.values(body)),
    "$deque": read_deque,
    "$dict": read_dict,
    "$ordered_dict": _special_dict_reader(collections.OrderedDict),
    "$counter": _special_dict_reader(collections.Counter),
    "$defaultdict": read_defaultdict,
    "$namespace": read_namespace,
}

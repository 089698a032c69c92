"""User classes that derive from a container and add no state, and encodings.

That is `UserDict` and its kin, whose content is in their attributes, and subclasses of dict and
list, which have items beside these. transformers' BatchEncoding is one; the encodings in it come
from Rust, and are the JSON that `tokenizers` itself makes of them.

No constructor runs when they are read: see `loader`. A class that has its own way to be pickled, or
slots, may hold more than what is seen here, and is left to pickle.
"""

from __future__ import annotations

import collections
import functools
import sys
from typing import TYPE_CHECKING, Any

from .form import class_name, parse_json
from .plain import str_text
from .user_classes import find_class, items_of

if TYPE_CHECKING:
    from .loader import Decoder, Reader
    from .tree import Tree, Writer


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
        if not base.__flags__ & 1 << 9:  # a type made in C
            return None
        if own.get("__slots__") or any(name in own for name in _OWN_PICKLING):
            return None
    return None


def write_subclass(tree: Tree, obj: Any, path: str) -> None:
    if tree.seen(obj, path):
        return
    base = _base(type(obj))
    content: list[Any] = []
    if base is list:
        content = list(list.__iter__(obj))
    elif base in _OF_ITEMS:
        content = items_of(obj)
    kept, place = tree.cut(content, path, "list" if base is list else "dict")
    tree.out.append(f'{{"$subclass": {str_text(class_name(type(obj)))}, "attributes": ')
    tree.mapping(vars(obj), place + "/attributes")
    if base is list:
        tree.out.append(', "values": ')
        tree.values(kept, place + "/values")
    elif base in _OF_ITEMS:
        tree.out.append(', "items": ')
        tree.pairs(kept, place + "/items")
    tree.out.append("}")
    tree.end_cut(content, kept)


def read_subclass(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    type_name = decoder.text(decoder.node(body))
    result, reason = _new_instance(find_class(decoder, type_name), node)
    if reason is None:
        decoder.made(node, result)
        content, attributes = result, result.__dict__
    else:
        content = [] if "values" in node else {}
        attributes = content if "items" not in node and "values" not in node else {}
        result = decoder.made(node, decoder.stand_in(type_name, content, reason))
    decoder.put_mapping(attributes.__setitem__, node["attributes"])
    if "values" in node:
        decoder.put(
            functools.partial(_put_in_list, content), enumerate(decoder.array(node["values"]))
        )
    elif "items" in node:
        ordered = isinstance(content, collections.OrderedDict)
        kind = collections.OrderedDict if ordered else dict
        decoder.put_pairs(functools.partial(kind.__setitem__, content), node["items"])
    return result


def _put_in_list(result: list[Any], index: int, value: Any) -> None:
    if index < list.__len__(result):
        list.__setitem__(result, index, value)
    else:
        list.append(result, value)


def _new_instance(kind: type | None, node: dict[str, Any]) -> tuple[Any, str | None]:
    """An instance without content; or why there can be none."""
    if kind is None:
        return None, ""
    base = _base(kind)
    content = "values" if base is list else "items" if base in _OF_ITEMS else "attributes"
    wanted = next((name for name in ("values", "items") if name in node), "attributes")
    if base is None or content != wanted or kind in _OF_ITEMS:
        return None, "it derives from something else here"
    try:
        maker: Any = base if base in _OF_ITEMS else object
        return maker.__new__(kind), None
    except TypeError as error:
        return None, f"there can be no instance: {error}"


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
    if cls is getattr(sys.modules.get("tokenizers"), "Encoding", None):
        return write_encoding
    return write_subclass if _base(cls) is not None else None


READERS: dict[str, Reader] = {
    "$subclass": read_subclass,
    "$token_encoding": read_encoding,
}

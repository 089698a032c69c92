"""Small types of the standard library: ranges, times, paths, exact numbers, names."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .form import StandIn
from .pickles import write_pickle
from .plain import str_text

if TYPE_CHECKING:
    from .loader import Decoder, Reader
    from .tree import Tree, Writer


_PATHS = {
    kind.__name__: kind
    for kind in (
        pathlib.PosixPath, pathlib.PurePosixPath, pathlib.WindowsPath, pathlib.PureWindowsPath,
    )
}  # fmt: skip


# --- types that are made of their parts, or of a text ---


def _parts_writer(tag: str, *names: str) -> Writer:
    """Writes a list of the attributes with these names."""

    def write(tree: Tree, obj: Any, path: str) -> None:
        tree.form(path, {tag: tree.frozen([getattr(obj, name) for name in names])})

    return write


def _parts_reader(make: Callable[..., Any], count: int) -> Reader:
    return lambda decoder, node, body: make(*decoder.numbers(body, count, int))


def _text_writer(tag: str) -> Writer:
    def write(tree: Tree, obj: Any, path: str) -> None:
        tree.out.append(f'{{"{tag}": {str_text(str(obj))}}}')

    return write


def _text_reader(make: Callable[[str], Any]) -> Reader:
    return lambda decoder, node, body: make(decoder.text(body))


# --- the others ---


def read_slice(decoder: Decoder, node: dict[str, Any], body: Any) -> slice:
    start, stop, step = decoder.values(body)
    return slice(start, stop, step)


def write_datetime(tree: Tree, obj: Any, path: str) -> None:
    """A datetime or a time; the zone is next to it."""
    tag = "$datetime" if isinstance(obj, datetime.datetime) else "$time"
    text = f'"{obj.replace(tzinfo=None).isoformat()}"'
    tree.form(path, {tag: text, "fold": str(obj.fold), "zone": (tree.node, obj.tzinfo)})


def read_datetime(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    kind = datetime.datetime if "$datetime" in node else datetime.time
    found = kind.fromisoformat(decoder.text(body))
    return found.replace(fold=node["fold"], tzinfo=decoder.node(node["zone"]))


def write_timezone(tree: Tree, obj: datetime.timezone, path: str) -> None:
    offset = obj.utcoffset(None)
    parts = [offset.days, offset.seconds, offset.microseconds]
    tree.form(path, {"$timezone": str(parts), "name": str_text(obj.tzname(None))})


def read_timezone(decoder: Decoder, node: dict[str, Any], body: Any) -> datetime.timezone:
    offset = datetime.timedelta(*decoder.numbers(body, 3, int))
    plain = datetime.timezone(offset)
    if plain == datetime.UTC:
        plain = datetime.UTC
    name = decoder.text(decoder.node(node["name"]))
    return plain if plain.tzname(None) == name else datetime.timezone(offset, name)


def write_zone(tree: Tree, obj: Any, path: str) -> None:
    if obj.key is None:
        write_pickle(tree, obj, path)
    else:
        tree.out.append(f'{{"$zone": {str_text(obj.key)}}}')


def read_zone(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(decoder.text(decoder.node(body)))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return StandIn("zoneinfo:ZoneInfo", "this machine does not know the zone", body)


def write_path(tree: Tree, obj: pathlib.PurePath, path: str) -> None:
    tree.out.append(f'{{"$path": {str_text(str(obj))}, "class": "{type(obj).__name__}"}}')


def read_path(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    kind = _PATHS.get(decoder.text(node["class"]))
    if kind is None:
        raise decoder.wrong("$path: is of no known class")
    text = decoder.text(decoder.node(body))
    try:
        return kind(text)
    except NotImplementedError:
        return pathlib.PureWindowsPath(text)


WRITERS: dict[type, Writer] = {
    slice: _parts_writer("$slice", "start", "stop", "step"),
    range: _parts_writer("$range", "start", "stop", "step"),
    datetime.date: _text_writer("$date"),
    datetime.datetime: write_datetime,
    datetime.time: write_datetime,
    datetime.timedelta: _parts_writer("$timedelta", "days", "seconds", "microseconds"),
    datetime.timezone: write_timezone,
    **dict.fromkeys(_PATHS.values(), write_path),
    decimal.Decimal: _text_writer("$decimal"),
    fractions.Fraction: _parts_writer("$fraction", "numerator", "denominator"),
    uuid.UUID: _text_writer("$uuid"),
    type(...): lambda tree, obj, path: tree.out.append('{"$ellipsis": true}'),
    type(NotImplemented): lambda tree, obj, path: tree.out.append('{"$not_implemented": true}'),
}

LATE_WRITERS: dict[tuple[str, str], Writer] = {("zoneinfo", "ZoneInfo"): write_zone}

READERS: dict[str, Reader] = {
    "$slice": read_slice,
    "$range": _parts_reader(range, 3),
    "$date": _text_reader(datetime.date.fromisoformat),
    "$datetime": read_datetime,
    "$time": read_datetime,
    "$timedelta": _parts_reader(datetime.timedelta, 3),
    "$timezone": read_timezone,
    "$zone": read_zone,
    "$path": read_path,
    "$decimal": _text_reader(decimal.Decimal),
    "$fraction": _parts_reader(fractions.Fraction, 2),
    "$uuid": _text_reader(uuid.UUID),
    "$ellipsis": lambda decoder, node, body: ...,
    "$not_implemented": lambda decoder, node, body: NotImplemented,
}

"""Small types of the standard library: ranges, times, paths, exact numbers, names."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import sys
import uuid
from collections.abc import Iterable
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


def _write_parts(tree: Tree, tag: str, parts: Iterable[Any], path: str) -> None:
    tree.out.append(f'{{"{tag}": ')
    tree.values(list(parts), f"{path}/{tag}", patchable=False)
    tree.out.append("}")


def write_slice(tree: Tree, obj: slice, path: str) -> None:
    _write_parts(tree, "$slice", (obj.start, obj.stop, obj.step), path)


def read_slice(decoder: Decoder, node: dict[str, Any], body: Any) -> slice:
    start, stop, step = decoder.values(body)
    return slice(start, stop, step)


def write_range(tree: Tree, obj: range, path: str) -> None:
    _write_parts(tree, "$range", (obj.start, obj.stop, obj.step), path)


def read_range(decoder: Decoder, node: dict[str, Any], body: Any) -> range:
    return range(*decoder.numbers(body, 3, int))


def write_date(tree: Tree, obj: datetime.date, path: str) -> None:
    tree.out.append(f'{{"$date": "{obj.isoformat()}"}}')


def read_date(decoder: Decoder, node: dict[str, Any], body: Any) -> datetime.date:
    return datetime.date.fromisoformat(decoder.text(body))


def write_datetime(tree: Tree, obj: Any, path: str) -> None:
    """A datetime or a time; the zone is next to it."""
    tag = "$datetime" if isinstance(obj, datetime.datetime) else "$time"
    text = obj.replace(tzinfo=None).isoformat()
    tree.out.append(f'{{"{tag}": "{text}", "fold": {obj.fold}, "zone": ')
    tree.node(obj.tzinfo, path + "/zone")
    tree.out.append("}")


def read_datetime(decoder: Decoder, node: dict[str, Any], body: Any) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(decoder.text(body))
    return found.replace(fold=node["fold"], tzinfo=decoder.node(node["zone"]))


def read_time(decoder: Decoder, node: dict[str, Any], body: Any) -> datetime.time:
    found = datetime.time.fromisoformat(decoder.text(body))
    return found.replace(fold=node["fold"], tzinfo=decoder.node(node["zone"]))


def write_timedelta(tree: Tree, obj: datetime.timedelta, path: str) -> None:
    _write_parts(tree, "$timedelta", (obj.days, obj.seconds, obj.microseconds), path)


def read_timedelta(decoder: Decoder, node: dict[str, Any], body: Any) -> datetime.timedelta:
    return datetime.timedelta(*decoder.numbers(body, 3, int))


def write_timezone(tree: Tree, obj: datetime.timezone, path: str) -> None:
    offset = obj.utcoffset(None)
    tree.out.append(
        f'{{"$timezone": [{offset.days}, {offset.seconds}, {offset.microseconds}], '
        f'"name": {str_text(obj.tzname(None))}}}'
    )


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


def write_decimal(tree: Tree, obj: decimal.Decimal, path: str) -> None:
    tree.out.append(f'{{"$decimal": "{obj!s}"}}')


def read_decimal(decoder: Decoder, node: dict[str, Any], body: Any) -> decimal.Decimal:
    return decimal.Decimal(decoder.text(body))


def write_fraction(tree: Tree, obj: fractions.Fraction, path: str) -> None:
    _write_parts(tree, "$fraction", (obj.numerator, obj.denominator), path)


def read_fraction(decoder: Decoder, node: dict[str, Any], body: Any) -> fractions.Fraction:
    return fractions.Fraction(*decoder.numbers(body, 2, int))


def write_uuid(tree: Tree, obj: uuid.UUID, path: str) -> None:
    tree.out.append(f'{{"$uuid": "{obj!s}"}}')


def read_uuid(decoder: Decoder, node: dict[str, Any], body: Any) -> uuid.UUID:
    return uuid.UUID(decoder.text(body))


def write_ellipsis(tree: Tree, obj: Any, path: str) -> None:
    tree.out.append('{"$ellipsis": true}')


def read_ellipsis(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    return ...


def write_not_implemented(tree: Tree, obj: Any, path: str) -> None:
    tree.out.append('{"$not_implemented": true}')


def read_not_implemented(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    return NotImplemented


def writer_of(cls: type) -> Writer | None:
    zoneinfo = sys.modules.get("zoneinfo")
    return write_zone if zoneinfo is not None and cls is zoneinfo.ZoneInfo else None


WRITERS: dict[type, Writer] = {
    slice: write_slice,
    range: write_range,
    datetime.date: write_date,
    datetime.datetime: write_datetime,
    datetime.time: write_datetime,
    datetime.timedelta: write_timedelta,
    datetime.timezone: write_timezone,
    **dict.fromkeys(_PATHS.values(), write_path),
    decimal.Decimal: write_decimal,
    fractions.Fraction: write_fraction,
    uuid.UUID: write_uuid,
    type(...): write_ellipsis,
    type(NotImplemented): write_not_implemented,
}

READERS: dict[str, Reader] = {
    "$slice": read_slice,
    "$range": read_range,
    "$date": read_date,
    "$datetime": read_datetime,
    "$time": read_time,
    "$timedelta": read_timedelta,
    "$timezone": read_timezone,
    "$zone": read_zone,
    "$path": read_path,
    "$decimal": read_decimal,
    "$fraction": read_fraction,
    "$uuid": read_uuid,
    "$ellipsis": read_ellipsis,
    "$not_implemented": read_not_implemented,
}

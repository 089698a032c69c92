"""User events as rows of the profile CSV."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Mapping

from ... import _core
from ...core.arguments import check_integer, kind
from ...core.printable import escaped
from ...core.run_files.row_metadata import encoded_word
from ...core.warnings import warn_once

# Timestamps and the offset that is added to them stay within 64 bits together.
TIME_NS_MAX = 2**62
_STEP_MAX = 2**63 - 1
_ID_MAX = 10**18 - 1

_ENCODED_LINE_ENDS = str.maketrans({"\r": "%0D", "\n": "%0A"})


def log_event(
    name: str,
    event_type: str,
    step: int | None,
    metadata: str,
    timestamp_ns: int | None,
    duration_ns: int | None = None,
) -> None:
    if timestamp_ns is not None:
        timestamp_ns = check_integer("timestamp_ns", timestamp_ns, -TIME_NS_MAX, TIME_NS_MAX)
    if step is not None:
        step = check_integer("step", step, -_STEP_MAX - 1, _STEP_MAX)
    if not isinstance(name, str):
        raise TypeError(f"event_name must be a str, not {kind(name)}")
    _core.log_event(name, event_type, step, metadata, timestamp_ns, duration_ns)


def warn_of_early_time(event_name: str, timestamp_ns: int) -> None:
    seconds = timestamp_ns / 10**9
    warn_once(
        "early_timestamp",
        f"log_profile_event got the timestamp {seconds:g} s for {event_name!r}, which as Unix time "
        "is before the year 2000; it is not changed, and is far from all other events in a trace. "
        "None means now; time.time() is Unix time, time.perf_counter() is not",
    )


def metadata_text(metadata: object) -> str:
    """`key=value` pairs as they are in a row; keys with a meaning keep it."""
    if metadata is None:
        return ""
    if isinstance(metadata, str):
        return escaped(metadata).translate(_ENCODED_LINE_ENDS)
    if isinstance(metadata, Mapping):
        return ",".join(f"{_key(key)}={_value_text(value)}" for key, value in metadata.items())
    raise TypeError(f"metadata must be a str, a mapping or None, not {kind(metadata)}")


def own_metadata(metadata: object) -> str:
    """Metadata in which no key of the user's has a meaning to the readers."""
    if isinstance(metadata, Mapping):
        return ",".join(f"{own_key(key)}={_value_text(value)}" for key, value in metadata.items())
    return metadata_text(metadata)


def with_id(id: object, metadata: object) -> str:
    text = own_metadata(metadata)
    number = check_integer("id", id, 0, _ID_MAX)
    return f"id={number},{text}" if text else f"id={number}"


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"keys of metadata must be str, not {kind(key)}")
    if not key:
        raise ValueError("keys of metadata must not be empty")
    return encoded_word(key if key.isascii() else escaped(key))


def own_key(key: object) -> str:
    """A reserved key with its first letter encoded: readers show it, without its meaning."""
    text = _key(key)
    return f"%{ord(text[0]):02X}{text[1:]}" if text in _core.METADATA_KEYS else text


def _value_text(value: object) -> str:
    """Numbers so that they read back equal, bools as true and false, None as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return float.__repr__(value)
    text = str(value)
    return encoded_word(text if text.isascii() else escaped(text))


def counter_text(value: object) -> str:
    if type(value) is float or type(value) is int:  # the tests below are slower by far
        return repr(value)
    if isinstance(value, numbers.Integral):
        return str(operator.index(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    raise TypeError(f"value of a counter must be an int or a float, not {kind(value)}")

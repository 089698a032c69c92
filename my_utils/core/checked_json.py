"""JSON that other processes wrote, checked by msgspec structs.

msgspec is imported by the modules that have such structs, which are loaded when there is something
to read.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")


class Damaged(ValueError):
    """No JSON: cut short, or overwritten."""


class Foreign(ValueError):
    """JSON of something else: a field is missing, or of another type."""


def decoded(data: bytes | str, kind: type[_T]) -> _T:
    """The JSON as `kind`, a struct or a type; fields that it does not know are ignored. Bytes
    that are not UTF-8 are replaced.

    >>> decoded(b'{"rank": 3, "later": 1}', dict[str, int])
    {'rank': 3, 'later': 1}
    >>> decoded(b'{"rank": "3"}', dict[str, int])
    Traceback (most recent call last):
    my_utils.core.checked_json.Foreign: Expected `int`, got `str` - at `$[...]`
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise Foreign(str(error)) from error
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise Damaged(str(error)) from error


def decode_object(data: bytes | str) -> dict[str, Any]:
    """A JSON object with any fields, for files that have more than one form."""
    return decoded(data, dict[str, Any])

"""The data of a control file, of requests through torch's store, and of their responses.

It is loaded when there is something to read: msgspec takes some milliseconds.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, cast

import msgspec

from ....core.checked_json import Damaged, Foreign, decoded
from .result import Response

_T = TypeVar("_T")


class Kind(msgspec.Struct):
    """What every control file says of itself."""

    my_utils: Literal["control"]


class ControlFile(msgspec.Struct):
    """The requests are checked one by one: a broken one leaves the others."""

    version: int
    requests: list[Any]
    stacks: list[str] = []


class StoreMessage(msgspec.Struct):
    """What is put into the store: the question which step a rank is at, by the timers with the
    tag, or a request."""

    step_request: str | None = msgspec.field(default=None, name="question")
    tag: str | None = None
    request: Any = msgspec.UNSET

    @property
    def has_request(self) -> bool:
        return self.request is not msgspec.UNSET


def converted(data: object, kind: type[_T]) -> _T:
    """The object of that kind; ValueError says which field is of another type."""
    return msgspec.convert(data, kind)


def parse_response(data: bytes | str) -> Response | None:
    """The response, with the fields of later versions; None for anything else."""
    try:
        fields = decoded(data, dict[str, Any])
        msgspec.convert(fields, Response)
        return cast(Response, fields)
    except (Damaged, Foreign, msgspec.ValidationError):
        return None

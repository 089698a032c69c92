"""The data of a control file, of requests through torch's store, and of their responses."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict, TypeVar, cast

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
    """What is put into the store: which step a rank is at, or a request."""

    step_request: str | None = msgspec.field(default=None, name="question")
    request: Any = msgspec.UNSET

    @property
    def has_request(self) -> bool:
        return self.request is not msgspec.UNSET


class RequestData(TypedDict):
    """A request for a capture window.

    ranks: numbers and ranges such as "0,3-7", null for all.
    first_step: null for the next step of each rank.
    options: for torch's profiler.
    output_dir: null for the folder `captures` of the log directory.
    tag: of the timer whose steps count, null for the first.
    window: fields of a capture window of the job's own controller.
    at_start: processes that start later are captured, too.
    time: Unix seconds.
    """

    id: str
    ranks: str | None
    first_step: int | None
    steps: int
    backend: str
    options: list[str]
    output_dir: str | None
    tag: str | None
    window: dict[str, Any] | None
    at_start: bool
    time: float


class CaptureData(TypedDict):
    """What was requested.

    answers: only with --wait: the responses by rank.
    """

    version: Literal[1]
    request: RequestData
    answers: NotRequired[dict[int, Response]]


def converted(data: object, kind: type[_T]) -> _T:
    """The object of that kind; ValueError says which field is of another type."""
    return msgspec.convert(data, kind)


def response_of(data: bytes | str) -> Response | None:
    """The response, with the fields of later versions; None for anything else."""
    try:
        fields = decoded(data, dict[str, Any])
        msgspec.convert(fields, Response)
        return cast(Response, fields)
    except (Damaged, Foreign, msgspec.ValidationError):
        return None

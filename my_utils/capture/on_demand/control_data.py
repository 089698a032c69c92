"""The data of a control file, of requests through torch's store, and of their responses."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ...common.checked_json import Damaged, Foreign, decoded
from .control_file import State

__all__ = ["Asked", "ControlFile", "Kind", "answer_of", "request_fields"]


class Kind(msgspec.Struct):
    """What every control file says of itself."""

    my_utils: Literal["control"]


class ControlFile(msgspec.Struct):
    """The requests are checked one by one: a broken one leaves the others."""

    version: int
    requests: list[Any]


class Asked(msgspec.Struct):
    """What is put into the store: which step a rank is at, or a request."""

    question: str | None = None
    request: Any = msgspec.UNSET

    @property
    def has_request(self) -> bool:
        return self.request is not msgspec.UNSET


class _Request(msgspec.Struct):
    """The types of a request's fields; their values are checked by Request."""

    id: str
    ranks: str | None = None
    first_step: int | None = None
    steps: int = 1
    backend: str = "torch"
    options: list[str] = []
    output_dir: str | None = None
    tag: str | None = None
    window: dict[str, Any] | None = None
    at_start: bool = False
    time: float = 0.0


class _Answer(msgspec.Struct):
    """The response of a rank. It has more fields, by state."""

    state: State


def request_fields(data: object) -> dict[str, Any]:
    """The fields of a request; ValueError says which is of another type."""
    return msgspec.structs.asdict(msgspec.convert(data, _Request))


def answer_of(data: bytes | str) -> dict[str, Any] | None:
    """The response; None for anything else."""
    try:
        decoded(data, _Answer)
        return decoded(data, dict[str, Any])
    except (Damaged, Foreign):
        return None

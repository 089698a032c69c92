"""The response of a rank to a request for a capture.

The annotations are not strings here: msgspec evaluates them, from Python 3.14 on with the names of
the module that `public` gives the class.
"""

from typing import Literal, Required, TypedDict

from ....core.public import public

State = Literal["armed", "open", "done", "failed"]
FINAL_STATES = ("done", "failed")


@public("my_utils.profilers.capture")
class Response(TypedDict, total=False):
    """The response of a rank, as `responses` and `wait_for_capture` return it; `state` is always
    there.

    reason: of a failure, or a note.
    opened_at_step: None before the window opened.
    files: paths on the rank's machine.
    time: Unix seconds.
    """

    version: int
    id: str
    rank: int
    host: str
    pid: int
    state: Required[State]
    reason: str
    opened_at_step: int | None
    files: list[str]
    time: float

"""The control file of a run: `my_utils capture` writes its requests for capture windows there.

`<log_dir>/my_utils.control.json` holds the newest requests, and is replaced as a whole. Each rank
responds with a small file, `<log_dir>/captures/<id>__rank<rank>.status.json`. Nothing in these
files is executed; an id is a plain file name, and only `output_dir` is a path.

The annotations of `Request` are not strings: see `result`.
"""

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....core.files import on_whole_path
from ....core.public import public
from ....core.ranges import Ranges, ranges_text, rank_ranges
from ....core.trusted_open import open_without_waiting, own_user

if TYPE_CHECKING:
    from .control_data import ControlFile
    from .result import Response


CONTROL_NAME = "my_utils.control.json"  # as csrc/engine/capture/control.h has it
CONTROL_BYTES_MAX = 64 * 1024
VERSION = 1
KEPT = 16
LOCK_WAIT_S = 5.0
LOCK_POLL_S = 0.01
STACKS_KEPT = 8
BACKENDS = ("torch", "cuda", "memory", "none")
# What torch's profiler may be asked for.
OPTIONS = ("profile_memory", "record_shapes", "with_flops", "with_modules", "with_stack")
STEPS_MAX = 1_000_000
TIMES_MAX = 1000

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class RequestError(ValueError):
    """A request, or a file of them, that is not obeyed. `id` is None if it has none."""

    def __init__(self, reason: str, id: str | None = None, kind: str = "broken") -> None:
        super().__init__(reason)
        self.id = id
        self.kind = kind


@public("my_utils.profilers.capture")
@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for a capture window, as `request_capture` makes it.

    ranks: numbers and ranges such as "0,3-7", null for all.
    first_step: null for the next step of each rank.
    steps: of each window.
    every, times: only with --every: how many steps apart windows begin, and how many there are.
    options: for torch's profiler.
    output_dir: null for the folder `captures` of the log directory.
    tag: of the timer whose steps count, null for the first.
    window: fields of a capture window of the job's own controller.
    at_start: processes that start later are captured, too.
    time: Unix seconds.

    Here `ranks` holds pairs of the first and the last of each range, and None stands for null.
    """

    id: str
    ranks: Ranges | None = None
    first_step: int | None = None
    steps: int = 1
    every: int | None = None
    times: int = 1
    backend: str = "torch"
    options: tuple[str, ...] = ()
    output_dir: str | None = None
    tag: str | None = None
    window: dict[str, Any] | None = field(default=None, hash=False)
    at_start: bool = False
    time: float = 0.0

    def __post_init__(self) -> None:
        for name, (is_fine, allowed) in _RULES.items():
            if not is_fine(self):
                raise ValueError(f"{name} must be {allowed}, not {getattr(self, name)!r:.200}")

    def is_for(self, rank: int) -> bool:
        """Whether the rank is among those that are asked."""
        return self.ranks is None or any(low <= rank <= high for low, high in self.ranks)

    def rank_numbers(self) -> list[int]:
        """The ranks that are named."""
        return [rank for low, high in self.ranks or () for rank in range(low, high + 1)]

    def as_data(self) -> dict[str, Any]:
        """What is in the file. `every` and `times` are left out where there is one window: a
        job of an older version refuses what it does not know."""
        data = dataclasses.asdict(self)
        if self.every is None:
            del data["every"], data["times"]
        data["ranks"] = None if self.ranks is None else ranges_text(self.ranks)
        data["options"] = list(self.options)
        return data

    @classmethod
    def from_data(cls, data: object) -> "Request":
        """The request; RequestError says what is wrong with it."""
        if not isinstance(data, dict):
            raise RequestError(f"a request must be an object, not {data!r:.100}")
        given = data.get("id")
        id = given if isinstance(given, str) and _ID.fullmatch(given) else None
        known = {item.name for item in dataclasses.fields(cls)}
        if unknown := sorted(map(str, data.keys() - known)):
            raise RequestError(f"unknown: {', '.join(unknown)}; from a newer version?", id)
        from .control_data import converted

        try:
            ranks = data.get("ranks")
            if ranks is not None and not isinstance(ranks, str):
                raise ValueError(
                    f"ranks must be numbers and ranges such as 0,3-7, not {ranks!r:.200}"
                )
            numbers = None if ranks is None else rank_ranges(ranks)
            return converted({**data, "ranks": numbers}, cls)
        except (TypeError, ValueError) as error:
            raise RequestError(str(error), id) from error


def _is_int(value: object, low: float = -math.inf, high: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


# By field: what is true of it, and how messages say so.
_RULES: dict[str, tuple[Callable[[Request], object], str]] = {
    "id": (lambda one: isinstance(one.id, str) and _ID.fullmatch(one.id),
           "at most 80 letters, digits, dots, dashes and underscores"),
    "first_step": (lambda one: one.first_step is None or _is_int(one.first_step),
                   "an int or None"),
    "steps": (lambda one: _is_int(one.steps, 1, STEPS_MAX), f"an int from 1 to {STEPS_MAX:,}"),
    "every": (lambda one: one.every is None or _is_int(one.every, one.steps + 1, STEPS_MAX),
              f"None or an int above steps, to {STEPS_MAX:,}"),
    "times": (lambda one: _is_int(one.times, 1, 1 if one.every is None else TIMES_MAX),
              f"1, or with every an int to {TIMES_MAX:,}"),
    "backend": (lambda one: one.backend in BACKENDS, f"one of {', '.join(BACKENDS)}"),
    "options": (lambda one: set(one.options) <= set(OPTIONS), f"a list of {', '.join(OPTIONS)}"),
    "output_dir": (lambda one: one.output_dir is None or (isinstance(one.output_dir, str)
                                                          and os.path.isabs(one.output_dir)),
                   "an absolute path or None"),
    "tag": (lambda one: one.tag is None or isinstance(one.tag, str), "a str or None"),
    "window": (lambda one: one.window is None or isinstance(one.window, dict),
               "a mapping or None"),
    "at_start": (lambda one: isinstance(one.at_start, bool), "a bool"),
}  # fmt: skip


# --- the file ---


def new_id() -> str:
    """A unique name for a request: the time at which it was made, and random digits."""
    return f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(4)}"


def read_requests(text: bytes) -> list[Request | RequestError]:
    """The requests of a control file, broken ones as errors; RequestError for any other text."""
    content = _parse(text)
    if content.version != VERSION:
        raise RequestError(f"it has version {content.version}, and this process reads {VERSION}")
    found: list[Request | RequestError] = []
    for item in content.requests[-KEPT:]:
        try:
            found.append(Request.from_data(item))
        except RequestError as error:
            found.append(error)
    return found


def _parse(text: bytes) -> "ControlFile":
    from ....core.checked_json import Damaged, Foreign, decoded
    from .control_data import ControlFile, Kind

    try:
        decoded(text, Kind)
    except Damaged as error:
        raise RequestError(f"it is not JSON: {error}") from error
    except Foreign as error:
        raise RequestError("it is not a control file of my_utils", kind="foreign") from error
    try:
        return decoded(text, ControlFile)
    except Foreign as error:
        raise RequestError(f"it has no version, or no list of requests: {error}") from error


def add_request(log_dir: Path, request: Request) -> None:
    """Adds a request to the control file. OSError when it cannot be written."""
    _add(log_dir, request.as_data(), [])


def add_stacks(log_dir: Path, words: str) -> None:
    """Adds a request for stacks, in words that csrc/engine/process_stacks/stack_request.h explains.
    OSError when the file cannot be written."""
    _add(log_dir, None, [words])


_Requests = list[dict[str, Any]]


def _add(log_dir: Path, request: dict[str, Any] | None, stacks: list[str]) -> None:
    path = log_dir / CONTROL_NAME
    with _locked(log_dir / f".{CONTROL_NAME}.lock"):
        requests, stacks_before = _kept_in(path)
        if request is not None:
            requests = [one for one in requests if one["id"] != request["id"]] + [request]
        content = _fitting(requests, [*stacks_before, *stacks][-STACKS_KEPT:])
        with on_whole_path(path, mode=0o600) as temporary:
            temporary.write_bytes(content)
            _give_to_job(log_dir, temporary)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held while the block runs. Other users can read the file and so hold the lock forever: after
    a while the file is written without it, and of two requests at one moment one may get lost."""
    flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    lock = os.open(path, flags, 0o644)
    try:
        until = time.monotonic() + LOCK_WAIT_S
        while not _take(lock) and time.monotonic() < until:
            time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(lock)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _give_to_job(log_dir: Path, file: Path) -> None:
    """Root asks jobs of other users, who read only what is theirs or what root lets them read."""
    owner = log_dir.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.chown(file, owner.st_uid, owner.st_gid)


def _kept_in(path: Path) -> tuple[_Requests, list[str]]:
    """Nothing if there is no file, and where what is there is replaced: what others could write
    to is not passed on in a file of ours."""
    try:
        with open(path, "rb", opener=_open_trusted) as file:
            text = file.read(CONTROL_BYTES_MAX)
        stacks = _parse(text).stacks
    except (OSError, RequestError):
        return [], []
    try:
        found = read_requests(text)
    except RequestError:  # of another version
        found = []
    return [item.as_data() for item in found if isinstance(item, Request)], stacks


def _open_trusted(path: str, flags: int) -> int:
    """As csrc/engine/capture/control.c: of ours, root's or the log directory's, and no other user
    can write to it."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    found, folder = os.fstat(file), os.path.dirname(path)
    users = (0, os.geteuid(), own_user(folder), os.stat(folder).st_uid)
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o022 or found.st_uid not in users:
        os.close(file)
        raise PermissionError(f"{path} is not trusted")
    return file


def _fitting(requests: _Requests, stacks: list[str]) -> bytes:
    """The file with the newest requests that fit into it."""
    first_kept = max(0, len(requests) - KEPT)
    text = b""
    for first in range(first_kept, max(first_kept + 1, len(requests))):
        content = {"my_utils": "control", "version": VERSION, "requests": requests[first:]}
        if stacks:
            content["stacks"] = stacks
        text = json.dumps(content, indent=1).encode() + b"\n"
        if len(text) <= CONTROL_BYTES_MAX:
            return text
    raise ValueError(f"the request must have at most {CONTROL_BYTES_MAX} bytes, not {len(text)}")


# --- responses ---

RESPONSE_BYTES_MAX = 1 << 20


def captures_folder(log_dir: str | os.PathLike[str]) -> Path:
    """The folder of the responses, and of the captures unless the request names another one."""
    return Path(log_dir) / "captures"


def response_path(log_dir: str | os.PathLike[str], id: str, rank: int) -> Path:
    return captures_folder(log_dir) / f"{id}__rank{rank}.status.json"


def read_response(path: Path) -> "Response | None":
    """The response of a rank; None if there is none, or if it cannot be read."""
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            data = file.read(RESPONSE_BYTES_MAX)
    except OSError:
        return None
    from .control_data import parse_response

    return parse_response(data)

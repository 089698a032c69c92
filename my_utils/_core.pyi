"""The C part of my_utils."""

import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Literal, Self, TypedDict, TypeVar, final, overload, type_check_only

from typing_extensions import disjoint_base

_StrPath = str | os.PathLike[str]
_F = TypeVar("_F", bound=Callable[..., Any])

class FormatError(ValueError):
    """A file is not what it should be: foreign, cut, broken, or written by a newer version."""

# The recorder of the process.

def open_output(
    *,
    kind: Literal["memory", "null", "file"] = "file",
    log_dir: _StrPath = "",
    rank: int = 0,
    world_size: int = 1,
    machine: str = "",
    label: str = "",
    io: Literal["auto", "inline", "background"] = "auto",
    journal_dir: _StrPath = "",
    max_csv_bytes: int = 0,
    keep_csv_bytes: int = 0,
) -> dict[str, Any]: ...
def close_output() -> None: ...
def drain(wait_s: float = 1.0) -> None: ...
def set_time_offset_ns(offset_ns: int, /) -> None: ...
def log_event(
    name: str,
    event_type: str,
    step: int | None = None,
    metadata: str = "",
    timestamp_ns: int | None = None,
    duration_ns: int | None = None,
) -> None: ...
def troubles() -> dict[str, int]: ...
def memory_rows() -> bytes: ...
def output_state() -> dict[str, Any]: ...
def set_warning_hook(hook: Callable[[str, str], object] | None, /) -> None: ...
def cuda_state() -> dict[str, Any]: ...
def nvtx_state() -> dict[str, Any]: ...

# Journals of other processes, living or dead.

def recover_rows(journal_path: _StrPath, /) -> tuple[str | None, int, bytes]:
    """What the process of a journal recorded and did not write: (csv, csv_bytes, rows).

    The process's CSV is complete as its first `csv_bytes` bytes followed by `rows`, which are CSV
    rows without the header: each finished stage stands there once, and stages that were open have
    a START only. `csv` is None (and `csv_bytes` 0) when the file is not there. Nothing is changed.
    FormatError for files that are no journal, damaged, or newer; OSError when they can't be read;
    RuntimeError when a living process records faster than its journal can be read.
    """

@type_check_only
class _OpenStage(TypedDict):
    name: str  # "" when unknown
    step: int
    start_ns: int

@type_check_only
class _FinishedStage(_OpenStage):
    end_ns: int

@type_check_only
class _Lane(TypedDict):
    tid: int
    tag: str
    thread_name: str
    step: int
    open: list[_OpenStage]  # outermost first
    last: list[_FinishedStage]  # newest first, 16 at most

@type_check_only
class _Journal(TypedDict):
    pid: int
    rank: int
    world_size: int
    attempt: int
    host: str
    label: str  # "rank_0", "rank_0.w1"
    log_dir: str
    csv_name: str
    process_start: int  # clock ticks after boot
    boot_id: str
    heartbeat_ns: int  # Unix time of the last beat, 0 for none
    time_offset_ns: int  # is in the times of the lanes
    held: bool  # a living process holds it
    closed: bool
    dropped: int
    epoch: int
    csv_bytes: int
    bad_records: int
    lanes: list[_Lane]

def read_journal(journal_path: _StrPath, /) -> _Journal:
    """What the process of a journal does, or did last. Times are Unix nanoseconds.

    Errors as for recover_rows.
    """

# Timers.

@final
class Stage:
    @property
    def name(self) -> str: ...
    @property
    def timer(self) -> Timer: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def __aenter__(self) -> Coroutine[Any, Any, Self]: ...
    def __aexit__(self, *exc: object) -> Coroutine[Any, Any, None]: ...
    def __call__(self, function: _F, /) -> _F: ...

_Figures = tuple[tuple[str, ...], int, int, int, int, float, float, float, float]

@disjoint_base
class Timer:
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    def __init__(
        self,
        tag: str = "",
        *,
        strict: bool = False,
        use_cuda: bool = False,
        cuda_stages: str | re.Pattern[str] | None = None,
    ) -> None: ...
    @property
    def tag(self) -> str: ...
    @property
    def strict(self) -> bool: ...
    @property
    def use_cuda(self) -> bool: ...
    @property
    def current_step(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def unmatched_stops(self) -> int: ...
    @property
    def closed_stages(self) -> int: ...
    def start(
        self, stage_name: str, color: str | int = "blue", domain_name: str | None = None
    ) -> None: ...
    def stop(self, stage_name: str) -> None: ...
    def time_stage(
        self, stage_name: str, color: str | int = "blue", domain_name: str | None = None
    ) -> Stage: ...
    def set_step(self, iteration: int) -> None: ...
    def step(self, wait: bool = True) -> None: ...
    def synchronize_and_log(self, wait: bool = True) -> None: ...
    def register_stage(
        self, stage_name: str, color: str | int = "blue", domain_name: str | None = None
    ) -> None: ...
    def aggregates(self) -> list[_Figures]: ...
    def cuda_aggregates(self) -> list[_Figures]: ...

@final
class NoOpStage:
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def __aenter__(self) -> Awaitable[Self]: ...
    def __aexit__(self, *exc: object) -> Awaitable[None]: ...
    def __await__(self) -> Generator[None, None, Self]: ...
    def __call__(self, function: _F, /) -> _F: ...

@disjoint_base
class NoOpTimer:
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @property
    def tag(self) -> str: ...
    @property
    def strict(self) -> bool: ...
    @property
    def use_cuda(self) -> bool: ...
    @property
    def current_step(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def unmatched_stops(self) -> int: ...
    @property
    def closed_stages(self) -> int: ...
    def start(
        self, stage_name: str, color: str | int = "blue", domain_name: str | None = None
    ) -> None: ...
    def stop(self, stage_name: str) -> None: ...
    def time_stage(
        self, stage_name: str, color: str | int = "blue", domain_name: str | None = None
    ) -> NoOpStage: ...
    def set_step(self, iteration: int) -> None: ...
    def step(self, wait: bool = True) -> None: ...
    def synchronize_and_log(self, wait: bool = True) -> None: ...
    def register_stage(
        self, stage_name: str, color: str | int = "blue", domain_name: str | None = None
    ) -> None: ...
    def aggregates(self) -> list[_Figures]: ...
    def cuda_aggregates(self) -> list[_Figures]: ...

# Traces from profile CSVs.

# name for messages, file descriptor or -1, bytes that count or -1, the data without a file, header?
_TracePart = tuple[str, int, int, bytes | None, bool]

@final
class TraceJob:
    """One trace that is being written. Safe to use from several threads."""

    def __new__(
        cls, fd: int, format: Literal["json", "seed", "perfetto"], sort: bool = False
    ) -> Self: ...
    @property
    def bytes_read(self) -> int: ...
    def convert(
        self,
        parts: list[_TracePart],
        rank: int,
        *,
        slot: int = 0,
        many: bool = False,
        with_args: bool = True,
        steps: tuple[int, int] | None = None,
        name_filter: Callable[[str], bool] | None = None,
    ) -> dict[str, Any]: ...
    def set_base(self, first_ns: int, /) -> int: ...
    def finish(self) -> int: ...
    def cancel(self) -> None: ...

def trace_first_ns(part: _TracePart, /) -> int: ...

# Operators for torch.

def register_torch_kernels() -> None: ...

# The tensor hash.

@final
class TensorDigest:
    """What tensor_hash found; immutable and hashable."""

    def __new__(cls, content: str, dtype: str, shape: Sequence[int]) -> Self: ...
    @property
    def content(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def combined(self) -> str: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[type[Self], tuple[str, str, tuple[int, ...]]]: ...

@overload
def tensor_hash(tensors: list[Any] | tuple[Any, ...], /) -> list[TensorDigest]: ...
@overload
def tensor_hash(tensors: Any, /) -> TensorDigest: ...

"""A recording of forward passes, in memory and as a file.

The file is what `torch.save` writes: a zip of stored entries with one pickle of dicts, lists, str,
numbers, bool, None and tensors in it, which `torch.load(path, weights_only=True)` reads, with no
code of this package. Its top level:

    format      "my_utils.forward_trace"
    version     1; later versions only add keys, and a reader leaves alone what it does not know
    name, rank, world_size, host, pid, created_unix (seconds), torch, my_utils (version texts)
    settings    the arguments of the recorder, as plain values
    modules     a dict for each `ModuleInfo`, in the order of `model.named_modules()`
    roots       a dict for each `RootCall`, in the order in which they began
    events      a dict for each `TraceEvent`, in the order in which the calls began
    param_grads a dict for each `TraceTensorMeta`, in the order in which they were accumulated
    counts      how often something went wrong, by its kind; empty if nothing did
    extra       what `save(extra=…)` was given

The keys of those dicts are the names of the fields below. `weights` of a root and `params` of its
events hold the same dicts, which pickle writes once.

>>> meta = TraceTensorMeta("0", (2, 3), "float32", "cpu", hash="00ff", hash_kind="tensor")
>>> event = TraceEvent(index=0, module="fc", type="Linear", inputs=[meta])
>>> recording = Recording(name="example", events=[event])
>>> import os, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = os.path.join(folder, "example.pt")
...     _ = save_recording(recording, path)
...     load_recording(path).events[0].inputs[0].hash
'00ff'
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from ... import __version__
from ...core.lazy_modules import lazy_module
from ...core.plain_copy import plain_copy
from ...core.plain_files import PlainFileError, load_plain, save_plain
from ...core.public import public
from ...core.ranks import current_rank, host_name, world_size

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_module("torch")


FORMAT = "my_utils.forward_trace"
VERSION = 2
"""Those of version 1 have digests of the tensor hash, version 1."""


@public("my_utils.module_hook")
class RecordingError(ValueError):
    """A file that is not a whole recording. The message names the file and the reason."""


@public("my_utils.module_hook")
@dataclass(slots=True)
class TraceTensorMeta:
    """What was noted of one tensor, of its values at the time of the call.

    path: where it was. Inputs: the position or the keyword, then the way into what is nested, as in
        "0", "mask", "0.hidden.1". Outputs: the same, and "" for a module that returns the tensor
        itself. Parameters and buffers: the name. Gradients of a call: "inputs.0", "outputs".
    shape, dtype, device, stride: as torch has them, the dtype without "torch."; stride is in
        elements, None for layouts that have none.
    hash: hexadecimal digits, or None if there is none, see `note`. `hash_kind` is "tensor" (the
        content digest of `my_utils.tensors.tensor_hash`, which knows neither dtype nor shape) or
        "md5" (of the row-major bytes).
    stats: the figures of `my_utils.tensors.stats` by their names, or None.
    sample: some elements on the CPU, one dimension, of the tensor's dtype, or None.
    layout: "strided", or torch's name of another one; "unknown" inside compiled graphs, where the
        shape is not known either. The parts of a sparse tensor follow as their own entries,
        "0.indices" and "0.values".
    placements: of a DTensor, as text. All else is then of the local shard, except for
        `global_shape`.
    changed: a parameter that was written to while the call ran: it has no hash.
    note: in words, anything else to know, such as why there is no hash; or None.
    arrived: of a gradient, how many had arrived before it in the whole recording; -1 for others.
    """

    path: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    device: str = ""
    hash: str | None = None
    hash_kind: str | None = None
    stats: dict[str, float | int] | None = None
    sample: torch.Tensor | None = None
    stride: tuple[int, ...] | None = None
    requires_grad: bool = False
    layout: str = "strided"
    placements: str | None = None
    global_shape: tuple[int, ...] | None = None
    changed: bool = False
    note: str | None = None
    arrived: int = -1


@public("my_utils.module_hook")
@dataclass(slots=True)
class TraceEvent:
    """One call of one module.

    index: its place among the recorded calls, in the order in which they began.
    end_index: the same in the order in which they ended; -1 for one that never did.
    module, type: the module's first name in the model ("" is the model) and its class.
    call: how many calls of this module with the same `phase` came before.
    root: index into `Recording.roots`. parent: index of the recorded call around it, or -1.
    depth: how many recorded calls are around it.
    phase: "forward", or "recompute" for what activation checkpointing calls again in the backward.
    status: "ok"; "raised", `exception` says what; "stopped" for a recomputation that ended early
        because it had all it needed; "open" for a call whose end was never seen.
    inputs, outputs: the tensors in them. input_values, output_values: numbers, bools, None and
        short texts in them by their paths, and of other objects the type's name as "<Name>".
    written: inputs that were written to in place while the call ran and are not among its outputs,
        as they were after it. torch's version counters show it; writes that do not change them,
        such as through `.data`, are not seen.
    params, buffers: those of the module itself, by their names in it. Buffers are those before the
        call. params is empty in phase "recompute".
    param_dtypes, buffer_dtypes: dtypes by name, where asked for.
    grads: gradients that arrived at the tensors of the call, in the order of arrival.
    compiled: recorded from inside a graph of torch.compile: it comes after the calls that hooks saw
        below the same root, shapes are not known, and only hashes are there. The call around it is
        that of the nearest module around its own that was called.
    error: what went wrong in the recorder itself, or None. Then part of the rest is missing.
    """

    index: int
    module: str
    type: str
    call: int = 0
    end_index: int = -1
    root: int = -1
    parent: int = -1
    depth: int = 0
    phase: str = "forward"
    status: str = "ok"
    exception: str | None = None
    training: bool = False
    grad_enabled: bool = False
    inputs: list[TraceTensorMeta] = field(default_factory=list)
    outputs: list[TraceTensorMeta] = field(default_factory=list)
    input_values: dict[str, Any] = field(default_factory=dict)
    output_values: dict[str, Any] = field(default_factory=dict)
    params: dict[str, TraceTensorMeta] = field(default_factory=dict)
    buffers: dict[str, TraceTensorMeta] = field(default_factory=dict)
    param_dtypes: dict[str, str] = field(default_factory=dict)
    buffer_dtypes: dict[str, str] = field(default_factory=dict)
    grads: list[TraceTensorMeta] = field(default_factory=list)
    compiled: bool = False
    error: str | None = None
    written: list[TraceTensorMeta] = field(default_factory=list)


@public("my_utils.module_hook")
@dataclass(slots=True)
class RootCall:
    """One outermost call, such as that of the model itself.

    module: the name of the module that was called. began_unix: seconds.
    weights: the parameters below it by their first full names, also those that no module's hook
        sees because another module uses them. Empty if no parameter was asked for, and in phase
        "recompute".
    """

    index: int
    module: str
    phase: str = "forward"
    began_unix: float = 0.0
    status: str = "ok"
    weights: dict[str, TraceTensorMeta] = field(default_factory=dict)


@public("my_utils.module_hook")
@dataclass(slots=True)
class ModuleInfo:
    """A module of the model: its first name, its other names, its class, its own parameters and
    buffers (name in the module: first full name). `recorded`: whether the filters let it pass."""

    name: str
    type: str
    aliases: list[str] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    recorded: bool = True
    compiled: bool = False


@public("my_utils.module_hook")
@dataclass(slots=True)
class Recording:
    """What one rank recorded. See the module's docstring for the fields."""

    name: str = ""
    rank: int = 0
    world_size: int = 1
    host: str = ""
    pid: int = 0
    created_unix: float = 0.0
    torch: str = ""
    my_utils: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    modules: list[ModuleInfo] = field(default_factory=list)
    roots: list[RootCall] = field(default_factory=list)
    events: list[TraceEvent] = field(default_factory=list)
    param_grads: list[TraceTensorMeta] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    extra: Any = None

    @classmethod
    def of_this_rank(cls, name: str, **content: Any) -> Recording:
        """A recording with who made it, when and with what; `content` has the fields from
        `settings` on."""
        import torch

        return cls(
            name=name,
            rank=current_rank(),
            world_size=world_size(),
            host=host_name(),
            pid=os.getpid(),
            created_unix=time.time(),
            torch=str(torch.__version__),
            my_utils=__version__,
            **content,
        )


# The records that are in others: in a list, or in a dict by their names.
_HELD = {
    f"{box}{kind.__name__}]": kind
    for box in ("list[", "dict[str, ")
    for kind in (ModuleInfo, RootCall, TraceEvent, TraceTensorMeta)
}


# --- writing ---


class _Encoder:
    """Turns the records into dicts: one dict for each, however often it is held."""

    def __init__(self) -> None:
        self._dicts: dict[int, dict[str, Any]] = {}

    def record(self, record: Any) -> dict[str, Any]:
        made = self._dicts.get(id(record))
        if made is None:
            made = self._dicts[id(record)] = {}
            for name, item in record.__dataclass_fields__.items():
                value = getattr(record, name)
                made[name] = self._held(value) if item.type in _HELD else value
        return made

    def _held(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.record(item) for item in value]
        return {name: self.record(item) for name, item in value.items()}


def save_recording(recording: Recording, path: str | os.PathLike[str]) -> Path:
    """Writes the file next to its place under another name, then renames it: a file of that name is
    always whole. Folders are created if missing. Returns the path.

    TypeError for what `extra` cannot hold (before anything is written), OSError when the file
    cannot be written.
    """
    about = {"format": FORMAT, "version": VERSION}
    extra = plain_copy(recording.extra, "extra")
    return save_plain({**about, **_Encoder().record(recording), "extra": extra}, path)


# --- reading ---


def load_recording(path: str | os.PathLike[str]) -> Recording:
    """Reads a file of `save_recording`. Nothing in it is executed.

    RecordingError for a file that is cut short, damaged (every entry has a CRC-32), of another
    kind, or of another version; OSError if there is no such file.
    """
    try:
        payload = load_plain(path, FORMAT, VERSION, "recording")
        if payload["version"] < VERSION:
            raise RecordingError("holds digests of the tensor hash, version 1; record it anew")
        return _Decoder().recording(payload)
    except PlainFileError as error:
        raise RecordingError(str(error)) from None
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from None


@functools.cache
def _fields(kind: Any) -> list[tuple[str, str, Any]]:
    """The name of each, its annotation above, and the type that this is."""
    types = get_type_hints(kind)
    return [(item.name, str(item.type), types[item.name]) for item in dataclasses.fields(kind)]


def _is_whole(tensor: Any) -> bool:
    if tensor is None or tensor.layout != torch.strided:
        return True
    # A stride of 0 makes any number of elements out of one.
    return bool(tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes())


# What a type does not say, by annotation.
_BOUNDS: dict[str, Callable[[Any], bool]] = {
    "float": lambda value: not math.isnan(value),
    "torch.Tensor | None": _is_whole,
}


# Fields that the first files did not have; they have their defaults there.
_LATER = frozenset(("arrived", "written"))


class _Decoder:
    """Turns the dicts into records again, and refuses what does not fit."""

    def __init__(self) -> None:
        self._records: dict[tuple[type, int], Any] = {}

    def recording(self, payload: dict[str, Any]) -> Recording:
        recording: Recording = self._record(Recording, payload, "the file")
        for event in recording.events:
            if not -1 <= event.root < len(recording.roots):
                raise RecordingError(f"event {event.index} belongs to a root that is not there")
            if not -1 <= event.parent < event.index:
                raise RecordingError(f"event {event.index} has a parent that is not there")
        if any(event.index != place for place, event in enumerate(recording.events)):
            raise RecordingError("the events are not in their order")
        return recording

    def _record(self, kind: Any, data: Any, where: str) -> Any:
        """One record for one dict, however often it is held."""
        known = self._records.get((kind, id(data)))
        if known is not None:
            return known
        if not isinstance(data, dict):
            raise RecordingError(f"{where} is not a dict but a {type(data).__name__}")
        values = {}
        for name, annotation, type_ in _fields(kind):
            if name not in data and name in _LATER:
                continue
            if name not in data:
                raise RecordingError(f"{where} has no {name!r}")
            values[name] = self._field(annotation, type_, data[name], f"{where}.{name}")
        made = self._records[kind, id(data)] = kind(**values)
        return made

    def _field(self, annotation: str, type_: Any, value: Any, where: str) -> Any:
        held = _HELD.get(annotation)
        if held is not None:
            return self._held(held, annotation, value, where)
        try:
            found = msgspec.convert(value, type_)
            is_sound = annotation not in _BOUNDS or _BOUNDS[annotation](found)
        except (msgspec.ValidationError, OverflowError):
            is_sound = False
        if not is_sound:
            raise RecordingError(f"{where} must be {annotation}, not {value!r:.80}")
        return value if isinstance(value, dict) else found  # a dict may be in several places

    def _held(self, kind: type[Any], annotation: str, value: Any, where: str) -> Any:
        if annotation.startswith("dict"):
            if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
                raise RecordingError(f"{where} must be a dict with names as keys")
            return {
                key: self._record(kind, item, f"{where}[{key!r}]") for key, item in value.items()
            }
        if not isinstance(value, list):
            raise RecordingError(f"{where} must be a list, not a {type(value).__name__}")
        return [self._record(kind, item, f"{where}[{place}]") for place, item in enumerate(value)]

"""Reads checkpoints piece by piece: safetensors, files of torch.save, folders of
torch.distributed.checkpoint. Nothing that a file says is trusted, and nothing in it is executed."""

from __future__ import annotations

import io
import os
import pickle
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...core.bounded_read import describe, read_whole
from ...core.checked_json import decoded
from ...core.extras import needs_torch
from ...core.plain_files import (
    PlainFileError,
    check_archive,
    check_pickle,
    first_line,
    foreign_class,
)
from ...core.printable import printable
from ...core.trusted_open import open_without_waiting
from ..dtypes import PACKED, SAFETENSORS_CODES
from ..wrapper_names import plain_names
from .builder import Builder, Found
from .file import (
    FORMAT,
    GroupData,
    PassportData,
    PassportError,
    check_box,
    check_shape,
    read_passport,
)
from .layouts import Layout, renamed
from .stored import find_leaves, unwrap_parts
from .views import TensorFile, span_of
from .weights import Weights, merged
from .words import left_out_text, names_text, no_tensors_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor

HEADER_BYTES_MAX = 100 << 20  # what the safetensors library reads
INDEX_BYTES_MAX = 1 << 28
METADATA_BYTES_MAX = 1 << 28
TIED_MAX = 64  # other names of a tensor, which is hashed for each of them
_HERE = GroupData()

_TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt", ".pth.tar", ".pt2")
# How torch.save began a file before version 1.6: the pickle of its magic number.
_OLD_FORMAT = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
# The weights in a folder of transformers, accelerate, PEFT or diffusers, which has more than these.
_WEIGHTS = (
    "pytorch_model*.bin", "adapter_model.bin", "diffusion_pytorch_model*.bin",
    "pytorch_lora_weights*.bin",
)  # fmt: skip
# What those and torchtune keep there to go on, which is never the weights.
_STATE_OF_TRAINERS = re.compile(
    r"(?:optimizer|(?:lr_)?scheduler|scaler|sampler|rng_state|random_states|training_args"
    r"|dl_state_dict|recipe_state)(?:_\d+)*\."
)
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def read_weights(path: str, dtype: Any = None, layout: Layout | None = None) -> Weights:
    """What a path has: a checkpoint, a passport, or a folder or glob of the passports of all
    ranks. dtype: of torch; checkpoints are cast to it. OSError if it cannot be read, PassportError
    if it is neither."""
    files = _passports_at(path)
    if not files:
        return replace(merged([read_checkpoint(path, dtype, layout)], path), is_checkpoint=True)
    passports = [read_passport(file) for file in files]
    if layout is not None:
        for data in passports:
            _rename(data, layout)
    return merged(passports, path)


def _rename(data: PassportData, layout: Layout) -> None:
    """A passport has no values, so that only names of whole tensors can change."""
    left_out = [one.name for one in data.tensors if not layout.cuts(one.name, one.shape)[1]]
    gone = set(left_out)
    data.tensors = [one for one in data.tensors if one.name not in gone]
    for tensor in data.tensors:
        tensor.name = renamed(layout, tensor.name, tensor.shape)
        tensor.tied = tensor.tied and renamed(layout, tensor.tied, tensor.shape)
    if left_out:
        data.notes.append(left_out_text(left_out))


def _passports_at(path: str) -> list[str]:
    """The files of passports that a path means; none for a checkpoint."""
    import glob

    if os.path.isdir(path):
        if _checkpoint_in(Path(path)) is not None:
            return []
        found = sorted(glob.glob(os.path.join(glob.escape(path), "*.json")))
        if not any(map(_begins_as_passport, found)):
            _check_no_checkpoints_below(Path(path))
            _check_not_of_a_trainer(Path(path))
        if not found:
            raise PassportError(f"{path}: neither a checkpoint nor passports are in it")
        return found
    if os.path.lexists(path):
        is_json = path.endswith(".json") and not _is_index(path)
        return [path] if is_json else []
    return sorted(glob.glob(path)) or [path] if glob.has_magic(path) else []


def _begins_as_passport(path: str) -> bool:
    with open(path, "rb", opener=open_without_waiting) as file:
        return FORMAT.encode() in file.read(100)


def _check_no_checkpoints_below(folder: Path) -> None:
    """PassportError if folders in it have checkpoints, as those of a pipeline of diffusers."""
    inner = sorted(one.name for one in folder.iterdir() if one.is_dir() and _checkpoint_in(one))
    if inner:
        names = names_text(inner, most=4)
        raise PassportError(
            f"{folder}: no checkpoint is in it, but in its folders {names}: name one of them"
        )


def _check_not_of_a_trainer(folder: Path) -> None:
    """PassportError if it has what a trainer needs to go on, without its weights."""
    states = _tensor_files(folder)
    if states:
        raise PassportError(
            f"{folder}: no weights are in it, only {names_text(states)}: name one of them"
        )


def _is_index(path: str) -> bool:
    """Also that of a variant, `model.safetensors.index.fp16.json`."""
    return fnmatchcase(os.path.basename(path), "*.index*.json")


def read_checkpoint(path: str, dtype: torch.dtype | None, layout: Layout | None) -> PassportData:
    """The passport of a checkpoint. OSError if it cannot be read, PassportError where something in
    it is wrong, which names the tensor."""
    read = _reader_of(path)
    with needs_torch("a checkpoint"):
        import torch  # noqa: F401
    builder = Builder(dtype, layout)
    try:
        # A layout is of names without what wrappers add, as in the passport of a model.
        plain = {} if layout is None else plain_names([found.name for found in read([])])
        for found in read(builder.notes):
            name, tied = (plain.get(one, one) for one in (found.name, found.tied))
            builder.add(found._replace(name=name, tied=tied))
    except PassportError:
        raise
    except (ValueError, TypeError) as error:
        raise PassportError(f"{path}: {describe(error)}") from None
    except RuntimeError as error:  # of torch, which cannot make what the file says
        raise PassportError(f"{path}: {first_line(error)}") from None
    return _with_plain_names(builder.finish(path, None, 0, 1))


def _with_plain_names(data: PassportData) -> PassportData:
    """Without what wrappers add, as in the passport of the model."""
    plain = plain_names([tensor.name for tensor in data.tensors])
    for tensor in data.tensors:
        tensor.name = plain[tensor.name]
        tensor.tied = plain.get(tensor.tied, tensor.tied)
    return data


Reader = Callable[[list[str]], Iterator[Found]]


def _reader_of(path: str) -> Reader:
    if os.path.isdir(path):
        found = _checkpoint_in(Path(path))
        if found is None:
            raise PassportError(f"{path}: no checkpoint is in it")
        return found
    if _is_index(path):
        return lambda notes: _indexed(Path(path), notes)
    if path.endswith(".safetensors"):
        return lambda notes: _several([Path(path)], notes)
    if path.endswith(".metadata"):
        return lambda notes: _distributed(Path(path).parent, notes)
    if not path.endswith(_TORCH_FILES):
        os.stat(path)  # a missing file comes first
        if path.endswith(".gguf"):
            raise PassportError(
                f"{path}: files of GGUF have other names, shapes and quantized blocks: take the "
                "passport of the tensors that gguf.GGUFReader gives"
            )
        known = ", ".join((".safetensors", ".index.json", *_TORCH_FILES))
        raise PassportError(f"{path}: no checkpoint by its name; known are {known} and folders")
    return lambda notes: _torch_file(path, notes)


def _check_not_deepspeed(folder: Path) -> None:
    """PassportError for the parts that ranks of DeepSpeed write, none of which is a checkpoint."""
    if any(folder.glob("*_optim_states.pt")) and any(folder.glob("*_model_states.pt")):
        raise PassportError(
            f"{folder}: has the files of DeepSpeed's ranks: make a checkpoint of them with its "
            "zero_to_fp32.py, or, without ZeRO 3, save the state dict of the model too"
        )


def _checkpoint_in(folder: Path) -> Reader | None:
    _check_not_deepspeed(folder)
    if (folder / ".metadata").exists():
        return lambda notes: _distributed(folder, notes)
    index = _index_in(folder)
    if index is not None:
        return lambda notes: _indexed(index, notes)
    globs = ("*.safetensors", *_WEIGHTS, *(f"*{suffix}" for suffix in _TORCH_FILES))
    for glob in globs:
        found = sorted(folder.glob(glob))
        files = [one for one in found if not _STATE_OF_TRAINERS.match(one.name)]
        if files:
            return lambda notes: _several_of(folder, files, notes)
    return None


def _several_of(folder: Path, files: list[Path], notes: list[str]) -> Iterator[Found]:
    _say_others(folder, {one.name for one in files}, notes)
    return _several(files, notes)


def _say_others(folder: Path, read: Collection[str], notes: list[str]) -> None:
    """A note of the files that may have tensors, and are not read."""
    others = set(_tensor_files(folder)).difference(read)
    if others:
        notes.append(f"not read: {names_text(sorted(others))}")


def _tensor_files(folder: Path) -> list[str]:
    suffixes = (".safetensors", *_TORCH_FILES)
    return sorted(one.name for one in folder.iterdir() if one.name.endswith(suffixes))


def _index_in(folder: Path) -> Path | None:
    """That of transformers, or the only one, such as that of diffusers or of a variant."""
    for name in _INDEXES:
        if (folder / name).exists():
            return folder / name
    found = list(folder.glob("*.index*.json"))
    return found[0] if len(found) == 1 else None


# --- several files ---


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _indexed(path: Path, notes: list[str]) -> Iterator[Found]:
    """The tensors of an index, which must be where it says; others in its files are left out."""
    data, _ = read_whole(path, INDEX_BYTES_MAX, "an index")
    places = decoded(data, _Index).weight_map
    missing = dict(places)
    _say_others(path.parent, places.values(), notes)
    for name in sorted(set(places.values())):
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise ValueError(f"{name!r} is not the name of a file in the folder")
        others = 0
        for found in _one_file(path.parent / name, notes):
            if places.get(found.name) == name:
                missing.pop(found.name, None)
                yield found
            else:
                others += 1
        if others:
            notes.append(f"{name}: {others} tensors are not in the index")
    if missing:
        name, file = next(iter(missing.items()))
        raise ValueError(f"{name} is not in {file}, where the index has it")


def _several(paths: list[Path], notes: list[str]) -> Iterator[Found]:
    """Files without an index: names are in one of them each, or are parts of one tensor, as the
    writer of torch.distributed.checkpoint makes them."""
    shapes = _shapes_of_parts(paths)
    seen: dict[str, Path] = {}
    for path in paths:
        for found in _one_file(path, notes):
            if found.name in shapes:
                yield found._replace(shape=shapes[found.name])
                continue
            first = seen.setdefault(found.name, path)
            if first != path:
                raise ValueError(
                    f"{found.name} is in {first.name} and in {path.name}: name one of the files"
                )
            yield found


def _one_file(path: Path, notes: list[str]) -> Iterator[Found]:
    is_safe = path.suffix == ".safetensors"
    return _safetensors(path) if is_safe else _torch_file(str(path), notes)


# --- safetensors ---


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _header(file: TensorFile) -> tuple[int, dict[str, msgspec.Raw]]:
    """Where the values begin, and the entries."""
    length = int.from_bytes(file.read_bytes(0, 8, "header"), "little")
    if length > min(HEADER_BYTES_MAX, file.nbytes - 8):
        raise PassportError(f"{file.path}: a header of {length} bytes, more than is allowed")
    try:
        entries = decoded(file.read_bytes(8, length, "header"), dict[str, msgspec.Raw])
    except ValueError as error:
        raise PassportError(f"{file.path}: header: {describe(error)}") from None
    return 8 + length, entries


def _texts(entries: dict[str, msgspec.Raw]) -> dict[str, str]:
    """What its writer noted in the header."""
    return decoded(bytes(entries.get("__metadata__", b"{}")), dict[str, str])


def _other_names(texts: dict[str, str], entries: dict[str, msgspec.Raw]) -> dict[str, list[str]]:
    """By the name of a tensor: those that it has in the model, too, of which `save_model` of
    safetensors keeps one."""
    found: dict[str, list[str]] = {}
    for name, kept in texts.items():
        if kept in entries and name not in entries:
            found.setdefault(kept, []).append(name)
    for kept, names in found.items():
        if len(names) > TIED_MAX:
            raise ValueError(f"{kept}: more than {TIED_MAX} other names")
    return found


def _offsets(texts: dict[str, str]) -> dict[str, list[int]]:
    """Where parts of tensors begin, if torch.distributed.checkpoint wrote them."""
    sharding = texts.get("DCP_SHARDING_INFO")
    if sharding is None:
        return {}
    parts = decoded(sharding, dict[str, dict[str, list[int]]])
    return {name: part["saved_offsets"] for name, part in parts.items() if "saved_offsets" in part}


def _shapes_of_parts(paths: list[Path]) -> dict[str, tuple[int, ...]]:
    """The shapes of tensors that have parts in several files."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in paths:
        if path.suffix != ".safetensors":
            continue
        with TensorFile(str(path)) as file:
            entries = _header(file)[1]
            for name, at in _offsets(_texts(entries)).items():
                if name not in entries:
                    raise PassportError(f"{path}: {name}: has a place, but is not in the file")
                size = _entry(file, name, entries[name]).shape
                if len(at) != len(size) or min(at, default=0) < 0:
                    raise PassportError(
                        f"{path}: {name}: {at!r:.100} is no place of a part of shape {list(size)}"
                    )
                ends = tuple(first + length for first, length in zip(at, size, strict=True))
                shapes[name] = tuple(map(max, shapes.get(name, ends), ends))
    return shapes


def _entry(file: TensorFile, name: str, raw: msgspec.Raw) -> _Entry:
    try:
        found = decoded(bytes(raw), _Entry)
        if found.dtype in PACKED:
            found.shape = _packed_shape(found.shape)
    except ValueError as error:
        raise PassportError(f"{file.path}: {name}: {describe(error)}") from None
    return found


def _packed_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """As torch counts the elements."""
    if not shape or shape[-1] % 2:
        raise ValueError(f"no pairs of numbers are in shape {list(shape)!r:.100}")
    return (*shape[:-1], shape[-1] // 2)


def _dtype_of(code: str) -> torch.dtype | None:
    """None if it is not known, or not to this torch."""
    import torch

    return getattr(torch, SAFETENSORS_CODES.get(code, ""), None)


def _safetensors(path: Path) -> Iterator[Found]:
    import torch

    with TensorFile(str(path)) as file:
        base, raw = _header(file)
        texts = _texts(raw)
        offsets, others = _offsets(texts), _other_names(texts, raw)
        entries = {
            name: _entry(file, name, one) for name, one in raw.items() if name != "__metadata__"
        }
        end = 0
        for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
            try:
                _check_entry(name, entry, end, file.nbytes - base)
            except ValueError as error:
                raise PassportError(f"{path}: {error}") from None
            begin, end = entry.data_offsets
            values = torch.empty(entry.shape, dtype=_dtype_of(entry.dtype), device="meta")
            at = tuple(offsets.get(name, [0] * len(entry.shape)))
            read = file.reader(base + begin, name)
            yield Found(name, entry.shape, at, values, _HERE, "", read)
            for other in others.get(name, ()):
                yield Found(other, entry.shape, at, values, _HERE, name, read)


def _check_entry(name: str, entry: _Entry, least: int, most: int) -> None:
    dtype = _dtype_of(entry.dtype)
    if dtype is None:
        raise ValueError(f"{name}: dtype {entry.dtype!r} is not known")
    item = dtype.itemsize
    check_shape(name, entry.shape, item)
    begin, end = entry.data_offsets
    count = item
    for size in entry.shape:
        count *= size
    if not least <= begin <= end <= most:
        raise ValueError(f"{name}: bytes {begin} to {end} overlap others, or are not in the file")
    if end - begin != count:
        raise ValueError(f"{name}: {end - begin} bytes for shape {list(entry.shape)}")


# --- torch.save ---


def _torch_file(path: str, notes: list[str]) -> Iterator[Found]:
    with TensorFile(path) as file:
        classes: list[str] = []
        loaded = _loaded(file.file, path, classes)
        if (hiding := _hiding_a_tensor(loaded)) is not None:
            raise _not_plain(path, _holds(_class_of(hiding)))
        values, others = find_leaves(loaded)
        notes += (f"{os.path.basename(path)}: {note}" for note in _others_notes(others, classes))
        first: dict[tuple[object, ...], str] = {}
        for name, tensor in (part for value in values for part in unwrap_parts(*value)):
            base = _find_storage(tensor, name, path, file.nbytes)
            key = (base, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
            tied = first.setdefault(key, name)
            shape = tuple(tensor.shape)
            yield Found(
                name, shape, (0,) * len(shape), tensor.detach(), _HERE,
                "" if tied == name else tied, file.reader(base, name),
            )  # fmt: skip


def _others_notes(others: list[tuple[str, Any]], classes: list[str]) -> Iterator[str]:
    """others: the values that are no tensors, by name. classes: of those that have a stand-in."""
    places = [name for name, value in others if _has_values(value)]
    if places or classes:
        words = [names_text(places)] if places else []
        words += [f"objects of {printable(names_text(classes))}"] if classes else []
        yield f"left out: {': '.join(words)}"
    if others:
        yield no_tensors_text(len(others))


def _has_values(value: object) -> bool:
    """Whether an object of another class, or an array of NumPy, is in it."""
    if isinstance(value, (Mapping, list, tuple, set)):
        return any(map(_has_values, _held_by(value)))
    return isinstance(value, _StandIn) or hasattr(value, "__array_interface__")


def _loaded(file: Any, where: str, classes: list[str] | None = None) -> Any:
    """What torch.save wrote, with meta tensors that know where their values are in the file.

    classes: takes those of which objects, such as the arguments of a script, have a stand-in. None:
        a file with such an object is refused.
    """
    if file.read(len(_OLD_FORMAT)) == _OLD_FORMAT:
        raise PassportError(
            f"{where}: is in the format of torch before 1.6: load it and save it again"
        )
    _check_kind(file, where)
    try:
        check_archive(file, "file of torch.save", with_crc=False)
    except PlainFileError as error:
        raise PassportError(f"{where}: {error}") from None
    try:
        return _tensors_of(file)
    except Exception as error:  # what its parser raises depends on where the damage is
        reason = _why_not_plain(error)
        if classes is None or not foreign_class(error):
            raise _not_plain(where, reason) from None
    try:
        found, names = _with_stand_ins(file)
    except Exception:
        raise _not_plain(where, reason) from None
    classes += names
    return found


def _tensors_of(file: Any) -> Any:
    import torch

    file.seek(0)
    return torch.load(file, map_location="meta", weights_only=True)


def _not_plain(where: str, reason: str) -> PassportError:
    return PassportError(f"{where}: cannot be read as plain data ({reason})")


class _StandIn:
    """In the place of an object of a class that is not known, of which it runs nothing. name: of
    the class. inside: what the object was made of."""

    name: str
    inside: list[object]

    def __new__(cls, *args: object) -> _StandIn:
        made = super().__new__(cls)
        made.inside = [args]
        return made

    def __init__(self, *args: object) -> None:
        """Takes what `__new__` does."""

    def __setstate__(self, state: object) -> None:
        self.inside.append(state)


def _with_stand_ins(file: Any) -> tuple[Any, list[str]]:
    """What is in the file, and the names of the classes that are not known."""
    from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

    file.seek(0)
    names = sorted(get_unsafe_globals_in_checkpoint(file))
    stand_ins: list[Any] = [(type("StandIn", (_StandIn,), {"name": name}), name) for name in names]
    with safe_globals(stand_ins):
        return _tensors_of(file), names


def _hiding_a_tensor(loaded: object) -> object:
    """An object of another class with a tensor in it, None if there is none. Values may hold each
    other. A class may be known where the program has made it safe to load."""
    import torch

    seen: set[tuple[int, bool]] = set()
    left: list[tuple[object, object]] = [(loaded, None)]
    while left:
        value, outer = left.pop()
        if isinstance(value, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)):
            if outer is not None:
                return outer
            continue
        if outer is None and not isinstance(value, (Mapping, list, tuple, set)):
            outer = value
        held = _held_by(value)
        if held and (id(value), outer is None) not in seen:
            seen.add((id(value), outer is None))
            left += ((one, outer) for one in held)
    return None


def _class_of(value: object) -> str:
    of = type(value)
    name = value.name if isinstance(value, _StandIn) else f"{of.__module__}.{of.__qualname__}"
    return printable(name)


def _held_by(value: object) -> Collection[object]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple, set)):
        return value
    return getattr(value, "__dict__", {}).values()


def _why_not_plain(error: Exception) -> str:
    foreign = foreign_class(error)
    if foreign:
        return _holds(foreign)
    if "quantized" in str(error):
        return "it holds quantized tensors: take the passport of what torch.load gives"
    return first_line(error)


def _holds(what: str) -> str:
    return (
        f"it holds objects of {what}: save a state dict of plain tensors, or take the passport of "
        "what torch.load gives"
    )


def _check_kind(file: Any, where: str) -> None:
    """PassportError for what torch writes into the same kind of archive, but not by torch.save."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = {name.partition("/")[2] for name in archive.namelist()}
    except Exception:  # said by what reads it as a file of torch.save
        names = set()
    finally:
        file.seek(0)
    if "constants.pkl" in names:
        kind, loaded = "a TorchScript archive", "torch.jit.load(FILE)"
    elif "archive_format" in names or "serialized_exported_program.json" in names:
        kind, loaded = "an exported program", "torch.export.load(FILE).module()"
    else:
        return
    raise PassportError(f"{where}: is {kind}: take the passport of {loaded}")


def _find_storage(tensor: Tensor, name: str, where: str, file_bytes: int) -> int:
    """The first byte of its storage in the file."""
    if hasattr(tensor, "placements") and hasattr(tensor, "device_mesh"):
        raise PassportError(
            f"{where}: {name}: a DTensor, of which the file has what one rank had: save its "
            "full_tensor(), or all ranks by torch.distributed.checkpoint"
        )
    kind = str(tensor.layout).removeprefix("torch.")
    if kind != "strided":
        raise PassportError(f"{where}: {name}: a tensor of layout {kind} cannot be hashed")
    base = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
    if base is None:
        raise PassportError(
            f"{where}: {name}: the file has no plain values of it, as of a tensor on the meta "
            "device: leave it out when you save"
        )
    last = (tensor.storage_offset() + span_of(tensor)) * tensor.element_size()
    if last > tensor.untyped_storage().nbytes() or base + last > file_bytes:
        raise PassportError(f"{where}: {name}: its values are not in the file")
    return int(base)


# --- torch.distributed.checkpoint ---


class _Record:
    """An object of the metadata: its fields, and none of its code."""

    def __init__(self, *values: object) -> None:
        self.values = values

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict):
            self.values = (state,)
            return
        vars(self).update({str(key): value for key, value in state.items()})

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f".metadata has an entry without {name}")


_METADATA = "torch.distributed.checkpoint.metadata"
_RECORDS = {
    *((_METADATA, name) for name in (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
        "TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    )),
    # What Megatron-core adds of the plans of its ranks.
    *(("torch.distributed.checkpoint.planner", name) for name in (
        "SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData",
    )),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.distributed.checkpoint.filesystem", "_StoragePrefix"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("pathlib._local", "PosixPath"),
}  # fmt: skip


class _Unpickler(pickle.Unpickler):
    """Knows the classes of `.metadata` alone, and makes records of them."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _RECORDS:
            return type(name, (_Record,), {})
        if (module, name) == ("torch", "Size"):
            return tuple
        if module == "torch":
            return _Record  # a dtype, which is not called
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        raise ValueError(f".metadata names {module}.{name}, which no checkpoint needs")


def _metadata(folder: Path) -> tuple[dict[str, Any], dict[Any, Any]]:
    data, _ = read_whole(folder / ".metadata", METADATA_BYTES_MAX, "metadata of a checkpoint")
    try:
        check_pickle(data, newer=True, objects=True)
        found = _Unpickler(io.BytesIO(data)).load()
        tensors, places = found.state_dict_metadata, found.storage_data
    except ValueError:
        raise
    except Exception as error:  # whatever a damaged pickle raises
        raise ValueError(f".metadata cannot be read ({describe(error)})") from None
    if not isinstance(tensors, dict) or not isinstance(places, dict):
        raise ValueError(".metadata has no tables of tensors")
    return tensors, places


def _distributed(folder: Path, notes: list[str]) -> Iterator[Found]:
    tensors, places = _metadata(folder)
    by_place = {}
    for index, info in places.items():
        by_place[index.fqn, vars(index).get("offset")] = info
    _say_others(folder, {str(info.relative_path) for info in places.values()}, notes)
    others = Counter(type(entry).__name__ for entry in tensors.values())
    if others["BytesStorageMetadata"]:
        notes.append(no_tensors_text(others["BytesStorageMetadata"]))
    for name, entry in tensors.items():
        if type(entry).__name__ != "TensorStorageMetadata":
            continue
        shape = tuple(entry.size)
        check_shape(name, shape, 1)
        for chunk in entry.chunks:
            at, size = tuple(chunk.offsets), tuple(chunk.sizes)
            check_box(at, size, shape)
            info = by_place.get((name, at))
            if info is None:
                raise ValueError(f"{name}: the part at {list(at)} is in no file")
            # A job of many ranks has more files than may be open at once.
            with TensorFile(_inside(folder, info.relative_path)) as file:
                yield _stored_part(file, info, name, shape, at, size)


def _inside(folder: Path, name: object) -> str:
    if not isinstance(name, str) or os.path.isabs(name) or ".." in Path(name).parts:
        raise ValueError(f"{name!r} is not the name of a file in the folder")
    return str(folder / name)


def _stored_part(
    file: TensorFile, info: Any, name: str, shape: tuple[int, ...], at: tuple[int, ...],
    size: tuple[int, ...],
) -> Found:  # fmt: skip
    begin, length = int(info.offset), int(info.length)
    if not 0 <= begin <= begin + length <= file.nbytes:
        raise PassportError(f"{file.path}: {name}: bytes {begin} to {begin + length} are not in it")
    if vars(info).get("transform_descriptors"):
        raise PassportError(f"{file.path}: {name}: is packed ({info.transform_descriptors})")
    where = f"{file.path}: {name}"
    import torch

    with io.BufferedReader(_Slice(file, begin, length)) as data:
        tensor = _loaded(data, where)
    if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != size:
        raise PassportError(f"{where}: holds no tensor of shape {list(size)}")
    base = begin + _find_storage(tensor, name, file.path, length)
    return Found(name, shape, at, tensor.detach(), _HERE, "", file.reader(base, name))


class _Slice(io.RawIOBase):
    """Some bytes of a file as a file."""

    def __init__(self, file: TensorFile, begin: int, length: int) -> None:
        self._file, self._begin, self._length, self._at = file, begin, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._length - self._at))
        buffer[:count] = self._file.read_bytes(self._begin + self._at, count, "a part")
        self._at += count
        return count

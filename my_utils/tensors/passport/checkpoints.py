"""Reads checkpoints piece by piece: safetensors, files of torch.save, folders of
torch.distributed.checkpoint. Nothing that a file says is trusted, and nothing in it is executed."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...core.bounded_read import describe, read_whole
from ...core.checked_json import decoded
from ...core.extras import needs_torch
from ...core.plain_files import PlainFileError, check_archive, check_pickle
from ...core.printable import printable
from .builder import Builder, Found
from .file import GroupData, PassportData, PassportError, check_box, check_shape, read_passport
from .layouts import Layout
from .views import TensorFile, span_of
from .weights import Weights, merged

if TYPE_CHECKING:
    import torch
    from torch import Tensor

HEADER_BYTES_MAX = 100 << 20  # what the safetensors library reads
INDEX_BYTES_MAX = 1 << 28
METADATA_BYTES_MAX = 1 << 28
_HERE = GroupData()

_TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def read_weights(path: str, dtype: Any = None, layout: Layout | None = None) -> Weights:
    """What a path has: a checkpoint, a passport, or a folder or glob of the passports of all
    ranks. dtype: of torch; checkpoints are cast to it. OSError if it cannot be read, PassportError
    if it is neither."""
    files = _passports_at(path)
    if not files:
        return merged([read_checkpoint(path, dtype, layout)], path)
    passports = [read_passport(file) for file in files]
    if layout is not None:
        # Passports have no values, so that only names of whole tensors can change.
        for tensor in (tensor for data in passports for tensor in data.tensors):
            cuts = layout.cuts(tensor.name, tensor.shape)[1]
            if len(cuts) == 1 and cuts[0].shape == tensor.shape:
                tensor.name = cuts[0].name
    return merged(passports, path)


def _passports_at(path: str) -> list[str]:
    """The files of passports that a path means; none for a checkpoint."""
    import glob

    if os.path.isdir(path):
        if _checkpoint_in(Path(path)) is not None:
            return []
        found = sorted(glob.glob(os.path.join(glob.escape(path), "*.json")))
        if not found:
            raise PassportError(f"{path}: neither a checkpoint nor passports are in it")
        return found
    if os.path.lexists(path):
        is_json = path.endswith(".json") and not path.endswith(".index.json")
        return [path] if is_json else []
    return sorted(glob.glob(path)) or [path] if glob.has_magic(path) else []


def read_checkpoint(path: str, dtype: torch.dtype | None, layout: Layout | None) -> PassportData:
    """The passport of a checkpoint. OSError if it cannot be read, PassportError where something in
    it is wrong, which names the tensor."""
    read = _reader_of(path)
    with needs_torch("a checkpoint"):
        import torch  # noqa: F401
    builder = Builder(dtype, layout)
    try:
        for found in read(builder.notes):
            builder.add(found)
    except PassportError:
        raise
    except (ValueError, TypeError) as error:
        raise PassportError(f"{path}: {describe(error)}") from None
    return builder.finish(path, None, 0, 1)


Reader = Callable[[list[str]], Iterator[Found]]


def _reader_of(path: str) -> Reader:
    if os.path.isdir(path):
        found = _checkpoint_in(Path(path))
        if found is None:
            raise PassportError(f"{path}: no checkpoint is in it")
        return found
    if path.endswith(".index.json"):
        return lambda notes: _indexed(Path(path), notes)
    if path.endswith(".safetensors"):
        return lambda notes: _several([Path(path)], notes)
    if path.endswith(".metadata"):
        return lambda notes: _distributed(Path(path).parent, notes)
    if not path.endswith(_TORCH_FILES):
        os.stat(path)  # a missing file comes first
        known = ", ".join((".safetensors", ".index.json", *_TORCH_FILES))
        raise PassportError(f"{path}: no checkpoint by its name; known are {known} and folders")
    return lambda notes: _torch_file(path, notes)


def _checkpoint_in(folder: Path) -> Reader | None:
    if (folder / ".metadata").exists():
        return lambda notes: _distributed(folder, notes)
    for name in _INDEXES:
        if (folder / name).exists():
            return lambda notes: _indexed(folder / name, notes)
    for suffix in (".safetensors", *_TORCH_FILES):
        files = sorted(folder.glob(f"*{suffix}"))
        if files:
            return lambda notes: _several(files, notes)
    return None


# --- several files ---


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _indexed(path: Path, notes: list[str]) -> Iterator[Found]:
    """The tensors of an index, which must be where it says; others in its files are left out."""
    data, _ = read_whole(path, INDEX_BYTES_MAX, "an index")
    places = decoded(data, _Index).weight_map
    missing = dict(places)
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
                raise ValueError(f"{found.name} is in {first.name} and in {path.name}")
            yield found


def _one_file(path: Path, notes: list[str]) -> Iterator[Found]:
    is_safe = path.suffix == ".safetensors"
    return _safetensors(path) if is_safe else _torch_file(str(path), notes)


# --- safetensors ---


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_SAFE_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "F16": "float16", "BF16": "bfloat16", "U32": "uint32", "I32": "int32", "F32": "float32",
    "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip


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


def _offsets(entries: dict[str, msgspec.Raw]) -> dict[str, list[int]]:
    """Where parts of tensors begin, if torch.distributed.checkpoint wrote them."""
    metadata = entries.get("__metadata__")
    if metadata is None:
        return {}
    sharding = decoded(bytes(metadata), dict[str, str]).get("DCP_SHARDING_INFO")
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
            for name, at in _offsets(entries).items():
                size = _entry(file, name, entries[name]).shape
                ends = tuple(first + length for first, length in zip(at, size, strict=True))
                shapes[name] = tuple(map(max, shapes.get(name, ends), ends))
    return shapes


def _entry(file: TensorFile, name: str, raw: msgspec.Raw) -> _Entry:
    try:
        return decoded(bytes(raw), _Entry)
    except ValueError as error:
        raise PassportError(f"{file.path}: {name}: {describe(error)}") from None


def _safetensors(path: Path) -> Iterator[Found]:
    import torch

    with TensorFile(str(path)) as file:
        base, raw = _header(file)
        offsets = _offsets(raw)
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
            dtype = getattr(torch, _SAFE_DTYPES[entry.dtype])
            values = torch.empty(entry.shape, dtype=dtype, device="meta")
            at = tuple(offsets.get(name, [0] * len(entry.shape)))
            read = file.reader(base + begin, name)
            yield Found(name, entry.shape, at, values, _HERE, "", read)


def _check_entry(name: str, entry: _Entry, least: int, most: int) -> None:
    if entry.dtype not in _SAFE_DTYPES:
        raise ValueError(f"{name}: dtype {entry.dtype!r} is not known")
    import torch

    item = getattr(torch, _SAFE_DTYPES[entry.dtype]).itemsize
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
        values, others = _tensors_of(_loaded(file.file, path))
        if others:
            notes.append(f"{os.path.basename(path)}: {others} values that are no tensors")
        first: dict[tuple[object, ...], str] = {}
        for name, tensor in values:
            base = _base_of(tensor, name, path, file.nbytes)
            key = (base, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
            tied = first.setdefault(key, name)
            shape = tuple(tensor.shape)
            yield Found(
                name, shape, (0,) * len(shape), tensor.detach(), _HERE,
                "" if tied == name else tied, file.reader(base, name),
            )  # fmt: skip


def _loaded(file: Any, where: str) -> Any:
    """What torch.save wrote, with meta tensors that know where their values are in the file."""
    import torch

    try:
        check_archive(file, "file of torch.save", with_crc=False)
        file.seek(0)
        return torch.load(file, map_location="meta", weights_only=True)
    except PlainFileError as error:
        raise PassportError(f"{where}: {error}") from None
    except Exception as error:  # what its parser raises depends on where the damage is
        reason = printable(str(error).strip().partition("\n")[0][:300])
        raise PassportError(f"{where}: cannot be read as plain data ({reason})") from None


def _base_of(tensor: Tensor, name: str, where: str, file_bytes: int) -> int:
    """The first byte of its storage in the file."""
    base = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
    if base is None:
        raise PassportError(f"{where}: {name}: torch does not say where its values are")
    last = (tensor.storage_offset() + span_of(tensor)) * tensor.element_size()
    if last > tensor.untyped_storage().nbytes() or base + last > file_bytes:
        raise PassportError(f"{where}: {name}: its values are not in the file")
    return int(base)


def _tensors_of(values: Any, prefix: str = "") -> tuple[list[tuple[str, Tensor]], int]:
    """The tensors of nested mappings by name, and how many other values there are."""
    import torch

    if isinstance(values, torch.Tensor):
        return [(prefix, values)], 0
    if not isinstance(values, Mapping):
        return [], 1
    found: list[tuple[str, Tensor]] = []
    others = 0
    for key, value in values.items():
        inner, more = _tensors_of(value, f"{prefix}.{key}" if prefix else str(key))
        found += inner
        others += more
    return found, others


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
    others = Counter(type(entry).__name__ for entry in tensors.values())
    if others["BytesStorageMetadata"]:
        notes.append(f"{others['BytesStorageMetadata']} values that are no tensors")
    with contextlib.ExitStack() as stack:
        files: dict[str, TensorFile] = {}
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
                file = files.get(info.relative_path)
                if file is None:
                    path = _inside(folder, info.relative_path)
                    file = files[info.relative_path] = stack.enter_context(TensorFile(path))
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
    base = begin + _base_of(tensor, name, file.path, length)
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

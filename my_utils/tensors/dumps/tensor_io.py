"""Single tensors on disk by (dump_id, tag, rank), and their comparison with tensors in memory.

A file is safetensors with one tensor, `tensor`, and next to it the key and the combined digest of
content, dtype and shape; `.pt` files of the same name are read, too.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import string
import threading
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ... import _core
from ...core.aliases import renamed_parameters
from ...core.files import on_whole_path
from ...core.lazy_modules import lazy_module
from ...core.plain_files import check_archive
from ...core.public import public
from ...core.ranks import check_rank, current_rank
from ...core.reprs import short_repr
from ...core.warnings import warn_once
from ..dtypes import STORED, dtype_name
from ..tensor_kinds import resolve
from .blobs import Blobs, plain_tensor
from .config import path_text
from .files import open_plain, read_header, read_index, read_into_memory
from .form import OF_VERSION_1, DumpError, key_name, parse_json
from .tensors import torch_from

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_module("torch")


ROOT_VARIABLE = "WAN_DPO_PREVAE_TENSOR_DIR"
REPORT_VARIABLE = "WAN_DPO_PREVAE_COMPARE_FILE"
FORMAT = "my_utils.tensor"
VERSION = "2"
_FIELDS = ("dump_id", "tag", "rank")


@public("my_utils.dump_utils")
class DumpTensorIO:
    """Keeps tensors by `(dump_id, tag, rank)`, and compares others with them.

    root_dir: the folder of the files, `<dump_id>/<tag>/rank_<rank>.safetensors`. By default the
        environment variable WAN_DPO_PREVAE_TENSOR_DIR; where that is not set, `dump` and `compare`
        do nothing and return None.
    compare_file: path of the report, to which `compare` appends a line of JSON. The fields
        `{dump_id}`, `{tag}` and `{rank}` in it are filled in. By default the environment variable
        WAN_DPO_PREVAE_COMPARE_FILE; where that is not set, no file is written.
    strict: raise instead of one warning, and a count in `failed`.

    If a call does not pass the rank, it is that of `GlobalLogger`, of torch.distributed or of
    `RANK`. Thread-safe; ranks may share the folder and the report.

    >>> import tempfile, torch
    >>> tensors = DumpTensorIO(tempfile.mkdtemp())
    >>> path = tensors.dump(torch.arange(6.0), dump_id=7, tag="latent")
    >>> tensors.load(7, "latent")
    tensor([0., 1., 2., 3., 4., 5.])
    >>> report = tensors.compare(torch.arange(6.0) + 1e-9, 7, "latent")
    >>> report["status"], report["mismatches"]
    ('close', 0)
    """

    @renamed_parameters(
        {
            "tensor_dir_env": (ROOT_VARIABLE, "root_dir=os.environ[name] reads another variable"),
            "default_tensor_dir": (None, f"root_dir=os.environ.get({ROOT_VARIABLE!r}, folder)"),
        }
    )
    def __init__(
        self,
        root_dir: str | os.PathLike[str] | None = None,
        *,
        compare_file: str | os.PathLike[str] | None = None,
        strict: bool = False,
    ) -> None:
        self.root_dir = _path_or_variable("root_dir", root_dir, ROOT_VARIABLE)
        self.compare_file = _path_or_variable("compare_file", compare_file, REPORT_VARIABLE)
        if self.compare_file is not None:
            _check_template(self.compare_file)
        self.strict = strict
        self.failed = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return short_repr(self, "root_dir", "compare_file", "strict")

    @property
    def enabled(self) -> bool:
        """Whether there is a folder to write to."""
        return self.root_dir is not None

    def path(self, dump_id: object, tag: object, rank: int | None = None) -> str:
        """The file of a key. Raises ValueError if there is no root_dir."""
        if self.root_dir is None:
            raise ValueError(f"root_dir must be given, or {ROOT_VARIABLE} be set")
        name = f"rank_{_rank(rank)}.safetensors"
        return os.path.join(self.root_dir, key_name(dump_id), key_name(tag), name)

    tensor_path = path

    def dump(
        self, tensor: torch.Tensor, dump_id: object, tag: object, rank: int | None = None
    ) -> str | None:
        """Writes the tensor, in place of an older one with the same key; returns the file.

        None if there is no root_dir, or the file could not be written. The file is written
        under another name and then renamed, so that readers find the old one or the new one.
        """
        _check_tensor(tensor)
        if self.root_dir is None:
            return None
        path = self.path(dump_id, tag, rank)
        try:
            _write(path, tensor, {"dump_id": str(dump_id), "tag": str(tag)})
        except Exception as error:  # safetensors and torch have their own kinds
            self._fail(f"{path} could not be written: {error}")
            if self.strict:
                raise
            return None
        return path

    def load(
        self, dump_id: object, tag: object, rank: int | None = None, *, verify: bool = True
    ) -> torch.Tensor:
        """The tensor of a key, on the CPU.

        Where there is a file `.pt` and no `.safetensors`, that is read, by `torch.load` with
        weights_only=True; it has no digest.

        Raises:
            DumpError: the file is truncated, changed, a link, or of another kind.
            FileNotFoundError: there is none.
        """
        path = self.path(dump_id, tag, rank)
        old = path.removesuffix("safetensors") + "pt"
        if not os.path.lexists(path) and os.path.lexists(old):
            return _read_pt(old)
        return _read(path, verify=verify)

    @renamed_parameters({"map_location": ("cpu", "result.to(device) moves it")})
    def load_tensors(
        self, dump_id: object, tag: object, rank: int | None = None
    ) -> torch.Tensor | None:
        """As `load`, but None if there is no such file."""
        try:
            return self.load(dump_id, tag, rank)
        except FileNotFoundError:
            return None

    def compare(
        self,
        tensor: torch.Tensor,
        dump_id: object,
        tag: object,
        rank: int | None = None,
        *,
        atol: float | None = None,
        rtol: float | None = None,
        equal_nan: bool = False,
        max_mismatches: int = 10,
    ) -> dict[str, Any] | None:
        """Compares a tensor with the dumped one; returns the line of the report.

        atol, rtol: None means those of `torch.testing.assert_close` for the dtypes.

        The keys, to which later versions only add:

        - `time`, `dump_id`, `tag`, `rank`, `file`
        - `status`: "same" (bit for bit), "close" (within the tolerance), "different", "shape"
          (of another shape), "missing" (nothing was dumped), "error" (with `reason`)
        - `shape`, `dtype`, `expected_shape`, `expected_dtype`; of a DTensor the local shard's, None
          for a tensor that has no shape, such as a nested one
        - the figures of `my_utils.tensors.compare`, the dumped tensor being its `b`: `elements`,
          `mismatches`, `max_abs`, `max_abs_index`, `max_rel`, `max_rel_index`, `cosine`,
          `sqnr_db`, `sign_differences`, `nan_disagreements`, `inf_disagreements`, `atol`, `rtol`,
          `equal_nan`, and `first`: the first mismatches as index, value, expected value

        Numbers that JSON lacks are the texts "nan", "inf" and "-inf". None if there is no root_dir.
        """
        _check_tensor(tensor)
        if self.root_dir is None:
            return None
        options = {"atol": atol, "rtol": rtol, "equal_nan": equal_nan}
        line = self._about(tensor, dump_id, tag, rank)
        try:
            tensor = resolve(tensor, "tensor")  # as `dump` does
            line["shape"] = list(tensor.shape)
            expected = resolve(self.load(dump_id, tag, rank), "the dumped tensor")
        except FileNotFoundError:
            line["status"] = "missing"
        except (DumpError, OSError, TypeError) as error:
            line |= {"status": "error", "reason": str(error)}
            self._fail(f"the comparison with {line['file']} failed: {error}")
            if self.strict:
                raise
        else:
            line |= {
                "expected_shape": list(expected.shape),
                "expected_dtype": dtype_name(expected.dtype),
            }
            line |= _figures(tensor, expected, max_mismatches, options)
        self._append(line)
        return line

    def compare_tensors(
        self,
        expected: torch.Tensor | None,
        actual: torch.Tensor,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> dict[str, Any]:
        """The `status` and the figures of `compare` for two tensors at hand, without a line in the
        report. If `expected` is None, as `load_tensors` may return it, the status is "missing"."""
        _check_tensor(actual)
        if expected is None:
            return {"status": "missing"}
        _check_tensor(expected)
        actual, expected = resolve(actual, "actual"), resolve(expected, "expected")
        return _figures(actual, expected, 10, {"atol": atol, "rtol": rtol, "equal_nan": False})

    def write_compare_result(self, record: Mapping[str, Any], rank: int | None = None) -> None:
        """Appends a record, a mapping that JSON can hold, to the report as a line.

        If compare_file has the fields `{dump_id}` or `{tag}`, the record must have these keys.
        """
        self._append({"rank": _rank(rank), **record})

    def _about(
        self, tensor: torch.Tensor, dump_id: object, tag: object, rank: int | None
    ) -> dict[str, Any]:
        return {
            "time": datetime.datetime.now(datetime.UTC).isoformat(),
            "dump_id": dump_id if type(dump_id) is int else str(dump_id),
            "tag": str(tag),
            "rank": _rank(rank),
            "file": self.path(dump_id, tag, rank),
            "status": "",
            "shape": _shape(tensor),
            "dtype": dtype_name(tensor.dtype),
        }

    def _append(self, line: dict[str, Any]) -> None:
        """One write at the end of the file, so that lines of several processes do not mix."""
        if self.compare_file is None:
            return
        keys = {name: key_name(line[name]) for name in _FIELDS if name in line}
        path = self.compare_file.format(**keys)
        text = json.dumps(line, allow_nan=False) + "\n"
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "ab", buffering=0) as file:
                file.write(text.encode("ascii"))
        except OSError as error:
            self._fail(f"the report {path} could not be written: {error}")
            if self.strict:
                raise

    def _fail(self, message: str) -> None:
        with self._lock:
            self.failed += 1
        warn_once("tensor dump", message)


def _path_or_variable(name: str, value: object, variable: str) -> str | None:
    return os.environ.get(variable) or None if value is None else path_text(name, value)


def _check_template(text: str) -> None:
    allowed = ", ".join(f"{{{name}}}" for name in _FIELDS)
    try:
        fields = [part[1:] for part in string.Formatter().parse(text) if part[1] is not None]
    except ValueError as error:
        raise ValueError(f"compare_file must be a path with {allowed} in it: {error}") from None
    if any(name not in _FIELDS or spec or how for name, spec, how in fields):
        raise ValueError(f"compare_file may have the fields {allowed}, not {text!r}")


def _check_tensor(tensor: object) -> None:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor must be a torch.Tensor, not {type(tensor).__name__}")


def _rank(rank: int | None) -> int:
    return current_rank() if rank is None else check_rank("rank", rank)


def _shape(tensor: torch.Tensor) -> list[int] | None:
    try:
        return [int(size) for size in tensor.shape]
    except Exception:  # torch has several kinds for nested and lazy tensors
        return None


# --- files ---


def _write(path: str, tensor: torch.Tensor, about: dict[str, str]) -> None:
    try:
        tensor = resolve(tensor, "tensor")
    except TypeError as error:
        raise DumpError(path, str(error)) from None
    stored = plain_tensor(tensor)
    if stored is None:
        raise DumpError(path, f"elements of type {tensor.dtype} cannot be stored")
    blobs = Blobs(copy=False)
    blobs.add_tensor("tensor", tensor.resolve_conj().resolve_neg(), stored)
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    found = _core.tensor_hash(blobs.sources)[0]
    shape = json.dumps(list(tensor.shape))
    about |= {"format": FORMAT, "version": VERSION, "dtype": found.dtype, "shape": shape}
    about["digest"] = found.combined
    # What the folder lets others do, except for entering it.
    mode = os.stat(folder).st_mode & 0o666
    with on_whole_path(path, mode) as unfinished, open(unfinished, "wb") as file:
        blobs.write(file, about)


def _read(path: str, *, verify: bool) -> torch.Tensor:
    import torch

    with open_plain(path) as file:
        header, size = read_header(file.fileno(), None, path)
        index = read_index(header[8:], size - len(header), path)
        about = parse_json(header[8:], path).get("__metadata__")
        if (
            not isinstance(about, dict)
            or about.get("format") != FORMAT
            or list(index) != ["tensor"]
        ):
            raise DumpError(path, "was not written by DumpTensorIO")
        if about.get("version") == "1":
            raise DumpError(path, OF_VERSION_1)
        shape = parse_json(str(about.get("shape")).encode(), path)
        stored = STORED.get(str(about.get("dtype")))
        entry = index["tensor"]
        if not isinstance(shape, list) or any(type(size) is not int for size in shape):
            raise DumpError(path, "has no shape")
        if stored is None or entry.code != stored.code:
            raise DumpError(path, f"holds {entry.code}, not {about.get('dtype')}")
        if entry.shape != (*shape, stored.last)[: None if stored.last else -1]:
            raise DumpError(path, f"has a shape {list(entry.shape)}, not {shape}")
        blob = read_into_memory(file, index, len(header), path)["tensor"]
    result: torch.Tensor = torch_from(blob, getattr(torch, about["dtype"]), tuple(shape))
    if verify and _core.tensor_hash(result).combined != about.get("digest"):
        raise DumpError(path, "does not match its digest: it was changed")
    return result


def _read_pt(path: str) -> torch.Tensor:
    import torch

    with open_plain(path) as file:
        try:
            if zipfile.is_zipfile(file):  # else of the older form, which is one pickle
                check_archive(file, "tensor")
            file.seek(0)
            found = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # the reader has no one kind for what is wrong
            reason = str(error).partition("\n")[0]
            raise DumpError(path, f"cannot be read: {type(error).__name__}: {reason}") from error
    if not isinstance(found, torch.Tensor):
        raise DumpError(path, f"holds {type(found).__name__}, no tensor")
    return found


# --- the report ---


def _figures(
    tensor: torch.Tensor, expected: torch.Tensor, max_mismatches: int, options: dict[str, Any]
) -> dict[str, Any]:
    if tensor.shape != expected.shape:
        return {"status": "shape"}
    diff = _core.compare(tensor, expected, max_mismatches=max_mismatches, **options)
    names = (
        "elements", "mismatches", "max_abs", "max_abs_index", "max_rel", "max_rel_index", "cosine",
        "sqnr_db", "sign_differences", "nan_disagreements", "inf_disagreements", "atol", "rtol",
    )  # fmt: skip
    figures = {name: _plain(getattr(diff, name)) for name in names}
    figures["first"] = [
        {"index": list(index), "value": _plain(value), "expected": _plain(wanted)}
        for index, value, wanted in diff.first
    ]
    status = "same" if diff.equal_bits else "different" if diff.mismatches else "close"
    return {"status": status, **figures, "equal_nan": options["equal_nan"]}


def _plain(value: Any) -> Any:
    """A value for JSON: NaN, infinities and complex numbers as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    return list(value) if isinstance(value, tuple) else value

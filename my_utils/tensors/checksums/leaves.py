"""Lists the contents of a payload by name, with a hash of each sample."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ... import _core
from ...core.warnings import warn_once
from ..tensor_kinds import resolve

KEY = "__my_utils_checksums__"
NAME_BYTES = 32
DIGEST_BYTES = 16
_NOT_IN_NAMES = frozenset(".[\0")  # what parts names, and what ends them
# How a leaf was hashed, the first letter of its name: a digest a sample, or one for all samples.
ROWS, WHOLE = b"r", b"w"

Digest = bytes  # DIGEST_BYTES of them
Leaves = dict[bytes, list[Digest]]  # by encoded name
Signed = dict[bytes, list[Digest | None]]  # the same of a batch's samples; None: damaged

# --- kinds of values -------------------------------------------------------------------------


def is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_plain_tensor(value: Any) -> bool:
    """Whether it is a tensor of no other class, with strides: most leaves are."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and type(value) is torch.Tensor
        and value.layout is torch.strided
        and not value.is_nested
    )


def is_tensordict(value: object) -> bool:
    tensordict = sys.modules.get("tensordict")
    return tensordict is not None and isinstance(value, tensordict.TensorDictBase)


def is_array(value: object) -> bool:
    """Whether it is a tensor, or a numpy array of anything but objects."""
    return is_tensor(value) or (_is_ndarray(value) and not _is_object_array(value))


def is_container(value: object) -> bool:
    if isinstance(value, (Mapping, list, tuple)) or is_tensordict(value):
        return True
    return _is_object_array(value)


def _is_ndarray(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_object_array(value: Any) -> bool:
    return _is_ndarray(value) and value.dtype == object and value.ndim > 0


def is_signature_item(item: object) -> bool:
    """Whether it is what a list or tuple has as its checksums."""
    return isinstance(item, Mapping) and len(item) == 1 and KEY in item


def local_part(value: Any) -> Any:
    """Of a DTensor the local shard, which is what is signed; anything else as it is."""
    return value.to_local() if is_tensor(value) and hasattr(value, "to_local") else value


def length(value: Any) -> int | None:
    """The size of dim 0, of a DTensor in this process; None for a value without it."""
    if is_plain_tensor(value):
        return int(value.shape[0]) if value.ndim > 0 else None
    value = local_part(value)
    if is_tensor(value) and (value.is_nested or str(value.layout) != "torch.strided"):
        return None
    if is_array(value):
        return int(value.shape[0]) if value.ndim > 0 else None
    if isinstance(value, (list, tuple)) or _is_object_array(value):
        return len(value)
    return None


def items(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The names and the values in a container; the checksums are not among them."""
    if isinstance(value, Mapping) or is_tensordict(value):
        for key in value.keys():  # noqa: SIM118 - iterating over a TensorDict gives its rows
            if key != KEY:
                yield name_within(prefix, key), value[key]
    else:
        for index, item in enumerate(value):
            if not is_signature_item(item):
                yield f"{prefix}[{index}]", item


def on_cpu(value: Any) -> Any:
    """The array or tensor where numpy can read it: of a DTensor the local shard. What cannot be
    read stays as it is."""
    if not is_tensor(value):
        return value
    if type(value) is sys.modules["torch"].Tensor and value.is_cpu:
        return value.detach()
    try:
        return resolve(value, "value").cpu()
    except TypeError:
        return value


# --- names -----------------------------------------------------------------------------------


def name_within(prefix: str, key: object) -> str:
    """The name of what a mapping has under a key, of that key alone: what could be read as two
    keys, or as another one, is in brackets, as "['a.b']", "[1]" and "['1']" do not clash."""
    if not isinstance(key, str) or not key or not _NOT_IN_NAMES.isdisjoint(key):
        return f"{prefix}[{key!r}]"
    return f"{prefix}.{key}" if prefix else key


def encode(kind: bytes, name: str) -> bytes:
    """The name in 32 bytes: a long one by a hash of all of it and its end."""
    text = kind + name.encode("utf-8", "surrogatepass")
    if len(text) > NAME_BYTES:
        mark = _core.tensor_hash(text).content[:8].encode()
        text = kind + mark + text[len(kind + mark) - NAME_BYTES :]
    return text.ljust(NAME_BYTES, b"\0")


def decode(name: bytes) -> str:
    return name[len(ROWS) :].rstrip(b"\0").decode("utf-8", "replace")


# --- digests ---------------------------------------------------------------------------------


def whole_digests(value: Any, name: str) -> list[Digest] | None:
    """The tensor hash of a value; None, with a warning, if it is nothing to read."""
    return _hash_values([whole_of(value)], name)


def sample_digests(value: Any, name: str) -> list[Digest] | None:
    """The tensor hash of each sample of an array, a tensor, a list or a tuple; None, with a
    warning, if one of them is nothing to read."""
    if not is_plain_tensor(value):
        if len(value) == 0:
            return []
        if not is_array(value):
            return _hash_values([whole_of(item) for item in value], name)
        if not is_tensor(value):
            value = _native(value)
            if value.dtype.kind in "USMm":
                # [i] of one dimension is not an array.
                return _hash_values([_elements_of(value[i, ...]) for i in range(len(value))], name)
    try:
        return split_digests(_core.row_hashes(value))
    except TypeError as error:
        _leave_alone(name, error)
        return None


def split_digests(digests: bytes) -> list[Digest]:
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]


def _hash_values(values: list[Any], name: str) -> list[Digest] | None:
    if any(value is None for value in values):
        return None
    try:
        found = _core.tensor_hash(values)
    except TypeError as error:
        _leave_alone(name, error)
        return None
    return [bytes.fromhex(digest.combined) for digest in found]


def _leave_alone(name: str, error: TypeError) -> None:
    warn_once("checksum", f"ChecksumUtils leaves the key {name!r} alone: {error}")


def _native(value: Any) -> Any:
    """Pickling changes the byte order of an array, so it is read in that of this machine."""
    return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))


def _elements_of(value: Any) -> Any:
    """What tensor_hash reads of an array or a tensor: of texts, bytes and dates, for which torch
    has no types, the bytes behind dtype and shape."""
    if is_tensor(value):
        return on_cpu(value)
    value = _native(value)
    if value.dtype.kind not in "USMm":
        return value
    return f"{value.dtype.str} {value.shape}\0".encode() + value.tobytes()


def whole_of(value: Any) -> Any:
    """What tensor_hash reads of a value: of a container the digests of all that is in it, of an
    object that is left alone None."""
    if not is_container(value):
        return _readable(value)
    leaves: Leaves = {}
    for name, item in items(value):
        _add(leaves, ROWS, name, whole_digests(item, name))
    return b"".join(name + digests[0] for name, digests in sorted(leaves.items()))


def _readable(value: Any) -> Any:
    """Numbers become what default_collate makes of them."""
    import numpy as np

    if is_array(value):
        return _elements_of(value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray)):
        return value
    if isinstance(value, (bool, float, complex, np.generic)):
        return _elements_of(np.asarray(value))
    if isinstance(value, int):
        return np.asarray(value, np.int64) if -(2**63) <= value < 2**63 else str(value).encode()
    return None


def _add(leaves: Leaves, kind: bytes, name: str, digests: list[Digest] | None) -> None:
    if digests is None:
        return
    encoded = encode(kind, name)
    if encoded in leaves:  # of keys that are not equal and have one repr
        warn_once("checksum_name", f"ChecksumUtils signs one of several keys named {name!r} only")
    leaves[encoded] = digests


# --- the leaves of a payload -----------------------------------------------------------------


def batch_size(payload: Any) -> int | None:
    """How many samples there are: the first dimension that most arrays have, else the length of
    most lists of texts and numbers. None if there are neither."""
    if is_tensordict(payload) and payload.batch_dims > 0:
        return int(payload.batch_size[0])
    for sizes in (_array_sizes, _list_sizes):
        counts = Counter(sizes(payload))
        if counts:
            return max(counts, key=lambda size: (size > 0, counts[size]))
    return None


def _array_sizes(value: Any) -> Iterator[int]:
    if is_plain_tensor(value):
        if value.ndim > 0:
            yield int(value.shape[0])
    elif is_container(value):
        for _, item in items(value):
            yield from _array_sizes(item)
    elif is_array(value):
        size = length(value)
        if size is not None:
            yield size


def _list_sizes(value: Any) -> Iterator[int]:
    if not is_container(value):
        return
    size = length(value)
    if size is not None and not any(is_container(item) for item in value):
        yield size
    for _, item in items(value):
        yield from _list_sizes(item)


def add_leaves(value: Any, name: str, size: int | None, leaves: Leaves) -> None:
    """Adds what a batch of `size` samples has under this name; None: one sample, which is not in a
    batch yet."""
    is_rows = size is not None and length(value) == size
    is_nested = not is_plain_tensor(value) and is_container(value)
    if is_nested and (size is None or not is_rows or size in _array_sizes(value)):
        for inner, item in items(value, name):
            add_leaves(item, inner, size, leaves)
    elif is_rows:  # a list may have an item a sample
        _add(leaves, ROWS, name, sample_digests(value, name))
    else:
        kind = ROWS if size is None else WHOLE
        _add(leaves, kind, name, whole_digests(value, name))


class Arrived:
    """The leaves of a batch that has arrived, hashed as those were that were signed."""

    def __init__(self, batch: Any, signed: Signed, size: int, single: bool) -> None:
        """single: the batch is one sample."""
        self.leaves: Leaves = {}
        self.wrong_lengths: dict[bytes, int | None] = {}
        self._values: dict[bytes, tuple[Any, bool]] = {}  # and whether an item is a sample
        self._signed = signed
        self._size = size
        self._single = single
        for name, value in items(batch):
            self._walk(value, name)

    def _walk(self, value: Any, name: str) -> None:
        rows, whole = encode(ROWS, name), encode(WHOLE, name)
        is_batch = not self._single and length(value) == self._size
        if whole in self._signed:  # for all samples at once
            self._hash(whole, value, by_sample=False)
            if is_batch and self.leaves[whole][0] not in self._signed[whole]:
                self._hash(whole, value, by_sample=True)  # stacking has made one a sample of it
        elif rows in self._signed and (is_batch or self._single):
            self._hash(rows, value, by_sample=is_batch)
        elif rows in self._signed:
            self.wrong_lengths[rows] = length(value)
        elif is_container(value):
            for inner, item in items(value, name):
                self._walk(item, inner)
            for inner, values in self._turned(value, name):
                self._walk(values, inner)

    def _turned(self, value: Any, name: str) -> Iterator[tuple[str, list[Any]]]:
        """Of a list of mappings, one a sample, each key with its values: samples that were signed
        one by one and then put into a list."""
        if self._single or length(value) != self._size or self._size == 0:
            return
        if all(isinstance(item, Mapping) for item in value):
            for key in value[0].keys():  # noqa: SIM118 - see `items`
                if all(key in item.keys() for item in value):  # noqa: SIM118
                    yield name_within(name, key), [item[key] for item in value]

    def _hash(self, name: bytes, value: Any, *, by_sample: bool) -> None:
        digests = (sample_digests if by_sample else whole_digests)(value, decode(name))
        if digests is None:
            digests = [b""] * (len(value) if by_sample else 1)
        self.leaves[name] = digests
        self._values[name] = value, by_sample

    def kind_of(self, name: bytes, sample: int) -> str:
        """What arrived of a sample under a name, in words."""
        value, by_sample = self._values[name]
        value = local_part(value)
        if by_sample:
            value = value[sample, ...] if is_array(value) else value[sample]
        if is_array(value):
            dtype = str(value.dtype).removeprefix("torch.")
            return f"{dtype} of shape {tuple(value.shape)}"
        count = length(value)
        return type(value).__name__ + ("" if count is None else f" of {count}")

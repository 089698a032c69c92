"""What is read beside torch tensors: buffers, numpy arrays, objects with __dlpack__."""

from __future__ import annotations

import array
import ctypes
import mmap
import struct
from collections.abc import Callable
from typing import Any

import pytest

from my_utils import _core
from my_utils.tensors import tensor_hash

from ..conftest import RunPython
from ..support import tensor_hash_oracle as oracle

pytestmark = [pytest.mark.c_code, pytest.mark.no_torch]

WRONG_KIND = "tensors must be a torch tensor, or an object with the buffer protocol or __dlpack__"


def check(x: Any, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
    digest = tensor_hash(x)
    assert (digest.dtype, digest.shape) == (dtype, shape)
    assert digest.content == oracle.to_hex(oracle.content(data))


@pytest.fixture(scope="module")
def np() -> Any:
    return pytest.importorskip("numpy", reason="numpy is not installed")


# --- the standard library ---


def test_bytes() -> None:
    check(b"abcd", "uint8", (4,), b"abcd")
    check(bytearray(b"abc"), "uint8", (3,), b"abc")
    check(b"", "uint8", (0,), b"")


def test_memoryview() -> None:
    data = bytes(range(8))
    check(memoryview(data)[::-2], "uint8", (4,), data[::-2])
    check(memoryview(data).cast("f"), "float32", (2,), data)
    check(memoryview(data).cast("B", (2, 4)), "uint8", (2, 4), data)
    check(memoryview(data).cast("d", ()), "float64", (), data)
    check(memoryview(data).cast("c"), "uint8", (8,), data)


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        ("b", "int8"),
        ("B", "uint8"),
        ("h", "int16"),
        ("H", "uint16"),
        ("i", "int32"),
        ("I", "uint32"),
        ("l", "int64"),
        ("L", "uint64"),
        ("q", "int64"),
        ("Q", "uint64"),
        ("f", "float32"),
        ("d", "float64"),
    ],
)
def test_array(code: str, dtype: str) -> None:
    values = array.array(code, [1, 2, 3])
    check(values, dtype, (3,), values.tobytes())


def test_ctypes() -> None:
    check((ctypes.c_float * 3)(1, 2, 3), "float32", (3,), struct.pack("3f", 1, 2, 3))
    check(((ctypes.c_int * 3) * 2)(), "int32", (2, 3), bytes(24))
    check((ctypes.c_bool * 2)(True, False), "bool", (2,), b"\1\0")
    check(ctypes.c_double(3), "float64", (), struct.pack("d", 3))


def test_mmap() -> None:
    with mmap.mmap(-1, 64) as mapped:
        mapped[:3] = b"abc"
        check(mapped, "uint8", (64,), b"abc" + bytes(61))


def test_a_buffer_is_let_go() -> None:
    data = bytearray(b"abc")
    tensor_hash(data)
    data.append(1)  # BufferError while somebody holds it


class Structure(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int),)


@pytest.mark.parametrize(
    "wrong",
    [
        Structure(),
        (ctypes.c_int.__ctype_be__ * 2)(),
        memoryview(bytes(8)).cast("P"),
        (ctypes.c_wchar * 2)(),
    ],
    ids=["structure", "big-endian", "pointer", "wchar"],
)
def test_elements_that_torch_has_not(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"tensors has elements of the format '.*', which is none"):
        tensor_hash(wrong)


def test_a_released_memoryview() -> None:
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(TypeError, match="tensors is a memoryview whose memory cannot be read"):
        tensor_hash(view)


@pytest.mark.parametrize("wrong", [3, None, "abc", 2.5, {}, object(), iter([]), int, {b"a"}])
def test_other_objects(wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"{WRONG_KIND}, not {type(wrong).__name__}"):
        tensor_hash(wrong)


def test_lists() -> None:
    digests = tensor_hash([b"ab", (ctypes.c_int * 1)(), bytearray()])
    assert [digest.dtype for digest in digests] == ["uint8", "int32", "uint8"]
    assert tensor_hash((b"ab",)) == [tensor_hash(b"ab")]
    assert tensor_hash([]) == tensor_hash(()) == []
    with pytest.raises(TypeError, match=f"{WRONG_KIND}, not list"):
        tensor_hash([[b"ab"]])


def test_a_bad_item_lets_the_others_go() -> None:
    data = bytearray(b"abc")
    with pytest.raises(TypeError):
        tensor_hash([data, 3])
    data.append(1)


def test_a_list_that_shrinks_while_it_is_read() -> None:
    items: list[Any] = []

    class Shrinks:
        def __dlpack__(self, **options: Any) -> Any:
            items.clear()
            raise BufferError("nothing here")

    items += [b"ab", Shrinks(), b"cd"]
    with pytest.raises(BufferError):
        tensor_hash(items)


# --- numpy ---


@pytest.mark.parametrize("code", "?bBhHiIlLqQefdFD")
def test_numpy_types(np: Any, code: str) -> None:
    x = np.arange(6).astype(code)
    check(x, x.dtype.name, (6,), x.tobytes())


def test_numpy_layouts(np: Any) -> None:
    base = np.arange(24, dtype="i4").reshape(2, 3, 4)
    locked = base.copy()
    locked.flags.writeable = False
    layouts = [
        locked,
        base[::-1, :, ::-2],
        base.T,
        np.asfortranarray(base),
        np.broadcast_to(np.int32(7), (2, 3)),
        base[:, 1:1],
        np.array(5, dtype="i4"),
        np.int32(5),
        np.frombuffer(bytes(range(13)), dtype="i4", offset=1),
        np.zeros(3, dtype=[("flag", "i1"), ("value", "i4")])["value"],
        base.astype(">i4").astype("i4"),
    ]
    for x in layouts:
        check(x, "int32", x.shape, np.ascontiguousarray(x).tobytes())
    check(np.zeros(3, dtype=">u1"), "uint8", (3,), bytes(3))
    check(np.float16(3), "float16", (), np.float16(3).tobytes())


@pytest.mark.parametrize(
    "make",
    [
        lambda np: np.zeros(2, dtype=np.longdouble),
        lambda np: np.zeros(2, dtype=np.clongdouble),
        lambda np: np.zeros(2, dtype=">i4"),
        lambda np: np.zeros(2, dtype=">f8"),
        lambda np: np.zeros(2, dtype=[("a", "i4"), ("b", "f4")]),
        lambda np: np.zeros(0, dtype=[("a", "i4")]),
        lambda np: np.zeros(2, dtype="V4"),
        lambda np: np.array([b"ab"]),
        lambda np: np.array(["ab"]),
        lambda np: np.array([object()]),
    ],
)
def test_numpy_types_that_torch_has_not(np: Any, make: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="tensors has elements of the format"):
        tensor_hash(make(np))


@pytest.mark.parametrize("code", ["M8[s]", "m8[ns]"])
def test_numpy_times(np: Any, code: str) -> None:
    with pytest.raises(TypeError, match=r"tensors is a numpy.ndarray whose memory cannot be read"):
        tensor_hash(np.zeros(2, dtype=code))


# --- __dlpack__ ---


class OnlyDlpack:
    """An object that has nothing else to show."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)


class OldDlpack(OnlyDlpack):
    """From before DLPack 1: knows no max_version."""

    def __dlpack__(self) -> Any:  # type: ignore[override]
        return self.x.__dlpack__()


@pytest.mark.parametrize("wrapper", [OnlyDlpack, OldDlpack])
def test_dlpack(np: Any, wrapper: type[OnlyDlpack]) -> None:
    x = np.arange(6, dtype="f4").reshape(2, 3)
    for part in (x, x.T, x[:, ::2], x[:0], x[0, 0, ...]):
        check(wrapper(part), "float32", part.shape, np.ascontiguousarray(part).tobytes())


def test_dlpack_keeps_the_memory_as_long_as_needed(np: Any) -> None:
    class Temporary:
        def __dlpack__(self, **options: Any) -> Any:
            return np.full(100_000, 3, dtype="i4").__dlpack__(**options)

    want = tensor_hash(np.full(100_000, 3, dtype="i4"))
    assert tensor_hash([Temporary() for _ in range(5)]) == [want] * 5


def test_dlpack_without_a_capsule() -> None:
    class Wrong:
        def __dlpack__(self, **options: Any) -> Any:
            return 3

    with pytest.raises(TypeError, match="whose capsule is not of DLPack 0 or 1"):
        tensor_hash(Wrong())


def test_a_dlpack_capsule_that_somebody_took(np: Any) -> None:
    capsule = np.arange(3).__dlpack__()

    class Twice:
        def __dlpack__(self, **options: Any) -> Any:
            return capsule

    name = ctypes.c_char_p(b"used_dltensor")
    set_name = ctypes.pythonapi.PyCapsule_SetName
    set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
    set_name(capsule, name)
    with pytest.raises(TypeError, match="whose capsule is not of DLPack 0 or 1"):
        tensor_hash(Twice())
    set_name(capsule, b"dltensor")


class _Tensor(ctypes.Structure):
    """Four bytes on GPU 0, as DLPack lays a tensor out, and who gives them back: nobody."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


def test_what_lies_on_a_gpu_and_is_not_torchs_is_refused() -> None:
    """Only torch's tensors can be copied from there; the error says how to make one."""
    shape = (ctypes.c_int64 * 1)(4)
    memory = ctypes.create_string_buffer(4)
    cuda, unsigned = 2, 1
    tensor = _Tensor(ctypes.addressof(memory), cuda, 0, 1, unsigned, 8, 1, ctypes.addressof(shape))
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    class OnGpu:
        def __dlpack__(self, **options: Any) -> Any:
            return new_capsule(ctypes.addressof(tensor), b"dltensor", None)

    with pytest.raises(TypeError, match=r"must be torch's .* pass torch.from_dlpack\(x\)"):
        _core.md5(OnGpu())


def test_a_table_of_dlpack_without_views(run_python: RunPython) -> None:
    """torch's table of functions may lack some: its tensors are asked for capsules then."""
    pytest.importorskip("torch", reason="torch is not installed")
    done = run_python(
        "-c",
        """
import ctypes
import torch
class Table(ctypes.Structure):
    # The version, an older table, and functions, of which the last two are what is asked for.
    _fields_ = [("version", ctypes.c_uint32 * 2), ("older", ctypes.c_void_p),
                ("others", ctypes.c_void_p * 3), ("view", ctypes.c_void_p),
                ("stream", ctypes.c_void_p)]
python = ctypes.pythonapi
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
name = b"dlpack_exchange_api"
whole = python.PyCapsule_GetPointer(torch.Tensor.__dlpack_c_exchange_api__, name)
table = Table.from_buffer_copy((ctypes.c_char * ctypes.sizeof(Table)).from_address(whole))
assert table.view and table.stream
table.view = table.stream = None
torch.Tensor.__dlpack_c_exchange_api__ = python.PyCapsule_New(ctypes.addressof(table), name, None)
from my_utils import _core
x = torch.arange(6.0).reshape(2, 3).T
assert _core.tensor_hash(x) == _core.tensor_hash(x.numpy())
assert _core.md5([x]) == _core.md5([x.numpy()])
""",
    )
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_what_dlpack_raises_is_passed_on() -> None:
    class Raises:
        def __dlpack__(self, **options: Any) -> Any:
            raise RuntimeError("the device is lost")

    with pytest.raises(RuntimeError, match="the device is lost"):
        tensor_hash(Raises())

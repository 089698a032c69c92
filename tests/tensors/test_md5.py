"""md5 against hashlib: every dtype, any strides, many at once, threads and forked children."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from my_utils.tensors import md5

from ..conftest import RunPython
from ..support.dtypes import DTYPES
from ..support.meanwhile import runs_meanwhile

pytestmark = pytest.mark.c_code


def oracle(value: Any) -> str:
    """hashlib over bytes that torch or numpy, not this package, put in order."""
    if isinstance(value, torch.Tensor):
        # Most dtypes have no numpy twin, and some no copy kernel: bytes instead, as a last axis.
        value = value.detach()
        item = value.element_size()
        if value.numel() == 0:
            return hashlib.md5(b"").hexdigest()
        storage = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
        size = (*value.shape, item)
        steps = (*(step * item for step in value.stride()), 1)
        value = storage.as_strided(size, steps, value.storage_offset() * item).contiguous().numpy()
    return hashlib.md5(np.asarray(value).tobytes()).hexdigest()


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random bits, every one of them a value that the dtype has, NaNs included."""
    generator = torch.Generator().manual_seed(seed)
    elements = int(np.prod(shape, dtype=np.int64))
    item = torch.empty(0, dtype=dtype).element_size()
    high = 2 if dtype == torch.bool else 256
    raw = torch.randint(0, high, (elements * item,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of any dtype and up to four dimensions, then sliced, turned and expanded."""
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    tensor = random_tensor(shape, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 99)))
    for dim, size in enumerate(shape):
        start = draw(st.integers(0, size))
        tensor = tensor[(slice(None),) * dim + (slice(start, None, draw(st.integers(1, 3))),)]
    tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(draw(st.integers(0, 3)), *tensor.shape)
    return tensor


@settings(max_examples=300, deadline=None)
@given(st.lists(views(), max_size=40))
def test_any_tensors_alone_and_together(tensors: list[torch.Tensor]) -> None:
    wanted = [oracle(tensor) for tensor in tensors]
    assert md5(tensors) == md5(tuple(tensors)) == wanted
    assert [md5(tensor) for tensor in tensors] == wanted


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    tensor = random_tensor((37, 29), dtype)
    assert md5(tensor) == oracle(tensor)
    assert md5([tensor.t(), tensor[::2, 3:], tensor[:, 0]]) == [
        oracle(view) for view in (tensor.t(), tensor[::2, 3:], tensor[:, 0])
    ]


def test_what_is_said_in_the_documentation() -> None:
    for tensor in (torch.randn(5, 7), torch.randn(5, 7).t(), torch.arange(24).reshape(2, 3, 4)[1]):
        array = tensor.detach().cpu().contiguous().numpy()
        assert md5(tensor) == hashlib.md5(array.tobytes()).hexdigest()


def test_parameters_scalars_and_empty_ones() -> None:
    parameter = torch.nn.Parameter(torch.randn(8))
    assert md5(parameter) == oracle(parameter)
    assert md5(torch.tensor(2.5)) == hashlib.md5(np.float32(2.5).tobytes()).hexdigest()
    assert md5(torch.empty(0, 3)) == md5(b"") == "d41d8cd98f00b204e9800998ecf8427e"
    assert md5([]) == md5(()) == []


def test_lazy_negation_and_conjugation_are_done_first() -> None:
    values = torch.randn(6, dtype=torch.complex64)
    assert md5(values.conj()) == oracle(values.conj().resolve_conj())
    assert md5(values.conj().imag) == oracle(values.conj().imag.resolve_neg())


@pytest.mark.parametrize("dtype", ["?", "b", "B", "h", "i", "q", "e", "f", "d", "F", "D", "Q"])
def test_numpy_arrays_of_any_layout(dtype: str) -> None:
    rng = np.random.default_rng(3)
    array = rng.integers(0, 2, (6, 7, 8)).astype(dtype)
    read_only = array.copy()
    read_only.flags.writeable = False
    layouts = [
        array, array[::-1], array[:, ::-2, 1:], np.asfortranarray(array), array.T, read_only,
        array[2, 3, 4], np.broadcast_to(array[0], (3, 7, 8)), array[:0], array[..., ::-1],
    ]  # fmt: skip
    assert md5(layouts) == [oracle(layout) for layout in layouts]


def test_buffers() -> None:
    data = bytes(range(256)) * 3
    wanted = hashlib.md5(data).hexdigest()
    view = memoryview(data)
    assert [md5(data), md5(bytearray(data)), md5(view)] == [wanted] * 3
    assert md5(view[::2]) == hashlib.md5(data[::2]).hexdigest()


@pytest.mark.parametrize("threads", [1, 2])
def test_lists_of_unequal_lengths(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generator = torch.Generator().manual_seed(threads)
        for count in (2, 15, 16, 17, 100):
            sizes = torch.randint(0, 60_000, (count,), generator=generator).tolist()
            sizes[0] = 3_000_000  # far longer than all others: a thread of its own
            tensors = [random_tensor((size,), torch.uint8, size) for size in sizes]
            tensors[-1] = random_tensor((300, 500), torch.bfloat16).t()
            assert md5(tensors) == [oracle(tensor) for tensor in tensors]
    finally:
        torch.set_num_threads(before)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    tensors = [random_tensor((size * 997,), torch.uint8, size) for size in range(150)]
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            found.append(md5(tensors))
    finally:
        torch.set_num_threads(before)
    assert found == [[oracle(tensor) for tensor in tensors]] * 4


FORK = """
import hashlib, os, sys
import torch
from my_utils.tensors import md5

torch.set_num_threads(2)
tensors = [torch.full((400_000 + 1000 * n,), n, dtype=torch.uint8) for n in range(20)]
wanted = [hashlib.md5(tensor.numpy()).hexdigest() for tensor in tensors]
torch.ones(4_000_000).sum()  # torch's pool has threads now, which a child has not
assert md5(tensors) == wanted
child = os.fork()
if child == 0:
    os._exit(0 if md5(tensors) == wanted and md5(tensors[0]) == wanted[0] else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_in_a_forked_child(run_python: RunPython) -> None:
    result = run_python("-c", FORK)
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr


def test_from_several_threads_at_once() -> None:
    tensors = [random_tensor((size * 1001,), torch.uint8, size) for size in range(60)]
    wanted = [oracle(tensor) for tensor in tensors]
    wrong: list[object] = []

    def work() -> None:
        for _ in range(10):
            if md5(tensors) != wanted:
                wrong.append("digests of another")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_other_threads_run_meanwhile() -> None:
    tensor = torch.zeros(1_000_000, dtype=torch.uint8)
    assert runs_meanwhile(lambda: md5(tensor))


def wrong_arguments() -> Iterator[tuple[Any, str]]:
    yield None, "tensors must be a torch tensor"
    yield [torch.ones(2), "text"], "tensors must be a torch tensor"
    yield torch.ones(2, device="meta"), "a meta tensor has only a shape"
    yield torch.ones(2, 2).to_sparse(), "pass its parts"


@pytest.mark.parametrize(("value", "message"), list(wrong_arguments()))
def test_what_is_no_tensor_raises(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        md5(value)


def test_nothing_is_changed() -> None:
    tensor = torch.randn(50, requires_grad=True)
    version, state = tensor._version, torch.get_rng_state()
    md5([tensor, tensor[::2]])
    assert tensor._version == version
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.gpu
def test_cuda_tensors_are_copied() -> None:
    tensors = [random_tensor((30, 40), torch.bfloat16, n) for n in range(3)]
    wanted = [oracle(tensor) for tensor in tensors]
    assert md5([tensor.cuda() for tensor in tensors]) == wanted
    assert md5(tensors[0].cuda().t()) == oracle(tensors[0].t())


@pytest.mark.slow
@pytest.mark.thorough
def test_more_than_four_gib() -> None:
    """The digest is hashlib's, which would take as long once more."""
    piece = bytearray(range(256)) * 65536
    tensor = torch.frombuffer(piece, dtype=torch.uint8).expand(257, -1)
    assert tensor.nbytes > 1 << 32
    assert md5(tensor) == "950c541979d48f25670a6e9fe7933445"

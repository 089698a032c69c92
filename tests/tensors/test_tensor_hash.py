"""tensor_hash against the plain definition, and its result, TensorDigest."""

from __future__ import annotations

import copy
import doctest
import os
import pickle
import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from my_utils import _core
from my_utils.tensors import TensorDigest, tensor_hash, tensor_sums

from ..support import tensor_hash_oracle as oracle
from ..support.dtypes import DTYPES
from ..support.meanwhile import runs_meanwhile


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random bits, so NaNs of all kinds and numbers below normal are among them."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    top = 2 if dtype == torch.bool else 256
    bits = np.random.default_rng(seed).integers(0, top, count, dtype=np.uint8)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(bits).view(dtype).reshape(shape)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The row-major bytes, by numpy alone: indexed as integers, which no dtype refuses."""
    size = tensor.element_size()
    storage = np.frombuffer(bytes(tensor.untyped_storage()), f"V{size}")
    index = np.full(tuple(tensor.shape), tensor.storage_offset())
    for dim, (length, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        steps = np.arange(length) * stride
        index = index + steps.reshape([-1] + [1] * (tensor.ndim - 1 - dim))
    return bytes(storage[index.reshape(-1)].tobytes())


def check(tensor: torch.Tensor, data: bytes | None = None) -> None:
    """The digest of `tensor`, whole, against the oracle."""
    content = oracle.content(bytes_of(tensor) if data is None else data)
    digest = tensor_hash(tensor)
    name, shape = name_of(tensor.dtype), tuple(tensor.shape)
    assert digest.content == oracle.to_hex(content)
    assert digest.combined == oracle.to_hex(oracle.combined(content, name, shape))
    assert (digest.dtype, digest.shape) == (name, shape)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class TestAgainstTheDefinition:
    @pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
    def test_every_dtype(self, dtype: torch.dtype) -> None:
        check(random_tensor((3, 5, 7), dtype))
        check(random_tensor((), dtype))
        check(random_tensor((0, 4), dtype))
        check(random_tensor((6, 8), dtype).T)

    @settings(max_examples=150, deadline=None)
    @given(data=st.data())
    def test_any_shape_and_strides(self, data: st.DataObject) -> None:
        dtype = data.draw(st.sampled_from(DTYPES))
        shape = data.draw(st.lists(st.integers(0, 7), max_size=4).map(tuple))
        tensor = random_tensor(shape, dtype, data.draw(st.integers(0, 2**32)))
        for dim, length in enumerate(shape):
            start = data.draw(st.integers(0, length))
            tensor = tensor[
                (slice(None),) * dim + (slice(start, None, data.draw(st.integers(1, 3))),)
            ]
        tensor = tensor.permute(data.draw(st.permutations(range(tensor.ndim))))
        if data.draw(st.booleans()):
            tensor = tensor.unsqueeze(0).expand(data.draw(st.integers(0, 3)), *tensor.shape)
        check(tensor)

    @settings(max_examples=40, deadline=None)
    @given(count=st.integers(0, 20000), offset=st.integers(0, 63))
    def test_any_length_and_alignment(self, count: int, offset: int) -> None:
        check(random_tensor((count + offset,), torch.uint8, seed=count)[offset:])

    @pytest.mark.parametrize("count", [4095, 4096, 4097, 8192, 12287, 12304])
    def test_around_whole_blocks(self, count: int) -> None:
        check(random_tensor((count,), torch.int8))
        check(random_tensor((count, 2), torch.int8)[:, 0])

    @pytest.mark.parametrize(
        "data",
        [
            np.arange(24.0).reshape(2, 3, 4)[::-1, :, ::-2],
            np.array([[1, 2], [3, 4]], np.float16).T,
            np.arange(5, dtype=np.complex64)[1::2],
        ],
    )
    def test_numpy_arrays_of_any_strides(self, data: np.ndarray) -> None:
        assert tensor_hash(data).content == oracle.to_hex(oracle.content(data.tobytes()))
        assert tensor_hash(data).dtype == data.dtype.name
        assert tensor_hash(data).shape == data.shape

    def test_buffers(self) -> None:
        want = TensorDigest(oracle.to_hex(oracle.content(b"abcdef")), "uint8", [6])
        assert tensor_hash(b"abcdef") == want
        assert tensor_hash(memoryview(b"-fedcba")[:0:-1]) == want


class TestTheVectorsOfTheDocumentation:
    page = (Path(__file__).resolve().parents[2] / "docs/correctness/tensor-hash.md").read_text()

    def test_contents(self) -> None:
        rows = re.findall(r"^\| `([^`]+)` \| `([0-9a-f]{32})` \|$", self.page, re.MULTILINE)
        assert len(rows) >= 10
        for data, digest in rows:
            assert oracle.to_hex(oracle.content(eval(data))) == digest, data
            assert tensor_hash(eval(data)).content == digest, data

    def test_sums(self) -> None:
        words = "((?:[0-9a-f]{16} ?){4})"
        row = rf"^\| `([^`]+)` \| `{words}` \| `{words}` \|$"
        rows = re.findall(row, self.page, re.MULTILINE)
        assert len(rows) >= 5
        for data, *lanes in rows:
            want = tuple(int(word, 16) for words in lanes for word in words.split())
            assert oracle.sums(eval(data)) == want, data
            assert tensor_sums(eval(data)).sums == want, data

    def test_combined_digests(self) -> None:
        row = r"^\| `(.+)` \| `(\w+)` \| `(\(.*\))` \| `([0-9a-f]{32})` \|$"
        rows = re.findall(row, self.page, re.MULTILINE)
        assert len(rows) >= 7
        for data, dtype, shape, digest in rows:
            content = oracle.content(eval(data))
            assert oracle.to_hex(oracle.combined(content, dtype, eval(shape))) == digest, data
            content_hex = tensor_hash(eval(data)).content
            assert TensorDigest(content_hex, dtype, eval(shape)).combined == digest, data

    def test_keys(self) -> None:
        for n, value in re.findall(r"`prf\((\d+)\)` is\s`0x([0-9a-f]+)`", self.page):
            assert oracle.prf(int(n)) == int(value, 16)
        for name, keys in (("K", oracle.K), ("F", oracle.F)):
            found = re.findall(rf"`{name}\[(\d+)\]` is `0x([0-9a-f]+)`", self.page)
            assert len(found) == 2
            for place, value in found:
                assert keys[int(place)] == int(value, 16)


class TestWhatCounts:
    def test_the_sign_of_zero(self) -> None:
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            zero = torch.zeros(9, dtype=dtype)
            assert tensor_hash(zero) != tensor_hash(-zero)

    def test_the_bits_of_nan(self) -> None:
        quiet, other = (
            np.frombuffer(struct.pack("<I", bits), "f4") for bits in (0x7FC00000, 0x7FC00001)
        )
        assert np.isnan(quiet) and np.isnan(other)
        assert tensor_hash(quiet) != tensor_hash(other)
        assert tensor_hash(quiet) == tensor_hash(quiet.copy())

    @settings(max_examples=60, deadline=None)
    @given(count=st.integers(1, 9000), data=st.data())
    def test_any_single_bit(self, count: int, data: st.DataObject) -> None:
        tensor = random_tensor((count,), torch.uint8)
        before = tensor_hash(tensor)
        at, bit = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, 7))
        tensor[at] ^= 1 << bit
        assert tensor_hash(tensor).content != before.content

    def test_length_even_of_zeros(self) -> None:
        contents = {tensor_hash(torch.zeros(n, dtype=torch.uint8)).content for n in range(5000)}
        assert len(contents) == 5000

    def test_dtype_and_shape_are_apart_from_content(self) -> None:
        x = torch.arange(6, dtype=torch.int32)
        as_float, as_matrix = x.view(torch.float32), x.reshape(2, 3)
        assert {tensor_hash(t).content for t in (x, as_float, as_matrix)} == {
            tensor_hash(x).content
        }
        assert len({tensor_hash(t) for t in (x, as_float, as_matrix)}) == 3
        assert len({tensor_hash(t).combined for t in (x, as_float, as_matrix)}) == 3

    def test_shapes_of_nothing_differ(self) -> None:
        shapes = [(0,), (0, 1), (1, 0), (0, 0), (2, 0), (0, 2)]
        assert len({tensor_hash(torch.empty(shape)).combined for shape in shapes}) == len(shapes)


class TestTensors:
    def test_parameters_and_tensors_of_a_graph(self) -> None:
        parameter = torch.nn.Parameter(torch.randn(5))
        assert tensor_hash(parameter) == tensor_hash(parameter.detach())
        assert tensor_hash(parameter * 1) == tensor_hash(parameter.detach())

    def test_lazy_conjugation_and_negation_are_done_first(self) -> None:
        x = torch.randn(7, dtype=torch.complex64)
        assert x.conj().is_conj()
        assert tensor_hash(x.conj()) == tensor_hash(x.conj().resolve_conj())
        assert x.conj().imag.is_neg()
        assert tensor_hash(x.conj().imag) == tensor_hash(-x.imag.clone())

    def test_the_tensor_is_left_as_it_was(self) -> None:
        x = torch.randn(9)
        version, state = x._version, torch.get_rng_state()
        tensor_hash(x)
        assert x._version == version
        assert torch.equal(state, torch.get_rng_state())

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.empty(3, device="meta"),
            torch.eye(3).to_sparse(),
            "text",
            3.5,
            None,
            {1: torch.ones(1)},
            [torch.ones(1), "text"],
            [[torch.ones(1)]],
        ],
        ids=str,
    )
    def test_what_has_no_elements_is_refused(self, tensor: object) -> None:
        with pytest.raises(TypeError, match="tensors"):
            tensor_hash(tensor)

    def test_a_list_gives_a_list(self) -> None:
        tensors = [random_tensor((n, 3), DTYPES[n % len(DTYPES)]) for n in range(40)]
        tensors.append(random_tensor((1 << 20,), torch.int16))
        assert tensor_hash(tensors) == [tensor_hash(tensor) for tensor in tensors]
        assert tensor_hash(tuple(tensors)) == tensor_hash(tensors)
        assert tensor_hash([]) == []


class TestThreads:
    # Whole blocks and a rest, more than is done on one thread.
    big = torch.arange(3 * 2**20 + 5, dtype=torch.int32)

    def test_one_and_two_threads_agree(self, two_threads: None) -> None:
        tensors = [self.big, self.big.view(torch.int16)[::2], self.big[1:], self.big.double()]
        tensors += list(self.big.split(30_000))
        both = tensor_hash(tensors), [tensor_hash(tensor) for tensor in tensors]
        torch.set_num_threads(1)
        assert tensor_hash(tensors) == both[0] == both[1]

    def test_split_work_equals_the_definition(self, two_threads: None) -> None:
        data = self.big[: 2**19 + 3]
        check(data, data.numpy().tobytes())

    def test_a_forked_child_does_not_wait_for_the_pool(self, two_threads: None) -> None:
        want = tensor_hash(self.big)
        assert torch.ones(1000, 1000).sum() == 1_000_000  # the pool has threads now
        pid = os.fork()
        if pid == 0:
            os._exit(0 if tensor_hash(self.big) == want else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def test_others_run_meanwhile(self) -> None:
        wide = torch.zeros(1).expand(1_000_000)
        assert runs_meanwhile(lambda: tensor_hash(wide))

    def test_many_threads_at_once(self) -> None:
        want = tensor_hash(self.big)
        wrong: list[int] = []

        def work() -> None:
            wrong.extend(1 for _ in range(5) if tensor_hash(self.big) != want)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class TestTensorDigest:
    digest = tensor_hash(torch.arange(6.0).reshape(2, 3))

    def test_equal_digests_have_equal_hashes(self) -> None:
        again = tensor_hash(torch.arange(6.0).reshape(2, 3))
        assert again == self.digest
        assert hash(again) == hash(self.digest)
        assert len({again, self.digest}) == 1
        assert self.digest != self.digest.content
        with pytest.raises(TypeError):
            sorted([self.digest, again])  # type: ignore[type-var]

    def test_it_comes_back_from_its_text_and_from_pickle(self) -> None:
        assert eval(repr(self.digest)) == self.digest
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(self.digest, protocol)) == self.digest
        assert copy.deepcopy(self.digest) == self.digest

    def test_it_cannot_be_changed(self) -> None:
        for name in ("content", "dtype", "shape", "other"):
            with pytest.raises(AttributeError):
                setattr(self.digest, name, "x")
        with pytest.raises(TypeError):
            TensorDigest.content = "x"  # type: ignore[method-assign, assignment]

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            (("0" * 31, "int8", ()), ValueError, "content must be 32 hexadecimal digits"),
            (("0" * 31 + "G", "int8", ()), ValueError, "content"),
            (("A" * 32, "int8", ()), ValueError, "content"),
            (("0" * 31 + "\0", "int8", ()), ValueError, "content"),
            ((b"0" * 32, "int8", ()), TypeError, "content"),
            (("0" * 32, "int9", ()), ValueError, "dtype must be a name such as 'float32'"),
            (("0" * 32, torch.int8, ()), TypeError, "dtype"),
            (("0" * 32, "int8", 3), TypeError, "not iterable"),
            (("0" * 32, "int8", (-1,)), ValueError, "shape"),
            (("0" * 32, "int8", (1.5,)), TypeError, "shape"),
            (("0" * 32, "int8", (1,) * 65), ValueError, "shape must have at most 64 dimensions"),
            (("0" * 32, "int8"), TypeError, "shape"),
        ],
        ids=str,
    )
    def test_bad_arguments(
        self, arguments: tuple[object, ...], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            TensorDigest(*arguments)  # type: ignore[arg-type]

    def test_zero_to_sixty_four_dimensions(self) -> None:
        for shape in [(), (3,), tuple(range(64))]:
            digest = TensorDigest("0" * 32, "bool", shape)
            assert digest.shape == shape
            assert digest.combined == oracle.to_hex(oracle.combined((0, 0), "bool", shape))


def test_the_example_runs() -> None:
    finder = doctest.DocTestParser()
    test = finder.get_doctest(tensor_hash.__doc__ or "", {}, "tensor_hash", None, None)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_functions_are_the_c_functions() -> None:
    assert tensor_hash is _core.tensor_hash

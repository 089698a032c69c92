"""What parts of a tensor add to its hash: tilings against the plain definition, places of single
differences, and what does not fit."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from my_utils.tensors import (
    TensorSums,
    bytes_sums,
    differing_block,
    sums_digest,
    tensor_hash,
    tensor_sums,
)

from ..support import tensor_hash_oracle as oracle
from ..support.meanwhile import runs_meanwhile
from ..support.tilings import random_tensor

# The definition's own figures, which the page on the tensor hash has too.
VECTORS = {
    b"": ("0000000000000000", "0000000000000000", "fac093705c7c9f2b9ee5bd6e6290f795"),
    b"\0": ("78b7f842cb3d5892", "0000000000000000", "444be3adef8751a5d36eccf8951f5e9c"),
    bytes(range(16)): ("e84ab8632ab8839a", "0000000000000000", "4f249280a6dca729d0bad1b60ae75f01"),
    bytes(i % 251 for i in range(4097)): (
        "36f93e3ed7df94e5", "3dccd7925f1de86e", "f528efaec5c5f2072c2ccb754605db4e",
    ),
    bytes(7 * i % 256 for i in range(20000)): (
        "9c76ff38c6d50304", "8c50e08437fd7d54", "31dbec8e0ed8cf13bd6303dfa7aafbc8",
    ),
    np.arange(8, dtype="<f4").tobytes(): (
        "2b59d35c9578e872", "0000000000000000", "69975ae6fb6bbbedab80b2d22117fd6d",
    ),
}  # fmt: skip


def cut_at_random(size: int, rng: random.Random) -> list[tuple[int, int]]:
    edges = {0, size, *(rng.randrange(size + 1) for _ in range(rng.randrange(4)))}
    return list(itertools.pairwise(sorted(edges)))


def tiles(tensor: torch.Tensor, rng: random.Random) -> Iterator[TensorSums]:
    """The parts of boxes that were cut at any element, in random order."""
    boxes = list(itertools.product(*(cut_at_random(size, rng) for size in tensor.shape)))
    for box in rng.sample(boxes, len(boxes)):
        view = tensor[tuple(slice(*edges) for edges in box)]
        part = tensor_sums(view, tensor.shape, [begin for begin, _ in box])
        assert part.nbytes == view.numel() * view.element_size()
        assert part.total == tensor.numel() * tensor.element_size()
        yield part


def test_random_tilings() -> None:
    """`tests/tensors/passport/test_tilings.py` has more, through files of passports."""
    rng = random.Random(1)
    for _ in range(40):
        made = random_tensor(rng)
        tensor = made.tensor
        parts = list(tiles(tensor, rng))
        whole = parts[0]
        for part in parts[1:]:
            whole = whole + part
        assert whole.sums == oracle.sums(made.data)
        assert whole.cut == ()
        assert whole == tensor_sums(tensor)
        digest = sums_digest(whole, made.name, tensor.shape)
        assert digest == tensor_hash(tensor)
        assert digest.content == oracle.to_hex(oracle.content(made.data))
        together = [piece for part in parts for piece in part.cut]
        added = np.array([part.sums for part in parts], np.uint64).sum(axis=0)
        assert TensorSums(added.tolist(), whole.total, whole.total, together) == whole


@pytest.mark.parametrize("data", VECTORS, ids=len)
def test_vectors(data: bytes) -> None:
    s0, t0, content = VECTORS[data]
    sums = tensor_sums(data)
    assert (sums.sums[0], sums.sums[4]) == (int(s0, 16), int(t0, 16))
    assert sums.sums == oracle.sums(data)
    assert sums_digest(sums, "uint8", (len(data),)).content == content


class TestRuns:
    def test_pieces_of_a_file(self) -> None:
        rng = random.Random(3)
        data = rng.randbytes(3_000_001)  # more than is done on one thread
        whole = TensorSums((0,) * 8, 0, len(data))
        for begin, end in [*cut_at_random(len(data), rng), (0, 0)]:
            whole = bytes_sums(memoryview(data)[begin:end], begin, len(data)) + whole
        assert whole == tensor_sums(data) == bytes_sums(buffer=data, begin=0, total=len(data))

    def test_the_dtype_plays_no_part(self) -> None:
        x = torch.arange(10, dtype=torch.int64)
        assert bytes_sums(x, 3, 100) == bytes_sums(x.numpy().tobytes(), 3, 100)

    def test_cut_bytes_are_those_of_shared_quads(self) -> None:
        data = bytes(range(100))
        part = bytes_sums(data[5:70], 5, 100)
        assert part.cut == ((5, data[5:16]), (64, data[64:70]))
        assert bytes_sums(data[5:9], 5, 100).cut == ((5, data[5:9]),)
        assert (bytes_sums(data[1:3], 1, 100) + bytes_sums(data[8:10], 8, 100)).cut == (
            (1, data[1:3]), (8, data[8:10]),
        )  # fmt: skip
        assert bytes_sums(data[64:], 64, 100).cut == ()  # the last quad is short

    def test_a_column_of_bytes_joins(self) -> None:
        x = torch.arange(200, dtype=torch.uint8).reshape(50, 4)
        parts = [tensor_sums(x[:, i : i + 1], x.shape, (0, i)) for i in range(4)]
        assert len(parts[0].cut) == 50
        assert parts[2] + (parts[0] + parts[3]) + parts[1] == tensor_sums(x)

    def test_others_run_meanwhile(self) -> None:
        wide = torch.zeros(1).expand(1_000_000)
        assert runs_meanwhile(lambda: tensor_sums(wide))


class TestPlaces:
    def test_single_differences_are_placed(self) -> None:
        rng = random.Random(4)
        data = torch.frombuffer(bytearray(rng.randbytes(1 << 20)), dtype=torch.uint8)
        before = tensor_sums(data)
        for _ in range(200):
            one, other = rng.randrange(1 << 20), rng.randrange(1 << 20)
            data[one] ^= 1 << rng.randrange(8)
            after = tensor_sums(data)
            assert differing_block(before, after) == one // 4096
            assert differing_block(after, before) == one // 4096
            if other // 4096 != one // 4096:
                data[other] ^= 1
                assert differing_block(before, tensor_sums(data)) is None
            before = tensor_sums(data)

    def test_equal_ones_have_no_place(self) -> None:
        assert differing_block(tensor_sums(b"abc"), tensor_sums(b"abc")) is None
        assert differing_block(tensor_sums(b""), tensor_sums(b"")) is None

    def test_what_is_not_whole_is_refused(self) -> None:
        whole, part = tensor_sums(bytes(32)), bytes_sums(bytes(16), 0, 32)
        with pytest.raises(ValueError, match="16 bytes, not 32: some are missing"):
            differing_block(whole, part)
        with pytest.raises(ValueError, match="must have one length, not 32 and 33 bytes"):
            differing_block(whole, tensor_sums(bytes(33)))
        with pytest.raises(TypeError, match="b must be a TensorSums, not int"):
            differing_block(whole, 3)  # type: ignore[arg-type]


class TestWhatDoesNotFit:
    def test_missing_and_repeated_parts(self) -> None:
        x = torch.arange(24.0).reshape(6, 4)
        top, bottom = tensor_sums(x[:3], (6, 4)), tensor_sums(x[3:], (6, 4), (3, 0))
        with pytest.raises(ValueError, match="48 bytes, not 96: some are missing"):
            sums_digest(top, "float32", (6, 4))
        with pytest.raises(ValueError, match="144 bytes, not 96: some are there twice"):
            sums_digest(top + bottom + top, "float32", (6, 4))
        with pytest.raises(ValueError, match="a whole of 92 bytes, as dtype and shape say"):
            sums_digest(top + bottom, "float32", (23,))
        with pytest.raises(ValueError, match="wholes of 96 and 48 bytes"):
            top + tensor_sums(x[:3])

    def test_a_cut_byte_twice(self) -> None:
        part = bytes_sums(b"abc", 2, 40)
        with pytest.raises(ValueError, match="byte 4 is there twice"):
            part + bytes_sums(b"cd", 4, 40)

    def test_a_missing_cut_byte_instead_of_another(self) -> None:
        odd = bytes_sums(bytes(36), 0, 80) + bytes_sums(bytes(44), 0, 80).__class__(
            bytes_sums(bytes(32), 0, 80).sums, 44, 80
        )
        with pytest.raises(ValueError, match="bytes from 36 on are missing, and others"):
            sums_digest(odd, "uint8", (80,))

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ((torch.zeros(4, 6), (4, 5)), ValueError, "indices 0 to 6 of 5 in dimension 1"),
            ((torch.zeros(4, 6), (9, 9), (6, 0)), ValueError, "indices 6 to 10 of 9"),
            ((torch.zeros(4, 6), (9,)), ValueError, "shape must have the tensor's 2 dimensions"),
            ((torch.zeros(4, 6), None, (0,)), ValueError, "at must have the tensor's 2"),
            ((torch.zeros(4, 6), (9, 9), (-1, 0)), ValueError, "at"),
            ((torch.zeros(4, 6), (2**40, 2**40)), ValueError, r"more than 2\^63 bytes"),
            ((torch.empty(3, device="meta"),), TypeError, "tensor"),
            (([torch.zeros(3)],), TypeError, "tensor must be"),
        ],
        ids=str,
    )
    def test_bad_boxes(
        self, arguments: tuple[Any, ...], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            tensor_sums(*arguments)

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            (((0,) * 7, 0, 0), ValueError, "sums must be 8 numbers, not 7"),
            (((2**64,) * 8, 0, 0), ValueError, r"ints from 0 to 2\^64 - 1"),
            (((-1,) * 8, 0, 0), ValueError, "sums must be ints"),
            (((0.5,) * 8, 0, 0), TypeError, "sums must be ints"),
            ((8, 0, 0), TypeError, "not iterable"),
            (((0,) * 8, -1, 0), ValueError, "nbytes"),
            (((0,) * 8, 0, 2**63), ValueError, "total"),
            (((0,) * 8, 0, 40, [3]), TypeError, "pairs of an int and bytes"),
            (((0,) * 8, 0, 40, [(3, "a")]), TypeError, "pairs of an int and bytes"),
            (((0,) * 8, 0, 40, [(3, b"")]), ValueError, "bytes of one quad"),
            (((0,) * 8, 0, 40, [(14, b"abc")]), ValueError, "bytes of one quad of 16 each, not 3"),
            (((0,) * 8, 0, 40, [(-1, b"a")]), ValueError, "cut"),
            (((0,) * 8, 0, 40, [(40, b"a")]), ValueError, "cut bytes from 40 on, in a whole of 40"),
            (((0,) * 8, 0, 40, [(2**63 - 1, b"a")]), ValueError, "in a whole of 40"),
            (((0,) * 8, 0, 40, [(3, b"ab"), (4, b"b")]), ValueError, "byte 4 is there twice"),
        ],
        ids=str,
    )
    def test_bad_figures(
        self, arguments: tuple[Any, ...], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            TensorSums(*arguments)

    def test_bad_runs(self) -> None:
        with pytest.raises(ValueError, match="indices 3 to 7 of 6"):
            bytes_sums(b"abcd", 3, 6)
        with pytest.raises(ValueError, match="buffer must be contiguous"):
            bytes_sums(torch.zeros(4, 6).T, 0, 96)
        with pytest.raises(ValueError, match="begin"):
            bytes_sums(b"abcd", -1, 6)


class TestTheObject:
    part = tensor_sums(torch.arange(30.0).reshape(5, 6)[:, :5], (5, 6))

    def test_it_comes_back_from_its_text_and_from_pickle(self) -> None:
        assert eval(repr(self.part)) == self.part
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(self.part, protocol)) == self.part
        assert copy.deepcopy(self.part) == self.part
        assert hash(copy.deepcopy(self.part)) == hash(self.part)

    def test_parts_differ_in_any_figure(self) -> None:
        sums, nbytes, total, cut = self.part.__reduce__()[1]
        other = (cut[0][0], bytes([cut[0][1][0] ^ 1]) + cut[0][1][1:])
        assert len({
            self.part,
            TensorSums((*sums[:7], sums[7] ^ 1), nbytes, total, cut),
            TensorSums(sums, nbytes - 1, total, cut),
            TensorSums(sums, nbytes, total + 1, cut),
            TensorSums(sums, nbytes, total, cut[1:]),
            TensorSums(sums, nbytes, total, (other, *cut[1:])),
        }) == 6  # fmt: skip
        assert self.part != sums

    def test_it_cannot_be_changed(self) -> None:
        for name in ("sums", "nbytes", "total", "cut", "other"):
            with pytest.raises(AttributeError):
                setattr(self.part, name, 0)

    def test_it_adds_to_nothing_else(self) -> None:
        for other in (0, (), "x", tensor_hash(b"abc")):
            with pytest.raises(TypeError, match="unsupported operand"):
                self.part + other  # type: ignore[operator]

"""assert_same against torch.testing.assert_close, torch's own integers and numpy."""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from my_utils.tensors import assert_same
from my_utils.tensors.ulp import ulps_between

from ..support.dtypes import BYTE_FLOATS, FLOATS

INF, NAN = float("inf"), float("nan")
AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def raised(actual: Any, expected: Any, **arguments: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_same(actual, expected, **arguments)
    return str(caught.value)


def agrees(assertion: Any, *values: Any, **arguments: Any) -> bool:
    try:
        assertion(*values, **arguments)
    except AssertionError:
        return False
    return True


NUMBERS = st.sampled_from(
    [0.0, -0.0, 1.0, 1.0 + 1e-6, 1.0 + 1e-2, -1.0, 3e38, 1e-40, INF, -INF, NAN]
)
VALUES = st.lists(NUMBERS, min_size=1, max_size=6)
KINDS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64]


@given(VALUES, VALUES, st.sampled_from(KINDS), st.sampled_from(KINDS), st.booleans(), st.booleans())
def test_agrees_where_torch_does(
    a: list[float], b: list[float], kind: torch.dtype, other: torch.dtype, equal_nan: bool,
    check_dtype: bool,
) -> None:  # fmt: skip
    pair = torch.tensor(a).to(kind), torch.tensor(b).to(other)
    options = {"equal_nan": equal_nan, "check_dtype": check_dtype}
    assert agrees(assert_same, *pair, **options) == agrees(
        torch.testing.assert_close, *pair, **options
    )


@pytest.mark.parametrize("dtype", [*FLOATS, *BYTE_FLOATS], ids=str)
def test_ulps_are_the_distance_of_the_bits(dtype: torch.dtype) -> None:
    """Floats of one sign are ordered as the integers of their bits are."""
    name = str(dtype).removeprefix("torch.")
    if ulps_between(1.0, 1.0, name) is None:
        assert name in ("float8_e8m0fnu", "float4_e2m1fn_x2")
        return
    integer = AS_INTEGERS[dtype.itemsize]
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, torch.iinfo(integer).max, (2, 2000), generator=generator)
    values = bits.to(integer).view(dtype).double()
    known = values.isfinite().all(0)
    assert known.sum() > 1000
    for (a, b), (x, y) in zip(
        bits.T[known].tolist(), values.T[known].tolist(), strict=True
    ):  # fmt: skip
        assert ulps_between(x, y, name) == abs(a - b)
        assert ulps_between(-x, -y, name) == abs(a - b)
        assert ulps_between(-x, y, name) == a + b


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    expected = torch.arange(12.0).reshape(3, 4)
    return expected.clone(), expected


def test_the_first_and_the_largest_are_named(pair: tuple[Tensor, Tensor]) -> None:
    actual, expected = pair
    actual[1, 2] = torch.nextafter(actual[1, 2], torch.tensor(7.0))
    actual[2, 3] += 0.5
    assert raised(actual, expected, rtol=0, atol=0).splitlines() == [
        "2 of 12 elements differ",
        "  float32 (3, 4)",
        "  first at (1, 2): 6.000000476837158, expected 6.0: 1 ulp",
        "  largest difference 0.5 at (2, 3): 11.5, expected 11.0: 524,288 ulp",
    ]
    assert raised(actual, expected).startswith("1 of 12 elements differ by more than 1e-05 + ")


def test_nan_and_inf_patterns(pair: tuple[Tensor, Tensor]) -> None:
    actual, expected = pair
    actual[0, 1] = actual[2, 0] = NAN
    expected[2, 0] = NAN
    actual[1, 1], expected[1, 1] = INF, -INF
    text = raised(actual, expected, equal_nan=True)
    lines = [line.strip() for line in text.splitlines()[-2:]]
    assert lines == [
        "NaN in one of them: 1 place; 2 in actual, first at (0, 1); 1 in expected, first at (2, 0)",
        "other infinities: 1 place; 1 in actual, first at (1, 1); 1 in expected, first at (1, 1)",
    ]


class Named(NamedTuple):
    x: Any
    y: Any


@dataclass
class Output:
    logits: Any
    loss: Any = None


def test_structures_are_walked(pair: tuple[Tensor, Tensor]) -> None:
    same: list[Any] = [
        OrderedDict(a=pair[0]), {"a": [pair[0], 3, "text", None]}, Named(1.5, pair), Output(pair),
        np.ones((2, 3)), torch.nn.Linear(2, 2).state_dict(), (), 7, "text",
    ]  # fmt: skip
    for value in same:
        assert_same(value, value)
    text = raised({"a": [1, Output(pair[0], 2.0)]}, {"a": [1, Output(pair[0] + 1, 2.5)]})
    assert re.findall(r"^\['a'\]\[1\]\.(\w+): 1", text, re.MULTILINE) == ["logits", "loss"]
    assert raised([1, 2], [1]) == "only in actual: [1]"
    assert raised({"a": 1}, {"b": 1}) == "only in actual: ['a']\nonly in expected: ['b']"
    assert raised(["x"], ["y"]) == "[0]: 'x', expected 'y'"
    assert raised([None], pair[:1]) == "[0]: NoneType None, expected a tensor"
    assert raised(pair[0], pair[0][:2]) == "shape (3, 4), expected (2, 4)"
    assert raised(pair[0], pair[0].double()) == "dtype float32, expected float64"
    assert_same(pair[0], pair[0].double(), check_dtype=False)
    assert raised(pair[0], pair[0].to("meta")) == "device cpu, expected meta"
    many = {str(number): number for number in range(9)}
    assert raised(many, {key: value + 1 for key, value in many.items()}).endswith(
        "\n4 more values differ"
    )


def test_an_empty_container_is_part_of_the_structure(pair: tuple[Tensor, Tensor]) -> None:
    assert_same({"a": [], "b": {}}, {"a": (), "b": OrderedDict()})
    assert raised({"state": {}}, {}) == (
        "only in actual: ['state'] (empty)\nonly in expected: the value itself (empty)"
    )
    assert raised([1, {}], [1]) == "only in actual: [1] (empty)"
    assert raised([], {}) == "[], expected {}"
    assert raised({"a": []}, {"a": [1]}) == (
        "only in actual: ['a'] (empty)\nonly in expected: ['a'][0]"
    )
    assert raised([], pair[0]) == "list [], expected a tensor"


def test_keys_that_print_alike_are_apart() -> None:
    keys = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    state = {keys[0]: torch.ones(3), keys[1]: torch.zeros(3)}
    assert_same(state, dict(state))
    for place, key in enumerate(keys):
        text = raised({**state, key: torch.full((3,), 9.0)}, state)
        assert text.count("3 of 3 elements differ") == 1
        assert (" (2)]: " in text) == (place == 1)


def test_integers_above_64_bits_are_numbers() -> None:
    state = np.random.default_rng(7).bit_generator.state  # its integers have 128 bits
    assert_same(state, np.random.default_rng(7).bit_generator.state)
    text = raised(state, np.random.default_rng(8).bit_generator.state)
    found = state["state"]["state"]
    assert text.startswith(f"['state']['state']: {found}, expected ")


def test_what_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="is nested deeper than 64, or holds itself"):
        assert_same(loop, loop)


def test_wrong_arguments(pair: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="rtol"):
        assert_same(*pair, rtol=-1.0)
    with pytest.raises(TypeError, match=r"^actual must have its elements in memory"):
        assert_same(pair[0].to("meta"), pair[0].to("meta"))
    with pytest.raises(TypeError, match=r"^expected\['x'\]\[1\] must .* a meta tensor has only"):
        assert_same({"x": [1, pair[0]]}, {"x": [1, pair[0].to("meta")]}, check_device=False)


def nested(values: Tensor, layout: torch.layout) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a prototype
        return torch.nested.nested_tensor([values[:2], values[2:]], layout=layout)


WITHOUT_PLAIN_MEMORY: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": lambda values: values.to_sparse(),
    "coo in two pieces": lambda values: torch.stack([values / 2, values / 2]).to_sparse().sum(0),
    "csr": lambda values: values.to_sparse_csr(),
    "csc": lambda values: values.to_sparse_csc(),
    "bsr": lambda values: values.to_sparse_bsr((2, 2)),
    "nested": lambda values: nested(values, torch.strided),
    "jagged": lambda values: nested(values, torch.jagged),
    "quantized": lambda values: torch.quantize_per_tensor(values, 0.5, 3, torch.quint8),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize", "ignore:.*deprecated")
@pytest.mark.parametrize("kind", WITHOUT_PLAIN_MEMORY)
def test_tensors_without_plain_memory_agree_where_torch_does(kind: str) -> None:
    values = torch.tensor([[1.0, 0], [0, 2], [3, 0], [0, 4]])
    made = WITHOUT_PLAIN_MEMORY[kind]
    another = values + torch.tensor([0.0, 1]) * (values > 2)
    assert_same(made(values), made(values))
    text = raised({"w": made(values)}, {"w": made(another)})
    assert re.search(r"^\['w'\]: (\.(values|unbind)\(\).*: )?1 of ", text), text
    assert "4.0, expected 5.0" in text
    if kind != "nested":  # which it cannot read
        assert not agrees(torch.testing.assert_close, made(values), made(another))
    plain = raised(made(values), values)
    assert plain.startswith("dtype " if kind == "quantized" else "layout "), plain
    assert raised(made(values), made(torch.zeros(6, 2)))


@pytest.mark.filterwarnings("ignore:torch.quantize", "ignore:.*deprecated")
def test_a_quantized_tensor_is_what_it_stands_for() -> None:
    values = torch.tensor([0.5, 1.0, -1.5])
    quantized = torch.quantize_per_tensor(values, 0.5, 3, torch.quint8)
    assert_same(quantized, values, check_dtype=False)
    assert "first at (1,): 1.0, expected 2.0" in raised(
        quantized, torch.tensor([0.5, 2.0, -1.5]), check_dtype=False
    )

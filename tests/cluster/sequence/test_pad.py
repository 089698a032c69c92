"""Padding and its removal against numpy, with gradients and under torch.compile."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch
from hypothesis import given, strategies as st

from my_utils.core.warnings import forget
from my_utils.pad import pad_for_sequence_parallel, remove_pad_by_value

from ...conftest import RunPython
from ...support.dtypes import DTYPES, FLOAT4
from ...support.ranks import Ranks

pytestmark = pytest.mark.long_file

shapes = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@given(shapes, st.data(), st.integers(1, 9), st.integers(-3, 3), st.sampled_from(["left", "right"]))
def test_against_numpy(shape: list[int], data: Any, world: int, value: int, side: Any) -> None:
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    array = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    tensor = torch.from_numpy(array)
    padded = pad_for_sequence_parallel(tensor, value, dim, world, side)
    missing = -shape[dim] % world
    widths = [(0, 0)] * len(shape)
    widths[dim] = (0, missing) if side == "right" else (missing, 0)
    np.testing.assert_array_equal(padded.numpy(), np.pad(array, widths, constant_values=value))
    back = remove_pad_by_value(padded, value, dim, original_length=shape[dim], side=side)
    assert torch.equal(back, tensor)


# torch fills no tensor of float4_e2m1fn_x2.
@pytest.mark.parametrize("dtype", [kind for kind in DTYPES if kind != FLOAT4], ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
def test_every_dtype_by_value(dtype: torch.dtype, side: Any) -> None:
    value = 0 if dtype != torch.float8_e8m0fnu else 1
    tensor = torch.full((2, 3), 2).to(dtype)
    if dtype == torch.bool:
        tensor = torch.ones(2, 3, dtype=dtype)
    padded = pad_for_sequence_parallel(tensor, value, 1, 4, side)
    assert padded.shape == (2, 4)
    back = remove_pad_by_value(padded, value, 1, side=side)
    assert back.dtype == dtype
    assert back.shape == (2, 3)
    assert bytes(back.contiguous().view(torch.uint8).numpy()) == bytes(
        tensor.view(torch.uint8).numpy()
    )


def test_nan_as_padding() -> None:
    tensor = torch.tensor([1.0, float("nan"), 2.0])
    padded = pad_for_sequence_parallel(tensor, float("nan"), 0, 5)
    assert torch.equal(remove_pad_by_value(padded, float("nan"), 0), tensor[:3]) is False
    torch.testing.assert_close(remove_pad_by_value(padded, float("nan"), 0), tensor, equal_nan=True)


EIGHT_BITS = [kind for kind in DTYPES if str(kind).startswith("torch.float8")]


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
def test_nan_as_padding_of_eight_bits(dtype: torch.dtype, side: Any) -> None:
    tensor = torch.ones(2, 3).to(dtype)
    padded = pad_for_sequence_parallel(tensor, float("nan"), world_size=4, side=side)
    assert padded.float().isnan().sum() == 2
    assert remove_pad_by_value(padded, float("nan"), side=side).float().tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_an_infinity_as_padding_of_eight_bits(dtype: torch.dtype, value: float) -> None:
    tensor = torch.ones(2, 3).to(dtype)
    if dtype == torch.float8_e5m2:
        padded = pad_for_sequence_parallel(tensor, value, world_size=4)
        assert remove_pad_by_value(padded, value).shape == (2, 3)
        return
    for change in (pad_for_sequence_parallel, remove_pad_by_value):
        with pytest.raises(ValueError, match=f"padding_value must be finite or NaN .*{value}"):
            change(tensor, value)


def test_a_number_that_the_floats_do_not_have() -> None:
    tensor = torch.ones(3).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"padding_value must be from -448.0 to 448.0 .*not 500"):
        pad_for_sequence_parallel(tensor, 500, world_size=4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_an_empty_batch_stays_as_it_is(side: Any) -> None:
    assert remove_pad_by_value(torch.empty(0, 4), 0, side=side).shape == (0, 4)
    assert remove_pad_by_value(torch.empty(4, 0), 0, side=side).shape == (4, 0)
    assert remove_pad_by_value(torch.empty(0, 4), 0, 0, side=side).shape == (0, 4)


def test_a_tensor_of_padding_only() -> None:
    assert remove_pad_by_value(torch.zeros(3, 4), 0, 1).shape == (3, 0)


def test_a_slice_counts_as_padding_only_when_all_of_it_is() -> None:
    tensor = torch.tensor([[1, 0, 0], [2, 3, 0]])
    assert remove_pad_by_value(tensor, 0).tolist() == [[1, 0], [2, 3]]


def test_real_data_like_padding_is_lost_by_value_and_kept_by_length(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forget("remove_pad_by_value")
    tensor = torch.tensor([1, 2, 0])
    padded = pad_for_sequence_parallel(tensor, 0, world_size=4)
    assert remove_pad_by_value(padded, 0, original_length=3).tolist() == [1, 2, 0]
    assert caplog.text == ""
    for _ in range(2):
        assert remove_pad_by_value(padded, 0).tolist() == [1, 2]
    assert caplog.text.count("takes real data that ends in the padding value") == 1


def test_what_fits_is_returned_itself() -> None:
    tensor = torch.ones(2, 4)
    assert pad_for_sequence_parallel(tensor, world_size=2) is tensor


def test_the_world_of_the_job(run_python: RunPython) -> None:
    code = """
import torch
from my_utils.pad import pad_for_sequence_parallel
print(pad_for_sequence_parallel(torch.ones(5)).shape[0])
"""
    assert run_python("-c", code, env={"WORLD_SIZE": "4"}).stdout == "8\n"


def test_gradients_flow() -> None:
    tensor = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        padded = pad_for_sequence_parallel(x, 7.0, 1, 4)
        return remove_pad_by_value(padded * padded, 49.0, 1, original_length=3)

    assert torch.autograd.gradcheck(there_and_back, (tensor,))


def test_one_graph_under_compile() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        padded = pad_for_sequence_parallel(x, 0.0, 1, 4)
        return remove_pad_by_value(padded + 1, 1.0, 1, original_length=x.shape[1])

    for length in (3, 5, 8):
        tensor = torch.randn(2, length)
        torch.testing.assert_close(there_and_back(tensor), tensor + 1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_gradients_flow_under_compile(dynamic: bool, side: Any) -> None:
    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        padded = pad_for_sequence_parallel(x, 7.0, 1, 4, side)
        return remove_pad_by_value(padded**3, 343.0, 1, original_length=x.shape[1], side=side)

    compiled = torch.compile(there_and_back, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for length in (3, 6):
        tensor = torch.randn(2, length, requires_grad=True)
        (gradient,) = torch.autograd.grad(compiled(tensor).sum(), tensor)
        torch.testing.assert_close(gradient, 3 * tensor.detach() ** 2)


def test_the_world_of_the_job_under_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def pad(x: torch.Tensor) -> torch.Tensor:
        return pad_for_sequence_parallel(x, -1)

    from my_utils.core.ranks import world_size

    tensor = torch.arange(world_size() + 1)
    assert torch.equal(pad(tensor), pad_for_sequence_parallel(tensor, -1))
    assert pad(tensor).shape[0] == 2 * world_size()


@pytest.mark.thorough  # each rank imports Megatron
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ranks", "sharing", "sizes"), [(2, 1, "6 6 5 5 6"), (4, 2, "8 8 6 5 8")])
def test_the_ranks_of_megatron_that_share_a_sequence(
    tmp_path: Path, ranks: int, sharing: int, sizes: str
) -> None:
    """Some of the job, eager and in one graph, while its groups are there; else all of the job."""
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed")
    code = """
import warnings
warnings.simplefilter("ignore")  # of what Megatron finds missing
from my_utils.pad import pad_for_sequence_parallel as pad
tokens = torch.arange(5)
sizes = [len(pad(tokens))]
assert "megatron" not in sys.modules
from megatron.core import parallel_state
sizes.append(len(pad(tokens)))
parallel_state.initialize_model_parallel(tensor_model_parallel_size=SHARING)
sizes += [len(pad(tokens)), len(pad(tokens, world_size=5))]
if rank == 0:
    compiled = torch.compile(lambda x: pad(x), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(tokens), pad(tokens))
parallel_state.destroy_model_parallel()
sizes.append(len(pad(tokens)))
print(*sizes)
dist.destroy_process_group()
""".replace("SHARING", str(sharing))
    results = Ranks(code, ranks, tmp_path).finish(240)
    assert [(status, out) for status, out, _ in results] == [(0, sizes + "\n")] * ranks, results


def test_by_value_under_compile_breaks_the_graph_and_works() -> None:
    @torch.compile(backend="aot_eager")
    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        return remove_pad_by_value(pad_for_sequence_parallel(x, 0.0, 1, 4) ** 2, 0.0, 1)

    tensor = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(there_and_back(tensor).sum(), tensor)
    assert gradient.tolist() == [[2.0, 4.0, 6.0]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tensor": [1, 2]}, TypeError, "tensor must be a torch.Tensor, not list"),
        ({"dim": 2}, ValueError, "dim must be from -2 to 1 for this tensor, not 2"),
        ({"dim": 1.0}, TypeError, r"dim must be an int, not 1\.0"),
        ({"side": "both"}, ValueError, 'side must be "left" or "right", not \'both\''),
        ({"world_size": 0}, ValueError, "world_size must be at least 1, not 0"),
        ({"world_size": True}, TypeError, "world_size must be an int, not True"),
        ({"padding_value": "0"}, TypeError, "padding_value must be a number, not str"),
        ({"padding_value": 1j}, ValueError, r"padding_value must be real for torch.float32"),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pad_for_sequence_parallel(**{"tensor": torch.ones(2, 3), "world_size": 2, **arguments})


@pytest.mark.parametrize("value", [np.float32(2), np.int64(2), np.float16(2)])
def test_numbers_of_numpy(value: Any) -> None:
    padded = pad_for_sequence_parallel(torch.ones(3), value, world_size=2)
    assert padded.tolist() == [1, 1, 1, 2]
    assert remove_pad_by_value(padded, value).tolist() == [1, 1, 1]


@pytest.mark.parametrize("value", [-1, 256, 0.5, float("nan"), float("inf")])
def test_values_that_the_dtype_cannot_hold(value: float) -> None:
    message = "padding_value must be an integer from 0 to 255 for torch.uint8"
    with pytest.raises(ValueError, match=message):
        pad_for_sequence_parallel(torch.ones(3, dtype=torch.uint8), value, world_size=2)


@pytest.mark.parametrize("length", [-1, 5])
def test_wrong_lengths(length: int) -> None:
    with pytest.raises(ValueError, match="original_length must be at"):
        remove_pad_by_value(torch.ones(4), 0, original_length=length)

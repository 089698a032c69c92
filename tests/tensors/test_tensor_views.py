"""Which torch tensors are read, as what they are seen, and what is said of those that are not."""

from __future__ import annotations

import gc
import hashlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ..conftest import RunPython

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import (  # noqa: E402
    given,
    settings,
    strategies as st,
)

from my_utils.tensors import md5, tensor_hash  # noqa: E402

from ..support import tensor_hash_oracle as oracle  # noqa: E402

DTYPES = [
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    "float4_e2m1fn_x2",
]

pytestmark = [pytest.mark.c_code, pytest.mark.filterwarnings("ignore::UserWarning")]


def bytes_of(x: Any) -> bytes:
    """The row-major bytes of plain values, by torch's own means."""
    flat = x.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def check(x: Any, values: Any = None) -> None:
    """`values`: a plain tensor with what is to be seen; `x` itself where there is none."""
    values = x if values is None else values
    digest = tensor_hash(x)
    data = bytes_of(values)
    assert (f"torch.{digest.dtype}", digest.shape) == (str(values.dtype), tuple(values.shape))
    assert digest.content == oracle.to_hex(oracle.content(data))
    assert md5(x) == hashlib.md5(data).hexdigest()


# --- plain memory ---


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(name: str) -> None:
    data = torch.arange(96, dtype=torch.uint8)
    x = data > 40 if name == "bool" else data.view(getattr(torch, name))
    check(x)
    check(x[1:4])
    check(x.reshape(2, -1).t())


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_strides(data: st.DataObject) -> None:
    ndim = data.draw(st.integers(0, 5))
    shape = data.draw(st.lists(st.integers(0, 5), min_size=ndim, max_size=ndim))
    strides = data.draw(st.lists(st.integers(0, 30), min_size=ndim, max_size=ndim))
    offset = data.draw(st.integers(0, 9))
    reach = offset + sum(4 * stride for stride in strides) + 1
    dtype = data.draw(st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.complex128]))
    check(torch.arange(reach).to(dtype).as_strided(shape, strides, offset))


def test_what_requires_grad() -> None:
    leaf = torch.nn.Parameter(torch.arange(3.0))
    check(leaf, leaf.detach())
    check(leaf * 2, (leaf * 2).detach())
    with torch.no_grad():
        check(leaf, leaf.detach())
    with torch.inference_mode():
        check(torch.arange(4.0))
    assert leaf.grad is None


def test_layouts() -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    for x in (
        base.movedim(0, 2),
        base[:, :1].expand(2, 3, 4),
        base[1, 2, 3],
        base[:, 1:1],
        base.as_strided((2, 1, 2), (2, 77, 1)),
        torch.arange(16.0).reshape(1, 4, 2, 2).to(memory_format=torch.channels_last),
        torch.ones([1] * 64),
        torch.ones(1).expand(1000, 3),
        torch._lazy_clone(torch.arange(3.0)),
    ):
        check(x)


def test_subclasses_with_memory() -> None:
    class Mine(torch.Tensor):  # type: ignore[misc,name-defined]
        pass

    class Logged(torch.Tensor):  # type: ignore[misc,name-defined]
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return super().__torch_function__(function, types, args, kwargs or {})

    x = torch.arange(4.0)
    check(x.as_subclass(Mine), x)
    check(x.as_subclass(Logged), x)
    check(torch.nn.Parameter(x.as_subclass(Mine)), x)
    check(torch.nn.parameter.Buffer(x), x)


def test_nothing_is_kept() -> None:
    x = torch.arange(10.0)
    dead = weakref.ref(x)
    tensor_hash([x, x[2:], x])
    del x
    gc.collect()
    assert dead() is None


def test_forward_mode_gradients() -> None:
    import torch.autograd.forward_ad as forward_ad

    x = torch.arange(2.0)
    with forward_ad.dual_level():
        check(forward_ad.make_dual(x, torch.ones(2)), x)


# --- values that torch has put off ---


def test_lazy_conjugation() -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    check(x.conj(), x.conj().resolve_conj())
    check(x.conj().imag, torch.tensor([-2.0, 4.0]))
    check(x.conj().real, torch.tensor([1.0, 3.0]))
    check(x.conj().conj(), x)
    check(x.clone().requires_grad_().conj(), x.conj().resolve_conj())
    check(x.to(torch.complex32).conj(), x.conj().resolve_conj().to(torch.complex32))
    check(x.reshape(2, 1).mH, x.conj().resolve_conj().reshape(1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.complex64])
def test_lazy_negation(dtype: Any) -> None:
    x = torch.arange(3).to(dtype)
    check(torch._neg_view(x), torch.neg(x))
    check(torch._neg_view(x)[1:], torch.neg(x)[1:])
    check(torch._neg_view(torch._neg_view(x)), x)


def test_zero_tensors() -> None:
    check(torch._efficientzerotensor((2, 3)), torch.zeros(2, 3))
    lazy = torch._efficientzerotensor((2,), dtype=torch.complex64).conj()
    check(lazy, torch.zeros(2, dtype=torch.complex64))


# --- tensors without plain memory ---


def refused(x: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"tensors .*{message}"):
        tensor_hash(x)
    with pytest.raises(TypeError, match=f"tensors .*{message}"):
        md5([torch.ones(2), x])


@pytest.mark.parametrize(
    ("layout", "part"),
    [
        (torch.sparse_coo, r"x\.indices\(\) and x\.values\(\)"),
        (torch.sparse_csr, r"x\.crow_indices\(\), x\.col_indices\(\) and x\.values\(\)"),
        (torch.sparse_csc, r"x\.ccol_indices\(\), x\.row_indices\(\) and x\.values\(\)"),
    ],
    ids=str,
)
def test_sparse(layout: Any, part: str) -> None:
    x = torch.eye(3).to_sparse(layout=layout)
    refused(x, part)
    check(x.coalesce().indices() if layout is torch.sparse_coo else x.values())


def test_other_layouts() -> None:
    refused(torch.eye(4).to_sparse_bsr((2, 2)), r"layout torch\.sparse_bsr")
    refused(torch.eye(4).to_mkldnn(), r"layout torch\._mkldnn")


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested(layout: Any) -> None:
    parts = [torch.ones(2), torch.ones(3)]
    x = torch.nested.nested_tensor(parts, layout=layout)
    refused(x, r"pass x\.values\(\), or the list x\.unbind\(\)")
    assert tensor_hash(list(x.unbind())) == tensor_hash(parts)
    check(x.values(), torch.ones(5))


@pytest.mark.parametrize("bits", range(1, 8))
@pytest.mark.parametrize("sign", ["int", "uint"])
def test_integers_of_few_bits_are_their_bytes(sign: str, bits: int) -> None:
    """torch keeps one a byte, computes nothing with them, and hands them over as bytes."""
    x = torch.arange(8, dtype=torch.uint8).view(getattr(torch, f"{sign}{bits}"))
    assert tensor_hash(x) == tensor_hash(x.view(getattr(torch, f"{sign}8")))


@pytest.mark.parametrize("name", ["bits8", "bits1x8", "bits2x4", "bits4x2"])
def test_bits_of_a_byte_are_their_bytes(name: str) -> None:
    x = torch.arange(8, dtype=torch.uint8)
    assert tensor_hash(x.view(getattr(torch, name))) == tensor_hash(x)


def test_bits_of_two_bytes_are_refused() -> None:
    refused(torch.zeros(8, dtype=torch.uint8).view(torch.bits16), "without memory")


def test_quantized() -> None:
    x = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    refused(x, r"pass x\.int_repr\(\)")
    check(x.int_repr())


def test_meta_and_fake() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    refused(torch.empty(2, device="meta"), "a meta tensor has only a shape")
    refused(torch.empty(0, device="meta"), "a meta tensor has only a shape")
    with FakeTensorMode():
        fake = torch.ones(2)
    refused(fake, "a FakeTensor has only a shape")


def test_memory_that_is_gone() -> None:
    x = torch.ones(3)
    x.untyped_storage().resize_(0)
    refused(x, "without memory of its own")
    empty = torch.ones(0)
    empty.untyped_storage().resize_(0)
    check(empty)


def test_uninitialized_parameters() -> None:
    layer = torch.nn.LazyLinear(2)
    refused(layer.weight, "before the first forward")
    layer(torch.ones(1, 3))
    check(layer.weight, layer.weight.detach())


class Wrapper(torch.Tensor):  # type: ignore[misc,name-defined]
    """Its elements are those of another tensor, and it can nothing."""

    @staticmethod
    def __new__(cls, x: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(function)


def test_wrapper_subclasses() -> None:
    from torch.masked import masked_tensor
    from torch.testing._internal.two_tensor import TwoTensor

    refused(Wrapper(torch.ones(2)), "is a Wrapper without memory of its own")
    refused(TwoTensor(torch.ones(2), torch.ones(2)), "is a TwoTensor without memory of its own")
    masked = masked_tensor(torch.ones(2), torch.tensor([True, False]))
    refused(masked, "is a MaskedTensor without memory of its own")


@pytest.mark.parametrize(
    "transform",
    [
        lambda see: torch.vmap(see)(torch.ones(2, 3)),
        lambda see: torch.func.grad(lambda x: see(x).sum())(torch.ones(3)),
        lambda see: torch.func.jvp(see, (torch.ones(3),), (torch.ones(3),)),
        lambda see: torch.func.functionalize(see)(torch.ones(3)),
    ],
    ids=["vmap", "grad", "jvp", "functionalize"],
)
def test_inside_transforms(transform: Callable[[Callable[[Any], Any]], Any]) -> None:
    seen = []

    def see(x: Any) -> Any:
        refused(x, r"transforms of torch\.func")
        seen.append(x.shape)
        return x * 2

    transform(see)
    assert len(seen) == 1


def test_sizes_beyond_bounds() -> None:
    with pytest.raises(ValueError, match="tensors: a tensor of 65 dimensions; 64 are allowed"):
        tensor_hash(torch.ones([1] * 65))


def test_other_torch_objects() -> None:
    for wrong in (torch.ones(2).untyped_storage(), torch.float32, torch.Tensor):
        with pytest.raises(TypeError, match="tensors must be a torch tensor"):
            tensor_hash(wrong)


# --- distributed tensors ---


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_available():
        pytest.skip("this torch has no torch.distributed")
    file = tmp_path_factory.mktemp("store") / "file"
    dist.init_process_group("gloo", init_method=file.as_uri(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_dtensor_is_its_local_shard(mesh: Any) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    x = torch.arange(6.0).reshape(2, 3)
    distributed = distribute_tensor(x, mesh, [Shard(0)])
    check(distributed, x)
    check(distributed.t(), x.t())
    check(torch.nn.Parameter(distributed), x)
    lazy = torch.tensor([1 + 2j])
    check(distribute_tensor(lazy, mesh, [Shard(0)]).conj(), lazy.conj().resolve_conj())


def test_an_asynchronous_collective_is_waited_for(mesh: Any) -> None:
    import torch.distributed._functional_collectives as collectives

    result = collectives.all_reduce(torch.ones(3), "sum", mesh)
    assert type(result).__name__ == "AsyncCollectiveTensor"
    check(result, torch.ones(3))


def test_the_type_is_found_after_a_late_import(run_python: RunPython) -> None:
    program = """
from my_utils.tensors import tensor_hash
tensor_hash(b"abc")
import torch
print(tensor_hash(torch.ones(2)).dtype, tensor_hash(torch.nn.Parameter(torch.ones(2))).shape)
"""
    result = run_python("-c", program)
    assert (result.stdout, result.stderr) == ("float32 (2,)\n", "")

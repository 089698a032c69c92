"""The operators torch.ops.my_utils.*: what they compute, and what torch may do with them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from my_utils import tensors  # noqa: E402
from my_utils.tensors import torch_ops as _torch_ops  # noqa: E402

from ..conftest import RunPython  # noqa: E402
from ..support import tensor_hash_oracle as oracle  # noqa: E402
from ..support.compilers import needs_cxx  # noqa: E402
from ..support.dtypes import DTYPES  # noqa: E402
from ..support.variants import gate_runs  # noqa: E402

pytestmark = pytest.mark.long_file

_torch_ops.register()
OPS = torch.ops.my_utils
COMPILED_BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=needs_cxx)]
EMPTY = "fac093705c7c9f2b9ee5bd6e6290f795"  # the content digest of no bytes, from the definition


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def bytes_of(x: Any) -> bytes:
    """The row-major bytes, by torch's own means."""
    plain = (
        x.detach()
        .resolve_conj()
        .resolve_neg()
        .clone(memory_format=torch.contiguous_format)
        .reshape(-1)
    )
    return bytes(plain.view(torch.uint8).tolist()) if plain.numel() else b""


def expected_hash(x: Any) -> list[int]:
    return [half - 2**64 if half >= 2**63 else half for half in oracle.content(bytes_of(x))]


def random_of(dtype: Any, count: int = 48) -> Any:
    torch.manual_seed(5)
    size = torch.empty(0, dtype=dtype).element_size()
    data = torch.randint(0, 256, (count * size,), dtype=torch.uint8)
    if dtype == torch.bool:
        return data > 127
    return data.view(dtype)


def hex_of(result: Any) -> str:
    lo, hi = (int(half) % 2**64 for half in result)
    return f"{hi:016x}{lo:016x}"


# --- what they compute ---


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: Any) -> None:
    x = random_of(dtype)
    assert OPS.tensor_hash(x).tolist() == expected_hash(x)


def test_result() -> None:
    result = OPS.tensor_hash(torch.ones(3))
    assert result.dtype == torch.int64
    assert result.shape == (2,)
    assert result.device.type == "cpu"


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_hash_of_nothing(shape: tuple[int, ...]) -> None:
    assert hex_of(OPS.tensor_hash(torch.empty(shape))) == EMPTY


STATS = [
    *("count", "finite", "min", "max", "mean", "std", "l1", "l2", "abs_max"),
    *("zeros", "nans", "pos_infs", "neg_infs", "first_nan", "first_inf", "reserved"),
]


def expected_stats(x: Any) -> dict[str, float]:
    """By torch's own means, in float64."""
    flat = x.detach().clone(memory_format=torch.contiguous_format).reshape(-1).double()
    finite = flat[flat.isfinite()]
    none = float("nan")
    index = {"nan": flat.isnan(), "inf": flat.isinf()}
    first = {key: int(at.int().argmax()) if at.any() else -1 for key, at in index.items()}
    some = len(finite) > 0
    return {
        "count": len(flat),
        "finite": len(finite),
        "min": float(finite.min()) if some else none,
        "max": float(finite.max()) if some else none,
        "mean": float(finite.mean()) if some else none,
        "std": float(finite.std()) if len(finite) > 1 else none,
        "l1": float(finite.abs().sum()),
        "l2": float(finite.norm()),
        "abs_max": float(finite.abs().max()) if some else none,
        "zeros": int((finite == 0).sum()),
        "nans": int(index["nan"].sum()),
        "pos_infs": int((flat == float("inf")).sum()),
        "neg_infs": int((flat == -float("inf")).sum()),
        "first_nan": first["nan"],
        "first_inf": first["inf"],
        "reserved": 0,
    }


def check_stats(x: Any) -> None:
    result = OPS.stats(x)
    assert (result.dtype, result.shape) == (torch.float64, (16,))
    got = dict(zip(STATS, result.tolist(), strict=True))
    assert got == pytest.approx(expected_stats(x), rel=1e-12, abs=1e-12, nan_ok=True)
    counts = OPS.nan_inf_count(x)
    assert (counts.dtype, counts.shape) == (torch.int64, (3,))
    assert counts.tolist() == [got["nans"], got["pos_infs"], got["neg_infs"]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_stats(dtype: Any) -> None:
    x = torch.linspace(-3, 5, 120).to(dtype).reshape(6, 20)
    check_stats(x)
    check_stats(x.t()[::3].requires_grad_())
    x[2, 3], x[4, 5], x[4, 6], x[5, 5] = float("nan"), float("inf"), -float("inf"), 0
    check_stats(x)
    check_stats(x.t())
    check_stats(x[4, 5])
    check_stats(x[:0])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int64])
def test_stats_of_whole_numbers(dtype: Any) -> None:
    check_stats(torch.arange(100).remainder(7).to(dtype))


def test_they_agree_with_the_functions() -> None:
    x = torch.linspace(-2, 7, 10_000).reshape(100, 100)
    x[3, 4], x[5, 6] = float("nan"), -float("inf")
    for view in (x, x.t(), x[::3, 1:].to(torch.bfloat16), x[4].to(torch.complex64).conj()):
        found = tensors.stats(view)
        assert hex_of(OPS.tensor_hash(view)) == tensors.tensor_hash(view).content
        assert OPS.stats(view).tolist()[:-1] == [getattr(found, name) for name in STATS[:-1]]
        assert OPS.nan_inf_count(view).tolist() == list(tensors.nan_inf_count(view))


def test_strides() -> None:
    base = torch.arange(120.0).reshape(4, 5, 6)
    views = [
        base.transpose(0, 2),
        base[::2, 1:, ::3],
        base[:, :1].expand(4, 5, 6),
        base[0, 0, 0],
        base.as_strided((3, 3), (1, 1), 7),
        base.to(torch.bfloat16).movedim(0, 1)[1:],
    ]
    for view in views:
        assert OPS.tensor_hash(view).tolist() == expected_hash(view)


def test_big_and_strided() -> None:
    x = torch.arange(3_000_000, dtype=torch.int32).reshape(1500, 2000)
    assert torch.equal(OPS.tensor_hash(x.t()), OPS.tensor_hash(x.t().contiguous()))


@pytest.mark.parametrize(
    "lazy",
    [
        torch.ones(5, dtype=torch.complex64).mul(2 + 3j).conj(),
        torch.arange(4.0).mul(1j).conj().imag,
        torch._neg_view(torch.arange(5.0)),
        torch._efficientzerotensor(4),
    ],
    ids=["conj", "conj_imag", "neg", "zero"],
)
def test_lazy_views_are_resolved(lazy: Any) -> None:
    values = lazy.clone() if lazy._is_zerotensor() else lazy
    assert OPS.tensor_hash(lazy).tolist() == expected_hash(values)


def test_a_parameter_that_requires_grad() -> None:
    x = torch.nn.Parameter(torch.ones(3))
    result = OPS.tensor_hash(x)
    assert not result.requires_grad
    assert result.tolist() == expected_hash(x)


def test_hash_into_writes_one_row() -> None:
    x = torch.arange(10.0, requires_grad=True)
    out = torch.full((4, 2), 7)
    assert OPS.hash_into(x, out, 2) is None
    assert out[2].tolist() == expected_hash(x)
    assert out[[0, 1, 3]].eq(7).all()


@pytest.mark.parametrize("shape", [(10,), (37, 61), (1 << 19,), (0,), ()])
def test_sums_into_writes_one_row(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape).mT if len(shape) > 1 else torch.rand(shape)
    out = torch.full((3, 8), 7)
    assert OPS.sums_into(x, out, 1) is None
    assert [value % 2**64 for value in out[1].tolist()] == list(tensors.tensor_sums(x).sums)
    assert out[[0, 2]].eq(7).all()
    with pytest.raises(RuntimeError, match=r"my_utils::sums_into: .*\[rows, 8\], not int64"):
        OPS.sums_into(x, torch.zeros(3, 2, dtype=torch.int64), 1)


def test_modes() -> None:
    x = torch.arange(9.0)
    out = torch.zeros(1, 2, dtype=torch.int64)
    with torch.inference_mode():
        OPS.hash_into(torch.arange(9.0), out, 0)
        inside = OPS.tensor_hash(torch.arange(9.0))
    assert out[0].tolist() == inside.tolist() == expected_hash(x)
    with torch.no_grad():
        assert OPS.tensor_hash(x).tolist() == expected_hash(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert OPS.tensor_hash(x).tolist() == expected_hash(x)


def test_from_many_threads() -> None:
    tensors = [torch.full((1000 + i,), float(i)) for i in range(8)]
    wanted = [OPS.tensor_hash(x).tolist() for x in tensors]
    wrong = []

    def work() -> None:
        for _ in range(200):
            for x, want in zip(tensors, wanted, strict=True):
                if OPS.tensor_hash(x).tolist() != want:
                    wrong.append(x.shape)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_vmap() -> None:
    """A row a sample; there is no batched form that writes into one tensor."""
    x = torch.rand(3, 4)
    rows = torch.vmap(OPS.tensor_hash)(x)
    assert rows.tolist() == [expected_hash(row) for row in x]
    out = torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="my_utils::hash_into"):
        torch.vmap(lambda row: OPS.hash_into(row, out, 0))(x)


# --- what they refuse ---


@pytest.mark.parametrize(
    ("out", "row", "message"),
    [
        (torch.zeros(3, 2), 0, r"contiguous int64 .*\[rows, 2\], not float32 of shape \[3, 2\]"),
        (torch.zeros(6, dtype=torch.int64), 0, r"not int64 of shape \[6\]"),
        (torch.zeros(3, 3, dtype=torch.int64), 0, r"not int64 of shape \[3, 3\]"),
        (torch.zeros(2, 2, dtype=torch.int64).t(), 0, r"not non-contiguous int64"),
        (torch.zeros(3, 2, dtype=torch.int64), 3, "row must be from 0 to 2.*, not 3"),
        (torch.zeros(3, 2, dtype=torch.int64), -1, "not -1"),
        (torch.zeros(0, 2, dtype=torch.int64), 0, "row"),
    ],
)
def test_hash_into_checks_its_arguments(out: Any, row: int, message: str) -> None:
    x = torch.ones(3)
    before = out.clone()
    with pytest.raises(RuntimeError, match=f"my_utils::hash_into: .*{message}"):
        OPS.hash_into(x, out, row)
    assert torch.equal(out, before)


def test_dtypes_that_are_shells() -> None:
    with pytest.raises(RuntimeError, match="c10::ScalarType number"):
        OPS.tensor_hash(torch.zeros(4, dtype=torch.uint8).view(torch.uint4))


def test_memory_that_is_gone() -> None:
    x = torch.ones(4)
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"my_utils::tensor_hash: .*no memory"):
        OPS.tensor_hash(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda: torch.ones(2).to_mkldnn(),
    ],
    ids=["coo", "csr", "nested", "quantized", "mkldnn"],
)
def test_tensors_without_plain_memory(make: Callable[[], Any]) -> None:
    with pytest.raises(NotImplementedError, match="my_utils::tensor_hash"):
        OPS.tensor_hash(make())


@pytest.mark.parametrize("name", ["int1", "int4", "uint7", "bits8", "bits16", "bits2x4"])
def test_dtypes_with_which_torch_does_not_compute(name: str) -> None:
    x = torch.zeros(8, dtype=torch.uint8).view(getattr(torch, name))
    with pytest.raises(RuntimeError, match=r"my_utils::tensor_hash: .*none of the known types"):
        OPS.tensor_hash(x)


def test_an_error_inside_a_compiled_graph() -> None:
    out = torch.zeros(1, 2, dtype=torch.int64)

    def function(x: Any, out: Any) -> Any:
        OPS.hash_into(x, out, 5)
        return x + 1

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="row must be from 0 to 0"):
        compiled(torch.ones(3), out)
    assert OPS.tensor_hash(torch.ones(3)).tolist() == expected_hash(torch.ones(3))


# --- what torch may do with them ---


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "make",
    [lambda: torch.rand(3, 4), lambda: torch.rand(4, 3).t(), lambda: torch.rand(0, 2)],
    ids=["plain", "strided", "empty"],
)
def test_opcheck(make: Callable[[], Any], requires_grad: bool) -> None:
    x = make().requires_grad_(requires_grad)
    for name in _torch_ops.REDUCTIONS:
        if name == "stats" and x.numel() == 0:
            continue  # to opcheck, NaN differs from NaN
        assert set(torch.library.opcheck(getattr(OPS, name), (x,)).values()) == {"SUCCESS"}
    out = torch.zeros(2, 2, dtype=torch.int64)
    assert set(torch.library.opcheck(OPS.hash_into, (x, out, 1)).values()) == {"SUCCESS"}


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", gate_runs(("True",), [False, True]))
@pytest.mark.parametrize("backend", COMPILED_BACKENDS)
def test_results_in_a_compiled_graph(backend: str, dynamic: bool) -> None:
    def function(x: Any) -> Any:
        y = x.sin().t()
        return OPS.tensor_hash(y), OPS.stats(y), OPS.nan_inf_count(y), y

    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    for size in (3, 5, 0):
        x = torch.linspace(0, 1, 4 * size).reshape(4, size)
        digest, stats, counts, y = compiled(x)
        assert digest.tolist() == expected_hash(y)
        assert torch.equal(stats.nan_to_num(), OPS.stats(y).nan_to_num())
        assert counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize("backend", COMPILED_BACKENDS)
def test_hash_into_sees_the_values_of_its_moment(backend: str) -> None:
    """Neither dropped, nor moved across what changes its input."""

    def function(x: Any, out: Any) -> Any:
        OPS.hash_into(x, out, 0)
        x.mul_(2)
        OPS.hash_into(x, out, 1)
        y = x + 1
        OPS.hash_into(y, out, 2)
        y.relu_()
        y[0] = 5
        OPS.hash_into(y[1:], out, 3)
        OPS.hash_into(out[:3], out, 4)
        return y

    x = torch.linspace(-3, 3, 8)
    eager_out, out = torch.zeros(5, 2, dtype=torch.int64), torch.zeros(5, 2, dtype=torch.int64)
    eager_x, compiled_x = x.clone(), x.clone()
    eager_y = function(eager_x, eager_out)
    y = torch.compile(function, backend=backend, fullgraph=True)(compiled_x, out)
    torch.testing.assert_close(y, eager_y)
    assert torch.equal(compiled_x, eager_x)
    assert torch.equal(out, eager_out)
    assert out[0].tolist() == expected_hash(x)
    assert out[1].tolist() == expected_hash(x * 2)


@pytest.mark.parametrize("backend", COMPILED_BACKENDS)
def test_hash_into_under_training(backend: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    out = torch.zeros(2, 2, dtype=torch.int64)

    def loss(x: Any) -> Any:
        y = model(x)
        OPS.hash_into(x, out, 0)
        OPS.hash_into(model[0].weight, out, 1)
        return y.square().mean()

    x = torch.rand(2, 4)
    eager = copy.deepcopy(model)
    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    for _ in range(2):
        compiled(x).backward()
    for _ in range(2):
        eager(x).square().mean().backward()
    torch.testing.assert_close(model[0].weight.grad, eager[0].weight.grad)
    assert out.tolist() == [expected_hash(x), expected_hash(model[0].weight)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_compiles(dtype: Any) -> None:
    def function(x: Any) -> Any:
        return OPS.tensor_hash(x), OPS.stats(x), OPS.nan_inf_count(x)

    x = random_of(dtype)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)(x)
    for got, want in zip(compiled, function(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert compiled[0].tolist() == expected_hash(x)


def test_rows_that_vary() -> None:
    def function(x: Any, out: Any, row: int) -> None:
        OPS.hash_into(x, out, row)

    out = torch.zeros(4, 2, dtype=torch.int64)
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    for row in range(4):
        compiled(torch.full((3,), float(row)), out, row)
    assert out.tolist() == [expected_hash(torch.full((3,), float(row))) for row in range(4)]


def test_fake_and_meta_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        result = OPS.tensor_hash(torch.empty(3, 4))
        assert (result.shape, result.dtype) == ((2,), torch.int64)
        OPS.hash_into(torch.empty(3), torch.empty(2, 2, dtype=torch.int64), 1)
    assert OPS.tensor_hash(torch.empty(3, device="meta")).shape == (2,)


def test_export() -> None:
    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, out: Any) -> Any:
            OPS.hash_into(x, out, 1)
            return OPS.tensor_hash(x * 2)

    x, out = torch.rand(4, 3), torch.zeros(2, 2, dtype=torch.int64)
    batch = torch.export.Dim("batch")
    program = torch.export.export(Model(), (x, out), dynamic_shapes={"x": {0: batch}, "out": None})
    other = torch.rand(7, 3)
    result = program.module()(other, out)
    assert result.tolist() == expected_hash(other * 2)
    assert out[1].tolist() == expected_hash(other)


def test_dispatch_modes_see_one_call() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.names: list[str] = []

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    with Seen() as seen:
        result = OPS.tensor_hash(torch.ones(3, requires_grad=True).detach())
    assert seen.names[-1] == "my_utils.tensor_hash.default"
    assert result.tolist() == expected_hash(torch.ones(3))


# --- registration ---


def test_registration_is_once() -> None:
    before = _torch_ops._library
    for _ in range(3):
        _torch_ops.register()
    assert _torch_ops._library is before


def test_a_second_copy_of_the_module_registers_nothing_again(run_python: RunPython) -> None:
    program = """
import sys, torch, my_utils.torch_ops
for name in [name for name in sys.modules if name.startswith("my_utils._core")]:
    del sys.modules[name]
from my_utils import _core
_core.register_torch_kernels()
print(torch.ops.my_utils.tensor_hash(torch.ones(3)).shape)
"""
    result = run_python("-c", program)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "torch.Size([2])\n"


def test_registration_from_many_threads(run_python: RunPython) -> None:
    program = """
import threading, torch
from my_utils.tensors import torch_ops as _torch_ops
threads = [threading.Thread(target=_torch_ops.register) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(torch.ops.my_utils.tensor_hash(torch.ones(3)).shape)
"""
    result = run_python("-c", program)
    assert (result.returncode, result.stderr) == (0, "")


def test_importing_the_package_brings_no_torch(run_python: RunPython) -> None:
    program = "import sys, my_utils._core; assert 'torch' not in sys.modules"
    assert run_python("-c", program).returncode == 0


@pytest.mark.no_torch
def test_without_torch(run_python: RunPython) -> None:
    program = """
from my_utils import _core
try:
    _core.register_torch_kernels()
except RuntimeError as error:
    print(error)
"""
    result = run_python("-c", program)
    assert result.stdout == "the operators need torch: no libtorch_cpu.so is loaded\n"


# --- on a GPU ---


GPU_VIEWS: list[Callable[[Any], Any]] = [
    lambda x: x,
    lambda x: x[1:],
    lambda x: x[:0],
    lambda x: x.reshape(3, -1).t(),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_integers_on_a_gpu_are_those_of_the_cpu(dtype: Any) -> None:
    x = random_of(dtype, 3 * 4096)
    on_gpu = x.cuda()
    for view in GPU_VIEWS:
        for operator in (OPS.tensor_hash, OPS.nan_inf_count):
            result = operator(view(on_gpu))
            assert result.is_cuda
            assert torch.equal(result.cpu(), operator(view(x)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_stats_on_a_gpu(dtype: Any) -> None:
    x = torch.linspace(-3, 5, 90_000).to(dtype)
    x[2_003], x[45_000] = float("nan"), float("inf")
    on_gpu = x.cuda()
    for view in GPU_VIEWS:
        result = OPS.stats(view(on_gpu)).cpu()
        torch.testing.assert_close(
            result, OPS.stats(view(x)), rtol=1e-10, atol=1e-10, equal_nan=True
        )


@pytest.mark.gpu
def test_hash_into_on_the_current_stream() -> None:
    x = torch.zeros(1 << 24, device="cuda")
    out = torch.zeros(3, 2, dtype=torch.int64, device="cuda")
    wanted = [OPS.tensor_hash(torch.full(x.shape, float(value))).tolist() for value in range(3)]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for value in range(3):
            x.fill_(value)
            OPS.hash_into(x, out, value)
    side.synchronize()
    assert out.tolist() == wanted


@pytest.mark.gpu
def test_sums_into_on_a_gpu() -> None:
    x = torch.rand(3000, 700)
    out = torch.zeros(3, 8, dtype=torch.int64, device="cuda")
    views = [x, x.t(), x[:, 1:]]
    for row, view in enumerate(views):
        OPS.sums_into(view.cuda(), out, row)
    found = [[value % 2**64 for value in row] for row in out.tolist()]
    assert found == [list(tensors.tensor_sums(view).sums) for view in views]


@pytest.mark.gpu
def test_hash_into_checks_the_device() -> None:
    out = torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="out must be on the device of x"):
        OPS.hash_into(torch.ones(3, device="cuda"), out, 0)
    with pytest.raises(RuntimeError, match="out must be on the device of x"):
        OPS.hash_into(torch.ones(3), out.cuda(), 0)


@pytest.mark.gpu
def test_in_a_compiled_graph_on_a_gpu() -> None:
    def function(x: Any, out: Any) -> Any:
        OPS.hash_into(x, out, 0)
        y = x.mul(2)
        OPS.hash_into(y, out, 1)
        return OPS.stats(y)

    x, out = torch.rand(64, 64), torch.zeros(2, 2, dtype=torch.int64, device="cuda")
    stats = torch.compile(function, fullgraph=True)(x.cuda(), out)
    assert out.tolist() == [expected_hash(x), expected_hash(x * 2)]
    torch.testing.assert_close(stats.cpu(), OPS.stats(x * 2), rtol=1e-10, atol=1e-10)


@pytest.mark.gpu
def test_in_a_cuda_graph() -> None:
    x = torch.zeros(5000, device="cuda")
    out = torch.zeros(1, 2, dtype=torch.int64, device="cuda")
    OPS.hash_into(x, out, 0)  # compiles the kernels, which no capture allows
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        OPS.hash_into(x, out, 0)
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        assert out[0].tolist() == expected_hash(torch.full((5000,), value))

"""Measures of tensors on a GPU: compiled for real, run on a simulated driver, and on a real GPU."""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from my_utils import _core

from ..conftest import RunPython
from ..fakes import WITH_KERNELS, compile_fake
from ..record.stages.test_cuda_timing import TABLE
from ..support.variants import gate_runs

pytestmark = pytest.mark.long_file

FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e4m3fnuz"]
FLOATS += ["float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"]
INTEGERS = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
COMPLEX = ["complex32", "complex64", "complex128"]
DTYPES = INTEGERS + FLOATS + COMPLEX


def nvrtc_path() -> Path:
    """The library of the package nvidia-cuda-nvrtc; skips where it is not installed."""
    for entry in sys.path:
        for found in sorted(Path(entry or ".").glob("nvidia/*/lib/libnvrtc.so.*"), reverse=True):
            if "builtins" not in found.name and "alt" not in found.name:
                return found
    pytest.skip("the package nvidia-cuda-nvrtc is not installed")


def nvrtc_version() -> tuple[int, int]:
    library = ctypes.CDLL(str(nvrtc_path()))
    major, minor = ctypes.c_int(), ctypes.c_int()
    assert library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
    return major.value, minor.value


# --- compiling, which needs no GPU ---------------------------------------------------------------


@pytest.fixture
def compile_program(run_python: RunPython) -> Callable[..., list[tuple[str, str]]]:
    """Compiles programs in a separate process; gives each one's image and log."""
    path = nvrtc_path()

    def run(programs: list[list[Any]], cubin: bool = False) -> list[tuple[str, str]]:
        script = f"""
import json
from my_utils import _core
_core.gpu_configure(nvrtc={str(path)!r})
programs = json.loads({json.dumps(programs)!r})
made = [_core.gpu_compile(*program, cubin={cubin}) for program in programs]
print(json.dumps([(image.decode("latin-1"), log) for image, log in made]))
"""
        done = run_python("-c", script, timeout=110)
        assert done.returncode == 0, done.stderr
        return [(image, log) for image, log in json.loads(done.stdout)]

    return run


def check_ptx(image: str, arch: int, kernels: list[str]) -> None:
    assert f".target sm_{arch}" in image
    assert sorted(re.findall(r"\.visible \.entry (\w+)\(", image)) == sorted(kernels)


KERNELS = {
    "hash": ["mu_hash_blocks", "mu_hash_rows", "mu_hash_ends", "mu_hash_finish"],
    "nan_inf": ["mu_nan_inf_dense", "mu_nan_inf_strided"],
    "stats": ["mu_stats_dense", "mu_stats_strided", "mu_stats_end"],
    "compare": ["mu_compare_pairs", "mu_compare_end"],
}


@pytest.mark.slow
@pytest.mark.no_torch
@pytest.mark.parametrize("arch", gate_runs(["90"], [80, 90, 100]))
def test_kernels_compile(compile_program: Callable[..., Any], arch: int) -> None:
    programs: list[list[Any]] = [["hash", arch], ["nan_inf", arch]]
    programs += [["stats", arch, "bfloat16"], ["compare", arch, "float32", "float16"]]
    for program, (image, log) in zip(programs, compile_program(programs), strict=True):
        check_ptx(image, arch, KERNELS[program[0]])
        assert log == "\0" or not log.strip("\0\n "), log


@pytest.mark.no_torch
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("program", ["stats", "compare"])
def test_every_dtype_compiles(compile_program: Callable[..., Any], program: str) -> None:
    count = 1 if program == "stats" else 2
    programs = [[program, 90, *[name] * count] for name in DTYPES]
    assert len(compile_program(programs)) == len(DTYPES)


@pytest.mark.no_torch
def test_no_kernel_spills(compile_program: Callable[..., Any]) -> None:
    """The loops keep what they need in registers, and leave room for enough warps. NVRTC 13.0 to
    13.2 keep 30 words of the hash, and two of the statistics, on the stack."""
    most = 0 if nvrtc_version() >= (13, 3) else 120
    programs = [["hash", 90], ["nan_inf", 90], ["stats", 90, "float32"]]
    for _, log in compile_program(programs, cubin=True):
        assert max(map(int, re.findall(r"(\d+) bytes spill", log))) <= most
        assert max(map(int, re.findall(r"Used (\d+) registers", log))) <= 128


@pytest.mark.no_torch
def test_what_cannot_be_compiled() -> None:
    with pytest.raises(ValueError, match="program must be 'hash', 'nan_inf', 'stats' or 'compare'"):
        _core.gpu_compile("sums", 90)
    with pytest.raises(ValueError, match="'stats' takes 1 dtypes"):
        _core.gpu_compile("stats", 90)
    with pytest.raises(ValueError, match="'hash' takes 0 dtypes"):
        _core.gpu_compile("hash", 90, "float32")
    with pytest.raises(ValueError, match="b must be the name of a dtype, not 'float33'"):
        _core.gpu_compile("compare", 90, "float32", "float33")
    with pytest.raises(TypeError, match="arch"):
        _core.gpu_compile("hash", "sm_90")  # type: ignore[arg-type]


@pytest.mark.no_torch
def test_an_unknown_gpu_is_refused_with_the_log(run_python: RunPython) -> None:
    script = f"""
from my_utils import _core
_core.gpu_configure(nvrtc={str(nvrtc_path())!r})
try:
    _core.gpu_compile("hash", 51)
except ValueError as error:
    assert "cannot compile hash.cu for compute_51" in str(error), error
try:
    _core.gpu_configure(cache="/tmp")
except RuntimeError as error:
    assert "in use already" in str(error)
"""
    done = run_python("-c", script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.no_torch
def test_without_nvrtc(run_python: RunPython) -> None:
    script = """
from my_utils import _core
_core.gpu_configure(nvrtc="/no/such/libnvrtc.so.13")
try:
    _core.gpu_compile("hash", 90)
except RuntimeError as error:
    assert "need NVRTC: /no/such/libnvrtc.so.13" in str(error), error
assert "/no/such" in _core.gpu_state()["nvrtc_reason"]
"""
    done = run_python("-c", script)
    assert (done.returncode, done.stderr) == (0, "")


# --- on the simulated driver, which runs the kernels on the processor ----------------------------

# A tensor that says it is on a GPU, and whose memory numpy can read.
FAKE_TENSORS = """
import ctypes, json, os, sys
import numpy as np
from my_utils import _core

device = ctypes.CDLL("libcuda.so.1")
device.fakeCudaStream.restype = ctypes.c_void_p
device.fakeCudaCapture.argtypes = [ctypes.c_void_p, ctypes.c_int]
device.fakeCudaFail.argtypes = [ctypes.c_char_p]
warnings = []
_core.set_warning_hook(lambda kind, message: warnings.append([kind, message]))
if os.environ.get("NVRTC"):
    _core.gpu_configure(nvrtc=os.environ["NVRTC"], cache=os.environ["CACHE"])

class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64)]

class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}

class OnGPU:
    def __init__(self, array):
        self.array = array
        sizes = [*array.shape, *(stride // array.itemsize for stride in array.strides)]
        self.sizes = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        at = ctypes.addressof(self.sizes)
        self.managed = Managed(DLTensor(array.ctypes.data, 2, 0, array.ndim,
                                        CODES[array.dtype.kind], array.itemsize * 8, 1, at,
                                        at + 8 * array.ndim, 0), None, None)

    def __dlpack__(self, **options):
        return new_capsule(ctypes.addressof(self.managed), b"dltensor", None)

def calls(name):
    return device.fakeCudaCalls(name.encode())

def report(**more):
    print(json.dumps({"warnings": warnings, "misuse": device.fakeCudaMisuse(),
                      "memory": device.fakeCudaLiveMemory(), "state": _core.gpu_state(), **more}))
"""


@pytest.fixture(scope="session")
def kernel_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("kernels") / "libcuda.so.1"
    return compile_fake("fake_cuda.c", library, *WITH_KERNELS)


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernel-cache")


@pytest.fixture
def on_fake_gpu(
    run_python: RunPython, kernel_driver: Path, kernel_cache: Path
) -> Callable[..., dict[str, Any]]:
    def run(script: str, **env: str) -> dict[str, Any]:
        libraries = [str(kernel_driver.parent), os.environ.get("LD_LIBRARY_PATH", "")]
        settings = {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
            "NVRTC": str(nvrtc_path()),
            "CACHE": str(kernel_cache),
            **env,
        }
        done = run_python(
            "-c", "import ctypes, sys\n" + TABLE + FAKE_TENSORS + script, env=settings
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        said: dict[str, Any] = json.loads(done.stdout)
        assert said["misuse"] == 0
        assert said["memory"] == 0
        return said

    return run


RunFake = Callable[..., dict[str, Any]]

RANDOM = """
rng = np.random.default_rng(5)
x = rng.standard_normal((70, 130)).astype("float32")
x[3, 4], x[5, 6], x[7, 8] = np.nan, np.inf, -np.inf
"""


@pytest.mark.slow
@pytest.mark.no_torch
def test_results_are_those_of_the_processor(on_fake_gpu: RunFake) -> None:
    said = on_fake_gpu(
        RANDOM
        + """
views = [x, x.T, x[::2, 1::3], x[::-1], x[:0], x[5, 6:7].reshape(()), x.astype("float16").T]
for view in [*views, x.astype("complex64"), np.arange(999).reshape(9, 111).T]:
    moved = OnGPU(view)
    assert _core.tensor_hash(moved) == _core.tensor_hash(view)
    whole, at = [size + 5 for size in view.shape], [1, 3][: view.ndim]
    assert _core.tensor_sums(moved, whole, at) == _core.tensor_sums(view, whole, at)
    assert _core.nan_inf_count(moved) == _core.nan_inf_count(view)
    if view.dtype == np.float32:
        gpu, cpu = _core.stats(moved), _core.stats(view)
        for name in ("count", "finite", "zeros", "nans", "pos_infs", "neg_infs", "first_nan",
                     "first_inf"):
            assert getattr(gpu, name) == getattr(cpu, name), name
        np.testing.assert_equal((gpu.min, gpu.max, gpu.abs_max), (cpu.min, cpu.max, cpu.abs_max))
        np.testing.assert_allclose((gpu.mean, gpu.std, gpu.l1, gpu.l2),
                                   (cpu.mean, cpu.std, cpu.l1, cpu.l2), rtol=1e-12)
report()
"""
    )
    assert said["warnings"] == []
    assert said["state"]["used"]
    assert said["state"]["loaded"] == 3


@pytest.mark.no_torch
def test_compare_on_the_gpu(on_fake_gpu: RunFake) -> None:
    said = on_fake_gpu(
        RANDOM
        + """
y = x.copy()
y[10:12] += 0.5
y[40, 9] = np.nan
for many in (0, 3, 10, 100_000):
    gpu = _core.compare(OnGPU(x), OnGPU(y), max_mismatches=many)
    cpu = _core.compare(x, y, max_mismatches=many)
    for name in ("equal", "equal_bits", "elements", "mismatches", "max_abs", "max_abs_index",
                 "max_rel", "max_rel_index", "sign_differences", "nan_disagreements",
                 "inf_disagreements", "atol", "rtol", "shape", "dtypes"):
        assert getattr(gpu, name) == getattr(cpu, name), name
    np.testing.assert_equal(gpu.first, cpu.first)
    assert len(gpu.first) == min(many, gpu.mismatches)
    assert abs(gpu.cosine - cpu.cosine) < 1e-13 and abs(gpu.sqnr_db - cpu.sqnr_db) < 1e-10
z = np.zeros(6000, "float32")
gpu = _core.compare(OnGPU(z), OnGPU(z + 1), max_mismatches=5000)
assert [place for place, _, _ in gpu.first] == [(i,) for i in range(5000)]
try:
    _core.compare(OnGPU(x), OnGPU(x.T))
except ValueError as error:
    assert "same shape" in str(error)
report()
"""
    )
    assert said["warnings"] == []


@pytest.mark.no_torch
def test_a_list_waits_once(on_fake_gpu: RunFake) -> None:
    said = on_fake_gpu(
        """
streams.append(device.fakeCudaStream(4))
arrays = [np.arange(10 * i, dtype="float32") for i in range(40)]
mixed = [array if i % 3 == 0 else OnGPU(array) for i, array in enumerate(arrays)]
assert _core.tensor_hash(mixed) == _core.tensor_hash(arrays)
waits = [calls("cuStreamSynchronize")]
assert _core.nan_inf_count(mixed) == _core.nan_inf_count(arrays)
waits.append(calls("cuStreamSynchronize"))
assert _core.tensor_hash([]) == []
report(waits=waits)
"""
    )
    assert said["waits"] == [1, 2]


@pytest.mark.no_torch
def test_a_second_process_compiles_nothing(on_fake_gpu: RunFake) -> None:
    script = "_core.tensor_hash(OnGPU(np.zeros(9)))\nreport()\n"
    on_fake_gpu(script)
    state = on_fake_gpu(script)["state"]
    assert (state["compiled"], state["from_disk"], state["loaded"]) == (0, 1, 1)


@pytest.mark.no_torch
def test_without_nvrtc_tensors_are_copied_and_one_warning_says_so(on_fake_gpu: RunFake) -> None:
    said = on_fake_gpu(
        """
# What stands behind a capsule cannot be copied, so the failure shows that a copy was tried.
for _ in range(3):
    try:
        _core.tensor_hash(OnGPU(np.zeros(9)))
    except TypeError as error:
        assert "torch.from_dlpack" in str(error)
report()
""",
        NVRTC="/no/such/libnvrtc.so.13",
        CACHE="",
    )
    [[kind, message]] = said["warnings"]
    assert kind == "gpu_kernels"
    assert "need NVRTC" in message
    assert "copied to the CPU" in message
    assert not said["state"]["used"]


@pytest.mark.no_torch
def test_a_captured_stream_is_refused(on_fake_gpu: RunFake) -> None:
    said = on_fake_gpu(
        """
stream = device.fakeCudaStream(2)
streams.append(stream)
device.fakeCudaCapture(stream, 1)
for function in (_core.tensor_hash, _core.stats, _core.nan_inf_count,
                 lambda x: _core.compare(x, x)):
    try:
        function(OnGPU(np.zeros(9, "float32")))
    except RuntimeError as error:
        assert "captured into a CUDA graph" in str(error)
    else:
        raise AssertionError("nothing was raised")
device.fakeCudaCapture(stream, 0)
assert _core.tensor_hash(OnGPU(np.zeros(9))) == _core.tensor_hash(np.zeros(9))
report()
"""
    )
    assert said["warnings"] == []


@pytest.mark.no_torch
def test_a_forked_child_does_not_touch_the_gpu(on_fake_gpu: RunFake) -> None:
    said = on_fake_gpu(
        """
x = OnGPU(np.zeros(9))
_core.tensor_hash(x)
child = os.fork()
if child == 0:
    try:
        _core.tensor_hash(x)
    except TypeError:  # a copy was tried, as above
        os._exit(0 if len(warnings) == 1 and "forked child" in warnings[0][1] else 1)
    os._exit(2)
_, status = os.waitpid(child, 0)
report(status=status)
"""
    )
    assert said["status"] == 0


# --- on a real GPU -------------------------------------------------------------------------------


def random_tensor(name: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Random bits of that dtype on the CPU."""
    import torch

    dtype = getattr(torch, name)
    generator = torch.Generator().manual_seed(seed)
    count = 1
    for size in shape:
        count *= size
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    if name == "bool":
        return (raw % 2).to(torch.bool).reshape(shape)
    return raw.view(dtype).reshape(shape)


@pytest.mark.gpu
@pytest.mark.parametrize("name", DTYPES)
def test_gpu_agrees_with_the_cpu(name: str) -> None:
    for shape in ((0,), (1,), (17,), (1000, 333), (3, 70001)):
        x = random_tensor(name, shape)
        views = [x, x.T] if len(shape) > 1 else [x]
        for view in views:
            moved = x.cuda() if view is x else x.cuda().T
            assert _core.tensor_hash(moved) == _core.tensor_hash(view)
            assert _core.nan_inf_count(moved) == _core.nan_inf_count(view)
            gpu, cpu = _core.stats(moved).as_dict(), _core.stats(view).as_dict()
            for field in ("mean", "std", "l1", "l2"):
                assert (
                    gpu.pop(field) == pytest.approx(cpu.pop(field), rel=1e-11, abs=0, nan_ok=True)
                    or field == "mean"
                )
            assert str(gpu) == str(cpu)
            other = random_tensor(name, tuple(view.shape), seed=1)
            both = _core.compare(moved, other.cuda())
            alone = _core.compare(view, other)
            for field in ("mismatches", "max_abs_index", "max_rel_index", "equal_bits"):
                assert getattr(both, field) == getattr(alone, field), field
            # Random bits of complex128 have a huge or tiny modulus, which is right to a few ulp.
            ulps = 1e-15 if name == "complex128" else 0
            assert both.max_abs == pytest.approx(alone.max_abs, rel=ulps, abs=0, nan_ok=True)
            assert str(both.first) == str(alone.first)


@pytest.mark.gpu
def test_gpu_enqueues_without_a_wait() -> None:
    import torch

    import my_utils.torch_ops  # noqa: F401

    x = torch.randn(1 << 20, device="cuda")
    want = torch.ops.my_utils.tensor_hash(x)
    out = torch.zeros(8, 2, dtype=torch.int64, device="cuda")
    torch.ops.my_utils.stats(x)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for row in range(8):
            torch.ops.my_utils.hash_into(x, out, row)
        torch.ops.my_utils.stats(x)
        torch.ops.my_utils.nan_inf_count(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (out == want).all()


@pytest.mark.gpu
def test_gpu_work_is_captured_into_a_graph() -> None:
    import torch

    import my_utils.torch_ops  # noqa: F401

    x = torch.randn(1 << 16, device="cuda")
    out = torch.zeros(1, 2, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ops.my_utils.hash_into(x, out, 0)
        found = torch.ops.my_utils.stats(x)
    for seed in range(3):
        x.normal_(generator=torch.Generator("cuda").manual_seed(seed))
        graph.replay()
        torch.cuda.synchronize()
        digest = _core.tensor_hash(x.cpu())
        low, high = (int(word) % 2**64 for word in out[0])
        assert f"{high:016x}{low:016x}" == digest.content
        assert float(found[5]) == pytest.approx(_core.stats(x.cpu()).std, rel=1e-11)


@pytest.mark.gpu
def test_gpu_streams_do_not_disturb_each_other() -> None:
    import torch

    streams = [torch.cuda.Stream() for _ in range(4)]
    tensors = [torch.randn(1 << 22, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    want = _core.stats([x.cpu() for x in tensors])
    for _ in range(20):
        for stream, x, cpu in zip(streams, tensors, want, strict=True):
            with torch.cuda.stream(stream):
                assert _core.stats(x).std == pytest.approx(cpu.std, rel=1e-11)

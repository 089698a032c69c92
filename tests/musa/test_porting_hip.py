"""--platform hip agrees with the hipify of the torch that is installed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch.utils.hipify import hipify_python

from my_utils.musa import _port_file
from my_utils.musa.simple_porting import SimplePorting

from ..conftest import RunPython

SOURCES = {
    "launch.cu": """#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <library_types.h>
#include <nvToolsExt.h>
#if defined(__CUDACC__) && CUDA_VERSION >= 11000
__global__ void add(float *x, int n) { int i = threadIdx.x; if (i < n) x[i] += std::exp(x[i]); }
#endif
void run(float *x, int n, cudaStream_t s) {
  dim3 grid(n / 256), block(256);
  add<<<grid, block, 0, s>>>(x, n);
  cudaError_t e = cudaGetLastError();
  nvtxRangePushA("add"); nvtxRangePop();
}
""",
    "torch.cu": """#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <ATen/native/cuda/Loops.cuh>
#include <c10/cuda/CUDAException.h>
TORCH_LIBRARY_IMPL(mine, CUDA, m) { m.impl("f", f); }
void f(at::Tensor x) {
  const c10::cuda::CUDAGuard guard(x.device());
  auto s = at::cuda::getCurrentCUDAStream();
  AT_CUDA_CHECK(cudaStreamSynchronize(s));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
""",
    "libraries.cu": """#include <cublas_v2.h>
#include <curand_kernel.h>
#include <cufft.h>
#include <cub/cub.cuh>
#include <thrust/device_vector.h>
void g(cublasHandle_t h) {
  cublasSetMathMode(h, CUBLAS_DEFAULT_MATH); cub::CTA_SYNC();
  curandStatePhilox4_32_10_t state; cufftHandle plan;
}
""",
    "types.cu": """#include <cuda_fp16.h>
#include <cuda_bf16.h>
__device__ __nv_bfloat16 to(float x) { return __float2bfloat16(x); }
__device__ half2 h(half2 a) { return __hadd2(a, a); }
const cudaDataType_t kind = CUDA_R_16BF; cudaDeviceProp properties;
""",
    "driver.cu": """#include <cuda.h>
#include <nvrtc.h>
/* größe of cudaMalloc */ CUresult r = cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, 0, 0);\r
CUdeviceptr p; CUfunction f; int x = my_cudaMalloc(cudaMallocs);
""",
}


def hipified(folder: Path, names: list[str]) -> dict[str, str]:
    """What hipify itself makes of files of a folder, each without knowing the others."""
    texts = {}
    for name in names:
        result = hipify_python.preprocessor
        results = hipify_python.HIPIFY_FINAL_RESULT
        path = str(folder / name)
        results[path] = hipify_python.HipifyResult(hipify_python.CurrentState.INITIALIZED, path)
        cleaner = hipify_python.GeneratedFileCleaner(keep_intermediates=True)
        found = result(str(folder), path, [path], [], {"kernel_launches": []}, True, True,
                       cleaner, False)  # fmt: skip
        text = Path(found.hipified_path).read_text()
        texts[name] = text.removeprefix(hipify_python.HIPIFY_C_BREADCRUMB)
    return texts


def ported(root: Path) -> dict[str, str]:
    report = SimplePorting(root, platform="hip", progress=False).run()
    assert report.errors == []
    return {
        path.relative_to(report.output).as_posix(): path.read_text()
        for path in report.output.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def test_sources(tmp_path: Path) -> None:
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
        for name, text in SOURCES.items():
            (tmp_path / folder / name).write_text(text, newline="")
    theirs = hipified(tmp_path / "theirs", list(SOURCES))
    ours = ported(tmp_path / "ours")
    assert ours == {name.replace(".cu", ".hip"): text for name, text in theirs.items()}
    driver = (tmp_path / "ours_hip/driver.hip").read_bytes()
    assert driver.count(b"\r\n") == 1, "line ends stay"


@pytest.mark.parametrize(
    "text",
    [
        "if (x) k<<<1, 2>>>(a); else k<<<3, 4>>>(b);\n",
        "// the launch\nk<<<1, 2>>>(a);\n",
        "#define RUN k<<<1, 2>>>(a)\n",
        "add<<<grid, block, add_bytes, add_stream>>>(x);\n",
        "f(k<<<1, 2>>>(x->k)); {k<T><<<1, 2>>>(a);}\n",
        "template <> int operator<<<int>(int);\n",
        "<<<\n",
    ],
)
def test_launches_stay(tmp_path: Path, text: str) -> None:
    """hipcc compiles them, and what hipify makes of these does not compile."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.cu").write_text(text + "cudaFree(x);\n")
    assert ported(tmp_path / "src")["a.hip"] == text + "hipFree(x);\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_added_include_has_the_encoding_of_the_file(
    tmp_path: Path, end: str, encoding: str
) -> None:
    (tmp_path / "src").mkdir()
    text = f"__global__ void k();{end}void f() {{ cudaFree(0); }}{end}"
    (tmp_path / "src/a.cu").write_bytes(text.encode(encoding))
    report = SimplePorting(tmp_path / "src", platform="hip", progress=False).run()
    wanted = f'#include "hip/hip_runtime.h"{end}' + text.replace("cuda", "hip")
    assert (report.output / "a.hip").read_bytes() == wanted.encode(encoding)
    assert report.replaced == 1


def test_a_long_source_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = SOURCES["launch.cu"].replace("#include <cuda_runtime.h>\n", "")
    text += "cudaStream_t stream;\nvoid f(cudaStream_t);\n" * 40
    outputs = []
    for name, size in (("whole", 1 << 20), ("pieces", 256)):
        monkeypatch.setattr(_port_file, "HIP_PIECE", size)
        monkeypatch.setattr(_port_file, "PIECE", size)
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.cu").write_text(text)
        outputs.append(ported(tmp_path / name)["a.hip"])
    assert outputs[0] == outputs[1]
    assert outputs[0].count("hip/hip_runtime.h") == 1


def test_the_headers_of_the_wheel(tmp_path: Path) -> None:
    include = Path(torch.__file__).parent / "include"
    for part in ("ATen/cuda", "c10/cuda"):
        for folder in ("ours", "theirs"):
            shutil.copytree(include / part, tmp_path / folder / part)
    names = [
        path.relative_to(tmp_path / "theirs").as_posix()
        for path in sorted((tmp_path / "theirs").rglob("*.*h"))
    ]
    assert len(names) > 60
    theirs = hipified(tmp_path / "theirs", names)
    ours = ported(tmp_path / "ours")
    different = [name for name in names if ours[name] != theirs[name]]
    assert different == []


def test_files_of_the_tree_and_the_users_rules(tmp_path: Path) -> None:
    root = tmp_path / "src"
    (root / "cub/block").mkdir(parents=True)
    for name in ("cuda_fp16.h", "sum.cuh", "cub/block/block_reduce.cuh"):
        (root / name).write_text("")
    (root / "k.cu").write_text("// k.cu\n")
    (root / "a.cu").write_text(
        '#include "cuda_fp16.h"\n#include "sum.cuh"\n#include "k.cu"\n#include <cuda_fp16.h>\n'
        "cudaMalloc(x); cudaFree(y); cudaGraphicsWhatever(z);\n"
    )
    rules = {"cudaMalloc": "cudaFree", "Whatever": "Any"}
    report = SimplePorting(root, mapping_rule=rules, platform="hip", progress=False).run()
    assert (report.output / "a.hip").read_text() == (
        '#include "cuda_fp16.h"\n#include "sum.cuh"\n#include "k.hip"\n#include <hip/hip_fp16.h>\n'
        "cudaFree(x); hipFree(y); cudaGraphicsAny(z);\n"
    )
    assert [(each.line, each.count) for each in report.unmapped] == [(5, 1)]
    assert re.fullmatch(r"cudaGraphics\w+", report.unmapped[0].name)
    assert not SimplePorting(root, mapping_rule=rules, platform="hip").run().would_change


def test_only_the_users_rules(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.cu").write_text("cudaMalloc cudaFree\n")
    report = SimplePorting(
        tmp_path / "src", None, {"cudaFree": "mine"}, True, platform="hip", progress=False
    ).run()
    assert (report.output / "a.hip").read_text() == "cudaMalloc mine\n"


def test_without_torch(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    done = run_python(
        "-c",
        "import sys; sys.modules['torch'] = None\n"
        "from my_utils.musa.simple_porting import main\n"
        "sys.exit(main(['--cuda-dir-path', 'src', '--platform', 'hip']))",
    )
    assert done.returncode == 1
    assert "needs torch" in done.stderr and "Traceback" not in done.stderr

"""Ports a small CUDA extension to MUSA: its sources, then the script that uses it.

    python examples/port_cuda_extension.py [FOLDER]

The extension is written into FOLDER (`ported`, unless another one is named) first; nothing is
compiled, so it needs no toolkit.
"""

from __future__ import annotations

import sys
from pathlib import Path

from my_utils.musa.simple_porting import SimplePorting

KERNEL = """#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include "scale.cuh"

__global__ void scale_kernel(float *x, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= by;
}

void scale(at::Tensor x, float by) {
  const at::cuda::OptionalCUDAGuard guard(x.device());
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  scale_kernel<<<(x.numel() + 255) / 256, 256, 0, stream>>>(x.data_ptr<float>(), by, x.numel());
  cudaGraphicsMapResources(0, nullptr, stream);  // has no counterpart
  C10_CUDA_CHECK(cudaGetLastError());
}
"""
HEADER = "#pragma once\n#include <ATen/ATen.h>\nvoid scale(at::Tensor x, float by);\n"
SCRIPT = """import torch

x = torch.ones(1000, device="cuda:0")
torch.cuda.synchronize()
"""


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "ported")
    sources = root / "csrc"
    sources.mkdir(parents=True, exist_ok=True)
    (sources / "scale.cu").write_text(KERNEL, encoding="utf-8")
    (sources / "scale.cuh").write_text(HEADER, encoding="utf-8")
    (root / "train.py").write_text(SCRIPT, encoding="utf-8")

    report = SimplePorting(sources).run()
    print(report.text())
    print((report.output / "scale.mu").read_text(encoding="utf-8"))

    try:
        from my_utils.musa.converter import convert_project

        for outcome in convert_project(root, ["train.py"]):
            print(f"{outcome.path}: {outcome.changes} places {outcome.error}")
    except ImportError as error:
        print(error)
        return
    print((root / "train.py").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()

"""The kind of a kernel, by its name."""

from __future__ import annotations

import functools
import re

FILLS, COMMUNICATION, COPIES = "fills", "communication", "copies"
OTHER = "other kernels"
NAMES_KEPT = 4096

# In this order: a kernel is of the first kind that its name shows.
_KINDS: tuple[tuple[str, str], ...] = (
    ("attention", r"flash|fmha|attention|attn|sdpa"),
    (
        "convolution",
        r"conv(?!ert)|winograd|implicit_gemm|igemm_(fwd|bwd|wrw)|bwd_weight|miopen|fprop|dgrad|"
        r"wgrad|[sh]cudnn",
    ),
    ("matmul", r"(?<!fb)gemm|gemv|matmul|cijk_|xmma|cutlass|nvjet|_mm_|triton_tem|splitk|cublas"),
    (
        "normalization",
        r"(?<!lp)norm(?!al_|(zero|one|two)?ops)|welford|gammabeta|rowwisemoments|\bbn_(fw|bw)",
    ),
    ("optimizer", r"multi_tensor|fused_?(adam|sgd|lamb)|adam"),
    ("softmax and loss", r"softmax|nll_loss|cross_entropy"),
    ("indexing", r"index|embedding|gather|scatter|sort|topk|\bcat|catarray"),
    ("reduction", r"reduce|triton_(red|per)|cumsum|scan"),
    (
        "elementwise",
        r"elementwise|triton_poi|fill|copy_?kernel|dropout|distribution|pool|upsampl|transpose|"
        r"tonhwc|tonchw",
    ),
)
KINDS = (*(kind for kind, _ in _KINDS), OTHER)
_PATTERNS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS]


@functools.lru_cache(NAMES_KEPT)
def kind_of(kernel: str) -> str:
    """Of a kernel that computes; torch's, cuBLAS', cuDNN's, rocBLAS' and Triton's have names that
    say it.

    >>> kind_of("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64")
    'matmul'
    >>> kind_of("void at::native::vectorized_elementwise_kernel<4, AddFunctor>(int)")
    'elementwise'
    >>> kind_of("my_kernel")
    'other kernels'
    """
    return next((kind for kind, pattern in _PATTERNS if pattern.search(kernel)), OTHER)

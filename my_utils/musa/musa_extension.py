"""Builds C++ and MUSA extensions of PyTorch, as torch.utils.cpp_extension does for CUDA.

    from my_utils.musa.musa_extension import BuildExtension, MUSAExtension

    setup(
        name="mine",
        ext_modules=[MUSAExtension("mine._C", ["bind.cpp", "kernel.mu"],
                                   extra_compile_args={"cxx": ["-O3"], "mcc": ["-O2"]})],
        cmdclass={"build_ext": BuildExtension},
    )

Environment: MUSA_HOME or MUSA_PATH (the toolkit), MUDNN_HOME or MUDNN_PATH, TORCH_MUSA_ARCH_LIST
("21;22"; your own flags that name an architecture win), MAX_JOBS (compilers at a time; default:
the processors).
The versions of compiler and ABI are checked, and names defined, by torch's own BuildExtension.
"""

from __future__ import annotations

from ..core.extras import needs_torch
from . import _toolkit

with needs_torch("my_utils.musa.musa_extension"):
    from torch.utils.cpp_extension import CppExtension

    from ._extension import BuildExtension, MUSAExtension, include_paths, library_paths
    from ._musa_jit import load, load_inline

__all__ = [
    "BuildExtension",
    "CppExtension",
    "MUSAExtension",
    "include_paths",
    "library_paths",
    "load",
    "load_inline",
]


def __getattr__(name: str) -> str | None:
    """`MUSA_HOME` and `MUDNN_HOME`: the folders as they are now; None if there is none."""
    homes = {"MUSA_HOME": _toolkit.musa_home, "MUDNN_HOME": _toolkit.mudnn_home}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = homes[name]()
    return None if home is None else str(home)

"""Imports of packages that may be missing: an ImportError says what needs which, and how to install
it."""

from __future__ import annotations

import importlib

from .torch_floor import warn_below_floor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

# What to install where the module has another name.
PACKAGES = {
    "google": "protobuf",
    "grpc": "etcd-sdk-python",
    "megatron": "megatron-core",
    "opentelemetry": "opentelemetry-exporter-otlp-proto-http",
    "pyetcd": "etcd-sdk-python",
    "pynvml": "nvidia-ml-py",
    "yaml": "pyyaml",
}
WITH_TORCH = ("torch", "setuptools")  # which torch requires


def how_to_install(module: str) -> str:
    """
    >>> how_to_install("pyetcd.etcdrpc")
    'pip install etcd-sdk-python'
    """
    name = module.partition(".")[0]
    return f"pip install {PACKAGES.get(name, name)}"


def require(module: str, purpose: str) -> Any:
    """The imported module, or an ImportError that says how to install it and what needs it.

    purpose: begins the message, such as "a plot" or "--engine ray".
    """
    try:
        # The import of a submodule locks it before its parent, and another thread that imports
        # the parent locks them the other way round: one of them would see half a module.
        importlib.import_module(module.partition(".")[0])
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{purpose} needs {module}, which cannot be imported ({error}): "
            f"{how_to_install(module)}",
            name=module,
        ) from error


class needs_torch:
    """Around imports: where torch, or what comes with it, is missing, one line says how to install
    it.

    with needs_torch("ModuleProfiler"):
        import torch

    A package that is there and cannot be imported keeps its own error. A torch that is too old is
    one warning.
    """

    def __init__(self, purpose: str) -> None:
        self.purpose = purpose

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, ModuleNotFoundError) and error.name in WITH_TORCH:
            raise ImportError(
                f"{self.purpose} needs {error.name}, which is not installed: "
                f"{how_to_install(error.name)}",
                name=error.name,
            ) from error
        if error is None:
            warn_below_floor()

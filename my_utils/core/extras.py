"""Imports of packages that may be missing: an ImportError says what needs which, and how to install
it. A torch that is older than any that this package is tested with is one warning; what the oldest
one lacks is in `older_torch`.
"""

from __future__ import annotations

import importlib
import sys

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
FLOOR = (2, 11)  # of torch; pyproject.toml requires the same

_floor_checked = False


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
            _warn_below_floor()


def _warn_below_floor() -> None:
    """One warning where a torch below the floor is loaded. Costs a look-up; thread-safe."""
    global _floor_checked
    if _floor_checked or "torch" not in sys.modules:
        return
    # While torch is being imported, it has no version yet.
    version = str(getattr(sys.modules["torch"], "__version__", ""))
    numbers = version.split(".")[:2]
    if len(numbers) < 2 or not all(number.isdigit() for number in numbers):
        return
    _floor_checked = True
    if tuple(map(int, numbers)) < FLOOR:
        from .warnings import warn_once  # late: it loads the module in C

        floor = ".".join(map(str, FLOOR))
        warn_once(
            "torch:floor",
            f"torch {version} is older than {floor}, the oldest that my_utils is tested with: "
            "profilers can lose figures, and set_step can break a compiled graph",
        )

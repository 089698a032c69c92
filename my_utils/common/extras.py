"""Imports of packages that extras of the installation bring."""

from __future__ import annotations

from types import TracebackType

from .torch_floor import warn_below_floor

# The extra of each package; the other packages are named where they are used (_tables.needed).
# torch requires setuptools.
EXTRAS = {"torch": "torch", "safetensors": "torch", "setuptools": "torch"}


class needs_extra:
    """Around imports: where a package of EXTRAS is missing, one line says how to install it.

    with needs_extra("ModuleProfiler"):
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
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
            raise ImportError(
                f"{self.purpose} needs {error.name}, which is not installed: "
                f"pip install 'my_utils[{EXTRAS[error.name]}]'",
                name=error.name,
            ) from error
        if error is None:
            warn_below_floor()

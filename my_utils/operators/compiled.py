"""Warns about backends of torch.compile that hide operators from a mode."""

from __future__ import annotations

import sys
from typing import Any

from ..common.warnings import warn_once

# They run a graph operator by operator.
_SEEN = frozenset(("eager", "aot_eager", "aot_eager_decomp_partition", "eager_noexcept"))


def warn_of_unseen() -> None:
    """One warning for each other backend that the process has compiled with; nothing where
    torch.compile was not used."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return
    backends: dict[int, Any] = getattr(dynamo, "cached_backends", {})
    for backend in list(backends.values()):
        name = getattr(backend, "compiler_name", None)
        if isinstance(name, str) and name not in _SEEN:
            warn_once(
                f"op_mode_backend_{name}",
                f"torch.compile with the backend {name!r} is in use: the comparison tools do not "
                "see operators that it compiled to kernels, only the others; with "
                'backend="aot_eager" they see all',
            )

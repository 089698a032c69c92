"""Which back ends of torch.compile hide operators from a mode."""

from __future__ import annotations

import sys
from typing import Any

from ..common.warnings import warn_once

# They run a graph operator by operator.
_SEEN = frozenset(("eager", "aot_eager", "aot_eager_decomp_partition", "eager_noexcept"))


def warn_of_unseen() -> None:
    """One warning for each other back end that the process has compiled with; nothing where
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
                f"torch.compile with the back end {name!r} is in use: operators that it turned "
                "into kernels of its own are not seen by the comparison tools, only those that "
                'it left as they are; with backend="aot_eager" all of them are',
            )

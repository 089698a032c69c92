"""The stages of a run by number, as the C part has them, and the warning of a patch that failed."""

from __future__ import annotations

from ...core.warnings import warn_once

STAGES = (
    "input", "h2d", "forward", "loss", "backward", "optimizer", "collective", "checkpoint", "eval",
    "restore",
)  # fmt: skip

INPUT, H2D, FORWARD, LOSS, BACKWARD, OPTIMIZER, COLLECTIVE, CHECKPOINT, EVAL, RESTORE = range(
    len(STAGES)
)


def warn_of_patch(module: str, error: Exception) -> None:
    """Says that calls of a module are not recorded."""
    warn_once(
        f"run_stages:{module}",
        f"calls of {module} are not recorded ({type(error).__name__}: {error}); the training goes "
        "on, and the other stages are recorded",
    )

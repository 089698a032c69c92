"""What a test may leave behind in its process, for the tests of other files to stumble over."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
VARIABLES = ("MY_UTILS_", "ENABLE_TIMER", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")


def process_state() -> dict[str, object]:
    """By name, what of this process's state the tests of a file have to leave as they found it."""
    state = {
        "handlers of my_utils' logger": _handlers("my_utils"),
        "whether my_utils' messages reach the root": _reaches_root("my_utils"),
        "level of all messages": (logging.root.level, logging.root.manager.disable),
        "handlers of the root logger": _handlers(None),
        "signal handlers": [signal.getsignal(number) for number in SIGNALS],
        "environment": {k: v for k, v in os.environ.items() if k.startswith(VARIABLES)},
        "current folder": os.getcwd(),
        "whether garbage is collected": gc.isenabled(),
    }
    for module, (_, look) in MODULES.items():
        if module in sys.modules:
            state[module] = look(sys.modules[module])
    return state


def differences(before: dict[str, object], after: dict[str, object]) -> dict[str, object]:
    """What is other than it was; of a module that was loaded meanwhile, other than at first."""
    first = {module: state for module, (state, _) in MODULES.items()}
    return {
        name: value for name, value in after.items() if value != before.get(name, first.get(name))
    }


def _handlers(name: str | None) -> list[str]:
    """The kinds of them, without pytest's and the one that stands in until a log is set up."""
    kinds = [type(handler).__name__ for handler in logging.getLogger(name).handlers]
    return [kind for kind in kinds if kind not in ("FallbackHandler", "LogCaptureHandler")]


def _reaches_root(name: str) -> bool:
    logger = logging.getLogger(name)
    return logger.propagate and not logger.disabled and logger.isEnabledFor(logging.WARNING)


def _of_torch(torch: Any) -> tuple[object, ...]:
    return (
        str(torch.get_default_dtype()),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.distributed.is_available() and torch.distributed.is_initialized(),
    )


# By module, its state at first, and how it is looked at.
MODULES: dict[str, tuple[object, Callable[[Any], object]]] = {
    "my_utils.profilers.capture.on_demand.window": ([], lambda window: list(window.registered)),
    "my_utils.profilers.capture.hooks": (
        (None, None, {}),
        lambda hooks: (hooks._process.controller, hooks._process.role, hooks._process.position),
    ),
    "my_utils.profilers.torch_profiler.slot": (None, lambda slot: slot.holder()),
    "torch": (("torch.float32", True, False, False), _of_torch),
}

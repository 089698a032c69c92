"""The CUDA profiler of the driver, for tools that capture between its start and its stop."""

from __future__ import annotations

import logging
import sys

from ... import _core
from ...core.arguments import check_bool

_logger = logging.getLogger("my_utils")


class CudaProfiler:
    """cuProfilerStart and cuProfilerStop, as `capture.backends.CudaProfilerBackend` says."""

    def __init__(self, synchronize: bool = True) -> None:
        self.synchronize = check_bool("synchronize", synchronize)
        self._warned = False

    def start(self) -> None:
        """Waits for the GPU if asked to, then cuProfilerStart."""
        self._switch(True)

    def stop(self) -> None:
        """Waits for the GPU if asked to, then cuProfilerStop."""
        self._switch(False)

    def _switch(self, start: bool) -> None:
        torch = sys.modules.get("torch")
        device = -1  # torch uses none
        if torch is not None and torch.cuda.is_available():
            device = int(torch.cuda.current_device())
        if _core.cuda_profiler(start, self.synchronize, device) or self._warned:
            return
        self._warned = True
        name = type(self).__name__
        _logger.warning("%s: CUDA is not available; nothing is captured", name)

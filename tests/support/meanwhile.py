"""Whether a function lets other threads run while it works, without a clock's help."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable


def runs_meanwhile(call: Callable[[], object], limit_s: float = 60) -> bool:
    """Calls until another thread has run, which it can only when `call` gives the GIL away."""
    gate, ran = threading.Lock(), []
    gate.acquire()
    thread = threading.Thread(target=lambda: ran.append(gate.acquire()))
    thread.start()
    interval = sys.getswitchinterval()
    end = time.monotonic() + limit_s
    sys.setswitchinterval(1000)
    try:
        gate.release()
        while not ran and time.monotonic() < end:
            call()
        return bool(ran)
    finally:
        sys.setswitchinterval(interval)
        thread.join()

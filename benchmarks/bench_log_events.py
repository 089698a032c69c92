"""What `log_profile_event` costs the training thread, beside an empty method of Python that takes
the same arguments.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.harness import Claim, take_turns


class Empty:
    def log_profile_event(
        self,
        timestamp: Any,
        step: Any,
        event_name: Any,
        event_type: Any,
        duration_ms: Any = None,
        metadata: Any = None,
        timestamp_ns: Any = None,
    ) -> None:
        pass  # fmt: skip


def run(smoke: bool) -> list[Claim]:
    from my_utils import _core
    from my_utils.logger import GlobalLogger

    calls, rounds = (10, 1) if smoke else (2000, 31)
    now = time.time()
    cases = {
        "event, now": (None, 3, "eval", "INSTANT"),
        "event, a time and a duration": (now, 3, "eval", "END", 12.5),
    }

    def side(target: Any, arguments: tuple[Any, ...]) -> Any:
        log = target.log_profile_event

        def work() -> None:
            for _ in range(calls):
                log(*arguments)

        return work

    _core.open_output(kind="null")
    claims = []
    try:
        for what, arguments in cases.items():
            sides = {"ours": side(GlobalLogger(), arguments), "empty": side(Empty(), arguments)}
            found = take_turns(sides, calls=calls, rounds=rounds, between=_core.drain)
            claims.append(
                Claim(what, found["ours"], "an empty method of Python", found["empty"], "ns", 6.0)
            )
    finally:
        _core.close_output()
    return claims

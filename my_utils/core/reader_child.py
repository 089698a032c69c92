"""The child of `reader_process`. It imports little, because it is started for a few files."""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import resource
import sys


def serve(name: str) -> None:
    """The child: reads requests from stdin, and writes to stdout what the function returns."""
    module, _, function = name.partition(":")
    call = getattr(importlib.import_module(module), function)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    gc.freeze()
    gc.disable()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if request["bounds"] is not None:
            _set_bounds(*request["bounds"])
        response = pickle.dumps(call(*request["arguments"]), pickle.HIGHEST_PROTOCOL)
        responses.write(len(response).to_bytes(8, "little") + response)
        responses.flush()
        gc.collect()  # between two files: what they hold is large, and hardly ever a cycle


def _set_bounds(memory: int, seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime) + 1 + seconds
    for kind, bound in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, until)):
        _, most = resource.getrlimit(kind)
        resource.setrlimit(
            kind, (bound if most == resource.RLIM_INFINITY else min(bound, most), most)
        )

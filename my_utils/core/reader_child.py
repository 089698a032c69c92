"""The child of `reader_process`. It imports little, because it is started for a few files."""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import resource
import sys

from .process_end import is_tied_to_parent

RESPONSE_BYTES_MAX = 1 << 30  # of a file with limits
OUT_OF_MEMORY = 3  # exit status


def serve(name: str, parent: int) -> None:
    """The child: reads requests from stdin, and writes to stdout pairs of an error or None, and of
    what the function returned. parent: the PID of the process with which it ends."""
    if not is_tied_to_parent(parent):
        return
    module, _, function = name.partition(":")
    call = getattr(importlib.import_module(module), function)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    gc.freeze()
    gc.disable()
    at_start = _mapped_bytes()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if request["bounds"] is not None:
            memory, seconds = request["bounds"]
            _set_bounds(at_start + memory, seconds)
        try:
            response = pickle.dumps((None, call(*request["arguments"])), pickle.HIGHEST_PROTOCOL)
            if request["bounds"] is not None and len(response) > RESPONSE_BYTES_MAX:
                raise MemoryError
        except MemoryError:
            sys.exit(OUT_OF_MEMORY)
        except Exception as error:
            response = pickle.dumps((f"{type(error).__name__}: {error}", None))
        responses.write(len(response).to_bytes(8, "little") + response)
        responses.flush()
        gc.collect()  # between two files: what they hold is large, and hardly ever a cycle


def _mapped_bytes() -> int:
    """What the imported modules have: numpy alone has gigabytes for the threads of a large machine.
    Limits of memory are beyond that."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _set_bounds(memory: int, seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime) + 1 + seconds
    for kind, bound in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, until)):
        _, most = resource.getrlimit(kind)
        resource.setrlimit(
            kind, (bound if most == resource.RLIM_INFINITY else min(bound, most), most)
        )

"""A participant's wait at a barrier, in this process or in one of its own.

gRPC may hang in a forked child of a process that had loaded it. In such a child a new interpreter
waits instead, and ends with the child. It reads the arguments as JSON from its standard input, so
that no password appears in the list of processes. It writes the result to its standard output.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from .barrier import Participant, Terms
from .client import Connection, Refused, Tls, Where
from .rounds import EtcdBarrierBroken, EtcdBarrierError, EtcdBarrierTimeout, Keys

__all__ = ["wait", "wait_elsewhere"]

ERRORS = {kind.__name__: kind for kind in (EtcdBarrierError, EtcdBarrierTimeout, EtcdBarrierBroken)}
LEAVES_S = 3.0  # how long an interrupted one may take to delete its key
_PR_SET_PDEATHSIG = 1


def wait(terms: Terms, where: Where) -> None:
    """Returns when all have come; EtcdBarrierError and its kinds otherwise."""
    etcd = Connection(where, call_s=max(1.0, min(5.0, terms.lease_s / 2)))
    prefix, world_size = terms.keys.prefix, terms.keys.world_size
    try:
        Participant(etcd, terms).run()
    except Refused as error:
        raise EtcdBarrierError(
            f"etcd_barrier {prefix!r}: etcd refuses: {error}", prefix, world_size
        ) from error
    finally:
        etcd.close()


def wait_elsewhere(terms: Terms, where: Where) -> None:
    """As `wait`, by a new interpreter."""
    order = {"terms": asdict(terms), "where": asdict(where), "parent": os.getpid()}
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    helper = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        text=True,
    )
    try:
        answer, _ = helper.communicate(json.dumps(order))
    finally:
        _end(helper)
    prefix, world_size = terms.keys.prefix, terms.keys.world_size
    if not answer:
        raise EtcdBarrierError(
            f"etcd_barrier {prefix!r}: the process that waits for this one ended with status "
            f"{helper.returncode}",
            prefix,
            world_size,
        )
    found = json.loads(answer)
    if found["error"] is not None:
        kind = ERRORS[found["error"]]
        raise kind(
            found["text"], prefix, world_size, tuple(found["missing"]), found["missing_count"]
        )


def _end(helper: subprocess.Popen[str]) -> None:
    if helper.poll() is not None:
        return
    helper.send_signal(signal.SIGINT)
    try:
        helper.wait(LEAVES_S)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.wait()


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    order = json.loads(sys.stdin.read())
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != order["parent"]:
        return
    terms = Terms(**{**order["terms"], "keys": Keys(**order["terms"]["keys"])})
    tls = order["where"]["tls"]
    where = Where(**{**order["where"], "tls": None if tls is None else Tls(**tls)})
    print(json.dumps(_outcome(terms, where)), flush=True)


def _outcome(terms: Terms, where: Where) -> dict[str, Any]:
    try:
        wait(terms, where)
    except EtcdBarrierError as error:
        return {
            "error": type(error).__name__,
            "text": str(error),
            "missing": error.missing,
            "missing_count": error.missing_count,
        }
    return {"error": None}


if __name__ == "__main__":
    main()

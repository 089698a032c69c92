"""The wait of a participant at a barrier, in this process or in a separate one.

gRPC may hang in a forked child of a process that had loaded it. In such a child a new interpreter
waits instead, and ends with the child. It reads the arguments as MessagePack from its standard
input, so that no password appears in the list of processes. It writes the result to its standard
output.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

import msgspec

from ..common.checked_json import Damaged, Foreign
from .barrier import Participant, Terms
from .client import Connection, Refused, Where
from .rounds import EtcdBarrierBroken, EtcdBarrierError, EtcdBarrierTimeout

ERRORS = {kind.__name__: kind for kind in (EtcdBarrierError, EtcdBarrierTimeout, EtcdBarrierBroken)}
LEAVES_S = 3.0  # how long an interrupted one may take to delete its key
_PR_SET_PDEATHSIG = 1


class _Order(msgspec.Struct):
    """What the new interpreter waits for, and the process that it waits for."""

    terms: Terms
    where: Where
    parent: int


class _Outcome(msgspec.Struct):
    """How its wait ended; `error` is the name of a class."""

    error: str | None = None
    text: str = ""
    missing: tuple[int, ...] = ()
    missing_count: int = 0


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
    except (Damaged, Foreign) as error:
        raise EtcdBarrierError(
            f"etcd_barrier {prefix!r}: another program keeps something under this prefix: {error}",
            prefix,
            world_size,
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise EtcdBarrierError(
            f"etcd_barrier {prefix!r}: etcd, or what others keep there, returned an invalid value: "
            f"{error!r:.300}",
            prefix,
            world_size,
        ) from error
    finally:
        etcd.close()


def wait_elsewhere(terms: Terms, where: Where) -> None:
    """Runs `wait` in a new interpreter."""
    order = msgspec.msgpack.encode(_Order(terms, where, os.getpid()))
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    helper = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        response, _ = helper.communicate(order)
    finally:
        _end(helper)
    prefix, world_size = terms.keys.prefix, terms.keys.world_size
    if not response:
        raise EtcdBarrierError(
            f"etcd_barrier {prefix!r}: the process that waits for this one ended with status "
            f"{helper.returncode}",
            prefix,
            world_size,
        )
    found = msgspec.msgpack.decode(response, type=_Outcome)
    if found.error is not None:
        raise ERRORS[found.error](
            found.text, prefix, world_size, found.missing, found.missing_count
        )


def _end(helper: subprocess.Popen[bytes]) -> None:
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
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_Order)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != order.parent:
        return
    sys.stdout.buffer.write(msgspec.msgpack.encode(_outcome(order.terms, order.where)))
    sys.stdout.buffer.flush()


def _outcome(terms: Terms, where: Where) -> _Outcome:
    try:
        wait(terms, where)
    except EtcdBarrierError as error:
        kind = type(error).__name__
        return _Outcome(kind, str(error), error.missing, error.missing_count)
    return _Outcome()


if __name__ == "__main__":
    main()

"""The wait of a participant at a barrier, in this process or in a separate one.

gRPC may hang in a forked child of a process that had loaded it. In such a child a new interpreter
waits instead, and ends with the child. It reads the arguments as MessagePack from its standard
input, so that no password appears in the list of processes. It writes the outcome to its standard
output.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

import msgspec

from ...core.checked_json import Damaged, Foreign
from .barrier import OPEN, Participant, Terms
from .client import Connection, Refused, Where
from .rounds import EtcdBarrierError, Outcome

LEAVES_S = 3.0  # how long an interrupted one may take to delete its key
_PR_SET_PDEATHSIG = 1
_Order = tuple[Terms, Where, int]  # the last is the process that the new interpreter waits for


def wait(terms: Terms, where: Where) -> None:
    """Returns when all have come; EtcdBarrierError and its kinds otherwise."""
    etcd = Connection(where, call_s=max(1.0, min(5.0, terms.lease_s / 2)))
    try:
        Participant(etcd, terms).run()
    except Refused as error:
        raise _error(terms, f"etcd refuses: {error}") from error
    except (Damaged, Foreign) as error:
        raise _error(
            terms, f"another program keeps something under this prefix: {error}"
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        text = "etcd, or what others keep there, returned an invalid value"
        raise _error(terms, f"{text}: {error!r:.300}") from error
    finally:
        etcd.close()


def wait_elsewhere(terms: Terms, where: Where) -> None:
    """Runs `wait` in a new interpreter."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    helper = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        response, _ = helper.communicate(msgspec.msgpack.encode((terms, where, os.getpid())))
    finally:
        _end(helper)
    if not response:
        raise _error(
            terms, f"the process that waits for this one ended with status {helper.returncode}"
        )
    msgspec.msgpack.decode(response, type=Outcome).raise_error(terms.keys)


def _error(terms: Terms, text: str) -> EtcdBarrierError:
    prefix, world_size = terms.keys.prefix, terms.keys.world_size
    return EtcdBarrierError(f"etcd_barrier {prefix!r}: {text}", prefix, world_size)


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
    terms, where, parent = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_Order)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    outcome = OPEN
    try:
        wait(terms, where)
    except EtcdBarrierError as error:
        outcome = Outcome.of(error)
    sys.stdout.buffer.write(msgspec.msgpack.encode(outcome))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

"""Makes the processes of a job wait for one another through etcd, before they are connected.

    from my_utils.etcd_utils import etcd_barrier

    etcd_barrier("jobs/17/data-ready", world_size=8, rank=rank, etcd_host="etcd-1")

It needs no torch and no process group. It needs `pip install etcd-sdk-python`, and an etcd from
3.4 on. See docs/runs/wait-for-all-ranks-with-etcd.md.

>>> etcd_barrier("jobs/17", world_size=8, rank=8)
Traceback (most recent call last):
    ...
ValueError: rank must be below world_size (8), not 8
"""

from __future__ import annotations

import math
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ...core.arguments import check_int, check_path, check_seconds, check_str
from ...core.checked_json import Damaged, Foreign
from ...core.process_end import is_tied_to_parent
from ...core.ranks import check_rank, host_name, known_rank, world_size as known_world_size
from .barrier import OPEN, Participant, Terms
from .client import Connection, Refused, Where, is_safe_here
from .rounds import EtcdBarrierError, Keys, Outcome

LEASE_MAX_S = 24 * 3600  # etcd refuses about 285 years; a dead member must be noticed earlier
LEAVES_S = 3.0  # how long an interrupted one may take to delete its key
_Order = tuple[Terms, Where, int]  # the last is the process that the new interpreter waits for


def etcd_barrier(
    prefix: str,
    world_size: int | None = None,
    etcd_host: str = "127.0.0.1",
    etcd_port: int = 2379,
    timeout_s: float | None = 300,
    interval_s: float = 0.2,
    *,
    rank: int | None = None,
    endpoints: str | Sequence[str] | None = None,
    ca_cert: str | os.PathLike[str] | None = None,
    cert_cert: str | os.PathLike[str] | None = None,
    cert_key: str | os.PathLike[str] | None = None,
    user: str | None = None,
    password: str | None = None,
    lease_s: float = 10.0,
    restart_s: float = 0.0,
) -> bool:
    """Waits until `world_size` processes have called it with the same `prefix`; returns True.

    prefix: the barrier's name, of this job only: it is put before all keys. It can be used again
        and again, also after a run that died in the middle.
    world_size: how many take part; None means the number of ranks of `GlobalLogger().setup`, of
        torch.distributed or of the launcher's environment.
    etcd_host, etcd_port: where etcd listens; a name or an address, also of IPv6.
    timeout_s: None waits without limit. Before the error, the members are asked once more. That
        takes up to three seconds if one does not answer, and more from 1,500 ranks on.
    interval_s: pause between attempts while etcd cannot be reached; while it can, nothing
        is polled.
    rank: the participant's number, from 0 to world_size - 1. A rank that restarts joins again as
        the same rank. None means the rank from the source of `world_size`. A process that has no
        rank there takes part without one; errors then say how many are missing, but not who.
    endpoints: several endpoints, as a list or joined by commas, instead of etcd_host and etcd_port:
        "host:port", "[::1]:2379", "https://host:port". The next one is tried when one fails.
    ca_cert: the PEM file of the authority that signed etcd's certificate. TLS is used if it is
        given, or if an endpoint is https. cert_cert, cert_key: this side's certificate and key,
        where etcd asks for them.
    user, password: for an etcd with authentication. The user needs to read and write the keys that
        start with `prefix` and a slash.
    lease_s: a participant without a sign of life for that long counts as dead. From 1 to 86,400;
        etcd makes it 2 or more, depending on its election timeout.
    restart_s: how long after that it may restart before the others give up. With 0 they give up
        when its lease ends: set it if something restarts single ranks and needs longer.

    All participants get the same result: all pass, or all raise the same error. It is one of

    - EtcdBarrierTimeout, a TimeoutError: some did not join in time. `missing` lists their ranks.
    - EtcdBarrierBroken, an EtcdBarrierTimeout: a participant joined, and died or left while others
      waited. The others learn it when its lease ends, before their own time is over. If it died
      before any of them came, they may learn it only at the end of their time.
    - EtcdBarrierError, their base: etcd refused the call, or another process came as this rank.

    A participant that got one of these errors may call again, which is the next round. One that
    joins after the end of a round waits in the next round.

    An etcd that restarts, loses a member or is unreachable for a while delays the barrier, but does
    not end it. Any number of threads may wait at different barriers. In a forked child of a process
    that had loaded gRPC, which may hang there, a separate process waits for the child. TypeError
    and ValueError name the argument; ImportError says what to install.
    """
    if not check_str("prefix", prefix).strip("/"):
        raise ValueError(f"prefix must not be empty, it is {prefix!r}")
    size = known_world_size() if world_size is None else check_int("world_size", world_size, 1)
    terms = Terms(
        keys=Keys(prefix.rstrip("/"), size),
        name=_member_name(rank, size),
        who=f"{host_name()}, pid {os.getpid()}",
        timeout_s=(
            math.inf if timeout_s is None else check_seconds("timeout_s", timeout_s, 0, math.inf)
        ),
        interval_s=check_seconds("interval_s", interval_s, 0, math.inf),
        lease_s=check_seconds("lease_s", lease_s, 1, LEASE_MAX_S),
        restart_s=check_seconds("restart_s", restart_s, 0, math.inf),
    )
    paths = {"ca_cert": ca_cert, "cert_cert": cert_cert, "cert_key": cert_key}
    files = {
        name: None if path is None else str(check_path(name, path, or_none=True))
        for name, path in paths.items()
    }
    for name, text in {"user": user, "password": password}.items():
        if text is not None and not isinstance(text, str):
            raise TypeError(f"{name} must be a str or None, not {type(text).__name__}")
    if (cert_cert is None) != (cert_key is None):
        raise ValueError("cert_cert and cert_key must be given both or not at all")
    if (user is None) != (password is None):
        raise ValueError("user and password must be given both or not at all")
    if endpoints is None:
        addresses, secure = [_address("etcd_host", etcd_host, etcd_port)], False
    else:
        addresses, secure = _parsed(endpoints)
    secure = secure or ca_cert is not None or cert_cert is not None
    where = Where(tuple(addresses), secure, user=user, password=password, **files)
    if is_safe_here():
        _wait(terms, where)
    else:
        _wait_elsewhere(terms, where)
    return True


def _member_name(rank: int | None, world_size: int) -> str:
    if rank is not None:
        if check_rank("rank", rank) >= world_size:
            raise ValueError(f"rank must be below world_size ({world_size}), not {rank}")
        return str(rank)
    rank = known_rank()
    if rank is None or rank >= world_size:
        return f"{host_name()}-{os.getpid()}-{secrets.token_hex(4)}"
    return str(rank)


def _parsed(endpoints: str | Sequence[str]) -> tuple[list[str], bool]:
    """A list of "host:port", and whether any asks for TLS."""
    if not isinstance(endpoints, Iterable):
        raise TypeError(f"endpoints must be a list or a str of 'host:port', not {endpoints!r:.100}")
    listed = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
    if not listed:
        raise ValueError("endpoints must not be empty")
    found, secure = [], False
    for endpoint in listed:
        text = check_str("each of endpoints", endpoint)
        scheme, separator, rest = text.strip().rpartition("://")
        if separator and scheme not in ("http", "https"):
            raise ValueError(f"each of endpoints must be http or https, not {endpoint!r}")
        secure |= scheme == "https"
        name, colon, number = rest.rstrip("/").rpartition(":")
        if not colon or not number.isdigit():
            raise ValueError(f"each of endpoints must be 'host:port', not {endpoint!r}")
        found.append(_address("each of endpoints", name.strip("[]"), int(number)))
    return found, secure


def _address(name: str, host: Any, port: Any) -> str:
    if not check_str(name, host):
        raise ValueError(f"{name} must name a host")
    if not 0 < check_int("etcd_port", port) < 2**16:
        raise ValueError(f"the port must be from 1 to 65535, not {port}")
    return f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"


# --- the wait, in this process or in a separate one ---


def _wait(terms: Terms, where: Where) -> None:
    """Returns when all have come; EtcdBarrierError and its kinds otherwise."""
    etcd = Connection(where, call_s=max(1.0, min(5.0, terms.lease_s / 2)))
    try:
        Participant(etcd, terms).run()
    except Refused as error:
        raise terms.keys.error(f"etcd refuses: {error}") from error
    except (Damaged, Foreign) as error:
        raise terms.keys.error(
            f"another program keeps something under this prefix: {error}"
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        text = "etcd, or what others keep there, returned an invalid value"
        raise terms.keys.error(f"{text}: {error!r:.300}") from error
    finally:
        etcd.close()


def _wait_elsewhere(terms: Terms, where: Where) -> None:
    """Runs `_wait` in a new interpreter, for gRPC may hang in a forked child of a process that had
    loaded it. It ends with the child. It reads the arguments as MessagePack from its standard
    input, so that no password appears in the list of processes, and writes the outcome to its
    standard output."""
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
        raise terms.keys.error(
            f"the process that waits for this one ended with status {helper.returncode}"
        )
    msgspec.msgpack.decode(response, type=Outcome).raise_error(terms.keys)


def _end(helper: subprocess.Popen[bytes]) -> None:
    if helper.poll() is not None:
        return
    helper.send_signal(signal.SIGINT)
    try:
        helper.wait(LEAVES_S)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.wait()


def _main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    terms, where, parent = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_Order)
    if not is_tied_to_parent(parent):
        return
    outcome = OPEN
    try:
        _wait(terms, where)
    except EtcdBarrierError as error:
        outcome = Outcome.of(error)
    sys.stdout.buffer.write(msgspec.msgpack.encode(outcome))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()

"""How the parents of a run talk: requests and responses over TCP, by those who know the token.

Both sides prove that they know it, and neither sends it. What is sent after that is not encrypted,
like what the ranks send.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import struct
from collections.abc import AsyncIterator
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from ...core.checked_json import decoded

ANSWER_S = 10.0  # for each frame
HEAD_MAX = 64 << 10
CHUNK = 512 << 10
NONCE = 32
PROOF = 32
RANKS_MAX = 4096
MARKS_MAX = 1024  # which fit into a head

_SIZES = struct.Struct("!4sII")
_MAGIC = b"mu-1"
_T = TypeVar("_T")

_Text = Annotated[str, msgspec.Meta(max_length=255)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Ranks = Annotated[list[_Count], msgspec.Meta(max_length=RANKS_MAX)]


class Refused(Exception):
    """The other side is no parent of this run, or does not keep to the form."""


class Address(msgspec.Struct, frozen=True):
    """Where a parent listens, and its token."""

    host: _Text
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    token: _Text

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> Address:
        """ValueError for any other text."""
        return decoded(text, cls)


class Request(msgspec.Struct, omit_defaults=True):
    """do: "hello", "lead", "put", "drop" or "end".

    hello: id, host and ranks are those of the sender; newest: its ranks since the last restart.
    lead: rank 0's parent receives at `address`.
    put: the payload comes at `at` of the file `name` in the sender's folder number `place`; fresh:
    of a new file, which replaces the old one with its `last` piece. end: all is sent for now, or,
    `last`, for ever; left_out: bytes that were not. shared: the sender has its disk in common with
    the receiver.
    """

    do: str
    id: _Text = ""
    host: _Text = ""
    ranks: _Ranks = []
    newest: _Ranks = []
    address: Address | None = None
    place: _Count = 0
    name: _Text = ""
    at: _Count = 0
    fresh: bool = False
    last: bool = False
    left_out: _Count = 0
    shared: bool = False


class Response(msgspec.Struct, omit_defaults=True):
    """ok: it was done; False where there is no more space for it.

    leader: of a parent that is not rank 0's. marks: names of files in the receiver's folders, by
    which a sender knows them, that of rank 0's first. pause_s: until the next turn. rows_max:
    bytes of rows of a host.
    """

    ok: bool = True
    leader: Address | None = None
    marks: Annotated[list[_Text], msgspec.Meta(max_length=MARKS_MAX)] = []
    pause_s: Annotated[float, msgspec.Meta(ge=0.0, le=600.0)] = 2.0
    rows_max: _Count = 0


class Frame(NamedTuple):
    """What came, not read further."""

    head: bytes
    payload: bytes


class Connection:
    """One side of a connection. Refused for what is no frame, OSError and TimeoutError where the
    other side is gone or slow."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, request: Request, payload: bytes = b"") -> Response:
        await self.send(request, payload)
        return await self.receive(Response)

    async def receive(self, kind: type[_T]) -> _T:
        return parsed(await self.receive_frame(), kind)

    async def send(self, head: Request | Response, payload: bytes = b"") -> None:
        data = msgspec.json.encode(head)
        self._writer.write(_SIZES.pack(_MAGIC, len(data), len(payload)) + data + payload)
        await asyncio.wait_for(self._writer.drain(), ANSWER_S)

    async def receive_frame(self) -> Frame:
        magic, head, payload = _SIZES.unpack(await self._exactly(_SIZES.size))
        if magic != _MAGIC or head > HEAD_MAX or payload > CHUNK:
            raise Refused("no frame of my_utils, or too long")
        return Frame(await self._exactly(head), await self._exactly(payload))

    async def prove_first(self, token: str) -> None:
        """Of the side that has connected."""
        mine = secrets.token_bytes(NONCE)
        theirs = await self._exactly(NONCE)
        self._writer.write(mine + _proof(token, b"client", theirs + mine))
        self._check(token, b"server", theirs + mine, await self._exactly(PROOF))

    async def prove_second(self, token: str) -> None:
        """Of the side that listens."""
        mine = secrets.token_bytes(NONCE)
        self._writer.write(mine)
        theirs = await self._exactly(NONCE)
        self._check(token, b"client", mine + theirs, await self._exactly(PROOF))
        self._writer.write(_proof(token, b"server", mine + theirs))

    async def _exactly(self, count: int) -> bytes:
        try:
            return await asyncio.wait_for(self._reader.readexactly(count), ANSWER_S)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the other side has closed the connection") from error

    @staticmethod
    def _check(token: str, side: bytes, nonces: bytes, proof: bytes) -> None:
        if not hmac.compare_digest(proof, _proof(token, side, nonces)):
            raise Refused("a wrong token")


def _proof(token: str, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(token.encode(), side + nonces, "sha256")


def parsed(frame: Frame, kind: type[_T]) -> _T:
    try:
        return decoded(frame.head, kind)
    except ValueError as error:
        raise Refused(str(error)) from error


@contextlib.asynccontextmanager
async def connected(address: Address) -> AsyncIterator[tuple[Connection, str]]:
    """A connection on which both sides have proved that they know the token, and the address of
    this host in it."""
    opening = asyncio.open_connection(address.host, address.port)
    reader, writer = await asyncio.wait_for(opening, ANSWER_S)
    try:
        connection = Connection(reader, writer)
        await connection.prove_first(address.token)
        yield connection, str(writer.get_extra_info("sockname")[0])
    finally:
        writer.close()

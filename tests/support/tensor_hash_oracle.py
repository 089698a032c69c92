"""The tensor hash, version 2, as docs/correctness/tensor-hash.md defines it, in plain Python.

Written from the definition and for reading, not for speed: about 1 MB/s. Everything else that
computes this hash is tested against this file.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

WORD = 2**32
HALF = 2**64
BLOCK_BYTES = 4096
QUAD_BYTES = 16
STEP = 0x9E3779B97F4A7C15

Sums = tuple[int, ...]
"""S0 to S3, then T0 to T3"""
Digest = tuple[int, int]
"""(lo, hi)"""


def smix(z: int) -> int:
    """The output function of splitmix64."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % HALF
    z = (z ^ z >> 27) * 0x94D049BB133111EB % HALF
    return z ^ z >> 31


def make_keys() -> tuple[list[int], list[int], int]:
    """The 1024 keys of the words of a block, the 8 odd factors of the mix, and the seed of the
    factors of blocks."""
    state = 0x243F6A8885A308D3
    keys = []
    for _ in range(512):
        state = (state + STEP) % HALF
        keys += [smix(state) % WORD, smix(state) // WORD]
    return keys, [smix((state + i * STEP) % HALF) | 1 for i in range(1, 9)], state


K, F, SEED = make_keys()


def prf(n: int) -> int:
    return smix(smix((SEED + (n + 1) * STEP) % HALF) ^ 0xD1342543DE82EF95)


def factor(block: int, accumulator: int, lane: int) -> int:
    return prf(16 * block + 4 * accumulator + lane) | 1


def rotl(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) % HALF


def mix(sums: Sequence[int], index: int) -> Digest:
    a, b, c, d = sums
    x = (a + index * F[0]) % HALF
    y = (c + index * F[1]) % HALF
    x = (x ^ x >> 32) * F[2] % HALF
    y = (y ^ y >> 32) * F[3] % HALF
    x ^= x >> 29
    y ^= y >> 29
    x = (x + b) % HALF
    y = (y + d) % HALF
    x = (x + rotl(y, 23)) % HALF
    y ^= rotl(x, 31)
    x = (x ^ x >> 32) * F[4] % HALF
    y = (y ^ y >> 32) * F[5] % HALF
    x = (x + (y ^ y >> 29)) % HALF
    y = (y + (x ^ x >> 29)) % HALF
    x = (x ^ x >> 32) * F[6] % HALF
    y = (y ^ y >> 32) * F[7] % HALF
    return x ^ x >> 32, y ^ y >> 32


def accumulators(block: bytes) -> tuple[int, int, int, int]:
    """The four accumulators of up to 4096 bytes."""
    padded = block + bytes(-len(block) % QUAD_BYTES)
    words = struct.unpack(f"<{len(padded) // 4}I", padded)
    x = [(word + key) % WORD for word, key in zip(words, K, strict=False)]
    quads = [x[at : at + 4] for at in range(0, len(x), 4)]
    return (
        sum(q[0] * q[1] for q in quads) % HALF,
        sum(q[2] * q[3] for q in quads) % HALF,
        sum(q[0] * q[3] for q in quads) % HALF,
        sum(q[2] * q[1] for q in quads) % HALF,
    )


def sums(data: bytes) -> Sums:
    s, t = [0] * 4, [0] * 4
    for block, at in enumerate(range(0, len(data), BLOCK_BYTES)):
        found = accumulators(data[at : at + BLOCK_BYTES])
        for lane in range(4):
            term = sum(factor(block, j, lane) * x for j, x in enumerate(found))
            s[lane] = (s[lane] + term) % HALF
            t[lane] = (t[lane] + block * term) % HALF
    return (*s, *t)


def content(data: bytes) -> Digest:
    return mix(sums(data)[:4], len(data) + 1)


def header(dtype: str, shape: Sequence[int]) -> bytes:
    return dtype.encode().ljust(16, b"\0") + struct.pack(f"<{1 + len(shape)}Q", len(shape), *shape)


def combined(content_digest: Digest, dtype: str, shape: Sequence[int]) -> Digest:
    h = content(header(dtype, shape))
    return mix((content_digest[0], h[0], content_digest[1], h[1]), HALF - 2)


def to_hex(digest: Digest) -> str:
    return f"{digest[1]:016x}{digest[0]:016x}"

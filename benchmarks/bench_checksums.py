"""What the checksums of a small batch cost, beside MD5 of hashlib for each sample of each key.

The batch has eight samples under three keys, as a collate function gives it.
"""

from __future__ import annotations

import hashlib

from benchmarks.harness import Claim, take_turns

SAMPLES = 8


def run(smoke: bool) -> list[Claim]:
    import torch

    from my_utils.utils import ChecksumUtils

    calls, rounds = (2, 1) if smoke else (200, 15)
    batch = {
        "x": torch.randn(SAMPLES, 16),
        "y": torch.arange(SAMPLES),
        "mask": torch.ones(SAMPLES, 16, dtype=torch.bool),
    }

    def hashlib_each() -> None:
        for _ in range(calls):
            {
                key: [hashlib.md5(row.numpy().tobytes()).digest() for row in value.unbind(0)]
                for key, value in batch.items()
            }

    def sign() -> None:
        for _ in range(calls):
            ChecksumUtils.sign(batch)

    def verify() -> None:
        for _ in range(calls):
            ChecksumUtils.verify(dict(signed))

    before, ChecksumUtils.enabled = ChecksumUtils.enabled, True
    try:
        signed = ChecksumUtils.sign(batch)
        found = take_turns(
            {"hashlib": hashlib_each, "sign": sign, "verify": verify}, calls=calls, rounds=rounds
        )
    finally:
        ChecksumUtils.enabled = before
    peer = "MD5 of hashlib, of each sample"
    return [
        Claim(f"{name} a small batch", found[name] / 1e3, peer, found["hashlib"] / 1e3, "us", bound)
        for name, bound in (("sign", 1.0), ("verify", 1.5))
    ]

"""Files of holes, which take no disk, and as long to read as full ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from my_utils.core.trusted_open import (
    HOLES_FREE,
    HOLES_TIMES,
    open_filled,
    open_filled_or_pipe,
)

pytestmark = pytest.mark.no_torch

BLOCK = 1 << 20


def test_a_file_of_holes_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n")
    os.truncate(path, 1 << 40)
    with pytest.raises(OSError, match=r"bytes only \d+ are on the disk.*a.csv"):
        open_filled(path, os.O_RDONLY)


@pytest.mark.parametrize("data_at", [0, HOLES_FREE])
def test_a_file_with_holes_that_is_worth_reading(tmp_path: Path, data_at: int) -> None:
    path = tmp_path / "a.csv"
    with open(path, "wb") as file:
        file.seek(data_at)
        file.write(b"x" * 2 * BLOCK)
    os.truncate(path, HOLES_FREE + HOLES_TIMES * BLOCK)
    with open(path, "rb", opener=open_filled) as file:
        assert file.tell() == 0
        assert file.read(1) == (b"x" if data_at == 0 else b"\0")


def test_a_pipe_is_read_where_one_may_be() -> None:
    read_end, write_end = os.pipe()
    name = f"/dev/fd/{read_end}"
    os.write(write_end, b"text")
    os.close(write_end)
    with pytest.raises(OSError, match="no regular file"):
        open_filled(name, os.O_RDONLY)
    with open(name, "rb", opener=open_filled_or_pipe) as file:
        assert file.read() == b"text"
    os.close(read_end)


@pytest.mark.parametrize("opener", [open_filled, open_filled_or_pipe])
def test_a_device_is_not_opened(opener: Callable[[str, int], int]) -> None:
    with pytest.raises(OSError, match="no regular file"):
        opener("/dev/zero", os.O_RDONLY)

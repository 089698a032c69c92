"""What the tests of faults share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..fakes import compile_fake


@pytest.fixture(scope="session")
def failing_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake("failing_calls.c", tmp_path_factory.mktemp("fake") / "libfailing.so")

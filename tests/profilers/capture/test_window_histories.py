"""Windows over generated histories of coroutines, threads, generators and openers that die."""

from __future__ import annotations

import pytest

from ...support.window_histories import difference_of, history_of

pytestmark = [pytest.mark.c_code, pytest.mark.no_torch]


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_a_window_follows_its_call(first: int) -> None:
    found = [difference_of(history_of(seed)) for seed in range(first, first + 40)]
    assert [text for text in found if text] == []


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_more_histories() -> None:
    found = [difference_of(history_of(seed)) for seed in range(1000, 2000)]
    assert [text for text in found if text] == []

"""Each verdict that a test of these packages shows is held against its own figures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..support.verdict_figures import contradictions


@pytest.fixture(autouse=True, scope="session")
def figures_that_agree() -> Iterator[None]:
    from my_utils.analysis.verdict.result import Verdict

    shown = Verdict.lines

    def lines(verdict: Verdict, width: int = 100) -> list[str]:
        found = contradictions({**verdict.as_data(), "text": shown(verdict, width)})
        assert not found, "\n".join([*found, *shown(verdict, 200)])
        return shown(verdict, width)

    def lines_of_data(verdict: Verdict, width: int = 100) -> list[str]:
        """`as_data` asks for the lines, too."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Verdict, "lines", shown)
            return lines(verdict, width)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Verdict, "lines", lines_of_data)
        yield

"""Each verdict, report and page that a test of these packages makes is held against its own
figures."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ..support.report_figures import contradictions_of_page, contradictions_of_report
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
        _check_reports(patch)
        yield


def _check_reports(patch: pytest.MonkeyPatch) -> None:
    """Of each report its JSON, and of each page its text."""
    from my_utils.analysis.report import analysis, page
    from my_utils.analysis.report.page import Page

    from ..support import page_runs

    make, write = analysis._analyze, page.page_text

    def checked_report(*arguments: object) -> analysis.Report:
        report = make(*arguments)  # type: ignore[arg-type]  # as they came
        found = contradictions_of_report(json.loads(report.to_json()))
        assert not found, "\n".join([*found, repr(report)])
        return report

    def checked_page(one: Page) -> str:
        text = write(one)
        assert not (found := contradictions_of_page(text)), "\n".join(found)
        return text

    patch.setattr(analysis, "_analyze", checked_report)
    for user in (page, analysis, page_runs):
        patch.setattr(user, "page_text", checked_page)

"""The suite of docs/correctness/pytest.md runs as it stands there."""

from __future__ import annotations

import pytest

from ..conftest import ROOT
from ..docs.blocks import blocks_of
from .conftest import Suite, counts


@pytest.mark.slow
def test_the_suite_of_the_page(suite: Suite) -> None:
    found = blocks_of(ROOT / "docs/correctness/pytest.md")
    suite.write("test_model.py", "\n".join(one.code for one in found if one.language == "python"))
    (update,) = (one.code for one in found if "update" in one.code and one.language == "sh")
    program, *arguments = update.split()
    assert program == "pytest"
    assert counts(suite.run(*arguments))["passed"] == 5
    (trace,) = (one.code.split() for one in found if "trace" in one.code and one.language == "sh")
    output = suite.run("-W", "ignore::DeprecationWarning", "-p", "xdist.plugin", *trace[1:])
    assert counts(output)["passed"] == 5
    assert (suite.folder / trace[-1]).stat().st_size > 0
    golden = suite.folder / "golden"
    assert (golden / "test_model/test_what_it_computes.toml").exists()
    assert (golden / "test_model/weights.toml").exists()

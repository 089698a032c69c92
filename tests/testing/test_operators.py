"""Tests that run under NanInfTracker or CompareWithCPU, by a marker and by the option."""

from __future__ import annotations

import pytest

from .conftest import Suite, counts

SUITE = """
    import pytest, torch

    def zero_by_zero():
        x = torch.tensor([1.0, 0.0])
        return (x / x).sum()

    def test_plain():
        zero_by_zero()

    @pytest.mark.my_utils_check("NanInfTracker")
    def test_nan():
        zero_by_zero()

    @pytest.mark.my_utils_check("NanInfTracker")
    def test_a_nan_of_the_test_itself():
        torch.tensor([float("nan")]) + 1

    @pytest.mark.my_utils_check("NanInfTracker")
    def test_without_operators():
        pass

    @pytest.mark.my_utils_check()
    def test_meant():
        zero_by_zero()

    def wrong(op, args, kwargs):
        return op(*args, **kwargs) + (1 if op is torch.ops.aten.mul.Tensor else 0)

    @pytest.mark.my_utils_check("CompareWithCPU", reference=wrong)
    def test_differs():
        torch.ones(2) * 3 + 1

    @pytest.mark.my_utils_check("NanInfTracker", "CompareWithCPU")
    def test_its_own_failure():
        assert torch.ones(2).sum() == 3

    @pytest.mark.my_utils_check("NanInfTrackr")
    def test_misspelt():
        pass
"""


@pytest.mark.slow
def test_findings_fail_the_test(suite: Suite) -> None:
    suite.write("test_it.py", SUITE)
    output = suite.run("-rfp", "--tb=short")
    passed = [line.split("::")[1] for line in output.splitlines() if line.startswith("PASSED")]
    assert passed == ["test_plain", "test_a_nan_of_the_test_itself", "test_without_operators",
                      "test_meant"]  # fmt: skip
    assert counts(output) == {"failed": 4, "passed": 4}
    assert "NanInfTracker: torch.ops.aten.div(forward) gave 1 NaN, 0 +Inf, 0 -Inf" in output
    assert "CompareWithCPU: 1 calls of operators differ, most of torch.ops.aten.mul" in output
    assert "my_utils_check must be NanInfTracker or CompareWithCPU, not 'NanInfTrackr'" in output
    assert "assert tensor(2.) == 3" in output

    by_option = suite.run(
        "-rf", "--tb=short", "--my-utils-check=NanInfTracker", "-k", "plain or meant"
    )
    assert counts(by_option)["failed"] == 1
    assert "FAILED test_it.py::test_plain" in by_option


def test_an_unknown_check_is_refused_at_once(suite: Suite) -> None:
    done = suite.start("--my-utils-check", "Nan")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "argument --my-utils-check: invalid choice: 'Nan'" in done.stderr
    assert "NanInfTracker" in done.stderr

"""What the figures of the benchmarks rest on: a peak of memory, and rows measured again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.__main__ import table
from benchmarks.harness import Claim, NotMeasured, Row, output_and_peak, steadied

MIB = 1 << 20


def claim(ours: float) -> Claim:
    return Claim("a row", ours, "a peer", 1.0, "s", bound=1.0)


class Measured:
    """A benchmark with a row that is met, and one that measures these values in turn."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def __call__(self) -> list[Row]:
        return [claim(0.5), NotMeasured("another row", "a package"), claim(self.values.pop(0))]


def test_the_peak_of_a_process_is_not_that_of_the_one_that_starts_it() -> None:
    large = b"x" * (300 * MIB)
    printed, small_mib = output_and_peak([sys.executable, "-c", "print(1); print(2)"])
    assert (printed, len(large)) == ("1\n2", 300 * MIB)
    assert small_mib < 100
    _, mib = output_and_peak([sys.executable, "-c", f"x = b'x' * {200 * MIB}"])
    assert 200 < mib < 300


def test_a_process_that_fails_has_no_peak() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        output_and_peak([sys.executable, "-c", "raise SystemExit(3)"])


def test_what_is_met_is_measured_once() -> None:
    first: list[Row] = [claim(0.5), claim(1.0)]
    assert steadied(first, Measured()) is first


def test_a_row_missed_by_noise_is_measured_until_its_median_stands_still() -> None:
    measure = Measured(1.3, 0.9, 0.91, 0.9, 0.9, 7.0)
    met, missing, noisy = steadied(measure(), measure)
    assert (met, missing) == (claim(0.5), NotMeasured("another row", "a package"))
    assert isinstance(noisy, Claim)
    assert (noisy.ratio, noisy.ratios, noisy.met) == (0.9, (1.3, 0.9, 0.91, 0.9, 0.9), True)
    assert measure.values == [7.0]


def test_a_row_that_never_stands_still_is_missed_with_its_spread() -> None:
    measure = Measured(*(1.1 * 1.5**run for run in range(9)))
    row = steadied(measure(), measure)[2]
    assert isinstance(row, Claim)
    assert row.verdict == "MISSED, 1.1 to 12.5 in 7 runs"


def test_no_run_begins_after_the_time_that_is_given() -> None:
    measure = Measured(1.3, 1.3, 1.3)
    row = steadied(measure(), measure, most_seconds=0)[2]
    assert isinstance(row, Claim)
    assert (row, measure.values) == (claim(1.3), [1.3, 1.3])


def test_a_row_without_figures_says_what_it_needs() -> None:
    assert table([NotMeasured("a row", "etcd")]).split() == [
        "a", "row", "not", "measured:", "etcd",
    ]  # fmt: skip

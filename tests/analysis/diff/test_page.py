"""The page of a difference: what stands in the file, and what one sees in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.diff.comparison import compare, compare_files
from my_utils.analysis.diff.distributions import BINS, make_distributions
from my_utils.analysis.diff.load import RunSteps
from my_utils.analysis.diff.page import adding_up, page_text
from my_utils.cli.diff import main
from tests.support.axe import violations
from tests.support.page_runs import HOSTILE, opened
from tests.support.planted_runs import Run
from tests.support.run_csv import RankCsv
from tests.support.schemas import loads_checked
from tools.perfetto_ui import Page as Tab

STAGES = ["iter/input", "iter/forward", HOSTILE, *(f"iter/s{at}" for at in range(12)), "untimed"]


def runs(seed: int, slower: float = 0.0, *, memory: bool = True) -> list[RunSteps]:
    """Two runs of two ranks and 200 steps of 15 to 16 ms; `slower` of them is more input."""
    found = []
    for number in range(2):
        rng = np.random.default_rng([seed, number])
        parts = np.array([2.0, 5.0, 3.0, *([0.4] * 12), 0.2]) * 1e6
        parts = parts * np.exp(rng.normal(0, 0.02, (2, 200, len(STAGES))))
        parts[:, :, 0] += slower * 15e6
        found.append(RunSteps(
            list(STAGES), parts, [0, 1], warmup=3, path=f"runs/{seed}-{number}",
            memory={"rss_bytes": np.full(200, 2e9 * (1 + slower))} if memory else {},
            items={"samples": np.full(200, 32.0)}, problems=["<b>one file</b>"] * (number == 1),
        ))  # fmt: skip
    return found


def page_of(slower: float = 0.05, *, memory: bool = True) -> str:
    a, b = runs(1, memory=memory), runs(2, slower, memory=memory)
    return page_text(compare(a, b), [], a, b)


@pytest.fixture(scope="module")
def text() -> str:
    return page_of()


@pytest.fixture(scope="module")
def tab(text: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with opened(text, tmp_path_factory.mktemp("difference")) as tab:
        yield tab


def rows_of(tab: Tab, table: str) -> list[list[str]]:
    rows: list[list[str]] = tab.evaluate(
        f"[...document.querySelectorAll('#{table} tbody tr')]"
        ".map(r => [...r.cells].map(c => c.textContent))"
    )
    return rows


def points(text: str) -> float:
    return float(text.partition(" %")[0].replace("−", "-"))


def test_the_differences_add_up_to_the_total(tab: Tab) -> None:
    """In the drawing and in the table, to the last digit that is shown."""
    texts = "[...document.querySelectorAll('#parts > .quiet')].map(s => s.textContent)"
    shown = tab.evaluate(texts)
    *parts, whole = map(points, shown)
    assert round(sum(parts), 2) == whole and 4.5 < whole < 5.5
    assert parts[0] == pytest.approx(whole, abs=0.3)
    *stages, step, _, _ = [points(row[3]) for row in rows_of(tab, "stages")]
    assert round(sum(stages), 2) == step == whole
    assert len(stages) == len(STAGES) and len(parts) == 11  # ten, and the others as one


def test_bars_begin_where_the_one_above_ends(tab: Tab) -> None:
    bars = tab.evaluate(
        "[...document.querySelectorAll('#parts rect')].map(r => ['x', 'width'].map("
        "n => +r.getAttribute(n)).concat(r.getAttribute('class')))"
    )
    at = bars[-1][0]  # the whole begins at zero
    for x, width, kind in bars[:-1]:
        assert (x if "more" in kind else x + width) == pytest.approx(at, abs=4)
        at = x + width if "more" in kind else x
    assert at == pytest.approx(bars[-1][0] + bars[-1][1], abs=25)
    assert "faint" not in bars[0][2] and "faint" in bars[3][2]


def test_memory_and_throughput(tab: Tab) -> None:
    memory, throughput = rows_of(tab, "figures")
    assert memory[:3] == ["peak memory", "1.86 GiB", "1.96 GiB"]
    assert memory[3].startswith("+5.0 %")
    assert throughput[0] == "samples/s" and points(throughput[3]) == pytest.approx(-4.8, abs=0.4)


def test_what_was_not_measured_is_said() -> None:
    assert "not measured in all runs" in page_of(memory=False)
    assert "not measured in all runs" not in page_of()


def test_distributions_have_the_same_scale() -> None:
    a, b = runs(1), runs(2, 0.05)
    b[0].parts[:, 100] *= 100  # one long step flattens nothing
    found = compare(a, b)
    step, data, *_ = make_distributions(found, a, b)
    assert step.name == "the step" and data.name == "iter/input"
    assert step.high < 20 and step.b.max() > 1000
    for _, values, bins in (*step.sides, *data.sides):
        assert bins.sum() == pytest.approx(1) and len(bins) == BINS
        assert len(values) == 2 * (200 - 3)
    edges = np.linspace(step.low, step.high, BINS)
    counted = np.histogram(step.a, [*edges, np.inf])[0] / len(step.a)
    assert step.bins_a == pytest.approx(counted, abs=2 / len(step.a))
    names = [one.name for one in make_distributions(found, a, b)]
    assert names[-2:] == ["memory", "samples/s"]


def test_a_page_for_each_outcome() -> None:
    assert "no difference is found" in page_of(0.0)
    a, b = runs(1), runs(2)
    for run in b:
        run.parts = run.parts[:, :10]
    short = page_text(compare(a, b), [], a, b)
    assert "<title>B and A: not compared</title>" in short and "NOT COMPARED" in short


def test_nothing_is_fetched_and_no_other_script_would_run(text: str, tab: Tab) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None and "default-src &#39;none&#39;" in policy[1]
    assert "unsafe" not in policy[1] and "style=" not in text
    assert tab.evaluate("performance.getEntriesByType('resource').length") == 0


def test_names_stay_text(text: str, tab: Tab) -> None:
    assert HOSTILE not in text
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert "hacked" not in tab.evaluate("document.title")
    assert HOSTILE in [row[0] for row in rows_of(tab, "stages")]
    assert "<b>one file</b>" in tab.evaluate("document.body.innerText")


def test_tables_sort_and_the_difference_is_copied(tab: Tab) -> None:
    tab.evaluate("document.querySelectorAll('#stages th button')[1].click()")  # A
    assert rows_of(tab, "stages")[0][0] == "the step"
    tab.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])
    tab.evaluate("document.getElementById('copy').click()")
    tab.wait_for("document.getElementById('copy').textContent === 'copied'", "the copy")
    assert tab.evaluate("navigator.clipboard.readText()").startswith("**B is 5")


def test_it_is_readable_without_javascript_at_400_pixels(text: str, tmp_path: Path) -> None:
    with opened(text, tmp_path, width=400) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
        tab.call("Emulation.setScriptExecutionDisabled", value=True)
        tab.call("Page.reload")
        tab.wait_for("!document.documentElement?.dataset.drawn", "the page without its script")
        tab.wait_for("document.readyState === 'complete'", "the page")
        seen = tab.evaluate("document.body.innerText")
    for words in ("% slower", "iter/input", "half below", "peak memory", "p99"):
        assert words in seen


@pytest.mark.slow
def test_it_can_be_used_by_everybody(text: str, tmp_path: Path) -> None:
    with opened(text, tmp_path) as tab:
        assert violations(tab) == []


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for at, name in enumerate("ab"):
        run = Run(ranks=2, steps=60, synchronises=False, seed=at)
        (run.slower(1.4, "data", rank=1) if name == "b" else run).write(tmp_path / name)
    page = tmp_path / "diff.html"
    given = [str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(page), "--gate", "iter:+0.5%"]
    assert main(given) == 3
    assert capsys.readouterr().out.startswith("B is 1.7 % slower")
    written = page.read_text()
    assert "FAILED: iter:+0.5%" in written and "iter/data" in written


def written_run(folder: Path, seed: int, *stages: str, gpu_ms: float = 0.0) -> str:
    """A rank of 60 steps whose stages take the host 1 ms each. gpu_ms: what all but the first take
    the GPU; 0 for no GPU times."""
    rng, csv, done = np.random.default_rng(seed), RankCsv(), 0.0
    csv.process()
    for step in range(60):
        begin = max(3.0 * step, done - 3)
        for at, stage in enumerate(stages):
            gpu = None
            if gpu_ms and at:
                first = max(begin + at, done)
                done = first + gpu_ms * rng.uniform(1, 1.05)
                gpu = first, done
            csv.stage(stage, step, begin + at, begin + at + 1, gpu=gpu)
    return str(csv.in_order().write(folder))


@pytest.mark.parametrize("loading", ["input", "load"])
def test_a_side_without_gpu_times_is_drawn_by_the_hosts(
    tmp_path: Path, loading: str, capsys: pytest.CaptureFixture[str]
) -> None:
    a = written_run(tmp_path / "a", 1, "input", "forward", "backward", gpu_ms=4)
    b = written_run(tmp_path / "b", 2, loading, "forward", "backward")
    assert main([a, b, "--json", "-o", str(tmp_path / "diff.html")]) == 0
    data = loads_checked("diff", capsys.readouterr().out)
    assert (data["a"], data["b"]) == ([a], [b])
    forward = next(one for one in data["stages"] if one["stage"] == "forward")
    assert forward["a_ms"] == forward["b_ms"] == 1
    compared = compare_files([a], [b])
    drawn = make_distributions(compared.found, compared.a, compared.b)
    of_forward = next(one for one in drawn if one.name == "forward")
    assert np.median(of_forward.a) == pytest.approx(1) and len(of_forward.a) == data["steps"]


@pytest.mark.parametrize("count", [1, 7, 40])
def test_rounding_adds_up(count: int) -> None:
    rng = np.random.default_rng(count)
    for _ in range(50):
        shares = rng.normal(0, 0.01, count).tolist()
        rounded = adding_up(shares, sum(shares))
        assert round(sum(rounded), 2) == round(100 * sum(shares), 2)
        assert np.abs(np.array(rounded) - 100 * np.array(shares)).max() <= 0.0101

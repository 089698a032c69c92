"""Sweeps over shapes: which calls are made and timed, what does not fit, and what is written."""

from __future__ import annotations

import csv
import inspect
import math
import operator
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from my_utils.annotations import SweepResult, parametrize_shapes
from my_utils.profilers.sweep.results import COLUMNS

from ...conftest import RunPython


@pytest.mark.no_torch
def test_every_combination_runs_warm_up_and_repeats() -> None:
    calls: list[tuple[Any, int]] = []

    @parametrize_shapes([(2, 3), (4,)], batch_sizes=[1, 8], warmup=2, repeats=4)
    def work(shape: Any, batch_size: int) -> None:
        """Does nothing."""
        calls.append((shape, batch_size))

    result = work()
    combinations = [((2, 3), 1), ((2, 3), 8), ((4,), 1), ((4,), 8)]
    assert calls == [each for each in combinations for _ in range(6)]
    assert [(point.shape, point.batch_size) for point in result.points] == combinations
    assert all((point.repeats, point.clock) == (4, "cpu") for point in result.points)
    assert work.results is result
    assert work.__name__ == "work" and work.__doc__ == "Does nothing."  # type: ignore[attr-defined]


@pytest.mark.no_torch
@pytest.mark.parametrize(("warmup", "repeats"), [(0, 1), (0, 3), (1, 1), (3, 2)])
def test_the_number_of_calls_is_exact(warmup: int, repeats: int) -> None:
    calls = []

    @parametrize_shapes([1], warmup=warmup, repeats=repeats)
    def work(shape: int) -> None:
        calls.append(shape)

    assert work.sweep().points[0].repeats == repeats
    assert len(calls) == warmup + repeats


@pytest.mark.no_torch
def test_the_returned_callable_is_timed_and_not_its_preparation() -> None:
    prepared = []
    called = []

    @parametrize_shapes(batch_sizes=[2], warmup=1, repeats=5)
    def work(batch_size: int, pause: float) -> Any:
        prepared.append(batch_size)
        time.sleep(0.1)

        def timed() -> None:
            called.append(batch_size)
            time.sleep(pause)

        return timed

    began = time.perf_counter()
    point = work(pause=0.004).points[0]
    took_ms = (time.perf_counter() - began) * 1e3
    assert (prepared, called) == ([2], [2] * 6)
    assert 4 <= point.min_ms <= point.median_ms <= point.max_ms
    times_ms = [point.min_ms, point.p25_ms, point.median_ms, point.p75_ms, point.max_ms]
    assert sum(times_ms) <= took_ms - 100, "the preparation was timed"
    assert point.per_second == pytest.approx(2000 / point.median_ms)
    assert point.min_ms <= point.p25_ms <= point.median_ms <= point.p75_ms <= point.max_ms
    assert point.spread_ms == point.p75_ms - point.p25_ms
    assert point.others == "pause=0.004"


@pytest.mark.no_torch
def test_with_a_shape_it_is_the_function_itself() -> None:
    @parametrize_shapes([(1,)], batch_sizes=[1])
    def area(shape: tuple[int, ...], batch_size: int = 1) -> int:
        return shape[0] * batch_size

    assert area((3,), 4) == 12
    assert area(shape=(3,)) == 3
    assert len(area.results) == 0
    with pytest.raises(TypeError, match="unexpected keyword"):
        area(colour="red")
    assert list(inspect.signature(area).parameters) == ["shape", "batch_size"]


@pytest.mark.no_torch
def test_methods_are_swept_too() -> None:
    class Bench:
        factor = 3

        @parametrize_shapes([2, 5], warmup=0, repeats=1)
        def work(self, shape: int, seen: list[int]) -> None:
            seen.append(self.factor * shape)

    seen: list[int] = []
    assert len(Bench().work(seen=seen)) == 2
    assert seen == [6, 15]


@pytest.mark.no_torch
def test_running_out_of_memory_is_marked_and_the_memory_given_back(tmp_path: Path) -> None:
    class Tensor:
        pass

    held: list[weakref.ref[Tensor]] = []

    def fills() -> None:
        tensor = Tensor()
        held.append(weakref.ref(tensor))
        raise ValueError("a cache is full")

    @parametrize_shapes([1, 2, 3], repeats=2, output_csv=tmp_path / "sweep.csv")
    def work(shape: int) -> None:
        if shape == 2:
            try:
                fills()
            except ValueError as full:
                raise MemoryError("2 GiB wanted") from full
        if shape == 3:
            assert [tensor() for tensor in held] == [None], (
                "the failed point still holds its tensors"
            )

    result = work()
    assert [point.status for point in result.points] == ["ok", "oom", "ok"]
    failed = result.points[1]
    assert failed.error == "MemoryError: 2 GiB wanted"
    assert math.isnan(failed.median_ms) and math.isnan(failed.per_second)
    assert "out of memory" in str(result)


@pytest.mark.no_torch
def test_out_of_memory_inside_the_timed_callable() -> None:
    @parametrize_shapes([1, 2], warmup=0, repeats=2)
    def work(shape: int) -> Any:
        def timed() -> None:
            if shape == 1:
                raise RuntimeError("CUDA error: out of memory")

        return timed

    assert [point.status for point in work().points] == ["oom", "ok"]


def test_the_allocators_of_torch_run_out() -> None:
    import torch

    @parametrize_shapes([(8, 8), (1 << 23, 1 << 23)], batch_sizes=[4], warmup=1, repeats=2)
    def work(shape: tuple[int, ...], batch_size: int) -> Any:
        x = torch.ones(batch_size, *shape)
        return lambda: x.sum()

    small, big = work().points
    assert (small.status, big.status) == ("ok", "oom")
    assert "allocate" in big.error


@pytest.mark.parametrize("name", ["OutOfMemoryError", "cuda.OutOfMemoryError"])
def test_the_error_of_torch_is_known_by_its_class(name: str) -> None:
    kind = operator.attrgetter(name)(pytest.importorskip("torch"))

    @parametrize_shapes([1, 2], warmup=0, repeats=1, on_error="mark")
    def work(shape: int) -> Any:
        raise kind("too much") if shape == 1 else RuntimeError("mat1 and mat2 do not fit")

    assert [point.status for point in work().points] == ["oom", "error"]


@pytest.mark.no_torch
def test_another_exception_passes_through(tmp_path: Path) -> None:
    problem = ValueError("no such shape")
    path = tmp_path / "sweep.csv"

    @parametrize_shapes([1, 2, 3], repeats=1, output_csv=path, output_png=tmp_path / "no.png")
    def work(shape: int) -> None:
        if shape == 2:
            raise problem

    with pytest.raises(ValueError) as caught:
        work()
    assert caught.value is problem and problem.__context__ is None
    assert [point.status for point in work.results.points] == ["ok", "error"]
    assert [row["status"] for row in read(path)] == ["ok", "error"]
    assert [each.name for each in tmp_path.iterdir()] == ["sweep.csv"]


@pytest.mark.no_torch
def test_another_exception_is_marked_when_asked_for() -> None:
    @parametrize_shapes([1, 2, 3], repeats=1, on_error="mark")
    def work(shape: int) -> None:
        if shape == 2:
            raise ValueError("no such shape\nsecond line")

    result = work()
    assert [point.status for point in result.points] == ["ok", "error", "ok"]
    assert result.points[1].error == "ValueError: no such shape"


@pytest.mark.no_torch
def test_ctrl_c_ends_the_sweep() -> None:
    @parametrize_shapes([1, 2], on_error="mark")
    def work(shape: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert len(work.results) == 0


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def some_result(tmp_path: Path) -> SweepResult:
    @parametrize_shapes(
        [(64, 64), ((8, 8), (8,))], [1, 16], warmup=0, repeats=3,
        output_csv=tmp_path / "sweep.csv", output_png=tmp_path / "sweep.png",
    )  # fmt: skip
    def work(shape: Any, batch_size: int) -> None:
        if (shape, batch_size) == ((64, 64), 16):
            raise MemoryError
        sum(range(1000 * batch_size))

    result = work()
    assert isinstance(result, SweepResult)
    return result


@pytest.mark.no_torch
def test_what_is_written(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    image_of = pytest.importorskip("matplotlib.image")
    result = some_result(tmp_path)
    rows = read(tmp_path / "sweep.csv")
    assert tuple(rows[0]) == COLUMNS
    assert [(row["shape"], row["batch_size"], row["status"]) for row in rows] == [
        ("64x64", "1", "ok"), ("64x64", "16", "oom"), ("8x8,8", "1", "ok"), ("8x8,8", "16", "ok"),
    ]  # fmt: skip
    assert rows[1]["median_ms"] == "" and rows[1]["error"] == "MemoryError"
    assert float(rows[3]["median_ms"]) == result.points[3].median_ms

    table = result.to_dataframe()
    assert tuple(table.columns) == COLUMNS
    assert table["median_ms"].isna().tolist() == [False, True, False, False]
    again = pandas.read_csv(tmp_path / "sweep.csv")
    assert again["batch_size"].tolist() == table["batch_size"].tolist()

    image = image_of.imread(tmp_path / "sweep.png")
    assert image.shape[0] > 300 and image.shape[1] > 500
    assert image.std() > 0.01, "the plot is blank"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep.csv", "sweep.png"]


@pytest.mark.no_torch
def test_files_that_cannot_be_written_end_no_sweep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {"output_csv": tmp_path / "none" / "s.csv", "output_png": tmp_path / "none" / "s.png"}

    @parametrize_shapes([1, 2, 3], repeats=1, **files)  # type: ignore[arg-type]
    def work(shape: int) -> None: ...

    assert [point.status for point in work().points] == ["ok"] * 3
    ours = [record.message for record in caplog.records if record.name.startswith("my_utils")]
    assert [message.count("the sweep goes on") for message in ours] == [1, 1]


@pytest.mark.no_torch
def test_a_missing_matplotlib_is_told_before_the_first_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    @parametrize_shapes([1, 2], output_png=tmp_path / "sweep.png")
    def work(shape: int) -> None:
        calls.append(shape)

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        work()
    assert calls == []


@pytest.mark.no_torch
def test_a_plot_of_shapes_alone(tmp_path: Path) -> None:
    image_of = pytest.importorskip("matplotlib.image")

    @parametrize_shapes([(1,), (2,)], warmup=0, repeats=1, verbose=True)
    def work(shape: Any) -> None:
        raise MemoryError

    work().plot(tmp_path / "shapes.png")
    assert image_of.imread(tmp_path / "shapes.png").std() > 0.01


@pytest.mark.no_torch
def test_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @parametrize_shapes([5], batch_sizes=[2], warmup=0, repeats=1, verbose=True)
    def work(shape: int, batch_size: int) -> None:
        pass

    result = work()
    heading, row = str(result).splitlines()
    assert heading.split() == ["shape", "batch", "median", "ms", "spread", "ms", "min", "ms",
                               "max", "ms", "samples/s", "clock"]  # fmt: skip
    assert row.split()[:2] == ["5", "2"] and row.split()[-1] == "cpu"
    assert capsys.readouterr().out.splitlines() == [heading, row]


@pytest.mark.no_torch
def test_bad_arguments() -> None:
    def work(shape: Any, batch_size: Any) -> None:
        pass

    async def later(shape: Any) -> None:
        pass

    def some(shape: Any) -> Any:
        yield shape

    cases: list[tuple[dict[str, Any], Any, type[Exception], str]] = [
        ({}, work, ValueError, "both None"),
        ({"shapes": work}, work, TypeError, "needs shapes or batch sizes"),
        ({"shapes": []}, work, ValueError, "shapes is empty"),
        ({"shapes": "12"}, work, TypeError, "shapes='12'"),
        ({"shapes": [1.5]}, work, TypeError, "1.5 is neither"),
        ({"shapes": [(2, -1)]}, work, ValueError, "-1 is negative"),
        ({"batch_sizes": []}, work, ValueError, "batch_sizes is empty"),
        ({"batch_sizes": [0]}, work, ValueError, "each of batch_sizes must be at least 1, not 0"),
        ({"batch_sizes": 4}, work, TypeError, "batch_sizes=4"),
        ({"shapes": [1], "warmup": -1}, work, ValueError, "warmup must be at least 0, not -1"),
        ({"shapes": [1], "repeats": 0}, work, ValueError, "repeats must be at least 1, not 0"),
        ({"shapes": [1], "repeats": True}, work, TypeError, "repeats must be an int, not True"),
        ({"shapes": [1], "device": "tpu"}, work, ValueError, "device must be one of 'auto'"),
        ({"shapes": [1], "on_error": "pass"}, work, ValueError, "on_error must be one of 'raise'"),
        ({"shapes": [1], "output_csv": 5}, work, TypeError, "output_csv must be a path or None"),
        ({"shapes": [1], "output_png": 5}, work, TypeError, "output_png must be a path or None"),
        ({"shapes": [1], "verbose": "no"}, work, TypeError, "verbose must be a bool, not 'no'"),
        ({"shapes": [1]}, later, TypeError, "later is asynchronous"),
        ({"shapes": [1]}, some, TypeError, "some is a generator"),
        ({"shapes": [1]}, int, TypeError, "decorates functions"),
        ({"batch_sizes": [1]}, later.__class__, TypeError, "decorates functions"),
        ({"batch_sizes": [1]}, lambda shape: None, TypeError, "no argument 'batch_size'"),
    ]
    for keywords, function, error, text in cases:
        with pytest.raises(error, match=text):
            parametrize_shapes(**keywords)(function)


TESTS = """
import pytest
from my_utils.annotations import parametrize_shapes

@pytest.mark.parametrize("factor", [1, 2])
@parametrize_shapes([(4, 4), (9,)], batch_sizes=[1, 2], warmup=0, repeats=2,
                    output_csv="sweep.csv", output_png="sweep.png")
def test_areas(shape, batch_size, factor, tmp_path):
    assert tmp_path.is_dir()
    if shape == (9,) and batch_size == 2:
        raise MemoryError("too big")
    assert (shape, factor) != ((4, 4), 2), "an honest failure"

class TestMethods:
    @parametrize_shapes([3, 7], warmup=1, repeats=1)
    def test_sizes(self, shape):
        assert shape in (3, 7)
        return lambda: shape
"""


@pytest.mark.slow
@pytest.mark.no_torch
def test_under_pytest(tmp_path: Path, run_python: RunPython) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "test_shapes.py").write_text(TESTS)
    result = run_python("-m", "pytest", "-v", "-rs", "-p", "no:cacheprovider", "test_shapes.py")
    assert "2 failed, 6 passed, 2 skipped" in result.stdout, result.stdout
    assert "out of memory at 9-b2: MemoryError: too big" in result.stdout
    assert "an honest failure" in result.stdout
    for name in ("test_areas[4x4-b1-1]", "test_sizes[7]"):
        assert name in result.stdout
    rows = read(tmp_path / "sweep.csv")
    assert len(rows) == 8
    statuses = {(row["shape"], row["batch_size"], row["others"]): row["status"] for row in rows}
    assert statuses["4x4", "2", "factor=1"] == "ok"
    assert statuses["9", "2", "factor=2"] == "oom"
    assert statuses["4x4", "1", "factor=2"] == "error"
    assert (tmp_path / "sweep.png").stat().st_size > 5000


@pytest.mark.gpu
def test_on_a_gpu_by_events() -> None:
    import torch

    @parametrize_shapes([(1024, 1024), (1 << 20, 1 << 20)], batch_sizes=[2], warmup=2, repeats=5)
    def work(shape: tuple[int, ...], batch_size: int) -> Any:
        x = torch.randn(batch_size, *shape, device="cuda")
        return lambda: x @ x

    small, big = work().points
    assert (small.status, small.clock) == ("ok", "cuda")
    assert small.median_ms > 0
    assert small.peak_bytes is not None and small.peak_bytes >= 2 * 2 * 4 * 1024 * 1024
    assert big.status == "oom"


# --- as others call it ---


def test_frames_heights_and_widths() -> None:
    seen: list[tuple[int, ...]] = []

    given: dict[str, Any] = {"shape_list": [(1, 2, 3), (4, 5, 6)], "batch_size_range": [7, 8]}

    @parametrize_shapes(warmup=0, repeats=1, **given)
    def run(bs: int, num_frames: int, H: int, W: int, factor: int = 1) -> None:
        seen.append((bs, num_frames, H, W, factor))

    result = run(factor=2)
    assert seen == [(7, 1, 2, 3, 2), (8, 1, 2, 3, 2), (7, 4, 5, 6, 2), (8, 4, 5, 6, 2)]
    assert [(p.shape, p.batch_size, p.status) for p in result.points][:2] == [
        ((1, 2, 3), 7, "ok"),
        ((1, 2, 3), 8, "ok"),
    ]
    run(1, 2, 3, 4)
    assert seen[-1] == (1, 2, 3, 4, 1)


def test_other_names_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="got shapes and shape_list, which are the same"):
        parametrize_shapes([1], shape_list=[2])  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"\(1, 2\) must be three integers: num_frames, H and W"):

        @parametrize_shapes([(1, 2)])
        def run(num_frames: int, H: int, W: int) -> None: ...


def test_frames_in_tests(tmp_path: Path, run_python: RunPython) -> None:
    test = tmp_path / "test_frames.py"
    test.write_text(
        "from my_utils.annotations import parametrize_shapes\n"
        "@parametrize_shapes([(1, 2, 3)], [4], warmup=0, repeats=1, output_csv='sweep.csv')\n"
        "def test_run(bs, num_frames, H, W):\n"
        "    assert (bs, num_frames, H, W) == (4, 1, 2, 3)\n"
    )
    result = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", test, cwd=tmp_path)
    assert "1 passed" in result.stdout
    (row,) = read(tmp_path / "sweep.csv")
    assert (row["shape"], row["batch_size"], row["status"]) == ("1x2x3", "4", "ok")

"""Gathered times against numpy, in files, as plots and frames; messages, and bad ones."""

from __future__ import annotations

import copy
import math
import pickle
import re
import resource
import struct
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from my_utils import _core
from my_utils.record.timing.packed import BUCKETS, BadMessage, Merger, bucket_middles, pack
from my_utils.timing import GatheredTime, ProfiledTime, TimeData, TimeManager

pytestmark = pytest.mark.no_torch

# To 13 days, where the last bucket begins.
DURATIONS = st.lists(st.integers(0, 2**50 - 1), max_size=40)
RANKS = st.lists(st.dictionaries(st.sampled_from(["a", "b", "ü\0"]), DURATIONS), max_size=5)


def manager(times: dict[str, list[int]], **options: Any) -> TimeManager:
    tm = TimeManager(**options)
    for name, durations in times.items():
        for ns in durations:
            tm.add(name, ns)
    return tm


def gathered(
    ranks: list[dict[str, list[int]]], summary: bool = False, **options: Any
) -> GatheredTime:
    merger = Merger()
    for rank, times in enumerate(ranks):
        merger.add(rank, pack(manager(times, **options), rank, summary))
    return GatheredTime(merger.tables(), world_size=len(ranks), missing={})


def heights_of(outline: Any) -> int:
    """The sum over the bins of a histogram that is drawn as a line around them."""
    path = outline.get_path().vertices
    flat = path[1:, 1] == path[:-1, 1]  # along the top of a bin, or its ground
    width = np.diff(path[:, 0]).max()
    return round(float((path[1:, 1][flat] * np.diff(path[:, 0])[flat] / width).sum()))


def lognormal(seed: int, count: int, middle_ns: float = 3e6) -> list[int]:
    values = np.random.default_rng(seed).lognormal(0.0, 0.5, count) * middle_ns
    found: list[int] = values.astype(np.int64).tolist()
    return found


# --- figures ------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(RANKS, st.booleans(), st.sampled_from([1_048_576, 3]))
def test_merged_is_what_numpy_says_of_all(
    ranks: list[dict[str, list[int]]], summary: bool, max_samples: int
) -> None:
    found = gathered(ranks, summary, max_samples=max_samples)
    names = {name for times in ranks for name, durations in times.items() if durations}
    assert set(found) == names
    for name, data in found.items():
        having = {rank: times[name] for rank, times in enumerate(ranks) if times.get(name)}
        every = [ns for durations in having.values() for ns in durations]
        seconds = np.array(every, dtype=np.float64) / 1e9
        assert (data.ranks, data.count()) == (list(having), len(every))
        assert data.sum() == sum(every) / 1e9
        assert (data.min(), data.max()) == (min(every) / 1e9, max(every) / 1e9)
        if len(every) > 1:
            assert data.std() == pytest.approx(seconds.std(ddof=1), rel=1e-6, abs=1e-9 * data.max())
        else:
            assert np.isnan(data.std())
        overflowed = any(len(times) > max_samples for times in having.values())
        assert data.is_summary == (summary or overflowed)
        for share in (0, 10, 50, 95, 100):
            expected = np.percentile(seconds, share, method="inverted_cdf")
            within = 0.01 if data.is_summary else 1e-12
            assert data.percentile(share) == pytest.approx(expected, rel=within)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**62), min_size=1), max_size=3))
def test_rounded_durations(names: list[list[int]]) -> None:
    figures = np.array([(len(ns), min(ns), max(ns)) for ns in names], dtype=np.int64).reshape(-1, 3)
    scales = [np.ascontiguousarray(column) for column in figures.T]
    every = np.array([each for ns in names for each in ns], dtype=np.int64)
    codes = np.frombuffer(_core.encode_durations(every, *scales), dtype=np.uint16)
    decoded = _core.decode_durations(codes, *scales)
    assert decoded is not None
    found = iter(np.frombuffer(decoded).tolist())
    for ns in names:
        spread = max(ns) / max(1, min(ns))
        share = 2**-15 if spread < 16 else 2**-13 if spread < 65536 else 2**-11
        for each in ns:
            lost = 0 if max(ns) - min(ns) < 65536 and max(ns) < 2**53 else each * share
            assert abs(next(found) - each) <= lost


def test_many_durations_are_rounded_and_small() -> None:
    durations = lognormal(1, 16_000)
    message = pack(manager({"step": durations}), 0, False)
    assert len(message) < len(pickle.dumps([ns / 1e9 for ns in durations])) / 4
    data = gathered([{"step": durations}])["step"]
    assert data.samples == pytest.approx(np.array(durations) / 1e9, rel=2**-13)
    assert data.sum() == sum(durations) / 1e9
    few = durations[:4096]
    assert gathered([{"step": few}])["step"].samples.tolist() == [ns / 1e9 for ns in few]


@pytest.mark.parametrize("names", [1, 10])
def test_the_size_of_a_summary_is_that_of_its_names(names: int) -> None:
    sizes = set()
    for count in (1, 100, 10_000, 300_000):
        tm = manager({f"stage {n}": lognormal(n, count // names + 1) for n in range(names)})
        sizes.add(len(pack(tm, 0, True)))
    [size] = sizes
    assert 1024 * names < size < 1024 * names + 100 + 20 * names
    assert len(pack(TimeManager(), 0, True)) < 100


def test_durations_that_spread_far_take_more_but_not_without_end() -> None:
    """Each bucket of the histogram in use: from 1 ns to 13 days."""
    tm = manager({"all": (2 ** np.linspace(0, 49.99, 100_000)).astype(np.int64).tolist()})
    assert len(pack(tm, 0, True)) < 10 * 1024
    data = gathered([{"all": tm_ns(tm)}], summary=True)["all"]
    assert data.percentile(50) == pytest.approx(2**25 / 1e9, rel=0.01)


def tm_ns(tm: TimeManager) -> list[int]:
    return memoryview(tm.samples("all")).cast("q").tolist()


def test_the_middle_of_a_bucket_is_near_every_duration_in_it() -> None:
    chance = np.random.default_rng(3)
    ns = np.concatenate([np.arange(5000), (2 ** chance.uniform(0, 50, 100_000)).astype(np.int64)])
    buckets = np.frombuffer(_core.histogram_buckets(ns), np.int64)
    middles = bucket_middles()
    assert len(middles) == BUCKETS
    assert np.all(np.diff(middles) > 0)
    assert np.all(np.abs(middles[buckets] - ns) <= 0.008 * ns)
    assert np.array_equal(middles[buckets[:128]], np.arange(128))


def test_buckets_are_those_of_the_engine() -> None:
    middles = bucket_middles()
    buckets = np.zeros(BUCKETS, dtype=np.int64)
    durations = [0, 1, 63, 64, 127, 128, 1000, 123_456_789, 2**49]
    for ns in durations:
        *_, used, packed = manager({"a": [ns]}).summary("a")
        one, place = np.array([1]), np.array([0])
        assert used == 1
        assert _core.add_histograms(buckets, place, one, one, packed)
    found = np.repeat(middles, buckets)
    assert found == pytest.approx(durations, rel=0.008)


def test_thousands_of_ranks() -> None:
    """4,096 ranks of 100 names: within a second of processor time, and 200 MiB."""
    kinds = [{f"stage {n}": lognormal(100 * seed + n, 60, 1e5 * (n + 1)) for n in range(100)}
             for seed in range(8)]  # fmt: skip
    packed = [pack(manager(kind), 0, True) for kind in kinds]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    merger = Merger()
    for rank in range(4096):
        message = packed[rank % 8]
        merger.add(rank, message[:4] + rank.to_bytes(4, "little") + message[8:])
    found = GatheredTime(merger.tables(), world_size=4096, missing={})
    took = time.process_time() - began
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
    assert took < 8.0  # benchmarks/bench_timing.py holds it to one second
    for name in ("stage 0", "stage 99"):
        every = np.concatenate([kind[name] for kind in kinds]) / 1e9
        data = found[name]
        assert (data.rank_count(), data.count()) == (4096, 4096 * 60)
        shares = [1, 50, 90, 99]
        expected = np.percentile(every, shares, method="inverted_cdf")
        assert data.percentile(shares) == pytest.approx(expected, rel=0.01)


def test_packed_while_others_record_and_forget() -> None:
    tm = TimeManager(max_samples=50)
    over = threading.Event()

    def record() -> None:
        while not over.is_set():
            for ns in range(60):
                tm.add("a", ns)
                tm.add("b", ns)
            tm.clear()

    threads = [threading.Thread(target=record) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(400):
            merger = Merger()
            merger.add(0, pack(tm, 0, summary=number % 2 == 0))  # BadMessage if parts disagree
            assert all(len(times) <= 50 for times in tm.records.values())
    finally:
        over.set()
        for thread in threads:
            thread.join()


# --- what it offers -----------------------------------------------------------------------------

TWO: list[dict[str, list[int]]] = [
    {"step": [500_000_000, 250_000_000], "load": [1_000_000]},
    {"step": [1_000_000_000]},
]


class TestMapping:
    def test_as_a_mapping(self) -> None:
        found = gathered(TWO)
        assert list(found) == ["step", "load"]
        assert "step" in found and "other" not in found
        assert [name for name, data in found.items() if data.rank_count() == 1] == ["load"]
        with pytest.raises(KeyError):
            found["other"]

    def test_repr(self) -> None:
        found = gathered(TWO)
        found.missing[5] = "no answer within 60 s"
        lines = repr(found).splitlines()
        assert lines[0] == "GatheredTime: 2 ranks, 2 names"
        assert lines[1] == "missing: rank 5 (no answer within 60 s)"
        figures = "1.75 s  583.3 ms  381.9 ms  500 ms  1 s  1 s"
        assert re.split(r"\s{2,}", lines[3]) == ["step", "2", "3", *re.split("  ", figures)]
        assert "3 times of 2 ranks" in repr(found["step"])
        assert repr(gathered([])) == "GatheredTime: 0 ranks, 0 names"

    def test_each_time_has_its_own_unit(self) -> None:
        times = {"ns": [130], "us": [4_321], "ms": [7_654_321], "s": [91_234_567_890]}
        lines = [re.split(r"\s{2,}", line) for line in repr(gathered([times])).splitlines()[2:]]
        assert {line[0]: line[-1] for line in lines} == {
            "ns": "0.13 µs", "us": "4.321 µs", "ms": "7.654 ms", "s": "91.23 s",
        }  # fmt: skip

    def test_ranks_alone(self) -> None:
        data = gathered(TWO)["step"]
        assert data.get_rank(0).samples.tolist() == [0.5, 0.25]
        assert data.get_rank(1, 0).count() == 3
        with pytest.raises(KeyError, match="rank 7"):
            data.get_rank(7)

    def test_summaries_say_what_they_lack(self) -> None:
        data = gathered(TWO, summary=True)["step"]
        with pytest.raises(ValueError, match=r"hist\(separate_ranks=True\).*summary=True"):
            data.hist(separate_ranks=True)
        with pytest.raises(ValueError, match="samples of 'step' needs"):
            _ = data.samples
        with pytest.raises(ValueError, match="get_rank"):
            data.get_rank(0)
        with pytest.raises(ValueError, match="q must be from 0 to 100"):
            data.percentile([50, 101])

    def test_pickled(self) -> None:
        found = gathered(TWO)
        for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
            assert repr(other) == repr(found)

    def test_frames(self) -> None:
        pandas = pytest.importorskip("pandas", reason="pandas is not installed")
        frame = gathered(TWO).to_dataframe()
        assert frame.columns.tolist() == [
            "name", "rank", "count", "sum_s", "mean_s", "std_s", "min_s", "max_s",
        ]  # fmt: skip
        assert frame[["name", "rank", "count"]].values.tolist() == [
            ["step", 0, 2], ["step", 1, 1], ["load", 0, 1],
        ]  # fmt: skip
        assert frame["std_s"][0] == pytest.approx(np.std([0.5, 0.25], ddof=1))
        samples = gathered(TWO).to_dataframe(samples=True)
        assert samples[samples.name == "step"][["rank", "index", "seconds"]].values.tolist() == [
            [0, 0, 0.5], [0, 1, 0.25], [1, 0, 1.0],
        ]  # fmt: skip
        assert isinstance(gathered([]).to_dataframe(), pandas.DataFrame)


class TestPlots:
    @pytest.fixture(autouse=True)
    def figure(self) -> Any:
        matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
        matplotlib.use("agg")
        from matplotlib import pyplot

        yield pyplot.figure()
        pyplot.close("all")

    @pytest.mark.parametrize("summary", [False, True])
    def test_all_ranks_together(self, figure: Any, tmp_path: Path, summary: bool) -> None:
        data = gathered([{"a": lognormal(1, 300)}, {"a": lognormal(2, 200)}], summary)["a"]
        axes: Any = data.hist(bins=12, title="times of a")
        assert figure.axes == [axes]
        assert sum(patch.get_height() for patch in axes.patches) == 500
        assert axes.get_title().startswith("times of a\n2 ranks, n=500, mean=")
        figure.savefig(tmp_path / "a.png")
        from matplotlib import image

        picture = image.imread(tmp_path / "a.png")
        assert picture.shape[0] > 300 and picture.std() > 0.05

    def test_a_histogram_a_rank(self, figure: Any) -> None:
        data = gathered([{"a": lognormal(1, 300)}, {"a": lognormal(2, 200)}])["a"]
        axes: Any = data.hist(separate_ranks=True, alpha=0.3, ax=figure.add_subplot())
        assert [heights_of(outline) for outline in axes.patches] == [300, 200]
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        assert [label.split(",")[0] for label in labels] == ["rank 0: n=300", "rank 1: n=200"]
        filled = data.hist(separate_ranks=True, histtype="bar", ax=figure.add_subplot()).patches
        assert len(filled) == 20

    def test_of_many_ranks_the_slow_ones_can_be_told_apart(self, figure: Any) -> None:
        times = [{"a": lognormal(rank, 50, 3e6 + 6e6 * (rank in (3, 40)))} for rank in range(64)]
        axes: Any = gathered(times)["a"].hist(separate_ranks=True, ax=figure.add_subplot())
        assert len(axes.patches) == 64 and not any(outline.get_fill() for outline in axes.patches)
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        assert labels[0] == "56 other ranks" and len(labels) == 9
        assert {"rank 3", "rank 40"} < {label.split(":")[0] for label in labels}
        colours = {outline.get_edgecolor() for outline in axes.patches}
        assert len(colours) == 9  # eight, and grey


# --- files --------------------------------------------------------------------------------------


class TestFiles:
    @pytest.fixture(autouse=True)
    def torch(self) -> Any:
        return pytest.importorskip("torch", reason="torch is not installed")

    @pytest.mark.parametrize("summary", [False, True])
    @pytest.mark.parametrize("name", ["times", "times.pt", "times.v2"])
    def test_there_and_back(self, tmp_path: Path, name: str, summary: bool) -> None:
        found = gathered([*TWO, {}, {"step": lognormal(3, 50)}], summary)
        found.missing[2] = "gone"
        path = found.save(tmp_path / name)
        assert path.name == (name if name.endswith(".pt") else f"{name}.pt")
        loaded = ProfiledTime.load(tmp_path / name)
        assert isinstance(loaded, GatheredTime) and isinstance(found, ProfiledTime)
        assert repr(loaded) == repr(found)
        assert (loaded.missing, loaded.world_size) == ({2: "gone"}, 4)
        for each, data in loaded.items():
            assert data.is_summary == summary
            assert data.ranks == found[each].ranks
            assert data.percentile([1, 50, 99]) == found[each].percentile([1, 50, 99])
            if not summary:
                assert data.samples.tolist() == found[each].samples.tolist()
        assert [file.name for file in tmp_path.iterdir()] == [path.name]

    def test_read_without_this_package(self, tmp_path: Path, torch: Any) -> None:
        path = gathered(TWO).save(tmp_path / "times")
        content = torch.load(path, weights_only=True)
        step = content["times"]["step"]
        assert step["rank"].tolist() == [0, 1]
        assert step["count"].tolist() == step["kept"].tolist() == [2, 1]
        assert step["sum_ns"].tolist() == [750_000_000, 1_000_000_000]
        assert step["samples_ns"].tolist() == [5e8, 2.5e8, 1e9]

    def test_files_of_something_else(self, tmp_path: Path, torch: Any) -> None:
        with pytest.raises(FileNotFoundError):
            ProfiledTime.load(tmp_path / "nothing")
        path = tmp_path / "bad.pt"
        path.write_bytes(b"rubbish")
        with pytest.raises(ValueError, match=r"bad\.pt: not a file of gathered times"):
            ProfiledTime.load(path)
        good = torch.load(gathered(TWO).save(tmp_path / "good"), weights_only=True)
        step = good["times"]["step"]
        lies: list[Any] = [
            3,
            {},
            good | {"version": 99},
            good | {"times": [1]},
            good | {"times": {"step": step | {"count": step["count"] + 1}}},
            good | {"times": {"step": step | {"samples_ns": step["samples_ns"][:2]}}},
            good | {"times": {"step": step | {"rank": step["rank"].flip(0)}}},
            good | {"times": {"step": step | {"min_ns": -step["min_ns"]}}},
            good | {"times": {"step": step | {"bucket": torch.tensor([99999])}}},
            good | {"times": {"step": {}}},
        ]
        for lie in lies:
            torch.save(lie, path)
            with pytest.raises(ValueError, match=r"bad\.pt: not a file of gathered times"):
                ProfiledTime.load(path)

    def test_nothing_is_executed(self, tmp_path: Path, torch: Any) -> None:
        class Evil:
            def __reduce__(self) -> Any:
                return Path.touch, (tmp_path / "executed",)

        torch.save({"times": Evil()}, tmp_path / "evil.pt")
        with pytest.raises(ValueError, match="not a file of gathered times"):
            ProfiledTime.load(tmp_path / "evil")
        assert not (tmp_path / "executed").exists()


# --- messages -----------------------------------------------------------------------------------


MESSAGES = [
    pack(manager({"a": lognormal(1, 30), "b": lognormal(2, 9)}), 1, summary)
    for summary in (False, True)
]


class TestBadMessages:
    @settings(max_examples=300, deadline=None)
    @given(st.sampled_from(MESSAGES), st.data())
    def test_any_change_is_taken_whole_or_refused(
        self, message: bytes, data: st.DataObject
    ) -> None:
        """A message whose change cannot be told (a sum, a name) is one of times all the same."""
        changed = bytearray(message)
        for _ in range(data.draw(st.integers(1, 3))):
            changed[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
        merger = Merger()
        try:
            merger.add(1, bytes(changed))
        except BadMessage:
            assert merger.tables() == {}
            return
        repr(GatheredTime(merger.tables(), world_size=2, missing={}))

    @pytest.mark.parametrize("message", MESSAGES)
    def test_cut_short(self, message: bytes) -> None:
        for size in range(len(message.rstrip(b"\0"))):
            with pytest.raises(BadMessage):
                Merger().add(1, message[:size])

    @pytest.mark.parametrize("message", MESSAGES)
    def test_of_another_rank(self, message: bytes) -> None:
        with pytest.raises(BadMessage, match="says that it is from rank 1"):
            Merger().add(0, message)

    def test_one_that_promises_more_than_it_has(self) -> None:
        head = struct.pack("<4sII4Q", b"MUT1", 0, 8, 2**63, 2**64 - 1, 0, 0)
        with pytest.raises(BadMessage, match="another size"):
            Merger().add(0, head + bytes(10))

    @settings(max_examples=200, deadline=None)
    @given(st.binary(max_size=400))
    def test_rubbish(self, message: bytes) -> None:
        for start in (b"", b"MUT1"):
            with pytest.raises(BadMessage):
                Merger().add(0, start + message)


def test_time_data_in_annotations() -> None:
    assert TimeData[float] is TimeData  # type: ignore[misc]


@pytest.mark.parametrize(
    ("records", "error", "text"),
    [
        ({"a": [0.5, math.nan]}, ValueError, r"each of records\['a'\] must be at least 0, not nan"),
        ({"a": [-1.0]}, ValueError, r"each of records\['a'\] must be at least 0, not -1.0"),
        ({"a": [1e12]}, ValueError, r"each of records\['a'\] must be at most 9000000000.0"),
        ({"a": 1.0}, TypeError, r"records\['a'\] must be an iterable of seconds, not 1.0"),
        ({"a": "12"}, TypeError, r"records\['a'\] must be an iterable of seconds, not '12'"),
        ({1: [1.0]}, TypeError, "each name of records must be a str, not 1"),
        ([1.0], TypeError, r"records must map names to times, not \[1.0\]"),
    ],
)  # fmt: skip
def test_records_that_are_no_times(records: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        TimeManager(records)


def test_what_is_asked_of_gathered_times() -> None:
    gathered = TimeManager({"a": [1.0, 2.0, 3.0]}).gather()
    assert gathered is not None
    times = gathered["a"]
    assert TimeManager({"a": np.array([0.5], dtype=np.float32)}).records == {"a": [0.5]}
    assert times.percentile(np.array([50, 100])) == [2.0, 3.0]
    assert times.percentile(np.float32(50)) == 2.0  # type: ignore[call-overload]
    assert times.get_rank(np.int64(0)).sum() == 6.0  # type: ignore[arg-type]
    for wrong in ("50", None, [None]):
        with pytest.raises(TypeError, match="q must be a number from 0 to 100, or several, not"):
            times.percentile(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="at least one rank"):
        times.get_rank()
    with pytest.raises(TypeError, match=r"each of ranks must be an int, not \[0\]"):
        times.get_rank([0])  # type: ignore[arg-type]

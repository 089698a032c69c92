"""Times of many ranks: statistics, percentiles, plots, and a file format."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ...core.extras import require
from ...core.files import atomic_write
from ...core.lazy_modules import lazy_module
from ...core.notebook import html_table, html_text
from ...core.printable import printable
from ...core.public import public
from ...core.ranks import check_rank
from ...core.reprs import short_repr
from ...core.tables import text_table
from ...core.units import time_text
from .packed import BUCKETS, Table, bucket_middles, unpack_rows

if TYPE_CHECKING:
    import matplotlib.axes as mpl_axes
    import numpy as np
    import numpy.typing
    import pandas as pd
else:
    mpl_axes = lazy_module("matplotlib.axes")
    np = numpy = lazy_module("numpy")
    pd = lazy_module("pandas")


_FORMAT = "my_utils.timing"
_VERSION = 1
_COLUMNS = ("count", "sum_ns", "min_ns", "max_ns", "squares")
_LABELLED_RANKS = 8  # more lines and a longer legend cannot be read


@public("my_utils.timing")
@dataclass(frozen=True, eq=False)
class TimeData:
    """The times of one name on all ranks that recorded it, in seconds.

    `sum`, `count`, `mean`, `std`, `min` and `max` are exact. Durations one by one and what comes
    from them (`percentile`, `hist`, `samples`) are exact as well, unless a rank had more than 4,096
    of them in all (good to 1 part in 2,048 then, as a rule in 8,192) or sent histograms (1 %).
    """

    name: str
    _table: Table

    def __class_getitem__(cls, item: object) -> type[TimeData]:
        """For annotations: `TimeData[float]` is TimeData."""
        return cls

    def sum(self) -> float:
        """The sum of all times of all ranks, in seconds; exact."""
        return _seconds(sum(self._table.rows["sum_ns"].tolist()))

    def count(self) -> int:
        """How many times there are."""
        return int(self._table.rows["count"].sum())

    def mean(self) -> float:
        """The mean of all times, whichever rank they are from, in seconds."""
        return self.sum() / self.count()

    def std(self) -> float:
        """The standard deviation of a sample (n - 1), as torch.std, in seconds; NaN for a single
        time."""
        count = self.count()
        if count <= 1:
            return math.nan
        rows = self._table.rows
        apart = rows["sum_ns"] / rows["count"] - self.mean() * 1e9  # ns, from the common mean
        squares = float((rows["squares"] + rows["count"] * apart * apart).sum())
        return math.sqrt(squares / (count - 1)) / 1e9

    def min(self) -> float:
        """The shortest time, in seconds."""
        return _seconds(int(self._table.rows["min_ns"].min()))

    def max(self) -> float:
        """The longest time, in seconds."""
        return _seconds(int(self._table.rows["max_ns"].max()))

    def rank_count(self) -> int:
        """How many ranks have a time of this name."""
        return len(self._table.ranks)

    @property
    def ranks(self) -> list[int]:
        """The ranks that recorded it, ascending."""
        return [int(rank) for rank in self._table.ranks]

    @property
    def is_summary(self) -> bool:
        """Whether some rank sent a histogram instead of its durations."""
        return bool((self._table.rows["bucketed"] == 1).any())

    @property
    def samples(self) -> numpy.typing.NDArray[np.float64]:
        """All durations in seconds: by rank, those of a rank in their order. ValueError if some
        rank sent a histogram instead."""
        self._needs_samples("samples")
        return self._table.samples / 1e9

    def _needs_samples(self, what: str) -> None:
        bucketed = self._table.ranks[self._table.rows["bucketed"] == 1]
        if bucketed.size:
            raise ValueError(
                f"{what} of {self.name!r} needs the durations of each rank, but {bucketed.size} of "
                f"{self.rank_count()} ranks sent one histogram: because of gather(summary=True), "
                "or because they recorded more than TimeManager(max_samples=...) keeps one by one"
            )

    def get_rank(self, *ranks: int) -> TimeData:
        """The times of these ranks alone, of one at least. KeyError for one that has none;
        ValueError if ranks sent histograms, which are kept for all together."""
        if not ranks:
            raise TypeError("get_rank() must have at least one rank, and got none")
        for rank in ranks:
            check_rank("each of ranks", rank)
        self._needs_samples("get_rank()")
        absent = sorted(set(ranks) - set(self.ranks))
        if absent:
            raise KeyError(f"no times of {self.name!r} from rank {', '.join(map(str, absent))}")
        return replace(self, _table=self._table.only(ranks))

    @overload
    def percentile(self, q: float) -> float: ...
    @overload
    def percentile(self, q: Iterable[float]) -> list[float]: ...
    def percentile(self, q: float | Iterable[float]) -> float | list[float]:
        """The smallest duration, in seconds, that at least `q` percent of all do not exceed: one
        of the recorded ones, or within 1 % of one where a rank sent a histogram.

        q: from 0 to 100, one or several. TypeError and ValueError for others.
        """
        if isinstance(q, (str, bytes)) or not isinstance(q, Iterable):
            return self._percentiles([_checked_percent(q)])[0]
        return self._percentiles([_checked_percent(each) for each in q])

    def _percentiles(self, wanted: list[float]) -> list[float]:
        import numpy as np

        values, weights = self._weighted()
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(weights[order])
        targets = [max(1, math.ceil(reached[-1] * each / 100 - 1e-9)) for each in wanted]
        chosen = values[order][np.searchsorted(reached, targets)] / 1e9
        chosen[np.array(targets) == 1] = self.min()
        chosen[np.array(targets) == reached[-1]] = self.max()
        found: list[float] = np.clip(chosen, self.min(), self.max()).tolist()
        return found

    def _weighted(self) -> tuple[numpy.typing.NDArray[np.float64], numpy.typing.NDArray[np.int64]]:
        """All durations in ns (of a histogram, the middles of its buckets), and their counts."""
        import numpy as np

        used = np.flatnonzero(self._table.buckets)
        middles = bucket_middles()[used]
        ones = np.ones(len(self._table.samples), dtype=np.int64)
        return (
            np.concatenate([self._table.samples, middles]),
            np.concatenate([ones, self._table.buckets[used]]),
        )

    def hist(
        self,
        bins: int | None = None,
        separate_ranks: bool = False,
        alpha: float = 0.7,
        title: str | None = None,
        ax: mpl_axes.Axes | None = None,
        **kwargs: Any,
    ) -> mpl_axes.Axes:
        """Draws a histogram of the durations into `ax` or pyplot's current axes.

        bins: how many; None: matplotlib's default. separate_ranks: an outline for each rank, with
        opacity `alpha`; of more than eight ranks the eight with the longest mean have a colour and
        a label, and the others are grey. ValueError if ranks sent histograms instead of durations.
        title: above the figures; None: the name. kwargs: for matplotlib's `hist`. ImportError
        without matplotlib.
        """
        if separate_ranks:
            self._needs_samples("hist(separate_ranks=True)")
        axes = require("matplotlib.pyplot", "hist()").gca() if ax is None else ax
        if separate_ranks:
            self._hist_by_rank(axes, bins, alpha, kwargs)
        else:
            values, weights = self._weighted()
            axes.hist(values / 1e9, bins=bins, weights=weights, **kwargs)
        ranks = f"{self.rank_count()} rank{'s' if self.rank_count() != 1 else ''}"
        figures = f"n={self.count()}, mean={_text(self.mean())}, std={_text(self.std())}"
        heading = title or printable(self.name)
        axes.set_title(f"{heading}\n{ranks}, {figures}", parse_math=bool(title))
        axes.set_xlabel("time [s]")
        axes.set_ylabel("count")
        axes.grid(visible=True, alpha=0.3)
        return axes

    def _hist_by_rank(
        self, axes: mpl_axes.Axes, bins: int | None, alpha: float, kwargs: dict[str, Any]
    ) -> None:
        import numpy as np

        ends = np.cumsum(self._table.rows["values"])
        parts = np.split(self._table.samples / 1e9, ends[:-1])
        edges = np.histogram_bin_edges(self._table.samples / 1e9, bins=bins or 10).tolist()
        longest = sorted(range(len(parts)), key=lambda index: -parts[index].mean())
        named = set(longest[:_LABELLED_RANKS])
        outline = {"bins": edges, "alpha": alpha, "histtype": "step", "linewidth": 1.5}
        grey = {"color": "0.8", "zorder": 0.5, "label": f"{len(parts) - len(named)} other ranks"}
        for index in sorted(set(longest) - named):
            axes.hist(parts[index], **{**outline, **grey, **kwargs})
            grey["label"] = None
        for color, index in enumerate(sorted(named)):
            part = parts[index]
            own = {"color": f"C{color}", "label": f"rank {self.ranks[index]}: n={len(part)}, "
                   f"mean={_text(part.mean())}"}  # fmt: skip
            axes.hist(part, **{**outline, **own, **kwargs})
        axes.legend(fontsize="small")

    def __repr__(self) -> str:
        return (
            f"<TimeData {self.name!r}: {self.count()} times of {self.rank_count()} ranks, "
            f"sum {_text(self.sum())}, mean {_text(self.mean())}>"
        )


_HEADER = ("name", "ranks", "count", "total", "mean", "std", "p50", "p99", "max")
_DIGITS = 4  # of a time in the table


@public("my_utils.timing")
class ProfiledTime(Mapping[str, TimeData]):
    """Times by name that can be saved and loaded.

    `TimeManager.gather` and `ProfiledTime.load` return a `GatheredTime`.
    """

    def __init__(
        self, tables: Mapping[str, Table], *, world_size: int, missing: Mapping[int, str]
    ) -> None:
        self._data = {name: TimeData(name, table) for name, table in tables.items()}
        self.world_size = world_size
        self.missing = dict(missing)

    def __repr__(self) -> str:
        return short_repr(self, "world_size", "missing")

    def __getitem__(self, name: str) -> TimeData:
        return self._data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes all of it to a file, whole or not at all, and returns its path.

        `.pt` is added to a path without it. `torch.load(path, weights_only=True)` reads the file
        where this package is not installed: a dict of numbers, text and tensors; times in ns.
        OSError if the file cannot be written.
        """
        import torch

        target = _with_suffix(path)
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "world_size": self.world_size,
            "missing": self.missing,
            "times": {name: _make_tensors(data._table) for name, data in self.items()},
        }
        with atomic_write(target) as file:
            torch.save(content, file)
        return target

    @staticmethod
    def load(path: str | os.PathLike[str]) -> GatheredTime:
        """What `save` wrote. `.pt` is added to a path without it. Nothing in the file is executed.

        OSError if the file cannot be read, ValueError if it holds something else.
        """
        from ...core.plain_files import load_plain  # which takes its time

        target = _with_suffix(path)
        try:
            content = load_plain(target, _FORMAT, _VERSION, "file of gathered times")
            tables = {str(name): _make_table(times) for name, times in content["times"].items()}
            missing = {int(rank): str(why) for rank, why in content["missing"].items()}
            return GatheredTime(tables, world_size=int(content["world_size"]), missing=missing)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            why = str(error).removeprefix(f"{target}: ")
            raise ValueError(f"{target}: not a file of gathered times ({why})") from None


@public("my_utils.timing")
class GatheredTime(ProfiledTime):
    """The times that all ranks recorded: a mapping of name to `TimeData`.

    `world_size` is how many ranks there were, `missing` says which of them sent nothing that could
    be used, and why: `{3: "no answer within 60 s"}`. Ranks that recorded nothing are not missing.
    """

    def to_dataframe(self, *, samples: bool = False) -> pd.DataFrame:
        """One row for each name and rank: name, rank, count, sum_s, mean_s, std_s, min_s, max_s;
        or, with `samples`, one for each duration: name, rank, index, seconds.

        ImportError without pandas; ValueError for `samples` where ranks sent histograms.
        """
        pandas = require("pandas", "to_dataframe()")
        make = _sample_columns if samples else _figure_columns
        frames = [pandas.DataFrame(make(data)) for data in self.values()]
        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()

    def __repr__(self) -> str:
        """A table: a line a name."""
        lines = self._title()
        if self:
            lines.append(text_table(_HEADER, [_line(data) for data in self.values()], left=1))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks."""
        table = html_table(_HEADER, [_line(data) for data in self.values()])
        return html_text(self._title()) + table

    def _title(self) -> list[str]:
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        names = "1 name" if len(self) == 1 else f"{len(self)} names"
        lines = [f"GatheredTime: {ranks}, {names}"]
        if self.missing:
            shown = [f"{rank} ({why})" for rank, why in sorted(self.missing.items())[:8]]
            more = len(self.missing) - len(shown)
            rest = f" and {more} more" if more else ""
            lines.append(f"missing: rank {', '.join(shown)}{rest}")
        return lines


def _checked_percent(q: Any) -> float:
    if not isinstance(q, numbers.Real):
        raise TypeError(f"q must be a number from 0 to 100, or several, not {q!r:.100}")
    number = float(q)
    if not 0 <= number <= 100:
        raise ValueError(f"q must be from 0 to 100, not {q!r}")
    return number


def _seconds(ns: int) -> float:
    return ns / 1_000_000_000


def _text(seconds: float) -> str:
    return time_text(seconds * 1e3) or "unknown"


def _line(data: TimeData) -> list[str]:
    p50, p99 = data.percentile([50, 99])
    figures = (data.sum(), data.mean(), data.std(), p50, p99, data.max())
    return [
        data.name,
        str(data.rank_count()),
        str(data.count()),
        *(time_text(figure * 1e3, _DIGITS) for figure in figures),
    ]


def _figure_columns(data: TimeData) -> dict[str, Any]:
    import numpy as np

    rows = data._table.rows
    count = rows["count"]
    with np.errstate(invalid="ignore", divide="ignore"):
        std = np.sqrt(rows["squares"] / (count - 1)) / 1e9
    return {
        "name": data.name,
        "rank": data._table.ranks,
        "count": count,
        "sum_s": rows["sum_ns"] / 1e9,
        "mean_s": rows["sum_ns"] / count / 1e9,
        "std_s": std,
        "min_s": rows["min_ns"] / 1e9,
        "max_s": rows["max_ns"] / 1e9,
    }


def _sample_columns(data: TimeData) -> dict[str, Any]:
    import numpy as np

    values = data._table.rows["values"]
    return {
        "name": data.name,
        "seconds": data.samples,
        "rank": np.repeat(data._table.ranks, values),
        "index": np.concatenate([np.arange(each) for each in values]),
    }


# --- files --------------------------------------------------------------------------------------


def _with_suffix(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    return target if target.suffix == ".pt" else target.with_name(target.name + ".pt")


def _make_tensors(table: Table) -> dict[str, Any]:
    """A column a figure with a row a rank; the durations of all ranks one after the other, of each
    as many as `kept` says; the histogram of the ranks of which none are kept."""
    import numpy as np
    import torch

    rows = table.rows
    used = np.flatnonzero(table.buckets)
    columns = {
        "rank": table.ranks,
        **{name: rows[name] for name in _COLUMNS},
        "kept": np.where(rows["bucketed"] == 1, 0, rows["values"]).astype(np.int64),
        "samples_ns": table.samples,
        "bucket": used,
        "bucket_count": table.buckets[used],
    }
    return {name: torch.from_numpy(np.array(column)) for name, column in columns.items()}


def _make_table(times: Mapping[str, Any]) -> Table:
    import numpy as np

    columns = {name: tensor.numpy() for name, tensor in times.items()}
    ranks = columns["rank"].astype(np.int64)
    rows = unpack_rows({name: columns[name] for name in _COLUMNS}, columns["kept"])
    buckets = np.zeros(BUCKETS, dtype=np.int64)
    buckets[columns["bucket"]] = columns["bucket_count"]
    table = Table(ranks, rows, columns["samples_ns"].astype(np.float64), buckets)
    table.check()
    return table

"""Columns of a table, CSV or Parquet, as arrays: text becomes numbers of words. And who meets whom
by what they say."""

from __future__ import annotations

import csv
import itertools
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.extras import require
from ...core.reader_process import ReaderError, Readers
from ...core.trusted_open import open_filled
from .operations import Floats, Ints, count_before, in_half, number_rows

SUFFIXES = (".csv", ".parquet")
ENCODING = "utf-8-sig"  # a spreadsheet begins with a mark
ROWS_AT_ONCE = 65536
ROWS_FREE = 1 << 20  # of a table of any size
ROWS_A_BYTE = 2  # and for each byte: begins and ends that differ take four at least
BYTES_AT_ONCE = 8 << 20
CHILD_ABOVE = 16 << 20  # bytes of a CSV; fewer are read before a child is up
WHOLE_MAX = 1 << 62


class BadTable(ValueError):
    """A file that holds no table of operations; the text says why."""


@dataclass
class Column:
    """values: numbers, or indices into `words` where the column holds text."""

    values: Floats | Ints
    words: tuple[str, ...] | None = None

    def numbers(self, what: str) -> Floats | Ints:
        if self.words is not None:
            raise BadTable(f"column {what!r} must hold numbers, not {self.words[0]!r}")
        return self.values

    def whole(self, what: str, missing: int | None = None, below: int = WHOLE_MAX) -> Ints:
        """Whole numbers; `missing` where there is none, if that may be."""
        values = self.numbers(what)
        known = np.isfinite(values)
        if ((values[known] >= below) | (values[known] <= -below)).any():
            raise BadTable(f"column {what!r} has numbers of {below} or more")
        if np.issubdtype(values.dtype, np.integer):
            return values
        if missing is None and not known.all():
            raise BadTable(f"column {what!r} has rows without a number")
        return np.where(known, np.rint(np.where(known, values, 0)), missing or 0).astype(np.int64)

    def places(self, what: str) -> tuple[Ints, tuple[str, ...]]:
        """Which word each row has, and all words; numbers are words, too, and -1 means no word."""
        if self.words is not None:
            blank = np.array([not word for word in self.words], np.bool_)
            return np.where(blank[self.values], -1, self.values), self.words
        values, places = np.unique(self.whole(what, -1), return_inverse=True)
        return np.where(values[places] < 0, -1, places), tuple(map(str, values.tolist()))


def read_header(path: str) -> tuple[str, ...]:
    """The names of its columns, () where it is not a table. OSError where it cannot be read."""
    if path.endswith(".parquet"):
        parquet = require("pyarrow.parquet", "reading Parquet")
        with open(path, "rb", opener=open_filled) as file:
            try:
                return tuple(parquet.read_schema(file).names)
            except Exception as error:  # pyarrow has many, and says in each what is wrong
                raise BadTable(f"{path}: {error}") from error
    with open(path, encoding=ENCODING, errors="replace", opener=open_filled) as text:
        line = text.readline(1 << 16)
    return tuple(name.strip() for name in next(csv.reader([line]), []))


def read_columns(path: str, wanted: set[str]) -> dict[str, Column]:
    """Those of the wanted columns that it has. A child reads what may take much memory: a page of
    Parquet unpacks to gigabytes, and of a large CSV the process would keep what reading took."""
    there = wanted & set(read_header(path))
    if not path.endswith(".parquet") and os.path.getsize(path) < CHILD_ABOVE:
        return _csv_columns(path, there)
    with Readers(small_columns, 1, bounded=True) as readers:
        try:
            found: dict[str, Column] | str = readers.read(path, sorted(there))
        except ReaderError as error:
            raise BadTable(f"{path}: {error}") from error
    if isinstance(found, str):
        raise BadTable(found)
    return found


def small_columns(wanted: list[str], path: str) -> dict[str, Column] | str:
    """These columns, in half the memory where that is enough; or what is wrong with them."""
    read = _parquet_columns if path.endswith(".parquet") else _csv_columns
    try:
        found = read(path, set(wanted))
    except BadTable as error:
        return str(error)
    for column in found.values():
        if np.issubdtype(column.values.dtype, np.integer):
            column.values = in_half(column.values)
    return found


def _check_rows(path: str, file: Any, parquet: Any) -> None:
    """A row of equal values takes next to no bytes."""
    about = parquet.read_metadata(file)
    groups = [about.row_group(at) for at in range(about.num_row_groups)]
    counts = [one.column(at).num_values for one in groups for at in range(one.num_columns)]
    most = ROWS_FREE + ROWS_A_BYTE * os.fstat(file.fileno()).st_size
    if about.num_rows > most or sum(counts) > most * max(about.num_columns, 1):
        raise BadTable(f"{path}: {about.num_rows} rows, far more than its bytes can hold")


def _parquet_columns(path: str, wanted: set[str]) -> dict[str, Column]:
    arrow = require("pyarrow", "reading Parquet")
    parquet = require("pyarrow.parquet", "reading Parquet")
    found = {}
    with open(path, "rb", opener=open_filled) as file:
        _check_rows(path, file, parquet)
        for name in sorted(wanted):
            file.seek(0)
            try:
                # One column at a time, for what is decoded stays until a file is closed. Without
                # threads: `parquet.read_table` has some, and waits for them for ever now and then.
                whole = parquet.ParquetFile(file, pre_buffer=False)
                table = whole.read(columns=[name], use_threads=False)
                found[name] = _of_arrow(table.column(0), arrow.types)
            except Exception as error:
                raise BadTable(f"{path}: column {name!r}: {error}") from error
    arrow.default_memory_pool().release_unused()
    return found


def _of_arrow(column: Any, types: Any) -> Column:
    """Numbers, NaN where there is none; text as words, the last of which is for no text."""
    if _is_number(column.type, types):
        return Column(column.to_numpy())
    if not types.is_dictionary(column.type):
        column = column.cast("string").dictionary_encode()
    coded = column.unify_dictionaries().combine_chunks()
    coded = coded.chunk(0) if hasattr(coded, "chunk") else coded
    words = (*(str(word) for word in coded.dictionary.to_pylist()), "")
    indices = coded.indices.cast("int32").fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
    return Column(indices, words)


def _csv_columns(path: str, wanted: set[str]) -> dict[str, Column]:
    return _plain_csv_columns(path, wanted) or _any_csv_columns(path, wanted)


def _plain_csv_columns(path: str, wanted: set[str]) -> dict[str, Column] | None:
    """By pyarrow, in a third of the time. None without it, and for a file in which something is not
    as it should be: the other reader says what."""
    try:
        pyarrow = require("pyarrow", "a fast CSV")
        arrow_csv = require("pyarrow.csv", "a fast CSV")
    except ImportError:
        return None
    names = [name.strip() for name in read_header(path)]
    if len(set(names)) < len(names):
        return None
    places = {name: str(names.index(name)) for name in sorted(wanted)}
    reads = arrow_csv.ReadOptions(
        use_threads=False, block_size=BYTES_AT_ONCE, skip_rows=1,
        column_names=[str(place) for place in range(len(names))],
    )  # fmt: skip
    converts = arrow_csv.ConvertOptions(
        include_columns=list(places.values()), null_values=[""], timestamp_parsers=["none"],
        auto_dict_encode=True, auto_dict_max_cardinality=1 << 30,
    )  # fmt: skip
    parts: dict[str, list[Any]] = {name: [] for name in places}
    try:
        with (
            open(path, "rb", opener=open_filled) as file,
            arrow_csv.open_csv(file, reads, convert_options=converts) as batches,
        ):
            for batch in batches:
                for name, place in places.items():
                    parts[name].append(_chunk_of_arrow(batch.column(place), pyarrow.types))
        return {name: _of_chunks(parts.pop(name), pyarrow) for name in places}
    except (pyarrow.ArrowException, ValueError):
        return None
    finally:
        pyarrow.default_memory_pool().release_unused()


def _chunk_of_arrow(column: Any, types: Any) -> Any:
    """Numbers as an array; text stays. ValueError for all else."""
    if _is_number(column.type, types):
        return np.array(column.to_numpy(zero_copy_only=False))
    if types.is_dictionary(column.type) and types.is_string(column.type.value_type):
        return column
    raise ValueError


def _of_chunks(chunks: list[Any], arrow: Any) -> Column:
    """ValueError where there are none, and for words that the other reader takes for numbers, or
    refuses."""
    if not chunks or isinstance(chunks[0], np.ndarray):
        return Column(np.concatenate(chunks))
    column = _of_arrow(arrow.chunked_array(chunks), arrow.types)
    if any(
        _reads_as_number(word) or len(word) > csv.field_size_limit() for word in column.words or ()
    ):
        raise ValueError
    return column


def _is_number(kind: Any, types: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _reads_as_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _any_csv_columns(path: str, wanted: set[str]) -> dict[str, Column]:
    with open(path, encoding=ENCODING, errors="replace", newline="", opener=open_filled) as file:
        rows = csv.reader(file)
        header = [name.strip() for name in next(rows, [])]
        places = {name: header.index(name) for name in sorted(wanted)}
        parts: dict[str, list[Column]] = {name: [] for name in places}
        words: dict[str, dict[str, int]] = {name: {} for name in places}
        last = max(places.values(), default=0)
        try:
            while block := [row for row in itertools.islice(rows, ROWS_AT_ONCE) if len(row) > last]:
                for name, place in places.items():
                    texts = [row[place] for row in block]
                    parts[name].append(_column(texts, words[name], not parts[name]))
        except csv.Error as error:
            raise BadTable(f"{path}: line {rows.line_num}: {error}") from error
    return {name: _joined(parts[name], words[name], path, name) for name in places}


def _column(texts: list[str], words: dict[str, int], may_be_numbers: bool) -> Column:
    """Numbers where all are some; a column that has begun as text stays text."""
    if may_be_numbers or not words:
        try:
            return Column(np.array([int(text) for text in texts], np.int64))
        except (ValueError, OverflowError):
            pass
        try:
            return Column(np.array([float(text or "nan") for text in texts]))
        except ValueError:
            pass
    return Column(np.array([words.setdefault(text, len(words)) for text in texts]), ("",))


def _joined(parts: list[Column], words: dict[str, int], path: str, name: str) -> Column:
    if not parts:
        raise BadTable(f"{path}: no rows")
    if len({part.words is None for part in parts}) > 1:
        raise BadTable(f"{path}: column {name!r} holds numbers and text")
    values = np.concatenate([part.values for part in parts])
    return Column(values, tuple(words) if words else None)


# --- who meets whom ---


def number_meetings(
    meeting: Ints,
    rows: Ints,
    whole: dict[str, Ints],
    place: tuple[Ints, ...],
    own: tuple[Ints, ...],
) -> None:
    """Numbers the meetings of these rows: the same place and sequence; without a sequence the
    first of a rank in a step meets the first of the others."""
    if not rows.any():
        return
    if "sequence" in whole:
        turn = whole["sequence"][rows]
    else:
        number, _ = number_rows(whole["step"][rows], *(one[rows] for one in own))
        turn = count_before(number)
    base = int(meeting.max(initial=-1)) + 1
    meeting[rows] = base + number_rows(*(one[rows] for one in place), turn)[0]


def of_ranks(rank: Ints, values: Ints) -> dict[int, int]:
    """The value of each rank in its first row."""
    ranks, first = np.unique(rank, return_index=True)
    return dict(zip(ranks.tolist(), values[first].tolist(), strict=True))

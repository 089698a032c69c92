"""Profile CSVs, written row by row. `RankCsv` has what `my_utils run` records: stages of tag `run`,
where ranks meet, counters, GPU times, several starts of a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

START_NS = 1_750_000_000_000_000_000
HEADER = "timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,metadata\n"

Stage = tuple[str, float, float]  # name, begin and end in ms since the step's begin


class RankCsv:
    """The file of a rank. Times in ms since the begin of the run."""

    def __init__(self, rank: int = 0, world_size: int = 1, host: str = "node0") -> None:
        self.rank, self.world_size, self.host = rank, world_size, host
        self.rows: list[str] = []
        self.node = 0

    def row(self, ms: float, step: int, name: str, kind: str, duration: str, pairs: str) -> None:
        at = START_NS + round(ms * 1e6)
        time = f"{at // 10**9}.{at % 10**9:09d}"
        self.rows.append(f'{time},-,{self.host},{step},{name},{kind},{duration},"{pairs}"\n')

    def note(self, name: str, pairs: Mapping[str, object], ms: float = 0.0) -> None:
        text = ",".join(f"{key}={quote(str(value), safe='')}" for key, value in pairs.items())
        self.row(ms, 0, f"my_utils.{name}", "INSTANT", "", text)

    def process(self, attempt: int = 1, ms: float = 0.0) -> None:
        pairs = {"pid": 1, "rank": self.rank, "world_size": self.world_size, "attempt": attempt}
        self.note("process", {**pairs, "host": self.host}, ms)
        self.node = attempt << 32

    def stage(
        self, name: str, step: int, begin_ms: float, end_ms: float, *, tag: str = "run",
        tid: int = 1, parent: int = 0, gpu: tuple[float, float] | None = None,
    ) -> int:  # fmt: skip
        """gpu: begin and end, in ms since the begin of the run. Returns the node."""
        self.node += 1
        ids = f"node_id={self.node},parent_id={parent},tid={tid},tag={tag}"
        self.row(begin_ms, step, name, "START", "", ids)
        if gpu is not None:
            at = START_NS + round(gpu[0] * 1e6)
            ids += f",cuda_ms={gpu[1] - gpu[0]:.6f},cuda_ts={at // 10**9}.{at % 10**9:09d}"
            ids += ",cuda_err_ms=0.01"
        self.row(end_ms, step, name, "END", f"{end_ms - begin_ms:.6f}", ids)
        return self.node

    def step(self, number: int, begin_ms: float, stages: Sequence[Stage]) -> None:
        for name, begin, end in stages:
            self.stage(name, number, begin_ms + begin, begin_ms + end)

    def counter(self, name: str, step: int, ms: float, values: Mapping[str, float]) -> None:
        pairs = ",".join(f"{key}={value}" for key, value in values.items())
        self.row(ms, step, name, "COUNTER", "", f"tid=1,{pairs}")

    def in_order(self) -> RankCsv:
        """As a process writes them: in the order of time."""
        self.rows.sort(key=lambda row: row.partition(",")[0])
        return self

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        path = folder / f"profile_rank_{self.rank}.csv"
        path.write_text(HEADER + "".join(self.rows), encoding="utf-8")
        return folder

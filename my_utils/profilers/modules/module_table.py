"""The table that `ModuleProfiler.summary` returns: a DataFrame that shows its times when printed.

pandas leaves out the columns in the middle where a line is too short for all, and these are the
times. Needs pandas.
"""

from __future__ import annotations

from typing import Any

import pandas

# The most important first.
_SHOWN = (
    "module", "total_ms", "share_percent", "calls", "mean_ms", "backward_ms", "max_ms", "flops",
    "peak_memory_bytes", "parameters", "type", "recompute_ms", "cpu_total_ms", "min_ms",
    "backward_mean_ms", "cpu_mean_ms", "backward_calls", "recompute_calls", "overhead_ms",
)  # fmt: skip
_NAME_WIDTH = 36
_WIDTH = 80  # characters, where pandas has no width


class ModuleTable(pandas.DataFrame):  # type: ignore[misc]
    """A DataFrame in every respect but its repr, which has as many columns as fit in a line, the
    times first, and says which ones it has left out."""

    @property
    def _constructor(self) -> type[ModuleTable]:
        return ModuleTable

    def __repr__(self) -> str:
        if not len(self) or not {"module", "total_ms"} <= set(self.columns):
            return str(super().__repr__())
        width = pandas.get_option("display.width") or _WIDTH
        chosen: list[Any] = ["module", "total_ms"]
        text = self._text(chosen)
        for name in [name for name in _SHOWN if name in self.columns and name not in chosen]:
            wider = self._text([*chosen, name])
            if max(map(len, wider.splitlines())) > width:
                break
            chosen.append(name)
            text = wider
        left = [str(name) for name in self.columns if name not in chosen]
        size = f"[{len(self)} rows x {len(self.columns)} columns]"
        return f"{text}\n\n{size}" + (f"; not shown: {', '.join(left)}" if left else "")

    def _text(self, columns: list[Any]) -> str:
        order = [name for name in self.columns if name in columns]
        most = pandas.get_option("display.max_rows")
        return str(
            pandas.DataFrame(self)[order].to_string(
                max_rows=most, max_colwidth=_NAME_WIDTH, float_format=lambda value: f"{value:.4g}"
            )
        )

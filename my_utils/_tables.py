"""Tables of results: the packages that they need, files that are whole or absent, plain text.

>>> print(text_table(["kernel", "ms"], [["gemm", "1.50"], ["softmax", "12.25"]], left=1))
kernel      ms
gemm      1.50
softmax  12.25
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = "  "


def needed(package: str, purpose: str) -> Any:
    """The module `package`, or an ImportError that says how to install it and what needs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"{purpose} needs {package}, which cannot be imported ({error}): "
            "pip install 'my_utils[profiling]'",
            name=package,
        ) from error


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file that stands at `path` once the block has ended, and only if nothing was raised."""
    target = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    """Linux tells it without setting it, which another thread would notice."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode())


def write_figure(path: str | os.PathLike[str], draw: Callable[[Figure], None]) -> None:
    """A PNG of what `draw` puts into an empty figure; the state of pyplot is left alone."""
    needed("matplotlib", "a plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    with whole_file(path) as file:
        figure.savefig(file, format="png")


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> str:
    """Columns side by side; the first `left` of them start at the left, the others end right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        GAP.join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )

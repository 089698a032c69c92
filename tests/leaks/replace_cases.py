"""The leak cases of rules that replace names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from my_utils import _core

from .harness import case

TIERS = (
    (((b"x.is_cuda()", b"true"),), False),
    (((b"cudaMalloc", b"musaMalloc"), (b"cuda", None)), True),
)


@case("Replacer", "Replacer.replace", repeat=200)
def names_replaced(folder: Path) -> Iterator[Callable[[], object]]:
    calls = (f"cudaMalloc(x.is_cuda(), cudaFree{i % 500});\n" for i in range(1000))
    text = "".join(calls).encode()

    def action() -> None:
        replacer = _core.Replacer(TIERS)
        replaced, count, watched = replacer.replace(text)
        assert replaced is not None and (count, len(watched)) == (2000, 500)
        assert watched["cudaFree7"] == (2, 8)
        assert replacer.replace(b"nothing") == (None, 0, {})
        for wrong in (3, (3,), (((3,), True),), ((((b"", b""),), True),)):
            with contextlib.suppress(TypeError, ValueError):
                _core.Replacer(wrong)  # type: ignore[arg-type]
        with contextlib.suppress(TypeError):
            replacer.replace("text")  # type: ignore[arg-type]

    yield action

"""The leak cases of counted forward passes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from my_utils import _core

from .harness import case


class Passes(_core.ForwardPasses):
    def _opens(self) -> None:
        pass

    def _closes(self, outcome: str) -> None:
        pass

    def _is_copy(self, module: object) -> bool:
        return module is None


@case(
    "ForwardPasses",
    *(
        f"ForwardPasses.{name}"
        for name in (
            "__reduce__",
            "after",
            "before",
            "count_passes",
            "leave_module",
            "passes",
            "unwatch",
        )
    ),
    repeat=500,
)
def forward_passes(folder: Path) -> Iterator[Callable[[], object]]:
    module = object()

    def cut_short(passes: Passes) -> None:
        passes.before(module, ())

    def raises(passes: Passes) -> None:
        passes.before(module, ())
        try:
            raise ValueError
        except ValueError:
            passes.after(module, (), None)

    def whole(passes: Passes) -> None:
        passes.before(module, ())
        whole_inner(passes)
        passes.after(module, (), None)

    def whole_inner(passes: Passes) -> None:
        passes.before(module, ())
        passes.after(module, (), None)

    def action() -> None:
        for at_end in (False, True):
            passes = Passes()
            passes.count_passes(module, 1, 4, at_end)
            for call in (whole, cut_short, whole, whole, raises, cut_short):
                call(passes)
            passes.before(object(), ())
            passes.before(None, ())
            assert passes.passes == 6
            passes.unwatch()
            passes.__reduce__()
            if at_end:
                passes.leave_module()
        with contextlib.suppress(TypeError):
            passes.before(module)  # type: ignore[call-arg]
        with contextlib.suppress(ValueError):
            passes.count_passes(module, 1, 1, False)
        with contextlib.suppress(TypeError):
            passes.count_passes(module, "1", 1, False)  # type: ignore[arg-type]
        broken = _core.ForwardPasses()
        broken.count_passes(module, 0, 1, False)
        with contextlib.suppress(AttributeError):
            broken.before(module, ())

    yield action

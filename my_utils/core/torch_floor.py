"""The oldest torch that this package is tested with, and the warning below it.

What the floor lacks of newer ones is found in another way, in `older_torch`. An older one imports,
and most works, but nobody tests it.
"""

from __future__ import annotations

import sys

FLOOR = (2, 11)  # pyproject.toml requires the same

_checked = False


def warn_below_floor() -> None:
    """One warning where a torch below the floor is loaded. Costs a look-up; thread-safe."""
    global _checked
    if _checked or "torch" not in sys.modules:
        return
    # While torch is being imported, it has no version yet.
    version = str(getattr(sys.modules["torch"], "__version__", ""))
    numbers = version.split(".")[:2]
    if len(numbers) < 2 or not all(number.isdigit() for number in numbers):
        return
    _checked = True
    if tuple(map(int, numbers)) < FLOOR:
        from .warnings import warn_once  # late: it loads the module in C

        floor = ".".join(map(str, FLOOR))
        warn_once(
            "torch:floor",
            f"torch {version} is older than {floor}, the oldest that my_utils is tested with: "
            "profilers can lose figures, and set_step can break a compiled graph",
        )

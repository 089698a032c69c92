"""Parameters by the names that users know from elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from my_utils.core.aliases import renamed_parameters


class Saver:
    @renamed_parameters({"mode": ("w", "append() appends")}, save_dir="output", tag="name")
    def __init__(self, output: str = "out", *, name: str = "") -> None:
        self.given = (output, name)


def test_other_names_work() -> None:
    given: Any = {"save_dir": "there", "tag": "t", "mode": "w"}
    assert Saver(**given).given == ("there", "t")


@pytest.mark.parametrize("args, kwargs", [((), {"output": "a"}), (("a",), {})])
def test_a_parameter_by_both_names_raises(args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError, match=r"^Saver\(\) got output and save_dir, which are the same$"):
        Saver(*args, **{"save_dir": "b", **kwargs})


def test_another_value_of_a_fixed_parameter_raises() -> None:
    with pytest.raises(TypeError, match=r"^Saver\(\) takes only mode='w': append\(\) appends$"):
        Saver(mode="a")  # type: ignore[call-arg]

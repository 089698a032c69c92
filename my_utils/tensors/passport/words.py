"""Words that notes and messages of passports and replicas have in common."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.units import count_text

NAMES_SHOWN = 3


def names_text(names: Sequence[str], most: int = NAMES_SHOWN) -> str:
    """The first `most` of them, and a sign of others.

    >>> names_text(["a", "b"]), names_text(["a", "b", "c"], most=2)
    ('a, b', 'a, b, …')
    """
    return ", ".join([*names[:most], *["…"] * (len(names) > most)])


def left_out_text(names: Sequence[str]) -> str:
    """
    >>> left_out_text(["x.lora_A"])
    'left out by the layout: 1 tensor (x.lora_A)'
    """
    return f"left out by the layout: {count_text(len(names), 'tensor')} ({names_text(names)})"


def buffers_text(names: Sequence[str]) -> str:
    """
    >>> buffers_text(["observer.min_val"])
    'buffers differ between ranks, as those that depend on their data do: observer.min_val'
    """
    why = "as those that depend on their data do"
    return f"buffers differ between ranks, {why}: {names_text(names)}"


def no_tensors_text(count: int) -> str:
    """
    >>> no_tensors_text(1), no_tensors_text(2)
    ('1 value that is no tensor', '2 values that are no tensors')
    """
    verb = "is no tensor" if count == 1 else "are no tensors"
    return f"{count_text(count, 'value')} that {verb}"

"""Names of GPU kernels, as demanglers print them."""

from __future__ import annotations

import functools

_NAMES_KEPT = 4096
_UNNAMED = ("(anonymous namespace)", "<unnamed>")
_HIDDEN = str.maketrans("()<> ", "\1\2\3\4\5")
_SHOWN = str.maketrans("\1\2\3\4\5", "()<> ")
_ENDS = {"<": ">", "(": ")"}


@functools.lru_cache(_NAMES_KEPT)
def function_name(kernel: str) -> str:
    """The name without return type, template arguments and parameters.

    >>> function_name("void at::native::(anonymous namespace)::reduce<512, float>(float*, int)")
    'at::native::(anonymous namespace)::reduce'
    >>> function_name("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int>(T13)")
    'internal::gemvx::kernel'
    >>> function_name("Memcpy HtoD (Pageable -> Device)")
    'Memcpy HtoD'
    """
    hidden = kernel
    for unnamed in _UNNAMED:
        hidden = hidden.replace(unnamed, unnamed.translate(_HIDDEN))
    head, is_function = _without_brackets(hidden)
    words = head.removeprefix("void ").split()
    if is_function and not head.endswith(" "):
        words = words[-1:]
    return " ".join(words).translate(_SHOWN) or kernel


def _without_brackets(text: str) -> tuple[str, bool]:
    """What is before the parameters, and in no brackets; and whether parameters, or template
    arguments that were cut off, follow."""
    kept: list[str] = []
    expected: list[str] = []  # the ends of the brackets that are open
    for char in text:
        if expected and char == expected[-1]:
            expected.pop()
        elif char == "(" or (char == "<" and (not expected or expected[-1] == ">")):
            if char == "(" and not expected and kept:
                return "".join(kept), True
            expected.append(_ENDS[char])
        elif not expected:
            kept.append(char)
    return "".join(kept), bool(expected)

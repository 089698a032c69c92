"""Options of Python that are meant for the script."""

from __future__ import annotations

from collections.abc import Sequence

# With -E and -S no sitecustomize is found, by which processes are recorded; -I is -E, -s and -P.
_PASSED_ON_AS: dict[str, list[str]] = {"E": [], "S": [], "I": ["-s", "-P"]}


def options_for_script(words: Sequence[str]) -> list[str]:
    """The options in `python OPTIONS -m my_utils run train.py`, for the Python that runs the
    script; none where this process was started in another way.

    words: `sys.orig_argv`.

    >>> options_for_script(["python", "-OuXdev", "-W", "error", "-m", "my_utils", "run", "a.py"])
    ['-O', '-u', '-X', 'dev', '-W', 'error']
    >>> options_for_script(["python", "-sP", "/usr/bin/my_utils", "run", "a.py"])
    []
    """
    found: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word == "--check-hash-based-pycs":
            found += [word, next(rest, "")]
            continue
        if not word.startswith("-"):
            break
        for place, flag in enumerate(word[1:], 2):
            if flag == "m":
                return found
            if flag in "c-":
                return []
            if flag in "WX":
                found += [f"-{flag}", word[place:] or next(rest, "")]
                break
            found += _PASSED_ON_AS.get(flag, [f"-{flag}"])
    return []

"""Every option that a page gives a command of my_utils is one of that command."""

from __future__ import annotations

import re

import pytest

from my_utils.cli.command import load
from my_utils.cli.table import COMMANDS

from .blocks import PAGES

pytest.importorskip("torch", reason="torch is not installed")

WORDS = re.compile(r"(?:python -m )?my_utils (?P<words>[^`\n#]*)")
OPTION = re.compile(r"--[a-z][\w-]*")
# From here on the words are those of a training: its script, module or launcher.
TRAINING = re.compile(r"(?<!\S)--(?!\S)|\S+\.py\b|(?<!\S)-m (?!my_utils)|'")


def options_of(words: tuple[str, ...]) -> set[str]:
    command = next(command for command in COMMANDS if command.words == words)
    actions = load(command).command_parser()._actions
    return {option for action in actions for option in action.option_strings}


def given() -> dict[tuple[str, ...], dict[str, str]]:
    """By command: each option that a page gives it, and the page."""
    found: dict[tuple[str, ...], dict[str, str]] = {command.words: {} for command in COMMANDS}
    longest_first = sorted(found, key=len, reverse=True)
    for page in PAGES:
        for match in WORDS.finditer(page.read_text(encoding="utf-8").replace("\\\n", " ")):
            words = TRAINING.split(match["words"], maxsplit=1)[0].split()
            command = next((c for c in longest_first if tuple(words[: len(c)]) == c), None)
            if command is not None:
                found[command].update({
                    word: page.name for word in words if OPTION.fullmatch(word.partition("=")[0])
                })  # fmt: skip
    return found


GIVEN = given()


@pytest.mark.parametrize("words", GIVEN, ids=" ".join)
def test_the_options_exist(words: tuple[str, ...]) -> None:
    known = options_of(words)
    unknown = {word: page for word, page in GIVEN[words].items()
               if word.partition("=")[0] not in known}  # fmt: skip
    assert not unknown


def test_pages_give_many() -> None:
    """Or the pattern finds none of them."""
    assert sum(map(len, GIVEN.values())) > 25

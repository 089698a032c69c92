"""The proof of `diverge` in small: faults in generated models, and what must be said of them."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from tests.tensors.diverge.proof import WRAPPERS, command, page, run, trials

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)

# FSDP gives the inputs of each block an autograd node of their own, so that the gradient of T5's
# position bias, which all blocks share, is that of one block there and that of all elsewhere.
UNDECIDED = (("T5", "gradient", "FSDP2", 0),)


def check(*arguments: str, at_least: int) -> None:
    outcomes = [one for one in run(trials(command(arguments)), None) if one.verdict != "empty"]
    assert [one for one in outcomes if one.verdict in ("wrong", "failed")] == []
    assert len(outcomes) >= at_least
    assert [one for one in outcomes if one.verdict != "right" and one.key not in UNDECIDED] == []


@pytest.mark.parametrize("wrapper", [name for name in WRAPPERS if name != "compile"])
def test_random_graphs(wrapper: str) -> None:
    check(
        "--families", "random", "--wrappers", wrapper, "--runs", "1", "--graphs", "1", at_least=11
    )


@pytest.mark.slow
def test_a_compiled_random_graph() -> None:
    arguments = ("--families", "random", "--wrappers", "compile", "--runs", "1", "--graphs", "1")
    check(*arguments, "--faults", "^in place", at_least=1)


@needs_transformers
def test_a_family_of_transformers() -> None:
    check("--families", "ViT", "--wrappers", "plain", "--runs", "1", at_least=12)


@pytest.mark.thorough
@needs_transformers
@pytest.mark.parametrize("family", ["GPT-2", "Llama", "Mixtral", "T5", "Mamba", "BERT"])
@pytest.mark.parametrize("wrapper", [name for name in WRAPPERS if name != "compile"])
def test_families(family: str, wrapper: str) -> None:
    check("--families", family, "--wrappers", wrapper, "--runs", "1", at_least=9)


@pytest.mark.thorough
@needs_transformers
@pytest.mark.parametrize("family", ["GPT-2", "ViT"])
def test_compiled_families(family: str) -> None:
    check("--families", family, "--wrappers", "compile", "--runs", "1", at_least=9)


def test_the_page_has_all_figures() -> None:
    outcomes = run(trials(command(["--families", "random", "--wrappers", "plain", "--faults",
                                   "result", "--runs", "1", "--graphs", "1"])), None)  # fmt: skip
    text = page(outcomes)
    assert "**1 comparisons: 1 right (100.0%), 0 not decided, 0 wrong" in text
    assert "| result | 1/1 | – |" in text

"""The fixture tensor_golden: tensors are what they were when the golden file was written."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ..core.reprs import short_repr
from ..tensors.leaves import is_empty_container, leaves
from .golden_differences import differences
from .golden_file import UPDATE, GoldenError, GoldenTensor, describe, read_golden, write_golden
from .names import file_name, of_rank

FOLDER = "golden"
_WRITTEN = pytest.StashKey[dict[Path, dict[str, GoldenTensor]]]()  # by this run, by file
_SHOWN = 5  # tensors that differ; others are counted


class TensorGolden:
    """Compares tensors with those of the golden file of a test or of a fixture.

    request: that of pytest. The fixture `tensor_golden` is one for a test; a fixture of wider scope
        makes its own, which is a file for the fixture.

    The file is `golden/<name of the test file>/<name of the test>.toml` beside the test. Under a
    launcher of several ranks each rank has its own, `….rank1of2.toml`.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.path = golden_path(request)
        root = request.config.rootpath
        inside = self.path.is_relative_to(root)
        self._shown = self.path.relative_to(root) if inside else self.path
        self._is_update = bool(request.config.getoption("my_utils_update"))
        self._old: dict[str, GoldenTensor] | None = None
        self._new = request.config.stash.setdefault(_WRITTEN, {}).setdefault(self.path, {})
        self._names: set[str] = set()

    def __repr__(self) -> str:
        return short_repr(self, "path")

    def __call__(self, value: Any, name: str = "value", *, tolerance: float | None = None) -> None:
        """Raises AssertionError unless the tensors in `value` are those of the file.

        value: a tensor, a numpy array, a number, or mappings (such as a state dict), lists, tuples
            and dataclasses of them. Texts and None in these are not looked at.
        name: of the value in the file; each call of a test has another one.
        tolerance: None: the bits are equal. Else elements may differ by this share of the largest
            value that the tensor had: those of the sample, and the statistics of all elements.

        With `--my-utils-update` it writes the file instead, and keeps in it what still agrees. Then
        the file has what this run compared, and nothing else.

        TypeError for other objects in `value` and ValueError for a name that was used, or a
        tolerance that is no number above zero.
        """
        __tracebackhide__ = True
        self._check_arguments(name, tolerance)
        tensors = {place: describe(tensor, place) for place, tensor in _tensors_in(value, name)}
        if not tensors:
            raise TypeError(f"value must have a tensor or a number in it, not {value!r:.100}")
        if self._old is None:
            self._old = self._read()
        of_name = {key: one for key, one in self._old.items() if _is_of(key, name)}
        texts = differences(of_name, tensors, tolerance)
        if self._is_update:
            kept = {key: of_name[key] for key in of_name.keys() & tensors.keys() - texts.keys()}
            self._new |= {key: kept.get(key, one) for key, one in tensors.items()}
            write_golden(self.path, self._new)
        elif not of_name:
            raise AssertionError(f"{self._shown} has no {name!r}: write it by {UPDATE}")
        elif texts:
            raise AssertionError(self._report(texts))

    def _read(self) -> dict[str, GoldenTensor]:
        try:
            return read_golden(self.path)
        except GoldenError:
            if self._is_update:
                return {}
            raise

    def _check_arguments(self, name: str, tolerance: Any) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name):
            raise ValueError(f"name must be letters, digits, _ and -, not {name!r}")
        if name in self._names:
            raise ValueError(
                f"name must be another one for each call of a test, not {name!r} again"
            )
        if tolerance is not None and not (
            isinstance(tolerance, numbers.Real) and 0 < float(tolerance) < math.inf
        ):
            raise ValueError(f"tolerance must be None or a number above zero, not {tolerance!r}")
        self._names.add(name)

    def _report(self, texts: dict[str, list[str]]) -> str:
        lines = [f"differs from {self._shown}:"]
        for key, found in list(texts.items())[:_SHOWN]:
            lines += [f"{key}: {found[0]}", *(f"  {line}" for line in found[1:])]
        if len(texts) > _SHOWN:
            lines.append(f"{len(texts) - _SHOWN} more tensors differ")
        return "\n".join([*lines, f"if this is meant: pytest {UPDATE}"])


def golden_path(request: pytest.FixtureRequest) -> Path:
    """Where the golden file of a test or a fixture is."""
    path, node_id = _owner(request)
    names, bracket, ids = node_id.partition("::")[2].partition("[")
    inside = names.replace("::", ".") + bracket + ids  # "::" in ids stays, "a::b" is not "a.b"
    if request.scope != "function":
        inside = f"{inside}.{request.fixturename}".lstrip(".")
        if hasattr(request, "param"):
            inside += f"[{_parameter(request)}]"
    folder = path / FOLDER if path.is_dir() else path.parent / FOLDER / path.stem
    return folder / f"{file_name(inside)}{of_rank()}.toml"


def _owner(request: Any) -> tuple[Path, str]:
    """The file or folder, and the node id, that the golden file is beside: those of the test, or of
    what defines a fixture that several folders share."""
    root, node = request.config.rootpath, request.node
    if request.scope in ("session", "package"):
        definition = request._fixturedef  # pytest has no public name for it
        node = getattr(definition, "node", None)
        if node is None:
            base = definition.baseid
            return Path(root, base.partition("::")[0]), base
    return Path(getattr(node, "path", root)), node.nodeid


def _parameter(request: Any) -> str:
    """The number of the fixture's parameter. Those that a test chooses (`indirect=True`) are
    counted for each test alone, so these are named by their values."""
    given, number = request.param, request.param_index
    own = request._fixturedef.params or ()
    is_own = number < len(own) and own[number] is given
    plain = given is None or isinstance(given, (str, bytes, bool, int, float, Enum))
    text = repr(given) if plain else getattr(given, "__name__", None)
    return str(number) if is_own or text is None else f"={text}"


def _is_of(key: str, name: str) -> bool:
    return key.startswith(name) and key[len(name) : len(name) + 1] in ("", "[", ".")


def _tensors_in(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    for path, leaf in leaves(value):
        place = name + path
        if isinstance(leaf, torch.Tensor):
            yield place, leaf
        elif isinstance(leaf, (np.ndarray, np.generic, bool, int, float, complex)):
            yield place, _as_tensor(leaf, place)
        elif leaf is not None and not isinstance(leaf, str) and not is_empty_container(leaf):
            kind = type(leaf).__name__
            hint = "; pass its state_dict()" if isinstance(leaf, torch.nn.Module) else ""
            raise TypeError(f"{place} must be a tensor or a number, not a {kind}{hint}")


def _as_tensor(value: Any, place: str) -> torch.Tensor:
    """Of an array or a number. TypeError for elements that torch has no dtype for."""
    array = np.array(value, order="C")  # torch refuses reversed ones, and warns of read-only ones
    native = np.dtype(array.dtype.newbyteorder("=").str)
    try:
        return torch.from_numpy(array.astype(native, copy=False).view(native))
    except TypeError:
        raise TypeError(
            f"{place} must have a dtype that torch has, not {array.dtype}: {value!r:.100}"
        ) from None

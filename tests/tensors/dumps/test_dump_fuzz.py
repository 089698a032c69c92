"""Dumps changed at random, with digests made to agree: they load or are refused, and no more.

The mutations are the same in every run. MY_UTILS_FUZZ_ROUNDS sets how many there are a test; the
default takes a few seconds.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from my_utils.dump_utils import (
    DumpConfig,
    DumpError,
    DumpTensorIO,
    UniversalDumper,
    UniversalLoader,
)
from my_utils.tensors.dumps.form import seal

from ...support.dump_values import Colour, Frozen, Output, Pair, Point, Right, Sample
from .test_dump_types import VALUES

torch = pytest.importorskip("torch", reason="torch is not installed")
np = pytest.importorskip("numpy", reason="numpy is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

ROUNDS = int(os.environ.get("MY_UTILS_FUZZ_ROUNDS", "250"))

STRANGE: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**30, 1.5, -0.0, "", "x", "..", "/root", "$ref",
    [], {}, [[]], [0], ["x", "y"], {"$ref": "/root"}, {"$tensor": None}, {"$float": "nan"},
    {"$tuple": [1, 2]}, {"$dict": [[1, 2]]}, "float32", "U8", [2, 3], {"a": 1}, "\ud800",
    "0" * 100, "builtins:object", "os:system",
    {"$enum": "tests.support.dump_values:Colour", "name": "RED", "value": 1},
]  # fmt: skip


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bits flipped, pieces taken out, doubled, moved or overwritten."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        if not out:
            break
        at, length = rng.randrange(len(out)), rng.choice([1, 1, 2, 8, 40])
        action = rng.randrange(6)
        if action == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            del out[at : at + length]
        elif action == 2:
            out[at:at] = out[at : at + length]
        elif action == 3:
            to = rng.randrange(len(out))
            out[to : to + length] = out[at : at + length]
        elif action == 4:
            out[at : at + length] = rng.choice([b"0", b"9" * length, b"-", b'"', b"]", b"\xff" * 8])
        else:
            out[at] = rng.randrange(256)
    return bytes(out)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every value in a JSON document, as the container and the key."""
    found: list[tuple[Any, Any]] = []
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, inner in items:
        found.append((node, key))
        if isinstance(inner, dict | list):
            found += places(inner)
    return found


def changed_json(document: Any, rng: random.Random) -> Any:
    """Values replaced by strange ones or by each other, keys renamed, entries left out."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 2, 3])):
        found = places(document)
        if not found:
            break
        container, key = rng.choice(found)
        action = rng.randrange(5)
        if action == 0:
            del container[key]
        elif action == 1:
            other, other_key = rng.choice(found)
            container[key] = copy.deepcopy(other[other_key])
        elif action == 2 and isinstance(container, dict):
            tags = [k for box, k in found if isinstance(k, str) and k.startswith("$")]
            renamed = {
                rng.choice(tags) if k == key and tags else k: v for k, v in container.items()
            }
            container.clear()
            container.update(renamed)
        else:
            container[key] = copy.deepcopy(rng.choice(STRANGE))
    return document


class Forger:
    """A dump, changed in one file at a time; the manifest is made to agree."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        layer = torch.arange(12.0).reshape(3, 4)
        obj: dict[str, Any] = {
            name: value for name, value in VALUES.items() if name not in ("one huge int", "numbers")
        }
        loop: list[Any] = [Point(1.0), Pair(1, 2), Colour.GREEN, Right.READ]
        loop.append((loop, Frozen(loop), Sample("s"), Output(logits=layer)))
        obj |= {
            "t": [layer, layer.T, torch.nn.Parameter(layer), layer.bfloat16(), layer],
            "l": loop,
        }
        obj["e"] = torch.ones(1, 3).expand(5, 3)
        obj["c"] = [layer.to(torch.complex128), torch.eye(2).to_sparse(), torch.Size([1])]
        obj["n"] = [np.arange(3), np.zeros(2, "i4, >f8"), np.float32(1), np.array([1, "a"], object)]
        dump_dir = UniversalDumper(DumpConfig(root_dir=folder, strict=True)).dump("s", obj)
        assert dump_dir is not None
        self.folder = Path(dump_dir)
        self.files = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        self.loader = UniversalLoader(folder)
        self.outcomes = {"loaded": 0, "refused": 0}

    def try_with(self, name: str, data: bytes, *, agree: bool = True) -> None:
        self.files_with(name, data, agree=agree)
        try:
            self.loader.load(self.folder, verify=False)
            self.outcomes["loaded"] += 1
        except DumpError as error:
            assert error.path.startswith(str(self.folder))
            assert error.reason
            self.outcomes["refused"] += 1

    def files_with(self, name: str, data: bytes, *, agree: bool) -> None:
        (self.folder / name).write_bytes(data)
        if not agree:
            return
        manifest = json.loads(self.files["manifest.json"])
        del manifest["digest"]
        entry = manifest["files"][name]
        entry["bytes"] = len(data)
        if "header_bytes" in entry:
            entry["header_bytes"] = min(8 + int.from_bytes(data[:8], "little"), len(data))
        (self.folder / "manifest.json").write_bytes(seal(manifest))

    def restore(self) -> None:
        for name, data in self.files.items():
            (self.folder / name).write_bytes(data)


@pytest.fixture
def forger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forger:
    """Its files are the same in every run, but for the order that safetensors gives metadata."""
    with monkeypatch.context() as patch:
        patch.setattr("time.time_ns", lambda: 1_700_000_000_123_456_789)
        patch.setattr("my_utils.tensors.dumps.writer.host_name", lambda: "host")
        patch.setattr("os.getpid", lambda: 4242)
        return Forger(tmp_path)


@pytest.fixture(autouse=True)
def no_warnings_of_torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def both_happened(forger: Forger) -> None:
    """Else the mutations are too wild, or too tame, to say anything."""
    assert forger.outcomes["refused"] > ROUNDS // 20, forger.outcomes
    assert forger.outcomes["loaded"] > 0, forger.outcomes


@pytest.mark.parametrize("seed", [1, 2])
def test_trees_of_changed_bytes(forger: Forger, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(ROUNDS):
        forger.try_with("tree.json", changed_bytes(forger.files["tree.json"], rng))
    both_happened(forger)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_trees_of_changed_nodes(forger: Forger, seed: int) -> None:
    rng = random.Random(seed)
    document = json.loads(forger.files["tree.json"])
    for _ in range(ROUNDS):
        text = json.dumps(changed_json(document, rng))
        forger.try_with("tree.json", text.encode("utf-8"))
    both_happened(forger)


@pytest.mark.parametrize("seed", [6, 7])
def test_changed_indexes(forger: Forger, seed: int) -> None:
    rng = random.Random(seed)
    data = forger.files["tensors.safetensors"]
    length = 8 + int.from_bytes(data[:8], "little")
    document = json.loads(data[8:length])
    for number in range(ROUNDS):
        if number % 2:
            forger.try_with(
                "tensors.safetensors", changed_bytes(data[:length], rng) + data[length:]
            )
        else:
            text = json.dumps(changed_json(document, rng)).encode("utf-8")
            text = len(text).to_bytes(8, "little") + text + data[length:]
            forger.try_with("tensors.safetensors", text)
    both_happened(forger)


def test_changed_manifests(forger: Forger) -> None:
    rng = random.Random(8)
    document = json.loads(forger.files["manifest.json"])
    del document["digest"]
    for number in range(ROUNDS):
        if number % 2:
            data = changed_bytes(forger.files["manifest.json"], rng)
        else:
            body = changed_json(document, rng)
            data = seal(body) if body else b"{}"
        forger.try_with("manifest.json", data, agree=False)
    both_happened(forger)


def changed_tensor_files(folder: Path, suffix: str, write: Callable[[Path], Any], seed: int) -> int:
    """How many of the changed files were refused; the others gave a tensor."""
    rng = random.Random(seed)
    tensors = DumpTensorIO(folder)
    path = Path(tensors.path(1, "x")).with_suffix(suffix)
    path.parent.mkdir(parents=True)
    write(path)
    data = path.read_bytes()
    refused = 0
    for _ in range(ROUNDS):
        path.write_bytes(changed_bytes(data, rng))
        try:
            assert isinstance(tensors.load(1, "x", verify=False), torch.Tensor)
        except DumpError as error:
            assert error.path == str(path)
            refused += 1
    shutil.rmtree(folder)
    return refused


def test_changed_pt_files(tmp_path: Path) -> None:
    """torch's reader is not ours; what it makes of them must be a tensor, or one kind of error."""
    refused = changed_tensor_files(
        tmp_path / "x", ".pt", lambda path: torch.save(torch.arange(30.0), path), 9
    )
    assert refused > ROUNDS // 20


def test_changed_tensor_files(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        other = DumpTensorIO(tmp_path / "other")
        shutil.copy(str(other.dump(torch.arange(30.0), 1, "x")), path)

    assert changed_tensor_files(tmp_path / "x", ".safetensors", write, 10) > ROUNDS // 20

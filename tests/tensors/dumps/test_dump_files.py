"""The files of a dump: their layout and names, and dumps that nobody should believe."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from my_utils.core import warnings as _warnings
from my_utils.dump_utils import (
    DumpConfig,
    DumpError,
    DumperSingleton,
    UniversalDumper,
    UniversalLoader,
)
from my_utils.logger import SingletonMeta
from my_utils.tensors.dumps.form import seal

from ...support.dump_values import Plain

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

OBJECT: dict[str, Any] = {
    "x": torch.arange(20.0).reshape(4, 5), "nested": [torch.ones(3, dtype=torch.int8), (1, "a")],
    "bytes": bytes(range(200)),
}  # fmt: skip


def dump(folder: Path, obj: Any = None, **options: Any) -> Path:
    dumper = UniversalDumper(DumpConfig(root_dir=folder, strict=True))
    dump_dir = dumper.dump(**{"stage": "s", "obj": OBJECT if obj is None else obj, **options})
    assert dump_dir is not None
    return Path(dump_dir)


def refusal(folder: Path, dump_dir: Path, **options: Any) -> DumpError:
    with pytest.raises(DumpError) as caught:
        UniversalLoader(folder).load(dump_dir, **options)
    return caught.value


def reseal(dump_dir: Path, change: Callable[[dict[str, Any]], None] | None = None) -> None:
    """As a forger would: sizes and digests are made to agree again."""
    manifest = json.loads((dump_dir / "manifest.json").read_text())
    del manifest["digest"]
    for name, entry in manifest["files"].items():
        entry["bytes"] = (dump_dir / name).stat().st_size
        if name == "tensors.safetensors":
            data = (dump_dir / name).read_bytes()
            entry["header_bytes"] = 8 + int.from_bytes(data[:8], "little")
    if change is not None:
        change(manifest)
    (dump_dir / "manifest.json").write_bytes(seal(manifest))


def edit_tree(dump_dir: Path, old: str, new: str) -> None:
    tree = dump_dir / "tree.json"
    text = tree.read_text(encoding="utf-8")
    assert old in text
    tree.write_text(text.replace(old, new, 1), encoding="utf-8")
    reseal(dump_dir)


# --- layout ---


def test_the_layout(tmp_path: Path) -> None:
    folder = dump(tmp_path, data_id=42, branch="train", stage="after_tokenize")
    assert folder.parent == tmp_path / "sample_42"
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{9}Z__after_tokenize__train", folder.name)
    names = {"manifest.json", "tree.json", "tensors.safetensors"}
    assert {path.name for path in folder.iterdir()} == names
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert len(modes) == 1


def test_the_manifest(tmp_path: Path) -> None:
    folder = dump(tmp_path, data_id="ü/1", branch=None, stage="a b", obj={"x": 1, "p": Plain()})
    manifest = UniversalLoader(tmp_path).manifest(folder)
    assert manifest == json.loads((folder / "manifest.json").read_text())
    assert (manifest["stage"], manifest["branch"], manifest["data_id"]) == ("a b", None, "ü/1")
    assert (manifest["pid"], manifest["pickles"], manifest["tensors"]) == (os.getpid(), 1, 0)


@pytest.mark.parametrize(
    "name",
    ["../../up", "/etc/passwd", "a/b", ".", "..", "", "x" * 500, "日本" * 100, "a\nb\0c", "~"],
)
def test_any_text_is_made_a_file_name(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    folder = dump(root, stage=name, branch=name, data_id=name)
    assert folder.parent.parent == root
    assert {path.name for path in tmp_path.iterdir()} == {"root"}
    manifest = UniversalLoader(root).manifest(folder)
    assert (manifest["stage"], manifest["data_id"]) == (name, name)
    assert UniversalLoader(root).dumps(stage=name, data_id=name) == [str(folder)]


def test_dumps_of_the_same_instant_do_not_collide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.extend(dump(tmp_path, [i]) for i in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 80
    assert sorted(map(str, found)) == UniversalLoader(tmp_path).dumps()
    values = [UniversalLoader(tmp_path).load(path)[0] for path in found]
    assert sorted(values) == sorted(list(range(20)) * 4)


def test_dumps_are_found_in_the_order_of_time(tmp_path: Path) -> None:
    loader = UniversalLoader(tmp_path)
    assert loader.dumps() == []
    made = [
        str(dump(tmp_path, [i], stage=f"s{i % 2}", data_id=i // 2, branch="b")) for i in range(4)
    ]
    (tmp_path / "sample_0" / ".unfinished-20260101T000000.000000000Z__s0__b").mkdir()
    assert loader.dumps() == made
    assert loader.dumps(stage="s1") == [made[1], made[3]]
    assert loader.dumps(data_id=1, branch="b") == made[2:]
    assert loader.dumps(branch="other") == []


def test_paths_from_the_root_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = dump(tmp_path, [1])
    monkeypatch.chdir("/")
    assert UniversalLoader(tmp_path).load(folder.relative_to(tmp_path)) == [1]
    (tmp_path / "link").symlink_to(tmp_path)  # a root that is a link is the user's own business
    assert UniversalLoader(tmp_path / "link").load(folder) == [1]
    assert UniversalLoader(tmp_path / "link").load(tmp_path / "link" / "sample_none" / folder.name)


# --- arguments, counts and the singleton ---


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="enable must be a bool, not 1"):
        DumpConfig(enable=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"image_format must be one of 'png', .*, not 'gif'"):
        DumpConfig(image_format="gif")
    with pytest.raises(ValueError, match="root_dir must be a path that is not empty"):
        DumpConfig(root_dir="")
    with pytest.raises(TypeError, match="max_items must be an int or None, not '3'"):
        DumpConfig(max_items="3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="queue_bytes must be at least 1, not 0"):
        DumpConfig(queue_bytes=0)
    with pytest.raises(TypeError, match="cfg must be a DumpConfig, not 'x'"):
        UniversalDumper("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dump_dir must be a str or a path, not None"):
        UniversalLoader(".").load(None)


def test_what_dump_returns_is_what_load_takes(tmp_path: Path) -> None:
    """The first document's example, which `make lint` type-checks here as users' checkers do."""
    cfg = DumpConfig(root_dir=tmp_path, enable=True, save_tensor_cpu=True)
    dumper = UniversalDumper(cfg)
    dump_dir = dumper.dump(stage="after_tokenize", obj={"x": 1}, data_id=42, branch="train")
    loader = UniversalLoader(root_dir=tmp_path)
    assert loader.load(dump_dir) == {"x": 1}


def test_switched_off_it_does_nothing(tmp_path: Path) -> None:
    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path / "x", enable=False))
    assert dumper.dump("s", OBJECT) is None
    assert not (tmp_path / "x").exists()


def test_trouble_is_one_warning_and_a_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _warnings.forget("dump")
    (tmp_path / "file").write_text("in the way")
    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path / "file"))
    assert [dumper.dump("s", [1]) for _ in range(5)] == [None] * 5
    assert (dumper.failed, dumper.written) == (5, 0)
    told = [record.message for record in caplog.records if "was left out" in record.message]
    assert len(told) == 1
    assert "NotADirectoryError" in told[0]
    with pytest.raises(NotADirectoryError):
        UniversalDumper(DumpConfig(root_dir=tmp_path / "file", strict=True)).dump("s", [1])


def test_objects_that_raise_do_not_end_the_training(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            raise RuntimeError("trap")

        def __str__(self) -> str:
            raise RuntimeError("trap")

    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path))
    assert dumper.dump("s", {"a": Trap(), "b": 1}) is not None
    assert dumper.dump(Trap(), {"b": 1}, data_id=Trap()) is None
    assert (dumper.unsupported, dumper.failed) == (1, 1)
    assert not list(tmp_path.rglob(".unfinished*"))


def test_the_singleton(tmp_path: Path) -> None:
    SingletonMeta._instances.pop(DumperSingleton, None)
    try:
        first = DumperSingleton(DumpConfig(root_dir=tmp_path))
        assert DumperSingleton() is first
        assert DumperSingleton.get() is first
        assert DumperSingleton(DumpConfig(root_dir=tmp_path)) is first
        assert isinstance(first, UniversalDumper)
        assert first.dump("s", [1]) is not None
        with pytest.raises(ValueError, match="cfg must be that of the first call"):
            DumperSingleton(DumpConfig(root_dir=tmp_path / "other"))
    finally:
        SingletonMeta._instances.pop(DumperSingleton, None)


# --- dumps that are not to be trusted ---


def test_any_changed_byte_is_found(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="PIL is not installed")
    from PIL import Image

    folder = dump(tmp_path, [torch.ones(3), "text", Image.new("L", (3, 3)), Plain(a=1)])
    loader = UniversalLoader(tmp_path)
    loader.load(folder, allow_pickle=True)
    missed = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for at in range(len(data)):
            changed = bytearray(data)
            changed[at] ^= 1 << (at * 5 + len(data)) % 8
            path.write_bytes(changed)
            try:
                loader.load(folder, allow_pickle=True)
            except DumpError as error:
                assert folder.name in str(error)
            else:
                missed.append((path.name, at))
        path.write_bytes(data)
    assert missed == []
    loader.load(folder, allow_pickle=True)


def test_every_bit_of_a_small_dump(tmp_path: Path) -> None:
    folder = dump(tmp_path, {"x": torch.ones(1)})
    loader = UniversalLoader(tmp_path)
    for name in ("tensors.safetensors", "tree.json"):
        data = (folder / name).read_bytes()
        for bit in range(8 * len(data)):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            (folder / name).write_bytes(changed)
            with pytest.raises(DumpError, match=re.escape(name)):
                loader.load(folder)
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", ["manifest.json", "tree.json", "tensors.safetensors"])
def test_truncated_and_missing_files(tmp_path: Path, name: str, verify: bool) -> None:
    folder = dump(tmp_path)
    data = (folder / name).read_bytes()
    for length in {0, 1, 7, 8, 50, len(data) // 2, len(data) - 1}:
        (folder / name).write_bytes(data[:length])
        assert refusal(folder.parent, folder, verify=verify).path.endswith(name)
    (folder / name).write_bytes(data + b" ")
    assert refusal(folder.parent, folder, verify=verify).path.endswith(name)
    (folder / name).unlink()
    assert "is missing: the dump is incomplete" in refusal(tmp_path, folder, verify=verify).reason


@pytest.mark.parametrize("name", ["manifest.json", "tree.json", "tensors.safetensors"])
def test_links_pipes_and_folders_in_the_place_of_files(tmp_path: Path, name: str) -> None:
    folder = dump(tmp_path)
    path = folder / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert refusal(tmp_path, folder).path == str(path)
    path.unlink()
    os.mkfifo(path)
    assert "regular file" in refusal(tmp_path, folder).reason
    path.unlink()
    path.mkdir()
    assert "regular file" in refusal(tmp_path, folder).reason


def test_folders_that_are_links_or_lie_outside(tmp_path: Path) -> None:
    inside, outside = dump(tmp_path / "root"), dump(tmp_path / "other")
    root = tmp_path / "root"
    assert "is outside of root_dir" in refusal(root, outside).reason
    assert "is outside" in refusal(root, Path(f"{inside}/../../../other")).reason
    (root / "linked").symlink_to(outside.parent)
    assert "is a link" in refusal(root, root / "linked" / outside.name).reason
    link = inside.parent / "20260101T000000.000000000Z__s__b"
    link.symlink_to(inside)
    assert "is a link" in refusal(root, link).reason
    with pytest.raises(FileNotFoundError):
        UniversalLoader(root).load(root / "sample_1" / "none")


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/b", "", ".", "manifest.json", "image_00000.png/../x", "a\0b"]
)
def test_names_of_files_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    folder = dump(tmp_path)

    def add(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = {"bytes": 1, "digest": "0" * 32}

    reseal(folder, add)
    assert "which no dump has" in refusal(tmp_path, folder, verify=False).reason


def test_a_tree_that_names_a_file_elsewhere(tmp_path: Path) -> None:
    folder = dump(tmp_path, {"x": 1})
    for node in ("image", "pickle"):
        edit = f'{{"${node}": "../../secret", "mode": "L", "size": [1, 1], "type": "a:b"}}'
        tree = (folder / "tree.json").read_text()
        edit_tree(folder, '"x": 1', f'"x": {edit}')
        error = refusal(tmp_path, folder, verify=False, allow_pickle=True)
        assert "which the manifest does not" in error.reason
        (folder / "tree.json").write_text(tree)


HEADERS = {
    "a huge length": struct.pack("<Q", 2**63) + b"{}",
    "a length beyond the file": struct.pack("<Q", 10_000) + b"{}      ",
    "no JSON": struct.pack("<Q", 8) + b"not json",
    "a list": struct.pack("<Q", 8) + b"[      ]",
    "nested": struct.pack("<Q", 100_000) + b"[" * 100_000,
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_are_none(tmp_path: Path, name: str) -> None:
    folder = dump(tmp_path)
    (folder / "tensors.safetensors").write_bytes(HEADERS[name])
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["digest"]
    entry = manifest["files"]["tensors.safetensors"]
    entry["bytes"] = len(HEADERS[name])
    entry["header_bytes"] = min(len(HEADERS[name]), 8 + 100_000)
    (folder / "manifest.json").write_bytes(seal(manifest))
    assert refusal(tmp_path, folder, verify=False).path.endswith("tensors.safetensors")


INDEXES: dict[str, dict[str, Any]] = {
    "overlap": {"a": ["F32", [1], [0, 4]], "b": ["F32", [2], [0, 8]]},
    "a gap": {"a": ["F32", [1], [4, 8]]},
    "too short": {"a": ["F32", [1], [0, 4]]},
    "too long": {"a": ["F32", [3], [0, 12]]},
    "a wrong length": {"a": ["F32", [5], [0, 8]]},
    "a huge shape": {"a": ["F32", [2**62, 2**62], [0, 8]]},
    "a shape that overflows": {"a": ["F32", [2**32, 2**32, 4], [0, 0]]},
    "a negative size": {"a": ["F32", [-2, -1], [0, 8]]},
    "an unknown type": {"a": ["F128", [1], [0, 8]]},
    "backwards": {"a": ["F32", [2], [8, 0]]},
    "sizes that are not ints": {"a": ["F32", [True, 2.0], [0, 8]]},
}


@pytest.mark.parametrize("name", INDEXES)
def test_indexes_that_do_not_add_up(tmp_path: Path, name: str) -> None:
    folder = dump(tmp_path)
    keys = ("dtype", "shape", "data_offsets")
    index = {k: dict(zip(keys, entry, strict=True)) for k, entry in INDEXES[name].items()}
    header = json.dumps(index).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(8)
    (folder / "tensors.safetensors").write_bytes(data)
    reseal(folder)
    assert refusal(tmp_path, folder, verify=False).path.endswith("tensors.safetensors")


FORGED = {
    '"shape": [4, 5]': ['"shape": [5, 5]', '"shape": [4000000000, 5000000000]', '"shape": [-4, -5]',
                        '"shape": "x"', '"shape": [4.0, 5]', '"shape": null'],
    '"dtype": "float32"': ['"dtype": "float64"', '"dtype": "os"', '"dtype": 3', '"dtype": "load"'],
    '{"$tensor": "x"': ['{"$tensor": "y"', '{"$tensor": 3', '{"$nonsense": "x"'],
    '"nested": [': ['"nested": {"$ref": "/root/nested/5"}, "n": [', '"n": {"$ref": 3}, "m": [',
                    '"n": {"$range": ["a", 1, 1]}, "m": [', '"n": {"$numpy_dtype": "|O8"}, "m": [',
                    '"n": {"$date": "tomorrow"}, "m": [', '"n": {"$bytes": "xyz"}, "m": [',
                    '"n": {"$namespace": "os:x", "fields": {}}, "m": [',
                    '"n": {"$torch_dtype": "load"}, "m": [',
                    '"n": {"$float": "nan", "bits": "ffffffffffffffffffff"}, "m": [',
                    '"n": {"$deque": [], "maxlen": -1}, "m": [',
                    '"n": {"$npscalar": "V9999999999", "bytes": ""}, "m": [',
                    '"n": {"$set": [[1]]}, "m": [',
                    '"n": {"$ndarray_object": [5], "items": []}, "m": [',
                    '"n": ' + "[" * 5000 + "]" * 5000 + ', "m": [', '"n": NaN, "m": [',
                    '"n": {"$zone": "../../etc/passwd", "$x": [}, "m": ['],
}  # fmt: skip


@pytest.mark.parametrize("forged", [(old, new) for old, news in FORGED.items() for new in news])
def test_trees_that_say_what_no_dump_says(tmp_path: Path, forged: tuple[str, str]) -> None:
    folder = dump(tmp_path)
    edit_tree(folder, *forged)
    assert refusal(tmp_path, folder, verify=False).path.endswith("tree.json")


def test_a_pickle_is_not_read_without_leave(tmp_path: Path) -> None:
    class Exploit:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "ran"),))

    folder = dump(tmp_path / "root", {"p": Plain(a=1)})
    (folder / "pickle_00000.pkl").write_bytes(pickle.dumps(Exploit()))
    reseal(folder)
    for verify in (True, False):
        assert "allow_pickle" in refusal(tmp_path / "root", folder, verify=verify).reason
    # Neither does leave alone do, where the file is not the one that was written.
    error = refusal(tmp_path / "root", folder, allow_pickle=True)
    assert "does not match its digest" in error.reason
    assert not (tmp_path / "ran").exists()


def test_a_newer_version_and_other_formats(tmp_path: Path) -> None:
    folder = dump(tmp_path)
    reseal(folder, lambda manifest: manifest.update(version=3))
    assert "has version 3; 2 is known here" in refusal(tmp_path, folder).reason
    reseal(folder, lambda manifest: manifest.update(version=1))
    assert "of the tensor hash, version 1; write it anew" in refusal(tmp_path, folder).reason
    reseal(folder, lambda manifest: manifest.update(version=2, format="other"))
    assert "is not a manifest of a dump" in refusal(tmp_path, folder).reason


def test_blobs_that_the_tree_does_not_name(tmp_path: Path) -> None:
    folder = dump(tmp_path, {"x": torch.ones(1), "y": 1})
    tree = (folder / "tree.json").read_text()
    node = re.search(r'\{"\$tensor".*?\}', tree)
    assert node is not None
    from my_utils.tensors.dumps.form import digest

    (folder / "tree.json").write_text(tree.replace(node[0], "5"))
    found = digest((folder / "tree.json").read_bytes())
    reseal(folder, lambda manifest: manifest["files"]["tree.json"].update(digest=found))
    assert "which the tree does not name" in refusal(tmp_path, folder).reason


def test_limits_of_what_is_read(tmp_path: Path) -> None:
    folder = dump(tmp_path, ["x" * 5000])
    with pytest.raises(DumpError, match=r"tree\.json: has \d+ bytes, more than 1000"):
        UniversalLoader(tmp_path, max_bytes=1000).load(folder)


def test_images_that_are_bombs(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image", reason="PIL is not installed")
    folder = dump(tmp_path, Image.new("L", (3, 3)))
    small = (folder / "image_00000.png").read_bytes()
    Image.new("L", (9000, 9000)).save(folder / "image_00000.png")
    reseal(folder)
    assert "is L (9000, 9000), not L (3, 3)" in refusal(tmp_path, folder, verify=False).reason
    (folder / "image_00000.png").write_bytes(small[:40])
    reseal(folder)
    assert "cannot be decoded" in refusal(tmp_path, folder, verify=False).reason


def test_an_error_can_be_pickled(tmp_path: Path) -> None:
    error = DumpError("a/b", "reason")
    again = pickle.loads(pickle.dumps(error))
    assert (again.path, again.reason, str(again)) == ("a/b", "reason", "a/b: reason")


def test_importing_brings_no_torch(run_python: Any) -> None:
    program = """
import sys, my_utils.dump_utils
print([name for name in ("torch", "numpy", "safetensors", "PIL") if name in sys.modules])
"""
    assert run_python("-c", program).stdout.strip() == "[]"

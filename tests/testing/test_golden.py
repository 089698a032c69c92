"""tensor_golden, as a suite uses it: files beside tests, in processes of their own."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from my_utils.tensors import stats, tensor_hash
from my_utils.testing.golden_file import (
    HASH_VERSION,
    GoldenError,
    describe,
    read_golden,
    write_golden,
)

from ..conftest import ROOT
from ..support.dtypes import BYTE_FLOATS, COMPLEX, FLOATS, INTEGERS
from .conftest import Suite, counts

SUITE = """
    import os
    import pytest, torch
    from my_utils.testing import TensorGolden

    planted = os.environ.get("PLANTED", "")

    def values():
        return torch.arange(600.0).reshape(100, 6).sqrt()

    @pytest.fixture(scope="module", params=["a", "b"])
    def weights(request):
        weights = torch.nn.Linear(2, 3, device="meta").to_empty(device="cpu").state_dict()
        for tensor in weights.values():
            tensor.fill_(len(request.param))
        if planted == "weights":
            weights["bias"][1] = float("nan")
        TensorGolden(request)(weights, "weights")
        return weights

    def test_of_a_fixture(weights):
        assert len(weights) == 2

    def test_exact(tensor_golden):
        x = values()
        if planted == "ulp":
            x[70:, 2] = torch.nextafter(x[70:, 2], x[70:, 2] + 1)
        tensor_golden({"x": x, "n": 3, "text": "left alone", "none": None})
        small = torch.tensor([[1.0, 2.0], [3.0, float("nan")]])
        if planted == "small":
            small[1, 0] += 0.5
        tensor_golden(small, "small")

    def test_close(tensor_golden):
        x = values()
        x *= {"close": 1 + 1e-6, "far": 1 + 1e-3}.get(planted, 1.0)
        tensor_golden(x, tolerance=1e-5)

    class TestNames:
        @pytest.mark.parametrize("path", ["a/b", "c"])
        def test_path(self, tensor_golden, path):
            shape = (2, 2) if planted == "shape" else (4,)
            tensor_golden(torch.zeros(shape))
"""


@pytest.fixture(scope="module")
def written_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    suite = Suite(tmp_path_factory.mktemp("written"))
    suite.write("tests/test_model.py", SUITE)
    assert counts(suite.run("--my-utils-update")) == {"passed": 6}
    return suite.folder


@pytest.fixture
def written(written_once: Path, tmp_path: Path) -> Suite:
    """A copy of it."""
    shutil.copytree(written_once, tmp_path / "suite")
    return Suite(tmp_path / "suite")


def golden_files(suite: Suite) -> dict[str, bytes]:
    folder = suite.folder / "tests/golden/test_model"
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_without_a_file_a_test_fails_with_what_to_do(suite: Suite) -> None:
    suite.write("test_new.py", "def test_it(tensor_golden): tensor_golden([1.5])")
    output = suite.run()
    text = "golden/test_new/test_it.toml has no 'value': write it by --my-utils-update"
    assert f"AssertionError: {text}" in output
    assert not (suite.folder / "golden").exists()


@pytest.mark.slow
def test_files_are_beside_the_tests_and_reviewable(written: Suite) -> None:
    files = golden_files(written)
    names = [re.sub(r"-[0-9a-f]{8}\.", "-HASH.", name) for name in files]
    assert names == [
        "TestNames.test_path[a_b]-HASH.toml", "TestNames.test_path[c].toml", "test_close.toml",
        "test_exact.toml", "weights[0].toml", "weights[1].toml",
    ]  # fmt: skip
    for data in files.values():
        assert data.isascii()
        assert max(map(len, data.decode().splitlines())) < 500
    table = tomllib.loads(files["test_exact.toml"].decode())
    assert list(table["tensor"]) == ["value['x']", "value['n']", "small"]
    expected = torch.arange(600.0).reshape(100, 6).sqrt()
    x = table["tensor"]["value['x']"]
    assert x["digest"] == tensor_hash(expected).content
    assert (x["dtype"], x["shape"]) == ("float32", [100, 6])
    assert x["values"]["mean"] == pytest.approx(expected.double().mean().item(), rel=1e-12)
    assert counts(written.run()) == {"passed": 6}
    assert golden_files(written) == files


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "failed", "texts"),
    [
        ("ulp", 1, [
            "differs from tests/golden/test_model/test_exact.toml:",
            r"value\['x'\]: float32 \(100, 6\), other bits; 3 of 8 parts, from \(\d+, \d\) to "
            r"\(99, 5\)",
            r"\d of 64 sampled elements differ, most by 1.91e-06 \(1 ulp\) at \(\d+, 2\)",
            "if this is meant: pytest --my-utils-update",
        ]),
        ("small", 1, [
            "small: 1 of 4 elements differ", r"first at \(1, 0\): 3.5, was 3.0: 2,097,152 ulp",
            "mean 2.16667, was 2;",
        ]),
        pytest.param("far", 1, [
            r"most by 0.0\d+ \([\d,]+ ulp\) at", "allowed: 1e-05 of the largest value, 24.4745",
        ], marks=pytest.mark.thorough),
        pytest.param("close", 0, [], marks=pytest.mark.thorough),
        pytest.param(
            "shape", 2, [r"value: is float32 \(2, 2\), was float32 \(4,\)"],
            marks=pytest.mark.thorough,
        ),
        ("weights", 2, [
            r"weights\['bias'\]: 1 of 3 elements differ",
            "NaN in one of them: 1 place; 1 in actual, first at \\(1,\\); 0 in expected",
        ]),
    ],
)  # fmt: skip
def test_what_a_mismatch_says(written: Suite, planted: str, failed: int, texts: list[str]) -> None:
    before = golden_files(written)
    output = written.run(PLANTED=planted)
    found = counts(output)
    assert found.get("failed", 0) + found.get("error", 0) == failed, output
    for text in texts:
        assert re.search(text, output), text
    assert golden_files(written) == before


@pytest.mark.slow
def test_an_update_writes_only_what_differs(written: Suite) -> None:
    before = golden_files(written)
    written.run("--my-utils-update", PLANTED="close")
    assert golden_files(written) == before  # what agrees within its tolerance stays
    written.run("--my-utils-update", PLANTED="small")
    after = golden_files(written)
    assert [name for name in after if after[name] != before[name]] == ["test_exact.toml"]
    assert counts(written.run(PLANTED="small")) == {"passed": 6}


@pytest.mark.slow
def test_with_xdist_the_same_files(written: Suite) -> None:
    before = golden_files(written)
    assert counts(written.run("-p", "xdist.plugin", "-n", "2")) == {"passed": 6}
    for path in (written.folder / "tests/golden/test_model").iterdir():
        path.unlink()
    written.run("-p", "xdist.plugin", "-n", "2", "--my-utils-update")
    assert golden_files(written) == before


def test_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    write_golden(path, {"x": describe(torch.ones(2))})
    text = path.read_text()
    path.write_text(text.replace(f"hash = {HASH_VERSION}", "hash = 77"))
    with pytest.raises(GoldenError, match=r"with hash 77, .* write it again by --my-utils-update"):
        read_golden(path)
    for broken in ("", f"golden = 1\nhash = {HASH_VERSION}\n[tensor.x]\n", text[:-30], "\udcff"):
        path.write_bytes(broken.encode("utf-8", "surrogateescape"))
        with pytest.raises(GoldenError, match=r"is not a golden file .* --my-utils-update"):
            read_golden(path)


def test_the_version_is_that_of_the_definition() -> None:
    page = (ROOT / "docs/correctness/tensor-hash.md").read_text(encoding="utf-8")
    assert f"## The definition, version {HASH_VERSION}\n" in page


@pytest.mark.parametrize("size", [0, 1, 64, 65, 1000])
@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS, *FLOATS, *BYTE_FLOATS, *COMPLEX], ids=str)
def test_what_is_written_is_read(tmp_path: Path, dtype: torch.dtype, size: int) -> None:
    width = torch.empty(0, dtype=dtype).element_size()
    raw = torch.arange(size * width).mul(37).to(torch.uint8)
    tensor = raw.ne(0) if dtype == torch.bool else raw.view(dtype)
    kept = describe(tensor)
    path = tmp_path / "a" / "b.toml"
    write_golden(path, {"value['é\"\\\n']": kept})
    (found,) = read_golden(path).values()
    assert (found.dtype, found.shape, found.digest, found.parts) == (
        kept.dtype, kept.shape, kept.digest, kept.parts,
    )  # fmt: skip
    assert tensor_hash(found.sample) == tensor_hash(kept.sample)
    figures = stats(tensor).as_dict()
    for name, value in found.stats.items():
        assert repr(value) == repr(figures[name]), name


WRONG = """
    import pytest, torch

    def test_names(tensor_golden):
        tensor_golden(1.0)
        with pytest.raises(ValueError, match="another one for each call of a test, not 'value'"):
            tensor_golden(1.0)
        with pytest.raises(ValueError, match="name must be letters, digits, _ and -, not 'a.b'"):
            tensor_golden(1.0, "a.b")
        with pytest.raises(ValueError, match="tolerance must be None or a number above zero"):
            tensor_golden(1.0, "b", tolerance=0.0)

    def test_tolerance(tensor_golden):
        with pytest.raises(ValueError, match="tolerance must be None or a number .* not '1e-5'"):
            tensor_golden(1.0, tolerance="1e-5")

    def test_values(tensor_golden):
        with pytest.raises(TypeError, match=r"c\\[0\\] must be a tensor .* pass its state_dict"):
            tensor_golden([torch.nn.Linear(1, 1)], "c")
        with pytest.raises(TypeError, match="value must have a tensor or a number in it"):
            tensor_golden(["text"], "d")
        with pytest.raises(TypeError, match="meta"):
            tensor_golden(torch.ones(2, device="meta"), "e")
        with pytest.raises(TypeError, match=r"f\\['x'\\] must have its elements .* x.indices"):
            tensor_golden({"x": torch.eye(2).to_sparse()}, "f")
        with pytest.raises(TypeError, match=r"g\\[0\\] must have a dtype .* not object: 184467"):
            tensor_golden([2**64], "g")
"""


def test_wrong_arguments(suite: Suite) -> None:
    suite.write("test_wrong.py", WRONG)
    output = suite.run("--my-utils-update")
    assert counts(output) == {"passed": 3}, output


def test_arrays_are_tensors(suite: Suite) -> None:
    suite.write("test_it.py", "import numpy\ndef test_it(tensor_golden):\n"
                "    tensor_golden({'a': numpy.arange(6.0).reshape(2, 3)})\n")  # fmt: skip
    suite.run("--my-utils-update")
    (found,) = read_golden(suite.folder / "golden/test_it/test_it.toml").values()
    assert found.digest == tensor_hash(np.arange(6.0)).content
    assert (found.dtype, found.shape) == ("float64", (2, 3))


OWNERS = """
    import pytest, torch
    from my_utils.testing import TensorGolden

    @pytest.fixture(scope="module")
    def size(request):
        TensorGolden(request)(float(request.param))
        return request.param

    @pytest.mark.parametrize("size", [1, 2], indirect=True)
    def test_first(size): ...

    @pytest.mark.parametrize("size", [2, 3], indirect=True)
    def test_second(size): ...

    @pytest.mark.parametrize("path", ["a::b", "a.b"])
    def test_ids(tensor_golden, path):
        tensor_golden(len(path))

    def test_two(request, tensor_golden):
        tensor_golden(1.0, "first")
        TensorGolden(request)(2.0, "second")
"""
SESSION = """
    import pytest
    from my_utils.testing import TensorGolden

    @pytest.fixture(scope="session")
    def weights(request):
        TensorGolden(request)(float({value}))
"""


@pytest.mark.slow
def test_two_owners_never_share_a_file(suite: Suite) -> None:
    suite.write("test_owners.py", OWNERS)
    for value, folder in enumerate(("a", "b")):
        suite.write(f"{folder}/conftest.py", SESSION.format(value=value))
        suite.write(f"{folder}/test_{folder}.py", "def test_it(weights): ...")
    suite.write("c/test_c.py", SESSION.format(value=2) + "    def test_it(weights): ...\n")
    assert counts(suite.run("--my-utils-update")) == {"passed": 10}
    files = sorted(map(str, suite.folder.rglob("golden/**/*.toml")))
    places = [re.sub(r"-[0-9a-f]{8}", "", name[len(str(suite.folder)) + 1 :]) for name in files]
    assert places == [
        "a/golden/weights.toml", "b/golden/weights.toml", "c/golden/test_c/weights.toml",
        "golden/test_owners/size[=1].toml", "golden/test_owners/size[=2].toml",
        "golden/test_owners/size[=3].toml", "golden/test_owners/test_ids[a.b].toml",
        "golden/test_owners/test_ids[a__b].toml", "golden/test_owners/test_two.toml",
    ]  # fmt: skip
    for arguments in ([], ["-k", "test_second"], ["a", "b"]):
        assert "failed" not in counts(suite.run(*arguments))


NUMBERS = """
    import os
    import numpy as np

    factor = float(os.environ.get("FACTOR", 1))

    def test_it(tensor_golden):
        locked = np.arange(3.0)
        locked.flags.writeable = False
        tensor_golden({
            "double": 0.1 * factor, "large": 1e300 * factor, "uint64": 2**63,
            "reversed": np.arange(3.0)[::-1], "big-endian": np.arange(3, dtype=">f4"),
            "read-only": locked,
        })
"""


@pytest.mark.slow
def test_numbers_and_arrays_keep_all_their_bits(suite: Suite) -> None:
    suite.write("test_it.py", NUMBERS)
    output = suite.run("-W", "error", "--my-utils-update")
    assert counts(output) == {"passed": 1}, output
    found = read_golden(suite.folder / "golden/test_it/test_it.toml")
    assert [one.dtype for one in found.values()] == [
        "float64", "float64", "uint64", "float64", "float32", "float64",
    ]  # fmt: skip
    assert found["value['reversed']"].sample.tolist() == [2.0, 1.0, 0.0]
    assert found["value['big-endian']"].sample.tolist() == [0.0, 1.0, 2.0]
    output = suite.run(FACTOR=repr(1 + 2**-52))
    for name in ("double", "large"):
        assert f"value['{name}']: 1 of 1 elements differ" in output


@pytest.mark.slow
def test_each_rank_of_torchrun_has_its_file(suite: Suite) -> None:
    suite.write("test_it.py", "import os\ndef test_it(tensor_golden):\n"
                "    tensor_golden(float(os.environ['RANK']))\n")  # fmt: skip
    for arguments in (["--my-utils-update"], []):
        assert counts(suite.run(*arguments, ranks=2)) == {"passed": 1}
    folder = suite.folder / "golden/test_it"
    assert sorted(path.name for path in folder.iterdir()) == [
        "test_it.rank0of2.toml", "test_it.rank1of2.toml",
    ]  # fmt: skip
    for rank in (0, 1):
        (found,) = read_golden(folder / f"test_it.rank{rank}of2.toml").values()
        assert found.stats["max"] == rank

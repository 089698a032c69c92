"""A folder of CUDA sources, ported: what is replaced, what stays, what is left alone."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from my_utils.musa import _rules
from my_utils.musa._port_file import ported_pieces
from my_utils.musa._port_includes import Tree
from my_utils.musa._port_text import Counts, Rules
from my_utils.musa._port_tree import MARKER
from my_utils.musa._replacer import Replacer
from my_utils.musa.simple_porting import PortingReport, SimplePorting, main

from ..conftest import RunPython
from ..support.variants import gate_runs

pytestmark = pytest.mark.no_torch

SOURCE = """#include <cuda_runtime.h>
#include "util.cuh"
#include <cub/cub.cuh>
// cudaMalloc, my_cudaMalloc
__global__ void f() {}
void g(at::Tensor x) {
  const at::cuda::OptionalCUDAGuard guard(x.device());
  cudaStream_t s = at::cuda::getCurrentCUDAStream();
  cudaMallocs("cudaFree");
  x.is_cuda();
}
"""
PORTED = """#include <musa_runtime.h>
#include "util.muh"
#include <cub/cub.cuh>
// musaMalloc, my_cudaMalloc
__global__ void f() {}
void g(at::Tensor x) {
  const at::musa::OptionalMUSAGuard guard(x.device());
  musaStream_t s = at::musa::getCurrentMUSAStream();
  cudaMallocs("musaFree");
  x.is_privateuseone();
}
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "cuda"
    for name, text in {
        "k.cu": SOURCE,
        "util.cuh": "cudaError_t e;\n",
        "sub/plain.cpp": "int cudart;\n",
        "sub/run.sh": "echo cudaMalloc\n",
        "csrc/npu/deep/n.cu": "cudaFree(0);\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def files(root: Path) -> set[str]:
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}
    return found - {MARKER}


def ported(folder: Path, text: str | bytes, **options: Any) -> bytes:
    """What becomes of a.cu."""
    folder.mkdir()
    data = text if isinstance(text, bytes) else text.encode()
    (folder / "a.cu").write_bytes(data)
    report = SimplePorting(folder, **options).run()
    assert report.errors == []
    return next(report.output.glob("a.*")).read_bytes()


def test_a_folder(tree: Path) -> None:
    report = SimplePorting(f"{tree}/", ["csrc/npu"]).run()
    output = tree.with_name("cuda_musa")
    assert report.output == output
    assert files(output) == {"k.mu", "util.muh", "sub/plain.cpp", "sub/run.sh"}
    assert (output / "k.mu").read_text() == PORTED
    assert (output / "util.muh").read_text() == "musaError_t e;\n"
    assert (output / "sub/run.sh").read_text() == "echo cudaMalloc\n"
    assert (tree / "k.cu").read_text() == SOURCE
    assert [(each.name, each.count, each.file, each.line) for each in report.unmapped] == [
        ("cudaMallocs", 1, "k.cu", 9),
        ("cudart", 1, "sub/plain.cpp", 1),
    ]
    assert "cudaMallocs: 1 x, first k.cu:9" in report.text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    gate_runs(
        ("/*a", "namespace "),
        [
            b"#if x \\\n",
            b'\\"',
            b"namespace ",
            b"include <",
            b"/*a",
            b"'\\\"",
            b"#if CUDA_VERSION\n",
        ],
        bytes.decode,
    ),
)
def test_a_megabyte_of_one_piece_is_ported_in_time(
    tmp_path: Path, run_python: RunPython, piece: bytes
) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "a.cu").write_bytes(b"namespace cuda {\n" + piece * (1_000_000 // len(piece)))
    script = "import sys; from my_utils.musa.simple_porting import SimplePorting as Port\n"
    done = run_python("-c", script + "Port(sys.argv[1]).run(check=True)", str(folder), timeout=60)
    assert done.returncode == 0, done.stderr


def test_version_guards_are_reported_as_changed_in_meaning(tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "a.cu").write_text(
        "#include <cuda_runtime.h>\n"
        "#if defined(__CUDACC__) && \\\n    CUDA_VERSION >= 12080\n"
        "int x = CUDA_VERSION; // not a condition\n"
        "#elif CUDART_VERSION < 11000 // old\n"
        "#endif\n"
        "#ifdef MY_CUDA_VERSION\n#endif\n"
        "#if defined(CUDNN_VERSION) && CUDNN_VERSION > 8 && CUDA_VERSION > 11000\n#endif\n"
        "#ifdef CUDA_VERSION\n#endif\n"
        "#if defined(CUDA_VERSION) || defined CUDART_VERSION\n#endif\n"
    )
    report = SimplePorting(folder).run()
    assert [(one.file, one.line) for one in report.guards] == [
        ("a.cu", 2), ("a.cu", 5), ("a.cu", 9),
    ]  # fmt: skip
    assert report.guards[1].text == "#elif CUDART_VERSION < 11000 // old"
    assert "changed in meaning: 3 conditions on a version" in report.text()
    text = (tmp_path / "src_musa/a.mu").read_text()
    assert "MUSA_COMP_VERSION >= 12080" in text and "#elif MUSART_VERSION < 11000" in text
    assert SimplePorting(folder, drop_default_mapping=True).run(check=True).guards == []


def test_libraries_without_rules_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "a.cu").write_text(
        "#include <nppi.h>\n"
        "void f() { nppiAdd_8u_C1RSfs(); cuptiActivityEnable(0); cudaFree(0); }\n"
    )
    report = SimplePorting(folder).run()
    assert report.families == {"NPP": 2, "CUPTI": 1}
    assert "no rule covers NPP (2 names), CUPTI (1 name)" in report.text()
    mapping = tmp_path / "mapping"
    mapping.mkdir()
    (mapping / "a.json").write_text('{"nppi": "mtppi", "cupti": "mupti"}')
    assert SimplePorting(folder, mapping_dir_path=mapping).run().families == {}


# Of libraries and parts of them that have few rules or none.
LEFT = [
    "cuTexRefSetFlags", "cuImportExternalMemory", "cuUserObjectCreate",
    "cuCoredumpGetAttribute", "cuMulticastCreate", "CUgraphEdgeData",
    "CUflushGPUDirectRDMAWritesOptions", "CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2", "CUBLASWINAPI",
    "CUSOLVERRF_FACTORIZATION_ALG1", "__CUDA_DEPRECATED", "__cudart_builtin__", "NVRTC_ERROR_MINE",
    "nppiAdd_8u_C1RSfs", "cuptiActivityEnable",
]  # fmt: skip
NOT_CUDAS = ["cuBLAS", "cuda", "nccl", "cublas", "cudnn", "cu_seqlens"]


@pytest.mark.parametrize("platform", ["musa", "hip"])
def test_names_without_a_rule_are_reported(tmp_path: Path, platform: str) -> None:
    if platform == "hip":
        pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.cu").write_text("\n".join([*LEFT, *NOT_CUDAS]))
    report = SimplePorting(tmp_path / "src", platform=platform).run()
    found = {each.name: (each.count, each.line) for each in report.unmapped}
    assert found == {name: (1, line) for line, name in enumerate(LEFT, start=1)}
    assert report.families == {"NPP": 1, "CUPTI": 1}


@pytest.mark.parametrize("platform", [pytest.param("musa", marks=pytest.mark.slow), "hip"])
def test_25_000_rules_take_little_time(
    run_python: RunPython, tmp_path: Path, platform: str
) -> None:
    """As many as torch_musa has. Searched for one after the other they take minutes."""
    if platform == "hip":
        pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "rules").mkdir()
    rules = {f"cudaName{number}X": f"mine{number}" for number in range(25_000)}
    (tmp_path / "rules/all.json").write_text(json.dumps(rules))
    (tmp_path / "src").mkdir()
    lines = [f'#include "h{number}.h"\nmy_cudaName{number}Xy();\n' for number in range(25_000)]
    (tmp_path / "src/a.cu").write_text("".join(lines) + "cuda = cubes * cudaName;\n" * 20_000)
    done = run_python(
        "-c",
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (40, 40))\n"
        "from my_utils.musa.simple_porting import main\n"
        "sys.exit(main(['--cuda-dir-path', 'src', '--mapping-dir-path', 'rules',\n"
        f"               '--platform', '{platform}']))",
    )
    assert done.returncode == 0, done.stderr
    output = tmp_path / f"src_{platform}" / ("a.mu" if platform == "musa" else "a.hip")
    assert output.read_text().count("my_mine") == 25_000


def test_a_second_run_changes_nothing(tree: Path) -> None:
    first = SimplePorting(tree).run()
    before = {name: (first.output / name).stat().st_mtime_ns for name in files(first.output)}
    again = SimplePorting(tree).run()
    assert first.changed and not again.would_change
    assert before == {name: (first.output / name).stat().st_mtime_ns for name in before}
    (tree / "util.cuh").write_text("int none;\n")
    (tree / "k.cu").unlink()
    third = SimplePorting(tree).run()
    assert (third.changed, third.removed) == (["util.muh"], ["k.mu"])
    assert not (third.output / "k.mu").exists()


def test_ported_again_the_output_is_the_same(tree: Path) -> None:
    output = SimplePorting(tree).run().output
    again = SimplePorting(output).run()
    assert again.replaced == 0
    for name in files(output):
        assert (again.output / name).read_bytes() == (output / name).read_bytes()


@pytest.mark.parametrize("ignored", [["csrc"], ["csrc/npu/"], [Path("cuda/csrc/npu")], "csrc"])
def test_ignored_folders_go_with_all_below(
    tree: Path, ignored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree.parent)
    report = SimplePorting("cuda", ignored).run()
    assert not any("n.mu" in name for name in files(report.output))
    assert report.notes == []


def test_an_ignored_folder_that_is_not_there_is_said(tree: Path) -> None:
    assert SimplePorting(tree, ["nowhere"]).run().notes == ["nowhere: to be ignored, but not there"]


class TestRules:
    def test_the_users_win_and_match_any_part(self, tmp_path: Path) -> None:
        rules = {"cudaMalloc": "own", "is_cuda()": "true", "Stream": "Flow"}
        text = "cudaMalloc cudaMallocAsync x.is_cuda() cudaStream_t cudaFree"
        assert ported(tmp_path / "a", text, mapping_rule=rules) == (
            b"own ownAsync x.true cudaFlow_t musaFree"
        )

    def test_whole_words(self, tmp_path: Path) -> None:
        rules = {"cudaMalloc": "own", "(x)": "(y)"}
        text = "cudaMalloc cudaMallocs f(x)"
        got = ported(tmp_path / "a", text, mapping_rule=rules, whole_words=True)
        assert got == b"own cudaMallocs f(y)"

    def test_drop_default_mapping(self, tmp_path: Path) -> None:
        got = ported(
            tmp_path / "a", "cudaFree cuda", mapping_rule={"cuda": "m"}, drop_default_mapping=True
        )
        assert got == b"mFree m"

    def test_a_folder_of_rules(self, tmp_path: Path) -> None:
        rules = tmp_path / "rules"
        rules.mkdir()
        (rules / "a.json").write_text('{"one": "1", "two": "2"}')
        (rules / "b.json").write_text('{"two": "zwei"}')
        got = ported(
            tmp_path / "a", "one two three", mapping_dir_path=rules, mapping_rule={"one": "eins"}
        )
        assert got == b"eins zwei three"

    def test_the_documents_order(self, tree: Path, tmp_path: Path) -> None:
        rules = tmp_path / "rules"
        rules.mkdir()
        (rules / "a.json").write_text('{"void": "nothing"}')
        for arguments in (
            ({"int": "long"}, True, rules),
            ({"int": "long"}, True, str(rules)),
        ):
            report = SimplePorting(str(tree), *arguments).run()
            text = (report.output / "k.mu").read_text()
            assert "nothing g" in text and "cudaStream_t" in text
            assert (report.output / "sub/plain.cpp").read_text() == "long cudart;\n"
        plain = SimplePorting(str(tree), {"int": "long"}, drop_default_mapping=True).run()
        assert "cudaStream_t" in (plain.output / "k.mu").read_text()
        plain = SimplePorting(str(tree), None, False, None).run()
        assert (plain.output / "k.mu").read_text() == PORTED


class TestBytes:
    @pytest.fixture(scope="class")
    @staticmethod
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("bytes")

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-8"])
    def test_encodings(self, tmp_path: Path, encoding: str) -> None:
        mark = "\ufeff" if encoding == "utf-16-be" else ""
        text = mark + "// 使用cudaFree分配\r\ncudaFree(p);\n"
        got = ported(tmp_path / "a", text.encode(encoding))
        assert got == text.replace("cudaFree", "musaFree").encode(encoding)

    @pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "gbk", "shift-jis"])
    def test_other_encodings(self, tmp_path: Path, encoding: str) -> None:
        text = {"gbk": "显存", "shift-jis": "日本"}.get(encoding, "Größe") + " cudaFree\r\n"
        got = ported(tmp_path / "a", text.encode(encoding))
        assert got == text.replace("cuda", "musa").encode(encoding)

    @pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
    def test_line_ends(self, tmp_path: Path, end: str) -> None:
        text = end.join(["cudaFree", "", "x"])
        assert ported(tmp_path / "a", text) == end.join(["musaFree", "", "x"]).encode()

    def test_binary_files_stay(self, tmp_path: Path) -> None:
        data = b"cudaFree \0 cudaFree"
        assert ported(tmp_path / "a", data) == data

    def test_a_cut_wide_file_stays(self, tmp_path: Path) -> None:
        data = "cudaFree".encode("utf-16") + b"x"
        assert ported(tmp_path / "a", data) == data

    @given(st.binary(max_size=200))
    @settings(max_examples=200, deadline=None)
    def test_bytes_that_no_rule_matches_stay(self, folder: Path, data: bytes) -> None:
        rules = Rules(Tree(Path("/src"), {}), _rules.RuleSet(), {"not there": ""}, True)
        path = folder / "a.cu"
        path.write_bytes(data)
        assert b"".join(ported_pieces(path, "a.cu", rules, Counts())) == data


class TestFiles:
    def test_modes(self, tree: Path) -> None:
        (tree / "sub/run.sh").chmod(0o755)
        (tree / "k.cu").chmod(0o640)
        (tree / "sub").chmod(0o555)
        output = SimplePorting(tree).run().output
        modes = {name: stat.S_IMODE((output / name).stat().st_mode) for name in ("k.mu", "sub")}
        assert modes == {"k.mu": 0o640, "sub": 0o555}
        assert stat.S_IMODE((output / "sub/run.sh").stat().st_mode) == 0o755
        assert not SimplePorting(tree).run().would_change
        (tree / "sub").chmod(0o755)
        (output / "sub").chmod(0o755)

    def test_links(self, tree: Path) -> None:
        links = {
            "same.cu": "k.cu",
            "sub/up.cuh": "../util.cuh",
            "folder": "sub",
            "gone": "not/there",
            "outside": "/etc/hostname",
            "whole.cuh": str(tree / "util.cuh"),
        }
        for name, target in links.items():
            os.symlink(target, tree / name)
        output = SimplePorting(tree).run().output
        got = {
            path.relative_to(output).as_posix(): os.readlink(path)
            for path in output.rglob("*")
            if path.is_symlink()
        }
        assert got == {
            "same.mu": "k.mu",
            "sub/up.muh": "../util.muh",
            "folder": "sub",
            "gone": "not/there",
            "outside": "/etc/hostname",
            "whole.muh": str(output / "util.muh"),
        }
        assert not SimplePorting(tree).run().would_change

    def test_a_folder_of_somebody_else_is_left_alone(self, tree: Path) -> None:
        output = tree.with_name("cuda_musa")
        output.mkdir()
        (output / "mine.txt").write_text("mine")
        with pytest.raises(FileExistsError, match="was not made by simple_porting"):
            SimplePorting(tree).run()
        assert files(output) == {"mine.txt"}
        (output / "mine.txt").unlink()
        SimplePorting(tree).run()  # an empty one will do
        (output / "mine.txt").write_text("mine")
        (tree / "k.cu").unlink()
        SimplePorting(tree).run()
        assert (output / "mine.txt").read_text() == "mine"
        assert not (output / "k.mu").exists()

    def test_a_marker_cannot_lead_out(self, tree: Path) -> None:
        output = SimplePorting(tree).run().output
        victim = tree.parent / "victim"
        victim.write_text("mine")
        for name in ("../victim", str(victim)):
            (output / MARKER).write_text(json.dumps({"made": [name, "k.mu"]}))
            SimplePorting(tree).run()
            assert victim.read_text() == "mine"

    def test_constructing_touches_nothing(self, tree: Path) -> None:
        output = SimplePorting(tree).run().output
        SimplePorting(tree)
        assert (output / "k.mu").exists()

    def test_two_files_with_one_name(self, tree: Path) -> None:
        (tree / "k.mu").write_text("")
        with pytest.raises(ValueError, match=r"k\.cu and k\.mu would both become k\.mu"):
            SimplePorting(tree).run()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
    def test_a_file_that_cannot_be_read(self, tree: Path) -> None:
        (tree / "k.cu").chmod(0)
        report = SimplePorting(tree).run()
        assert report.errors == [f"{tree}/k.cu: Permission denied"]
        assert (report.output / "util.muh").exists()

    def test_a_pipe_is_left_out(self, tree: Path) -> None:
        os.mkfifo(tree / "pipe")
        report = SimplePorting(tree).run()
        assert report.notes == ["pipe: neither a file nor a folder nor a link"]

    def test_a_file_in_the_way_of_a_folder(self, tree: Path) -> None:
        output = SimplePorting(tree).run().output
        (output / "k.mu").unlink()
        (output / "k.mu").mkdir()
        (output / "k.mu/x").write_text("")
        report = SimplePorting(tree).run()
        assert len(report.errors) == 1 and "k.mu" in report.errors[0]


class TestCommand:
    def run(self, *arguments: str | Path) -> int:
        return main([*map(str, arguments), "--quiet"])

    def test_a_run(self, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
        report = tree.parent / "report.json"
        assert main(["--cuda-dir-path", str(tree), "--report", str(report)]) == 0
        assert (tree.with_name("cuda_musa") / "k.mu").read_text() == PORTED
        assert "5 files, 12 names replaced" in capsys.readouterr().err
        assert json.loads(report.read_text())["unmapped"][0]["name"] == "cudaMallocs"

    def test_dry_run_prints_a_diff_that_applies(
        self, tree: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tree / "ends.cu").write_bytes(b"cudaFree\r\n\r\nlast cudaFree")
        assert self.run("--cuda-dir-path", tree, "--dry-run") == 0
        assert not tree.with_name("cuda_musa").exists()
        diff = capsys.readouterr().out
        assert "--- cuda/k.cu\n+++ cuda_musa/k.mu\n" in diff
        assert "-#include <cuda_runtime.h>\n" in diff and "+#include <musa_runtime.h>\n" in diff
        if shutil.which("patch") is None:
            return
        command = ["patch", "-p1", "--binary", "--no-backup-if-mismatch", "-d", str(tree)]
        subprocess.run(command, input=diff.encode(), capture_output=True, check=True)
        assert (tree / "k.cu").read_text() == PORTED
        assert (tree / "ends.cu").read_bytes() == b"musaFree\r\n\r\nlast musaFree"

    def test_check(self, tree: Path) -> None:
        command = ("--cuda-dir-path", tree, "--check")
        assert self.run(*command) == 1
        assert not tree.with_name("cuda_musa").exists()
        assert self.run("--cuda-dir-path", tree) == 0
        assert self.run(*command) == 0
        (tree / "new.cpp").write_text("int x;\n")
        assert self.run(*command) == 1

    def test_check_of_a_folder_without_cuda(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a/x.cpp").write_text("int x;\n")
        assert self.run("--cuda-dir-path", tmp_path / "a", "--check") == 0

    @pytest.mark.parametrize(
        "words",
        [
            ['{"cuda":"xpu","at::x":"at::y"}'],
            ["{'cuda': 'xpu', 'at::x': 'at::y'}"],
            ["{cuda:xpu,at::x:at::y}"],
            ["cuda:xpu", "at::x:at::y"],
            ["{cuda:", "xpu,", "at::x:", "at::y}"],
            [r"'{\"cuda\":\"xpu\",\"at::x\":\"at::y\"}'"],
            [r"{\"cuda\":\"xpu\",\"at::x\":\"at::y\"}"],
        ],
    )
    def test_what_shells_leave_of_rules(self, tree: Path, words: list[str]) -> None:
        (tree / "k.cu").write_text("cudaX at::x")
        command = ["--cuda-dir-path", str(tree), "--drop-default-mapping", "--mapping-rule", *words]
        assert self.run(*command) == 0
        assert (tree.with_name("cuda_musa") / "k.mu").read_text() == "xpuX at::y"

    @pytest.mark.parametrize(
        "words", [['["csrc/npu","sub"]'], ["[csrc/npu,sub]"], ["csrc/npu", "sub"]]
    )
    def test_what_shells_leave_of_folders(self, tree: Path, words: list[str]) -> None:
        assert self.run("--cuda-dir-path", tree, "--ignore-dir-paths", *words) == 0
        assert files(tree.with_name("cuda_musa")) == {"k.mu", "util.muh"}

    @pytest.mark.parametrize("words", [["cuda"], ["{a:b:c}"], ["{std:::x}"], ['{"a":1}'], ["{:}"]])
    def test_what_cannot_be_read_shows_how_to_quote(
        self, tree: Path, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as exit_:
            self.run("--cuda-dir-path", tree, "--mapping-rule", *words)
        assert exit_.value.code == 2
        said = capsys.readouterr().err
        assert f"""--cuda-dir-path {tree} --mapping-rule '{{"old": "new", """ in said
        assert '--mapping-rule "{\\"old\\": \\"new\\"' in said

    def test_as_the_document_has_it(self, tree: Path, run_python: RunPython) -> None:
        rules = tree.parent / "mapping"
        rules.mkdir()
        done = run_python(
            "-m", "my_utils.musa.simple_porting", "--cuda-dir-path", "cuda/",
            "--ignore-dir-paths", '["csrc/npu"]', "--mapping-rule", '{"cuda":"musa"}',
            "--drop-default-mapping", "--mapping-dir-path", "mapping/", cwd=tree.parent,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "musaMallocs" in (tree.with_name("cuda_musa") / "k.mu").read_text()

    def test_a_bar(self, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
        SimplePorting(tree, progress=True).run()
        assert "simple_porting" in capsys.readouterr().err

    def test_an_output_of_somebody_else(
        self, tree: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tree.with_name("cuda_musa")).mkdir()
        (tree.with_name("cuda_musa") / "x").write_text("")
        assert self.run("--cuda-dir-path", tree) == 1
        assert "nothing was written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"cuda_dir_path": None}, TypeError, "cuda_dir_path"),
        ({"cuda_dir_path": "nowhere"}, ValueError, "cuda_dir_path='nowhere'"),
        ({"ignore_dir_paths": 3}, TypeError, "ignore_dir_paths"),
        ({"ignore_dir_paths": [3]}, TypeError, "ignore_dir_paths"),
        ({"mapping_rule": "cuda"}, TypeError, "mapping_rule"),
        ({"mapping_rule": {"a": 1}}, TypeError, "mapping_rule"),
        ({"mapping_rule": {"": "x"}}, ValueError, "mapping_rule"),
        ({"drop_default_mapping": 1}, TypeError, "drop_default_mapping"),
        ({"mapping_dir_path": "nowhere"}, ValueError, "mapping_dir_path='nowhere'"),
        ({"platform": "cpu"}, ValueError, "platform must be one of 'musa', 'hip', not 'cpu'"),
        ({"jobs": 0}, ValueError, "jobs"),
        ({"whole_words": 1}, TypeError, "whole_words"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        SimplePorting(**{"cuda_dir_path": tmp_path, **arguments})


def any_json() -> st.SearchStrategy[bytes]:
    words = "names musa pairs headers prefixes watch without a"
    keys = st.sampled_from([*words.split(), ""])
    plain = st.none() | st.booleans() | st.integers() | st.text(max_size=5)

    def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4)

    return st.recursive(plain, nested, max_leaves=12).map(lambda value: json.dumps(value).encode())


class TestRuleFiles:
    def test_all_libraries_are_there(self) -> None:
        names = {path.stem for path in _rules.RULES_DIR.glob("*.json")}
        assert names == {
            "runtime", "driver", "blas", "dnn", "fft", "rand", "sparse", "solver", "nccl",
            "thrust_cub", "torch",
        }  # fmt: skip
        for path in _rules.RULES_DIR.glob("*.json"):
            section = json.loads(path.read_text())["musa"]
            assert all(url.startswith("https://") for url in section["documented"]), path
            assert section["documented"]

    @pytest.mark.parametrize("platform", list(_rules.PLATFORMS))
    def test_what_a_rule_puts_in_no_rule_matches(self, platform: str) -> None:
        rules = _rules.load(platform).pairs
        tier = [(old.encode(), new.encode()) for old, new in rules.items()]
        replacer = Replacer([(tier, True)])
        for old, new in rules.items():
            assert replacer.replace(new.encode())[0] is None, (old, new)
            if old != new:
                assert replacer.replace(old.encode())[0] == new.encode()

    def test_no_name_stands_twice(self) -> None:
        for path in _rules.RULES_DIR.glob("*.json"):
            for prefix, lines in json.loads(path.read_text())["names"].items():
                names = " ".join(lines).split()
                twice = {name for name in names if names.count(name) > 1}
                assert not twice, (path.name, prefix, twice)

    @given(st.binary(max_size=120) | any_json())
    @settings(max_examples=100, deadline=None)
    def test_any_file_is_rules_or_an_error_with_its_name(self, data: bytes) -> None:
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            path = Path(folder, "r.json")
            path.write_bytes(data)
            for is_users in (False, True):
                try:
                    pairs = (
                        _rules.read_mapping_dir(folder)
                        if is_users
                        else _rules.read_rule_file(path, "musa").pairs
                    )
                except ValueError as error:
                    assert str(path) in str(error)
                else:
                    assert "" not in pairs


def test_the_report_is_plain() -> None:
    report = PortingReport(Path("x"), errors=["a: broken"], notes=["b"])
    assert report.text() == (
        "0 files, 0 names replaced, 0 files changed -> x\nleft out: b\nerror: a: broken"
    )

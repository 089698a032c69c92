"""Names that mean PyTorch's CUDA only where they stand."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from my_utils.musa import _port_file
from my_utils.musa._port_context import Context
from my_utils.musa._port_file import ported_pieces
from my_utils.musa._port_includes import Tree
from my_utils.musa._port_text import Counts, Rules
from my_utils.musa._rules import load
from my_utils.musa.simple_porting import SimplePorting

from ..conftest import RunPython

pytestmark = pytest.mark.no_torch


def ported(folder: Path, text: str, rules: dict[str, str] | None = None) -> tuple[str, set[str]]:
    """What becomes of a.cu, and the names that are reported."""
    root = folder / "src"
    root.mkdir()
    (root / "a.cu").write_text(text)
    report = SimplePorting(root, mapping_rule=rules, progress=False).run()
    return (report.output / "a.mu").read_text(), {each.name for each in report.unmapped}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TORCH_LIBRARY_IMPL(x, CUDA, lib) {}", "TORCH_LIBRARY_IMPL(x, PrivateUse1, lib) {}"),
        ("TORCH_LIBRARY_IMPL(\n    x,\n    CUDA,\n    m)", None),
        ("STABLE_TORCH_LIBRARY_IMPL(x, CUDA, m)", None),
        ("_TORCH_LIBRARY_IMPL(x, CUDA, m, C10_UID)", None),
        ("TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {}", None),
        ("STABLE_TORCH_LIBRARY_IMPL_EXPAND(NAME, CUDA, ops) {}", None),
        ("TORCH_LIBRARY_IMPL_EXPAND(CONCAT(NAME, _utils), CUDA, ops) {}", None),
        ("TORCH_LIBRARY_IMPL(CONCAT(A(b), C( d )), CUDA, m)", None),
        ("MAKE_TORCH_LIBRARY_IMPL(x, CUDA);", "MAKE_TORCH_LIBRARY_IMPL(x, PrivateUse1);"),
        ("C10_REGISTER_GUARD_IMPL(CUDA, Guard);", None),
        ("TORCH_LIBRARY_IMPL(x, Autocast, m)", "TORCH_LIBRARY_IMPL(x, AutocastPrivateUse1, m)"),
        ("TORCH_LIBRARY_IMPL(x, AutocastCPU, m)", "TORCH_LIBRARY_IMPL(x, AutocastCPU, m)"),
        ("c10::DispatchKey::Autocast)", "c10::DispatchKey::AutocastPrivateUse1)"),
        ("c10::DispatchKey::AutocastCPU)", "c10::DispatchKey::AutocastCPU)"),
        ("c10::BackendComponent::CUDABit", "c10::BackendComponent::PrivateUse1Bit"),
        ("#define TORCH_LIBRARY_IMPL_EXPAND(N, KEY, M) TORCH_LIBRARY_IMPL(N, KEY, M)",
         "#define TORCH_LIBRARY_IMPL_EXPAND(N, KEY, M) TORCH_LIBRARY_IMPL(N, KEY, M)"),
        ("MY_IMPL(x, CUDA, lib);", "MY_IMPL(x, CUDA, lib);"),
        (
            "TORCH_LIBRARY_IMPL(x, AutogradCUDA, m)",
            "TORCH_LIBRARY_IMPL(x, AutogradPrivateUse1, m)",
        ),
        ("c10::DispatchKey::AutocastCUDA", "c10::DispatchKey::AutocastPrivateUse1"),
        ("enum { CPU, CUDA, m };", "enum { CPU, CUDA, m };"),
        ("log(x, CUDA, lib);", "log(x, CUDA, lib);"),
        ("namespace at { namespace cuda {}}", "namespace at { namespace musa {}}"),
        ("namespace c10 {\nnamespace cuda {}}", "namespace c10 {\nnamespace musa {}}"),
        ("namespace at::cuda {}", "namespace at::musa {}"),
        ("using namespace at::cuda;", "using namespace at::musa;"),
        ("namespace mine { namespace cuda {}}", "namespace mine { namespace cuda {}}"),
        ("namespace mine::cuda {}", "namespace mine::cuda {}"),
        ("namespace cuda {}", "namespace cuda {}"),
        ("namespace mine { namespace at { namespace cuda {}}}", None),
        ("using namespace cuda; mine::cuda::f();", "using namespace cuda; mine::cuda::f();"),
        ("namespace at { auto s = cuda::getCurrentCUDAStream(); }",
         "namespace at { auto s = musa::getCurrentMUSAStream(); }"),
        # Braces in numbers with digit separators, and in raw strings, are none.
        ("int a = 1'000; namespace at { int b = 2'000; namespace cuda {}}",
         "int a = 1'000; namespace at { int b = 2'000; namespace musa {}}"),
        ('auto s = R"x({ "\n{)" )x"; namespace at { namespace cuda {}}',
         'auto s = R"x({ "\n{)" )x"; namespace at { namespace musa {}}'),
        ("namespace at { auto c = u8'{'; namespace cuda {}}",
         "namespace at { auto c = u8'{'; namespace musa {}}"),
        ("REGISTER_CUDA_DISPATCH(add_stub, &add)", "REGISTER_MUSA_DISPATCH(add_stub, &add)"),
        ("nv_half x; nv_half2 y; __nv_half z;", "mt_half x; mt_half2 y; __mt_half z;"),
    ],
)  # fmt: skip
def test_a_name_where_it_stands(tmp_path: Path, old: str, new: str | None) -> None:
    if new is None:
        new = old.replace("CUDA,", "PrivateUse1,")
    assert ported(tmp_path, old + "\n")[0] == new + "\n"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("#ifdef __NVCC__\n#endif\n", {"__NVCC__"}),
        ("cuda::std::min(a, b);\n::cuda::barrier<x> y;\n", {"cuda::std", "cuda::barrier"}),
        ("REGISTER_CUDA_THING(x)\n", {"REGISTER_CUDA_THING"}),
        ("namespace mine { namespace cuda {} }\ncuda::f(); cuda::atomic<int> x;\n",
         {"cuda::atomic"}),
        ("mine::cuda::f();\n", set()),
    ],
)  # fmt: skip
def test_what_cannot_be_decided_is_reported(tmp_path: Path, text: str, reported: set[str]) -> None:
    assert ported(tmp_path, text) == (text, reported)


def test_the_users_rules_win(tmp_path: Path) -> None:
    rules = {"TORCH_LIBRARY_IMPL(x, CUDA, m)": "MINE(x)"}
    assert ported(tmp_path, "TORCH_LIBRARY_IMPL(x, CUDA, m) {}\n", rules)[0] == "MINE(x) {}\n"


SHIM = """
namespace at { namespace {0} { struct Stream {}; Stream getCurrent{1}Stream() { return {}; } }}
typedef int {0}Error_t;
static int {0}Free(void *) { return 0; }
"""
PROGRAM = """
#include "shim.h"
namespace mylib {
namespace cuda { inline int f() { return 1; } }
#ifdef NEVER
int g() {
#else
int g(int) {
#endif
  return cuda::f();
}
}  // namespace mylib
namespace at {
namespace cuda { inline int mine() { return 2; } }
inline Stream_of cuda_stream() { return cuda::getCurrentCUDAStream(); }
}
int h() { cudaError_t e = cudaFree(nullptr); return mylib::cuda::f() + at::cuda::mine() + e; }
"""


def test_a_program_compiles_afterwards(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    text = PROGRAM.replace("Stream_of", "auto")
    for device, folder, name in (("cuda", "src", "a.cu"), ("musa", "src_musa", "a.mu")):
        if device == "cuda":
            (tmp_path / folder).mkdir()
            (tmp_path / folder / name).write_text(text)
        else:
            SimplePorting(tmp_path / "src", progress=False).run()
        shim = SHIM.replace("{0}", device).replace("{1}", device.upper())
        include = tmp_path / f"{device} include"
        include.mkdir()
        (include / "shim.h").write_text(shim)
        subprocess.run(
            [compiler, "-std=c++17", "-fsyntax-only", "-x", "c++", f"-I{include}",
             tmp_path / folder / name],
            check=True,
        )  # fmt: skip


CPU_LIMIT_S = 15  # a second is enough; with a copy or a count for each line it takes minutes
IN_LITTLE_TIME = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_LIMIT_S}, {CPU_LIMIT_S}))
from my_utils.musa.simple_porting import SimplePorting
report = SimplePorting("src", progress=False).run()
print(report.replaced, sum(each.count for each in report.unmapped))
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("namespace cuda {}\n" + "{\n" * 100_000 + "#if X\n{\n#else\n{\n#endif\n" * 100_000, "0 0"),
        ("x = cuda::std::min(a);\n" * 100_000, "0 100000"),
    ],
    ids=["conditions in deep braces", "names of libcu++"],
)
def test_a_long_file_takes_little_time(
    run_python: RunPython, tmp_path: Path, text: str, found: str
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.cu").write_text(text)
    done = run_python("-c", IN_LITTLE_TIME)
    assert (done.returncode, done.stdout.strip()) == (0, found), done.stderr


# --- generated namespaces ---


@st.composite
def blocks(draw: st.DrawFn, depth: int = 0, around: tuple[str, ...] = ()) -> tuple[str, str]:
    """A text of nested blocks, and what becomes of it."""
    old, new = "", ""
    for _ in range(draw(st.integers(0, 3 if depth < 4 else 0))):
        name = draw(st.sampled_from(["at", "c10", "torch", "mine", "cuda", "", "if"]))
        is_torchs = name == "cuda" and len(around) == 1 and around[0] in ("at", "c10", "torch")
        inner = (*around, name) if name not in ("", "if") else around
        in_old, in_new = draw(blocks(depth=depth + 1, around=inner))
        filler = draw(st.sampled_from(["\n", ' /* } */ "{" ', " // namespace cuda {\n", "'{'\n"]))
        if name == "":
            head, new_head = "class X ", "class X "
        elif name == "if":
            body = f"{{ {filler}{in_old} }}", f"{{ {filler}{in_new} }}"
            old += f"\n#if 1\nvoid f(int) {body[0]}\n#else\nvoid f() {{\n#endif\n"
            new += f"\n#if 1\nvoid f(int) {body[1]}\n#else\nvoid f() {{\n#endif\n"
            old, new = old + "\n}\n", new + "\n}\n"
            old, new = old.replace("#else\nvoid f() {\n#endif\n\n}", "#else\n#endif\n"), new
            new = new.replace("#else\nvoid f() {\n#endif\n\n}", "#else\n#endif\n")
            continue
        else:
            head = f"namespace {name} "
            new_head = "namespace musa " if is_torchs else head
        old += f"{head}{{{filler}{in_old}}}\n"
        new += f"{new_head}{{{filler}{in_new}}}\n"
    return old, new


@given(blocks())
@settings(max_examples=150, deadline=None)
def test_generated_namespaces(texts: tuple[str, str]) -> None:
    old, wanted = texts
    assert Context().ported(old.encode())[0].decode() == wanted


# --- the same in pieces ---

LINES = st.sampled_from(
    [
        '#include "sum.cuh"\n', "#include <cuda_fp16.h>\n", "#include <mma.h>\n", "}\n", "\n",
        "namespace at { namespace cuda {\n", "namespace cuda {\n", "TORCH_LIBRARY_IMPL(x,\n",
        "  CUDA, m) {\n", "cudaFree(x); cudaFrees(x);\n", "x = cuda::std::min(a, b);\n", "#if X\n",
        "#else\n", "#endif\n", "// größe cudaMalloc\r\n", "at::cuda::getCurrentCUDAStream();\n",
    ]
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    size = _port_file.PIECE
    yield tmp_path_factory.mktemp("pieces")
    _port_file.PIECE = size


@given(st.lists(LINES, min_size=1, max_size=40).map("".join), st.sampled_from(["utf-8", "utf-16"]))
@settings(max_examples=80, deadline=None)
def test_a_file_in_pieces_is_as_a_whole(folder: Path, text: str, encoding: str) -> None:
    rules = Rules(Tree(Path("/src"), {"sum.cuh": "sum.muh"}), load("musa"), {}, False)
    (folder / "a.cu").write_bytes(text.encode(encoding))
    found = []
    for size in (1 << 20, 128):
        _port_file.PIECE = size
        counts = Counts()
        new = b"".join(ported_pieces(folder / "a.cu", "a.cu", rules, counts))
        found.append((new.decode(encoding), counts.replaced, counts.unmapped))
    assert found[0] == found[1]


BARE_WORDS = re.compile(r"#define\s+(\w+)\(([^)]*)\)((?:[^\n]*\\\n)*[^\n]*)")


def macros_with_bare_keys() -> dict[str, list[str]]:
    """Of torch's headers, the macros that put a parameter behind `DispatchKey::` or
    `DeviceType::`, or pass it to one that does, or that make a text of a key."""
    torch = pytest.importorskip("torch")
    headers = Path(torch.__file__).parent / "include"
    bodies = {}
    for path in [headers / "torch", headers / "c10"]:
        for header in path.rglob("*.h"):
            for name, words, body in BARE_WORDS.findall(header.read_text(errors="replace")):
                bodies[name] = (words.replace(" ", "").split(","), body)
    return {
        name: words
        for name, (words, body) in bodies.items()
        if any(
            re.search(rf"(DispatchKey|DeviceType)::{word}\b(?! *##)", body)
            for word in words
            if word
        )
        or ("Kind::IMPL" in body and "STRINGIZE" in body)
    }


def test_each_macro_of_torch_that_takes_a_bare_key(tmp_path: Path) -> None:
    found = macros_with_bare_keys()
    assert {"_TORCH_LIBRARY_IMPL", "_STABLE_TORCH_LIBRARY_IMPL", "MAKE_TORCH_LIBRARY_IMPL"} <= set(
        found
    )
    del found["DO_CASE"]  # of one file: of a part of a key, and undefined behind its use
    keys = {"k", "DevType"}
    for number, (name, words) in enumerate(found.items()):
        assert len(keys & set(words)) == 1, (name, words)
        text = f"{name}({', '.join('CUDA' if one in keys else one for one in words)})\n"
        (tmp_path / str(number)).mkdir()
        assert ported(tmp_path / str(number), text)[0] == text.replace("CUDA", "PrivateUse1")

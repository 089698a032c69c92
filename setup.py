"""Builds `my_utils._core` from csrc/; everything else stands in pyproject.toml."""

from __future__ import annotations

import os
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
FLAGS = runpy.run_path(str(ROOT / "csrc" / "flags.py"))
EMBED = runpy.run_path(str(ROOT / "csrc" / "embed.py"))


def prerequisites(depfile: Path) -> list[Path]:
    """The files that an object was made from, out of the make rule that the compiler wrote."""
    rule = depfile.read_text(encoding="utf-8").replace("\\\n", " ")
    return [Path(name) for name in rule.split(":", 1)[1].split()]


def is_current(product: Path, record: Path, command: str, inputs: list[Path]) -> bool:
    """True when `product` was made by the same command and is newer than all its inputs."""
    if not product.exists() or not record.exists():
        return False
    if record.read_text(encoding="utf-8") != command:
        return False
    made = product.stat().st_mtime_ns
    return all(path.exists() and path.stat().st_mtime_ns <= made for path in inputs)


class BuildCore(build_ext):
    """Compiles file by file: flags of their own, some at a time, and only what has changed."""

    def build_extension(self, ext: Extension) -> None:
        optional, left_out = FLAGS["optional_headers"]()
        for line in left_out:
            print(f"my_utils: {line}")
        folders = [f"-I{ROOT / folder}" for folder in FLAGS["INCLUDE_FOLDERS"]]
        common = FLAGS["common_flags"]() + optional + folders
        kernels = Path(self.build_temp) / "kernel_sources.c"
        EMBED["write"](kernels)
        sources = [*ext.sources, str(kernels)]
        jobs = max(1, min(len(sources), self.parallel or os.cpu_count() or 1, 8))
        with ThreadPoolExecutor(jobs) as pool:
            objects = list(pool.map(lambda source: self.compile_one(source, common), sources))
        self.link(ext, objects)

    def compile_one(self, source: str, common: list[str]) -> str:
        [name] = self.compiler.object_filenames([source], output_dir=self.build_temp)
        product = Path(name)
        depfile = product.with_suffix(".d")
        record = product.with_suffix(".command")
        flags = common + FLAGS["own_flags"](source)
        command = " ".join([*self.compiler.compiler_so, *self.compiler.include_dirs, *flags])
        inputs = prerequisites(depfile) if depfile.exists() else [Path(source)]
        if not (depfile.exists() and is_current(product, record, command, inputs)):
            product.parent.mkdir(parents=True, exist_ok=True)
            record.unlink(missing_ok=True)
            self.compiler.compile(
                [source],
                output_dir=self.build_temp,
                extra_postargs=[*flags, "-MMD", "-MF", str(depfile)],
            )
            record.write_text(command, encoding="utf-8")
        return str(product)

    def link(self, ext: Extension, objects: list[str]) -> None:
        product = Path(self.get_ext_fullpath(ext.name))
        record = Path(self.build_temp) / f"{product.name}.command"
        command = " ".join([*self.compiler.linker_so, *objects])
        if is_current(product, record, command, [Path(name) for name in objects]):
            return
        product.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            objects,
            str(product),
            libraries=FLAGS["LIBRARIES"],
            build_temp=self.build_temp,
        )
        record.write_text(command, encoding="utf-8")


os.chdir(ROOT)
setup(
    ext_modules=[Extension("my_utils._core", FLAGS["sources"]("csrc/engine", "csrc/binding"))],
    cmdclass={"build_ext": BuildCore},
)

"""A MUSA toolkit that is none: mcc notes how it was called, and has the host compile plain C++."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MCC = """#!{python}
import json, os, subprocess, sys
given = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(given) + "\\n")
output = given[given.index("-o") + 1]
if "-dlink" in given:
    sys.exit(subprocess.call(["gcc", "-x", "c", "-c", "/dev/null", "-o", output]))
known = [each for each in given if not each.startswith("--offload-arch")]
known = ["c++" if each == "musa" else each for each in known]
if "-x" not in known:
    known = ["-x", "c++", *known]
if "-c" not in known:
    known = ["-c", *known]
sys.exit(subprocess.call(["g++", *known]))
"""
RUNTIME_H = """#pragma once
extern "C" int musaFake(void);
typedef int musaError_t;
"""
FIND_MUSA = """
set(MUSA_FOUND TRUE)
function(musa_add_library name)
  add_library(${name} ${ARGN})
  foreach(source ${ARGN})
    if(source MATCHES "\\\\.mu$")
      set_source_files_properties(${source} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
                                  "-xc++;${MUSA_MCC_FLAGS}")
    endif()
  endforeach()
endfunction()
"""


class Toolkit:
    """A folder for MUSA_HOME."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = home / "calls"
        for folder in ("bin", "include/torch_musa/csrc/aten/musa", "lib", "cmake"):
            (home / folder).mkdir(parents=True)
        mcc = home / "bin/mcc"
        mcc.write_text(MCC.format(python=sys.executable, log=str(self.log)))
        mcc.chmod(0o755)
        (home / "include/musa_runtime.h").write_text(RUNTIME_H)
        (home / "include/torch_musa/csrc/aten/musa/MUSAContext.h").write_text("#pragma once\n")
        (home / "cmake/FindMUSA.cmake").write_text(FIND_MUSA)
        source = home / "lib/runtime.c"
        source.write_text("int musaFake(void) { return 42; }\n")
        library = home / "lib/libmusart.so"
        name = f"-Wl,-soname,{library.name}"
        subprocess.run(["gcc", "-shared", "-fPIC", name, source, "-o", library], check=True)

    def calls(self) -> list[list[str]]:
        """The arguments of each call of mcc so far."""
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]

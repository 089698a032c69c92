# The commands of the project. Two do all the set-up by themselves:
#   make demo    trains a small model on real text and leaves a trace for Perfetto
#   make test    the tests: the engine's in C, then pytest
# Others: test-slow, thorough, bench, lint, format, site (the documentation, into build/site), images
# (its pictures), fuzz, fuzz-long, leaks, ctest, ctest-asan, ctest-tsan, ctest-masked (needs QEMU),
# ctest-aarch64, wheels (into dist), compilers, matrix, hash-strength, mutants, size, clean. `make
# thorough` tests for about six hours, in parts; started again on the same commit, it goes on with
# what has not passed.
#
# Variables: PYTHON (the interpreter, python3), VENV (the environment, .venv), TORCH_INDEX (a package
# index for torch, such as the one with wheels for the CPU only), PYTEST (more arguments for pytest),
# FAMILY (hash-strength runs only families with this in their name), COMPILERS (compilers takes only
# these, and matrix only these rows), WHEELS (wheels makes only those of these, as 3.11 or aarch64),
# JOBS (processes that compile or test side by side, one a processor).

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
PYTEST ?=
FUZZ_SECONDS ?= 60
JOBS ?= $(shell nproc)
WHEELS ?=

BIN := $(VENV)/bin
RUN := $(BIN)/python
TORCH := $(shell sed -n 's/^torch==.*/&/p' constraints.txt)
# Of 26,000 files few are ever imported; these compile themselves then.
PIP_INSTALL := $(RUN) -m pip install --quiet --no-compile --retries 5 -c constraints.txt
# some LIST,NAME: the list, which must not be empty: a pattern that finds nothing checks nothing.
some = $(or $(strip $(1)),$(error no $(2) found))

C_SOURCES := $(call some,$(shell find csrc -name "*.[ch]" -o -name "*.cu" -o -name "*.py"),C sources)
# What runs without .venv takes its interpreter where there is one: it knows the optional headers.
ANY_PYTHON = $(if $(wildcard $(RUN)),$(RUN),$(PYTHON))
C_FORMATTED := $(call some,$(shell find csrc tests -name "*.[ch]" -o -name "*.cu"),C files to format)
CTEST = $(MAKE) --no-print-directory -j$(JOBS) -f csrc/engine/tests/Makefile PYTHON=$(ANY_PYTHON)
FUZZ = $(MAKE) --no-print-directory -j$(JOBS) -f csrc/engine/fuzz/Makefile PYTHON=$(ANY_PYTHON)

# Of the thousands of processes that import the same files none but the first compiles them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-slow thorough bench bench-smoke lint lint-types lint-others format site images \
        fuzz fuzz-long leaks ctest ctest-asan ctest-tsan ctest-masked ctest-aarch64 compilers matrix \
        wheels hash-strength mutants size build clean
.DELETE_ON_ERROR:

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

# --- set-up: each stamp stands for what is installed, and falls with what it was made from ---

# The pip that comes with Python 3.11 takes four times as long to choose versions.
$(VENV)/stamp-venv: .ci/make-venv
	@.ci/make-venv $(VENV) $(PYTHON)
	@$(PIP_INSTALL) --upgrade pip
	@touch $@

$(VENV)/stamp-torch: $(VENV)/stamp-venv constraints.txt
	@echo "installing $(TORCH)"
	@$(PIP_INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	@touch $@

$(VENV)/stamp-package: $(VENV)/stamp-torch pyproject.toml setup.py
	@echo "installing my_utils"
	@$(PIP_INSTALL) 'setuptools>=77' 'nvidia-nvtx>=13'
	@$(PIP_INSTALL) --no-build-isolation -e '.[torch,profiling,tensordict]'
	@touch $@

$(VENV)/stamp-build: $(VENV)/stamp-package $(C_SOURCES)
	@$(RUN) setup.py -q build_ext --inplace
	@touch $@

$(VENV)/stamp-tests: $(VENV)/stamp-package tests/requirements.txt tests/requirements-torch.txt
	@echo "installing what the tests need"
	@$(PIP_INSTALL) -r tests/requirements.txt -r tests/requirements-torch.txt
	@touch $@

$(VENV)/stamp-lint: $(VENV)/stamp-tests .ci/requirements.txt
	@echo "installing what checks the code"
	@$(PIP_INSTALL) -r .ci/requirements.txt
	@touch $@

$(VENV)/stamp-site: $(VENV)/stamp-tests docs/site/requirements.txt
	@echo "installing what makes the site"
	@$(PIP_INSTALL) -r docs/site/requirements.txt
	@touch $@

$(VENV)/stamp-bench: $(VENV)/stamp-tests benchmarks/requirements.txt
	@echo "installing the peers of the benchmarks"
	@$(PIP_INSTALL) -r benchmarks/requirements.txt
	@touch $@

build: $(VENV)/stamp-build

# --- the commands ---

demo: build
	@$(RUN) -m my_utils demo

# Side by side, for many tests wait for processes of theirs; the tests of a file stay together.
test: build $(VENV)/stamp-tests
	@$(CTEST) FLAVOUR=plain run
	@$(RUN) -m pytest --ignore=tests/leaks @tests/side-by-side.txt -m 'not thorough and not slow' $(PYTEST)

# The others, most of which start processes that train; the gate runs both.
test-slow: build $(VENV)/stamp-tests $(VENV)/stamp-site
	@$(RUN) -m pytest --ignore=tests/leaks @tests/side-by-side.txt -m 'slow and not thorough' $(PYTEST)

# Each case by itself, for none waits and most measure their own process.
leaks: build $(VENV)/stamp-tests
	@$(RUN) -m pytest tests/leaks --numprocesses=$(JOBS) --dist=load $(PYTEST)

thorough: build $(VENV)/stamp-tests $(VENV)/stamp-site $(VENV)/stamp-lint
	@VENV=$(VENV) JOBS=$(JOBS) .ci/thorough

bench: build $(VENV)/stamp-bench
	@$(RUN) -m benchmarks

bench-smoke: build $(VENV)/stamp-bench
	@$(RUN) -m benchmarks --smoke

ctest:
	@$(CTEST) FLAVOUR=plain run

ctest-asan:
	@$(CTEST) FLAVOUR=asan run

ctest-tsan:
	@$(CTEST) FLAVOUR=tsan run

ctest-masked:
	@$(CTEST) FLAVOUR=plain masked

# As root it installs the cross compiler and QEMU.
ctest-aarch64:
	@.ci/aarch64 $(ANY_PYTHON)

# The oldest compilers that users have and the newest of this Debian; as root, those of newer Debians.
compilers: $(VENV)/stamp-package
	@.ci/compilers $(RUN) $(COMPILERS)

# Those of newer Debians, their interpreters, and other torches; as root, and with ten GB of disk.
matrix: $(VENV)/stamp-package
	@PYTHON=$(RUN) .ci/matrix $(COMPILERS)

# With zig's compiler. Interpreters that are not here come from Debian (mmdebstrap, qemu-user).
wheels:
	@$(PYTHON) .ci/wheels $(WHEELS)

# The families of inputs of docs/correctness/tensor-hash.md; about ten minutes on one core.
hash-strength:
	@$(CTEST) FLAVOUR=plain build/ctest/plain/libmu.a
	@$(CC) -std=c11 -D_GNU_SOURCE -O3 -Icsrc/engine tools/hash_strength.c build/ctest/plain/libmu.a \
	    -lpthread -ldl -lm -o build/hash_strength
	@nice build/hash_strength "$(FAMILY)"

fuzz:
	@$(FUZZ) SECONDS_EACH=$(FUZZ_SECONDS) run

fuzz-long:
	@$(FUZZ) SECONDS_EACH=3600 run

# The types are checked by one process meanwhile.
lint: build $(VENV)/stamp-lint
	@$(MAKE) --no-print-directory -j2 --keep-going --output-sync=target lint-types lint-others

lint-types:
	$(RUN) -m mypy

lint-others:
	$(RUN) -m ruff check .
	$(BIN)/lint-imports --no-cache
	$(RUN) -m ruff format --check .
	@$(BIN)/clang-format --dry-run -Werror $(C_FORMATTED)
	.ci/tidy $(RUN)

format: $(VENV)/stamp-lint
	$(RUN) -m ruff check --fix-only .
	$(RUN) -m ruff format .
	$(BIN)/clang-format -i $(C_FORMATTED)

# A warning, such as a link to a page or a heading that is not there, ends it.
site: build $(VENV)/stamp-site
	@$(RUN) -m sphinx --quiet --fail-on-warning -c docs/site -d build/site-doctrees docs build/site
	@echo "the site: build/site/index.html"

# The pictures of docs/images, of runs made here. They need chromium and viztracer.
images: build $(VENV)/stamp-tests
	@$(RUN) -m tools.images

# Whether the tests notice changed lines; an hour.
mutants: build $(VENV)/stamp-tests
	@$(RUN) -m tools.mutants

# Lines by package, the longest files, and how finely the Python is cut.
size:
	@$(ANY_PYTHON) -m tools.size

clean:
	rm -rf build my_utils/*.so my_utils.egg-info

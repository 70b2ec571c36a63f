# Everything runs in .venv inside this folder, made once by whichever target needs it first.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
PEERS := .venv/peers

# What an editable install has to be made again for: settings, kernels, and packages that appear.
SOURCES := pyproject.toml constraints.txt CMakeLists.txt threefold/_version.py \
  $(wildcard threefold/kernels/native/*) $(shell find threefold -name __init__.py)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench sanitize torture clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 18

setup: $(INSTALLED) ## make .venv, build the kernels, install threefold into it

demo: setup ## race five sequence models on real text and write one page that shows the answer
	$(BIN)/threefold demo

test: setup ## run all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)

check: setup ## ruff, ruff format, mypy, and the architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

bench: $(PEERS) ## measure against plain torch and peers, side by side in one run
	$(BIN)/python -m benchmarks $(ARGS)

# libasan has to come before everything else, and libstdc++ with it, or exceptions find no handler.
sanitize: setup ## run the kernel tests with the address and undefined-behaviour sanitizers
	$(BIN)/cmake -S . -B build/sanitize -DTHREEFOLD_SANITIZE=ON
	$(BIN)/cmake --build build/sanitize --parallel 2
	CXX=$${CXX:-c++}; \
	LD_PRELOAD="$$($$CXX -print-file-name=libasan.so) $$($$CXX -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 THREEFOLD_KERNELS_FOLDER=build/sanitize \
	$(BIN)/python -m pytest -n 2 tests/kernels --deselect tests/kernels/test_build.py $(ARGS)

torture: setup ## kill a training run fifty times, and compare it with one that nobody disturbed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.training.torture $(ARGS)

clean: ## remove .venv and everything that was built
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "threefold needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv

$(INSTALLED): $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@$(BIN)/python -c 'from threefold.kernels import library; choice = library.current(); \
	  print("kernels:", choice.native.variant if choice.native else choice.reason)'
	touch $@

$(PEERS): $(INSTALLED)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt "threefold[bench]"
	touch $@

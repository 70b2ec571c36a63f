# Everything runs in .venv inside this folder, created by the first target that needs it.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
DEVELOPER := .venv/developer
PEERS := .venv/peers
TEST_PEERS := .venv/test-peers

# What an editable install has to be made again for: settings, kernels, and packages that appear.
SOURCES := pyproject.toml constraints.txt CMakeLists.txt threefold/_version.py \
  $(wildcard threefold/kernels/native/*) $(shell find threefold -name __init__.py)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-peers check docs bench sanitize torture torture-requests torture-batches clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 18

setup: $(INSTALLED) ## create .venv, build the kernels, install threefold into it

demo: setup ## race five sequence models on real text and write one page that shows the answer
	$(BIN)/threefold demo

test: $(DEVELOPER) ## run the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)

test-peers: $(TEST_PEERS) ## compare mixers and classical models with other libraries, and print by how much they differ
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs tests/peers $(ARGS)

check: $(DEVELOPER) ## ruff, ruff format, mypy, and the architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

docs: $(DEVELOPER) ## write the pages of docs/ that are made from the code
	$(BIN)/python -m tests.surfaces.documents

bench: $(PEERS) ## measure against plain torch and peers, side by side in one run
	$(BIN)/python -m benchmarks $(ARGS)

# libasan has to come before everything else, and libstdc++ with it, or exceptions find no handler.
sanitize: $(DEVELOPER) ## run the kernel tests with the address and undefined-behaviour sanitizers
	$(BIN)/cmake -S . -B build/sanitize -DTHREEFOLD_SANITIZE=ON
	$(BIN)/cmake --build build/sanitize --parallel 2
	CXX=$${CXX:-c++}; \
	LD_PRELOAD="$$($$CXX -print-file-name=libasan.so) $$($$CXX -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 THREEFOLD_KERNELS_FOLDER=build/sanitize \
	$(BIN)/python -m pytest -n 2 tests/kernels --deselect tests/kernels/test_build.py $(ARGS)

torture: $(DEVELOPER) ## kill a training run fifty times, and compare it with one that nobody disturbed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.training.torture $(ARGS)

torture-requests: $(DEVELOPER) ## a thousand random requests for tokens, natively and the ordinary way
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.surfaces.random_requests $(ARGS)

torture-batches: $(DEVELOPER) ## a thousand rows of deterministic batches, their bits alone and in company
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.surfaces.random_batches $(ARGS)

clean: ## remove .venv and everything that was built
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "threefold needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv

$(INSTALLED): $(SOURCES) | $(BIN)/python
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear .venv # an interrupted one
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e .
	@$(BIN)/python -c 'from threefold.kernels import library; choice = library.current(); \
	  print("kernels:", choice.native.variant if choice.native else choice.reason)'
	touch $@

# Tests, linters and what only they need; threefold itself is there already.
$(DEVELOPER): $(INSTALLED)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt "threefold[dev]"
	touch $@

$(TEST_PEERS): $(DEVELOPER)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt "threefold[peers]"
	touch $@

$(PEERS): $(INSTALLED)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt "threefold[bench]"
	touch $@

# make setup    a .venv with everything        make bench    the benchmark, a table and build/bench.svg
# make test     all tests                      make check    lint, format and types
# make overhead host time of a step            make figures  the documents' tables and plots
# make golden   the traces of 16 models        make budget   seconds of steps, beside an earlier commit
# make nightly  core tests, golden texts and the doctor in the second supported Thunder: a part of make test
# make clean    removes .venv and build
#
# COVERAGE=1 lets make test end with the lines that no test reached.
#
# PYTHON names the Python 3.12 to use, if the one that is found is the wrong one.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup test nightly check golden bench overhead budget figures clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made-from-pyproject
# nvFuser's wheel is built against torch 2.10.
TORCH := 2.10.0
THUNDER := 0.2.6
# The second Thunder that is supported, in a folder that PYTHONPATH puts before the first.
SECOND_THUNDER := 0.2.7.dev20260201
SECOND := $(VENV)/thunder-$(SECOND_THUNDER)
IN_SECOND := thunder_adapter repository/test_golden_models.py accelerators/programs/test_recorder.py \
  transform/test_shortened_calls.py transform/test_thunderfx.py transform/test_transform.py \
  transform/test_token_steps.py accelerators/steps accelerators/tracing/test_watched_lengths.py verification/test_verify.py
PYTHON ?=

help:
	@sed -n '1,9s/^# \{0,1\}//p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml
	@if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then \
	  python=$$($(FIND_PYTHON)); echo "making $(VENV) with $$($$python --version)"; $$python -m venv --clear $(VENV); \
	fi
	@echo "installing into $(VENV): 4.4 GB of wheels, of which torch and its CUDA libraries 4.1; 8 GB on disk, 3 to 5 minutes if little else runs"
	@$(BIN)/python .ci/install.py "torch==$(TORCH)" "lightning-thunder==$(THUNDER)" -e ".[nvfuser,bench,dev]"
	@$(BIN)/python .ci/install.py --no-deps --upgrade --target $(SECOND) "lightning-thunder==$(SECOND_THUNDER)"
	@touch $@

# With COVERAGE=1 it ends with the lines that no test reached: those that need a GPU or run in other processes among them.
# Tests start hundreds of processes that write no bytecode, each of which would compile the package again.
test: $(STAMP)
	@$(BIN)/python -m compileall -q fusioncache benchmarks tests/helpers
	COVERAGE_CORE=sysmon $(BIN)/python -m pytest -n 2 --dist worksteal $(if $(COVERAGE),--cov --cov-report=term-missing)

	$(MAKE) nightly

nightly: $(STAMP)
	PYTHONPATH=$(CURDIR)/$(SECOND):$(CURDIR) $(BIN)/python -m fusioncache doctor --json > /dev/null
	PYTHONPATH=$(CURDIR)/$(SECOND):$(CURDIR) $(BIN)/python -m pytest -q -n 2 --dist worksteal $(addprefix tests/,$(IN_SECOND))

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What is made of each model of the zoo, held against what is committed. MODELS="gemma phi" are some of them, REWRITE=1
# writes anew what is committed.
golden: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m golden $(if $(REWRITE),--rewrite) $(MODELS)

bench: $(STAMP)
	@mkdir -p build
	$(BIN)/python -m benchmarks.starts --models residual --recompute --layers 1,2,4,8 --ways thunder,templates,own \
	  --json build/bench.json --plot build/bench.svg

overhead: $(STAMP)
	@mkdir -p build
	$(BIN)/python -m benchmarks.step_overhead --layers 8 --ways "thunder,own calls,fusioncache" \
	  --json build/overhead.json

budget: $(STAMP)
	@mkdir -p build
	$(BIN)/python -m benchmarks.budget --json build/budget.json

figures: $(STAMP)
	$(BIN)/python -m benchmarks.figures.make

clean:
	rm -rf $(VENV) build

# Prints the path of a Python 3.12 that runs. A shim of pyenv runs only where its version is the chosen one, so that
# pyenv's own installations are looked at as well.
define FIND_PYTHON
  for python in $(PYTHON) python3.12 python3 $$( \
      for version in $$(pyenv versions --bare 2>/dev/null | grep '^3\.12' || true); do \
        echo "$$(pyenv prefix $$version)/bin/python3.12"; done); do \
    if "$$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then \
      "$$python" -c 'import sys; print(sys.executable)'; exit 0; fi; \
  done; \
  echo "no Python 3.12 was found, the one version with wheels of nvFuser: install it, or name it with PYTHON=..." >&2; \
  exit 1
endef

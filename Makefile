# Everything from nothing: each target makes the environment it needs first, and is quick the second time.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CLUSTER ?= cluster_specs/lab.yaml
MODEL ?= model_specs/gpt2_345m.yaml
TESTS ?= tests
DEVICE ?= cuda
MINUTES ?= 10
JOBS ?= auto

# Pinned to what the launch files were checked against; torch comes first, so that deepspeed does not choose it.
TORCH ?= torch==2.13.0
DEEPSPEED ?= deepspeed==0.19.8

.PHONY: help demo test test-slow check lint format docs docs-check accuracy rehearse bench-search measure-device clean

help:  ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/base.stamp  ## search a shipped example and write its launch files into run/
	$(BIN)/hetplan search $(CLUSTER) $(MODEL) -o plan.yaml
	$(BIN)/hetplan emit plan.yaml -o run/ --force

test: $(VENV)/test.stamp  ## all tests but the slow ones
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" $(TESTS)

test-slow: $(VENV)/test.stamp  ## the slow tests: real training runs, large searches
	$(BIN)/python -m pytest -m slow $(TESTS)

check: lint test  ## everything that must hold before a change goes in

lint: $(VENV)/test.stamp docs-check  ## formatting, style, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/test.stamp  ## put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/base.stamp  ## write docs/cli.md, the ranges in docs/formats.md and the outputs in README.md
	$(BIN)/python -m planner.cli.reference > docs/cli.md
	$(BIN)/python -m tests.cli.readme
	$(BIN)/python -m tests.spec.ranges_table

docs-check: $(VENV)/base.stamp  ## docs/cli.md is what the program says
	@$(BIN)/python -m planner.cli.reference | diff - docs/cli.md || (echo "docs/cli.md is outdated: make docs"; exit 1)

rehearse: $(VENV)/test.stamp  ## predicted against measured on emulated clusters; root, about an hour
	$(BIN)/python -m tests.rehearsal

accuracy: $(VENV)/test.stamp  ## write docs/accuracy.md: predictions next to published runs
	$(BIN)/python -m tests.measured.accuracy

bench-search: $(VENV)/test.stamp  ## how long searches take on 16 to 131,072 GPUs, whole process
	$(BIN)/python -m tests.benchmarks.search

measure-device: $(VENV)/test.stamp  ## calibrate this device, train on it, compare with the predictions: DEVICE=cuda|cpu
	$(BIN)/python -m tests.benchmarks.device --device $(DEVICE) --minutes $(MINUTES) -o run/device-$(DEVICE)

clean:  ## remove the environment and everything that was made
	rm -rf $(VENV) build dist *.egg-info run plan.yaml .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hetplan needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/base.stamp: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

$(VENV)/torch.stamp: | $(VENV)/bin/python
	$(PIP) setuptools wheel ninja packaging psutil py-cpuinfo
	$(PIP) $(TORCH)
	DS_BUILD_OPS=0 $(PIP) --no-build-isolation $(DEEPSPEED)
	@touch $@

$(VENV)/test.stamp: $(VENV)/base.stamp $(VENV)/torch.stamp
	$(PIP) --editable '.[dev]'
	@touch $@

# Everything from nothing: each target makes the environment it needs first, and is quick the second time.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LOCK ?= requirements.lock
# Python compiles what is imported: all modules of all packages would take half of the CPU time of the set-up.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
PIP := PIP_CONSTRAINT=$(LOCK) $(BIN)/python $(INSTALL)
CLUSTER ?= cluster_specs/lab.yaml
MODEL ?= model_specs/gpt2_345m.yaml
TESTS ?= tests
DEVICE ?= cuda
MINUTES ?= 10
CASES ?= 100
MUTANTS ?= 200
PACKAGES ?= cost,plan,emit,search
SEED ?= 1
JOBS ?= auto

# See planner/cli/__init__.py.
export OPENBLAS_NUM_THREADS ?= 1

# Where Python must not keep its bytecode, every process that is started from here would compile hetplan and its libraries anew.
demo test test-slow fuzz bench-search: export PYTHONDONTWRITEBYTECODE =

# Everything else has the versions of the lock file. These are pinned to what the launch files were checked against; torch
# comes first, so that nothing that needs it chooses another build.
TORCH ?= torch==2.13.0
DEEPSPEED ?= deepspeed==0.19.8

# What the tests of the oldest and the newest dependencies run: cost model, search, plans and the command.
FAST ?= tests/files tests/cluster tests/model tests/plan tests/cost tests/search/test_solve.py tests/cli/test_search.py

.PHONY: help demo test test-slow test-oldest test-newest fuzz mutation tables check lint types style audit dist lock format docs \
	docs-check site accuracy rehearse bench-search measure-device clean

help:  ## what can be made
	@awk -F ':.*## ' '/^[a-z -]+:.*## / {printf "%-23s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/base.stamp  ## search a shipped example and write its launch files into run/
	@$(BIN)/hetplan search $(CLUSTER) $(MODEL) -o plan.yaml
	@$(BIN)/hetplan emit plan.yaml -o run/ --force

test: $(VENV)/test.stamp  ## all tests but the slow ones
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" $(TESTS)

test-slow: $(VENV)/test.stamp  ## the slow tests: real training runs, large searches
	$(BIN)/python -m pytest -m slow $(TESTS)

fuzz: $(VENV)/test.stamp  ## random clusters and damaged inputs: CASES=100 SEED=1
	@status=0; for kind in inputs semantics; do \
		$(BIN)/python -m tests.fuzz.$$kind --cases $(CASES) --seed $(SEED) || status=1; \
	done; exit $$status

mutation: $(VENV)/mutation.stamp  ## small changes of the code that no test sees, a sample: MUTANTS=200 SEED=1
	$(BIN)/python -m tools.mutation --mutants $(MUTANTS) --seed $(SEED) --packages $(PACKAGES)

tables: $(VENV)/test.stamp  ## regenerate the tables of prices, plans and launch folders that the tests compare
	for table in cost.prices cost.functions plan.plans dims.values emit.folders; do $(BIN)/python -m tests.$$table || exit 1; done

test-oldest test-newest: test-%:  ## the fast tests with the oldest, or the newest, dependencies that pyproject.toml allows
	rm -rf $(VENV)-$*
	$(PYTHON) -m venv $(VENV)-$*
	$(if $(filter oldest,$*),$(PYTHON) -m tools.supply.bounds > $(VENV)-$*/bounds.txt,touch $(VENV)-$*/bounds.txt)
	$(VENV)-$*/bin/python $(INSTALL) --constraint $(VENV)-$*/bounds.txt --editable . pytest hypothesis jsonschema
	$(VENV)-$*/bin/python -m pip list --disable-pip-version-check
	$(VENV)-$*/bin/python -m pytest -m "not slow" $(FAST)

check: lint test audit dist site  ## everything that must hold before a change goes in

# One of them needs as long as all others together.
lint: $(VENV)/test.stamp  ## formatting, style, types, import rules, outputs in the docs: two of them at a time
	@$(MAKE) --no-print-directory --jobs 2 $(addprefix --,$(filter output-sync,$(.FEATURES))) --keep-going types docs-check style

types: $(VENV)/test.stamp
	$(BIN)/mypy

style: $(VENV)/test.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python -m tools.accuracy --check

audit: $(VENV)/test.stamp  ## known vulnerabilities of the locked packages; says so where no service can be reached
	$(BIN)/python -m tools.supply.audit $(LOCK)

dist: $(VENV)/test.stamp  ## wheel and source archive in dist/, with what an index would refuse
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . > /dev/null
	$(BIN)/python -m twine check --strict dist/*

lock:  ## write requirements.lock: the newest versions that pyproject.toml allows
	rm -rf $(VENV)-lock
	$(MAKE) VENV=$(VENV)-lock LOCK=/dev/null $(VENV)-lock/test.stamp
	(echo '# Written by `make lock`: the environment that make builds, but for torch and DeepSpeed (see the Makefile).'; \
	$(VENV)-lock/bin/python -m pip freeze --all --exclude-editable \
	| grep -ivE '^(pip|torch|deepspeed|triton|nvidia-.*|cuda-.*)==') > $(LOCK)
	rm -rf $(VENV)-lock

format: $(VENV)/test.stamp  ## put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/base.stamp  ## write docs/cli.md, the tables in docs/formats.md and docs/search.md, and every output in README.md and docs
	$(BIN)/python -m tools.reference > docs/cli.md
	$(BIN)/python -m tools.outputs
	$(BIN)/python -m tools.ranges_table
	$(BIN)/python -m tests.search.tightness
	$(BIN)/python -m tools.notebook

docs-check: $(VENV)/base.stamp  ## docs/cli.md and every output in README.md and docs are what the program prints
	@$(BIN)/python -m tools.reference | diff - docs/cli.md || (echo "docs/cli.md is outdated: make docs"; exit 1)
	@$(BIN)/python -m tools.notebook --check || (echo "docs/example.ipynb is outdated: make docs"; exit 1)
	@$(BIN)/python -m tools.outputs --check || (echo "outputs in README.md or docs are outdated: make docs"; exit 1)

site: $(VENV)/docs.stamp  ## the documentation as a site in dist/site; a link that leads nowhere is an error
	$(BIN)/python -m mkdocs build --strict --quiet

rehearse: $(VENV)/test.stamp  ## predicted against measured on emulated clusters; root, over an hour
	$(BIN)/python -m tools.rehearsal

accuracy: $(VENV)/test.stamp  ## write docs/accuracy.md and its figures in docs/coverage.md: predictions next to published runs
	$(BIN)/python -m tools.accuracy

bench-search: $(VENV)/test.stamp  ## how long predictions take, and searches on 16 to 131,072 GPUs, whole process
	$(BIN)/python -m tools.benchmarks.predictions
	$(BIN)/python -m tools.benchmarks.search

measure-device: $(VENV)/test.stamp  ## calibrate this device, train on it, compare with the predictions: DEVICE=cuda|cpu
	$(BIN)/python -m tools.benchmarks.device --device $(DEVICE) --minutes $(MINUTES) -o run/device-$(DEVICE)

clean:  ## remove the environment and everything that was made
	rm -rf $(VENV) $(VENV)-* build dist *.egg-info run plan.yaml .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .mutation
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hetplan needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/base.stamp: pyproject.toml $(LOCK) | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

# What the lock file names needs nothing beside it, so that two processes can install it; what torch needs for the devices
# of this machine comes after it.
$(VENV)/torch.stamp: $(LOCK) | $(VENV)/bin/python
	(echo '$(TORCH)'; grep -v '^#' $(LOCK)) | xargs -n 40 -P 2 $(BIN)/python $(INSTALL) --no-deps
	$(PIP) $(TORCH) setuptools wheel ninja packaging psutil py-cpuinfo
	DS_BUILD_OPS=0 $(PIP) --no-build-isolation $(DEEPSPEED)
	@touch $@

# With the setuptools that torch.stamp has brought: pip would make an environment of its own to build in.
$(VENV)/test.stamp: pyproject.toml $(VENV)/torch.stamp
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $(VENV)/base.stamp $@

# hetplan is there, so that pip adds what the extra names and builds nothing.
$(VENV)/docs.stamp: $(VENV)/base.stamp
	$(PIP) 'hetplan[docs]'
	@touch $@

$(VENV)/mutation.stamp: $(VENV)/test.stamp
	$(PIP) --editable '.[dev,mutation]'
	@touch $@

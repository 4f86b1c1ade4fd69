# `make run` and `make test` work on a fresh machine: both call `make setup` first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled
KERNELS := $(wildcard $(addprefix src/leanfed/,allocation/*.py compression/topk.py simulation/batched/kernels.py))
# One more than the cores of a small machine: some tests wait for processes that they start.
WORKERS ?= 3

.PHONY: setup run test test-slow lint types check wheel lock audit sbom release bench docs docs-serve clean

setup: $(READY) $(COMPILED)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "leanfed needs Python 3.11 or newer, but $(PYTHON) is older. Try: make setup PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,nlp,hub,flower,track]'
	@touch $(READY)

# Compiled once for all processes; again only after a change of a file that numba compiles.
$(COMPILED): $(READY) $(KERNELS)
	@echo "compiling kernels (once)"
	$(BIN)/python -c 'from leanfed.simulation.choose import warm; warm()'
	$(BIN)/python -m leanfed.allocation.warm
	@touch $(COMPILED)

run: setup
	$(BIN)/leanfed demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Byte code is kept even where the shell forbids it: else every process that a test starts compiles the package anew.
test test-slow: export PYTHONDONTWRITEBYTECODE =

# Lint and types first, so that tests do not run on broken code; the runner's summary is the last line.
test: setup lint types
	$(BIN)/pytest -n $(WORKERS) -m "not slow"

test-slow: setup
	$(BIN)/pytest -m slow

bench: setup
	$(BIN)/pytest benchmarks --benchmark-enable --benchmark-only

# The documentation as pages that need no network: site/index.html. It is strict: a broken link or an unlisted page fails.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html"

docs-serve: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

# The same tree gives the same bytes, wherever and whenever it is built: files are dated by the last commit.
wheel sbom release: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --pretty=%ct 2>/dev/null || echo 1580601600)

wheel: setup
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

# requirements.lock: exact versions with hashes, from constraints.txt and the configured package index.
lock: setup
	$(BIN)/python release/lock.py

audit: setup
	$(BIN)/python release/audit.py

sbom: setup
	$(BIN)/python release/sbom.py

release: audit wheel sbom

clean:
	rm -rf $(VENV) dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis

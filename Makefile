# Everything runs in .venv, which the first target that needs it makes. PYTHON chooses the interpreter.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# Of 25,000 modules most are never imported, so none is compiled before it is.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	--no-compile
# What is compiled where there is a compiler.
COMPILED := loaders/_gather.c
# As many processes as cores; files of tests go to the one that is free.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

# Bytecode is kept, or each process would compile all code, and each process of the tests all tests.
export PYTHONDONTWRITEBYTECODE :=

# A virtual environment over one of another Python would mix the two, so that one is made anew.
WHICH_PYTHON := -c 'import sys; print(sys.version, sys.base_prefix)'
define MAKE_VENV
@if [ -e "$(VENV)/pyvenv.cfg" ] && [ "$$($(BIN)/python $(WHICH_PYTHON) 2>&1)" != "$$($(PYTHON) $(WHICH_PYTHON))" ]; then \
	echo "$(VENV) was made by another Python than $(PYTHON); making it anew."; \
	$(PYTHON) -m venv --clear "$(VENV)"; \
else \
	$(PYTHON) -m venv "$(VENV)"; \
fi
endef

.DEFAULT_GOAL := help
.PHONY: help golden quickstart test test-quick test-all test-release check format bench bench-store bench-transfer docs site build clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.quickstart: pyproject.toml constraints.txt $(COMPILED)
	$(MAKE_VENV)
	$(PIP) --editable ".[quickstart]"
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(COMPILED)
	$(MAKE_VENV)
	$(PIP) --editable ".[quickstart,dev]"
	$(PIP) --no-deps mo-gymnasium # depends on pygame, which would overwrite files of pygame-ce
	touch $(VENV)/.quickstart $@

quickstart: $(VENV)/.quickstart  ## Set up, then build, verify, train, score and compare (minutes)
	$(BIN)/orlog quickstart

test: $(VENV)/.dev  ## Set up, then test all behavior (minutes)
	$(PYTEST)

test-quick: $(VENV)/.dev  ## Run the tests that take seconds
	$(PYTEST) -m "not slow"

test-all: export ORLOG_TESTS := all
test-all: test  ## The same, and what tests repeat is repeated as often as it was promised

test-release: export ORLOG_TESTS := release
test-release: test  ## The same with all repetitions, for a release: about an hour

check: $(VENV)/.dev  ## Lint, types and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml

format: $(VENV)/.dev  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev  ## Measure loaders and algorithms on this machine (builds pointmaze/umaze-v1)
	$(BIN)/orlog build pointmaze/umaze-v1
	$(BIN)/python -m benchmarks.loaders
	$(BIN)/python -m benchmarks.families
	$(BIN)/python -m benchmarks.updates

bench-store: $(VENV)/.dev  ## Measure the store alone, images and 100 million steps (20 GB of disk)
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.images
	$(BIN)/python -m benchmarks.scale

bench-transfer: $(VENV)/.dev  ## Measure verifying and downloading on this machine (8 GB of memory disk)
	$(BIN)/python -m benchmarks.transfer

golden: export ORLOG_GOLDEN := write
golden: export ORLOG_TESTS := all
golden: $(VENV)/.dev  ## Write tests/golden again, after a change that moves what must not move by accident
	$(BIN)/python -m pytest -n 0 tests/golden

docs: $(VENV)/.dev  ## Write tables of baselines and code of examples
	$(BIN)/python docs/write_examples.py
	$(BIN)/python docs/write_suites.py

site: $(VENV)/.dev  ## Build the documentation site into site/
	$(BIN)/python docs/build_site.py

build: $(VENV)/.dev  ## Build the wheel into dist/
	rm -rf dist
	$(BIN)/python -m build --wheel

clean:  ## Remove everything that these targets made here
	rm -rf $(VENV) dist build site *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
	rm -rf .hypothesis orlog-quickstart loaders/*.so

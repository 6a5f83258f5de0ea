# Two commands do everything on a fresh Linux machine with Python >= 3.10:
#   make bench   creates .venv, installs, runs the all-reduce bench
#   make test    installs, then lint, types and the whole test suite
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= auto

.DEFAULT_GOAL := help
.PHONY: help install bench test lint types suite docs clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(VENV)/.installed  ## create .venv and install kernbench with its development extra

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

bench: install  ## run python -m benches.ccl_allreduce
	$(BIN)/python -m benches.ccl_allreduce $(ARGS)

test: lint types suite  ## lint, types and the whole test suite

lint: install
	$(BIN)/ruff check kernbench benches tests
	$(BIN)/ruff format --check kernbench benches tests

types: install
	$(BIN)/mypy

suite: install
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

docs: install  ## run the examples of README and docs, and rewrite the output that they show
	KERNBENCH_UPDATE_DOCS=1 $(BIN)/python -m pytest tests/docs

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache build dist

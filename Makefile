# Two commands do everything on a fresh Linux machine with Python >= 3.10:
#   make bench   creates .venv, installs, runs the all-reduce bench
#   make test    installs, then lint, types and the whole test suite
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= auto

.DEFAULT_GOAL := help
.PHONY: help install bytecode bench test lint types suite docs house site dist changelog test-long test-pythons test-triton-matrix test-torch-matrix clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(VENV)/.installed  ## create .venv and install kernbench with its development extra

$(VENV)/.installed: pyproject.toml constraints.txt kernbench/version.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

bench: install  ## run python -m benches.ccl_allreduce
	$(BIN)/python -m benches.ccl_allreduce $(ARGS)

test: lint types suite  ## lint, types and the whole test suite

lint: install
	$(BIN)/ruff check kernbench benches examples tests docs/tools docs/site
	$(BIN)/ruff format --check kernbench benches examples tests docs/tools docs/site

types: install
	$(BIN)/mypy

# The suite starts hundreds of processes. Python compiles the package anew in each where it is told to write no byte code
# (PYTHONDONTWRITEBYTECODE): half of the time that importing it takes.
bytecode: install
	$(BIN)/python -m compileall -q -j 0 kernbench benches

# Every run records the Triton kernels that it launches; the next one compiles them first, side by side.
KERNELS := .pytest_cache/kernels.yaml
AHEAD    = $(if $(wildcard $(KERNELS)),--kernbench-precompile $(KERNELS) --kernbench-precompile-values)

suite: bytecode
	mkdir -p $(dir $(KERNELS))
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --kernbench-record $(KERNELS) $(AHEAD) $(ARGS)

# Minutes each: all of torch's own distributed tests, and the pool of resources under many processes that are killed.
test-long: bytecode  ## the checks that take too long for every change
	KERNBENCH_TORCH_OWN=1 KERNBENCH_STRESS=full $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --timeout 900 \
	  tests/torch_backend/test_torch_own.py tests/testing/test_pool.py $(ARGS)
	$(BIN)/python -m pytest -m long -n $(JOBS) --dist worksteal --timeout 900 $(ARGS)

# An interpreter of version $(1): on the PATH, where one of pyenv's may be a name that leads nowhere, or in pyenv's folder.
interpreter = $(shell for python in python$(1) $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$(1).*/bin/python$(1); do \
  $$python -c "" 2>/dev/null && echo $$python && break; done)
PYTHON_VERSIONS ?= 3.10 3.11 3.12 3.13

test-pythons: $(PYTHON_VERSIONS:%=test-python-%)  ## the whole test suite on every supported Python that is on this machine

test-python-%:
	$(if $(call interpreter,$*),$(MAKE) suite PYTHON=$(call interpreter,$*) VENV=.venv-$*,@echo "Python $* is not on this machine: not tested")

docs: install  ## run the examples of README and docs, and rewrite the output that they show
	KERNBENCH_UPDATE_DOCS=1 $(BIN)/python -m pytest tests/docs

house: install  ## draw the picture of the rooms from their imports
	$(BIN)/python docs/tools/house.py

# Its tools join the environment that the tests have: the reference is made from what Python imports.
site: $(VENV)/.installed-site  ## build the documentation site into build/site; a warning is an error
	$(BIN)/python docs/tools/adr_index.py --check
	$(BIN)/python -m sphinx --builder html --fresh-env --fail-on-warning --keep-going --quiet -c docs/site . build/site

$(VENV)/.installed-site: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,site]'
	touch $@

dist: $(VENV)/.installed-release  ## build the wheel and the source archive into dist, and check them
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/towncrier build --draft --version next

changelog: $(VENV)/.installed-release  ## make a section of CHANGELOG.md of what is in changelog.d: VERSION=0.4.0
	$(BIN)/towncrier build --yes --version $(VERSION)

$(VENV)/.installed-release: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,release]'
	touch $@

# torch pins one Triton; the other supported versions are installed over it. pip says that torch wants its own: the
# engine needs only torch's CPU operators, which do not know Triton.
TRITON_VERSIONS ?= 3.6.0 3.7.1 3.9.0
# The interpreter of Triton 3.6, which tests compare with, does not work with newer releases of numpy.
BESIDE_TRITON_3.6.0 := 'numpy<2.4'

test-triton-matrix: $(TRITON_VERSIONS:%=.venv-triton-%/.tested)  ## the Triton engine on every supported Triton

.venv-triton-%/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-triton-$*
	.venv-triton-$*/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	.venv-triton-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps triton==$* $(BESIDE_TRITON_$*)
	touch $@

.PHONY: $(TRITON_VERSIONS:%=.venv-triton-%/.tested)
$(TRITON_VERSIONS:%=.venv-triton-%/.tested): .venv-triton-%/.tested: .venv-triton-%/.installed
	.venv-triton-$*/bin/python -m pytest -n $(JOBS) --dist worksteal tests/triton_engine tests/kernels \
	  tests/commands/test_command_line.py $(ARGS)

# Each release of torch brings its own Triton. PyPI's builds are for CUDA: 5.5 GB each, installed. Which are tested is said in
# kernbench/version.py, and tests/house holds these lists to it.
TORCH_VERSIONS ?= 2.13.0 2.14.1 2.15.0

test-torch-matrix: $(TORCH_VERSIONS:%=.venv-torch-%/.tested)  ## what touches torch, on every supported torch

.venv-torch-%/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-torch-$*
	.venv-torch-$*/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' torch==$*
	touch $@

# what is broken is printed first: a list, where tests would fail by the dozen
.PHONY: $(TORCH_VERSIONS:%=.venv-torch-%/.tested)
$(TORCH_VERSIONS:%=.venv-torch-%/.tested): .venv-torch-%/.tested: .venv-torch-%/.installed
	.venv-torch-$*/bin/python -W ignore -m kernbench.torch_backend.relies_on
	.venv-torch-$*/bin/python -m pytest -n $(JOBS) --dist worksteal tests/torch_backend tests/testing tests/parity \
	  tests/commands/test_command_line.py $(ARGS)

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache build dist

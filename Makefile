# Everything needs only Python 3.11+, pip and make. Each target first installs what it uses into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.installed
DOCS   := $(VENV)/.installed-docs
PEERS  := $(VENV)/.installed-peers
GPFLOW := .venv-gpflow
GEOMETRIC := .venv-geometric

# Quiet, but pip's own errors and warnings are shown. The variables hold the build backend to the same versions; which of them counts depends on pip.
INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
           $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-gpflow test-geometric check format bench docs dist clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(BASE)  ## create .venv and install the library, its two companions and the development tools
	@:

demo: $(BASE)  ## condition a GP, draw paths, print a table and write a picture
	@$(BIN)/matheron demo

test: $(BASE)  ## run the tests, and the examples in the docstrings
	@$(BIN)/python -m pytest -n 2 --timeout 300 $(ARGS)

test-slow: $(DOCS)  ## run the slow tests: browsers, clusters, clean installs, JAX, long runs
	@$(BIN)/python -m pytest -n 2 --timeout 600 -m slow $(ARGS)

test-gpflow: $(GPFLOW)/.installed  ## test GPflow's models and their tutorial, in an environment of their own
	@TF_CPP_MIN_LOG_LEVEL=3 $(GPFLOW)/bin/python -m pytest -n 2 \
	    tests/adapters/test_gpflow.py tests/adapters/test_models_page.py tests/test_docs.py -k gpflow $(ARGS)

test-geometric: $(GEOMETRIC)/.installed  ## test kernels of GeometricKernels and their page, in an environment of their own
	@$(GEOMETRIC)/bin/python -m pytest -n 2 --timeout 600 tests/adapters/test_geometric.py tests/test_docs.py -k "geometric" $(ARGS)

check: $(BASE)  ## lint, formatting and types; changes nothing
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/pyright --warnings

format: $(BASE)  ## apply ruff's fixes and formatting
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

bench: $(PEERS)  ## measure the library and its peers, and make docs/performance.md of it: some 25 minutes
	@$(BIN)/python benchmarks/peers.py $(ARGS)
	@$(BIN)/python benchmarks/report.py

docs: $(DOCS)  ## build the documentation into site/, with the tutorials as notebooks
	@NO_MKDOCS_2_WARNING=1 MATHERON_NOTEBOOKS=1 $(BIN)/mkdocs build --quiet --strict
	@$(BIN)/python docs/build/notebooks.py site
	@echo "The documentation is in site/index.html"

dist: $(BASE)  ## build and check wheels and sdists of matheron, matheron-paper and matheron-portable in dist/
	@rm -rf dist
	@for source in . paper portable; do PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --outdir dist $$source || exit 1; done
	@$(BIN)/python -m twine check --strict dist/*

clean:  ## remove all that these targets made, .venv included
	@rm -rf $(VENV) $(GPFLOW) $(GEOMETRIC) site dist build .pytest_cache .ruff_cache .hypothesis
	@find src paper portable tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BASE): pyproject.toml paper/pyproject.toml portable/pyproject.toml constraints.txt
	@echo "Setting up $(VENV): a minute or two, the first time"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) -e '.[dev,gpytorch,botorch,sklearn,optuna,tables,fields,playground,onnx,gpu]' -e ./paper -e ./portable
	@touch $@

$(DOCS): $(BASE)
	@$(INSTALL) -e '.[docs]' -e './portable[jax]'
	@touch $@

$(PEERS): $(BASE)
	@$(INSTALL) -e '.[bench]'
	@touch $@

$(GPFLOW)/.installed: pyproject.toml constraints.txt constraints-gpflow.txt
	@echo "Setting up $(GPFLOW), with TensorFlow: a few minutes, the first time"
	@$(PYTHON) -m venv $(GPFLOW)
	@$(subst $(BIN),$(GPFLOW)/bin,$(INSTALL)) -c constraints-gpflow.txt -e '.[gpflow]' pytest pytest-xdist hypothesis
	@touch $@

$(GEOMETRIC)/.installed: pyproject.toml constraints.txt constraints-geometric.txt
	@echo "Setting up $(GEOMETRIC), with GeometricKernels: a minute or two, the first time"
	@$(PYTHON) -m venv $(GEOMETRIC)
	@grep -v '^numpy==' constraints.txt > $(GEOMETRIC)/constraints.txt
	@$(subst constraints.txt,$(GEOMETRIC)/constraints.txt,$(subst $(BIN),$(GEOMETRIC)/bin,$(INSTALL))) \
	    -c constraints-geometric.txt -e '.[geometric]' pytest pytest-xdist pytest-timeout hypothesis
	@touch $@

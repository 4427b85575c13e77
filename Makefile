# Two commands do all the set-up: `make quickstart` to use gpuenv, `make test` to work on it.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV ?= .venv
TORCH_VENV ?= .venv-torch
PYTHON ?= python3
BIN := $(VENV)/bin
PYTEST_ARGS ?=

.PHONY: help quickstart test lint format bench docs clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/gpuenv: pyproject.toml
	@scripts/make-venv.sh "$(PYTHON)" "$(VENV)" -e .

$(VENV)/.dev: pyproject.toml
	@scripts/make-venv.sh "$(PYTHON)" "$(VENV)" -e . --group dev
	@touch $@

quickstart: $(BIN)/gpuenv ## Install gpuenv, find or start an engine, build an image for this host and prove it
	@scripts/quickstart.sh "$(BIN)/gpuenv"

# The doctor's probes are tested on a real PyTorch of its own, so that gpuenv's environment has none.
$(TORCH_VENV)/.done: Makefile
	@scripts/make-venv.sh "$(PYTHON)" "$(TORCH_VENV)" torch==2.13.0 numpy
	@touch $@

test: $(VENV)/.dev $(TORCH_VENV)/.done ## Run every test: unit, golden, contract, engine, browser, ssh
	@scripts/install-test-tools.sh
	GPUENV_TEST_TORCH=$(abspath $(TORCH_VENV))/bin/python $(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev ## Check style, types and the Dockerfiles
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## Put the code into its one form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev ## Run the benchmarks side by side and write docs/benchmarks.md
	$(BIN)/python benchmarks/run.py

docs: $(VENV)/.dev ## Regenerate the tables in README.md and docs/
	$(BIN)/python scripts/update_readme_matrix.py
	$(BIN)/python scripts/render_doctor_docs.py

clean: ## Remove what the other targets made here (images and containers stay)
	rm -rf $(VENV) $(TORCH_VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

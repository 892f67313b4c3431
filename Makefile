# `make demo` shows what the daemon does; `make test` tests it. Both set everything up themselves.
# What is typed less often lies in make/, a file for each group of `make help`.
SHELL := /bin/bash
BIN := .venv/bin
STAMP := .venv/.installed
# It installs in seconds where pip takes a minute.
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
PYTEST_ARGS ?=
.DEFAULT_GOAL := help

.PHONY: help preflight install run demo test lint format types imports bench dist clean

help: ## This list
	@for file in $(MAKEFILE_LIST); do \
	  sed -nE '1s/^# (.*)/\n\1/p' $$file | grep -v '`make demo`' ; \
	  grep -hE '^[a-z0-9-]+:.*## ' $$file | awk -F ':.*## ' '{printf "  make %-21s %s\n", $$1, $$2}'; \
	done

preflight: ## Name each missing tool with its install command
	@deploy/dev/preflight.sh >/dev/null

install: $(STAMP) ## Create .venv from the lock file, hashes checked

$(STAMP): requirements-dev.lock pyproject.toml deploy/dev/preflight.sh
	@python=$$(deploy/dev/preflight.sh) && $$python -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	  -r <(awk '/^[a-z]/ {on = /^uv==/} on' requirements-dev.lock)
	$(UV) --require-hashes --compile-bytecode -r requirements-dev.lock
	$(UV) --no-deps --no-build-isolation --editable .
	@touch $@

run: install ## Run the daemon in the foreground with config/rlmm.toml
	@mkdir -p var/remote var/kafka-logs
	$(BIN)/rlmm run --config config/rlmm.toml

demo: install ## The main job end to end on real Kafka segments
	$(BIN)/python -m deploy.dev.demos.local

test: install ## All tests but those that need a server beside them
	$(BIN)/pytest -q -m "not s3 and not spark and not slow" $(PYTEST_ARGS)

lint: install ## Rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install ## Format the code
	$(BIN)/ruff format .

types: install ## Types, strict
	$(BIN)/mypy

imports: install ## The direction of dependence
	$(BIN)/lint-imports

bench: install ## Benchmarks against their peers
	$(BIN)/python -m tests.benchmarks.run

dist: install ## Wheel and sdist in dist/, the wheel tried in a bare venv
	rm -rf dist
	$(BIN)/python -m hatchling build
	deploy/dev/try-wheel.sh $(BIN)/python dist/*.whl

clean: ## Remove everything that was made
	rm -rf .venv dist build var .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

include make/tests.mk make/simulation.mk make/soak.mk make/bench.mk make/packages.mk make/more.mk

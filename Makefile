# Every target does all of its own set-up: the one thing a machine needs is python3 (3.11 or newer) with venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
ARGS   ?=

.DEFAULT_GOAL := help

help: ## Say what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

$(READY): requirements/dev.lock requirements/uv.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Darkroom needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Say which to use: make PYTHON=python3.12 ...")'
	@rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.lock
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## Start everything, send a photo through it and show its journey (ARGS="--once --images DIR --json FILE")
	@$(BIN)/darkroom demo $(ARGS)

up: $(READY) ## Start the servers and the services on this machine, and keep them running
	@$(BIN)/darkroom up $(ARGS)

chaos: $(READY) ## Upload while everything is killed, then check every invariant (ARGS="--assets N --minutes M --seed S --brokers 1")
	@$(BIN)/darkroom chaos $(ARGS)

# Two at a time, each with servers of its own: most tests wait for something. A file's tests stay together.
test: $(READY) ## Run all tests against real servers, started by the tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

test-containers: $(READY) ## Build the images, run deploy/compose.yaml in podman and send photos through (skipped where there is no podman)
	@DARKROOM_TEST_CONTAINERS=1 $(BIN)/python -m pytest tests/containers -p no:randomly $(ARGS)

mutants: $(READY) ## Remove each protection in a copy of the code and see that a test notices (ARGS="--only NAME", --list)
	@PYTHONPATH=tests $(BIN)/python -m mutants $(ARGS)

hostile: $(READY) ## Bombs among good pictures, and decoding processes killed 100 times, at full size
	@$(BIN)/python -m pytest tests/system/test_hostile.py --full -s -q $(ARGS)

fuzz: $(READY) ## Damaged pictures through the real decoding processes for longer than `make test` does (ARGS="--hypothesis-seed N"; EXAMPLES=N)
	@DARKROOM_FUZZ_EXAMPLES=$(or $(EXAMPLES),3000) $(BIN)/python -m pytest tests/integration/imaging/test_fuzz.py -q $(ARGS)

check: $(READY) ## Lint, format, types, architecture, dependencies, cloud template
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/deptry .
	$(BIN)/cfn-lint deploy/aws/*.yaml

bench: $(READY) ## Measure everything beside its peers in one run: one table, and build/bench.json (ARGS="--quick")
	@$(BIN)/python benchmarks/bench.py --json build/bench.json $(ARGS)
	@$(BIN)/python benchmarks/imaging.py --whole 40 --json build/imaging.json
	@$(BIN)/python benchmarks/api.py --json build/api.json
	@$(BIN)/python benchmarks/verify.py --json build/verify.json

reference: $(READY) ## Write docs/configuration.md anew, from the settings of all programs
	@PYTHONPATH=tests $(BIN)/python -m support.configuration

lock: ## Pin every dependency again, with hashes and without addresses
	@test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv; }
	sh requirements/lock.sh $(BIN)/uv $(ARGS)

clean: ## Remove what the targets made in this folder
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .darkroom build dist

.PHONY: help demo up chaos mutants test test-containers fuzz hostile check bench reference lock clean

PYTHON := .venv/bin/python
CODE := src tests migrations bench scripts chaos
SEED := 1
TURNS := 300

# One thing after the other, however make is called, but for what continuous integration adds: that mostly waits.
ifndef TOGETHER
.NOTPARALLEL:
endif

.PHONY: help setup demo demo-real test check format format-check lint imports types figures figures-check \
	test-15 test-install test-offline chaos chaos-long soak smoke mutants bench bench-router bench-settle lock clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: ## Make .venv with the locked packages; every other target does it by itself
	@python="$$(sh scripts/find-python)" && "$$python" scripts/setup.py

demo: setup ## Watch an agent take turns through the api, and see every token in the ledger
	@$(PYTHON) scripts/demo.py

demo-real: setup ## The same against the real OpenRouter, with OPENROUTER_API_KEY, for 0.05 USD at most
	@$(PYTHON) scripts/demo.py --real

test: setup ## Run all tests
	$(PYTHON) -m pytest --numprocesses=auto --dist=loadfile

# Continuous integration tries the oldest PostgreSQL and installs from nothing as well; at a desk that is minutes.
check: setup format-check lint imports types figures-check ## Everything that must hold before a change goes in
	@$(MAKE) test
	@$(MAKE) chaos
	@$(if $(CI),$(MAKE) --jobs --output-sync=target TOGETHER=1 test-15 test-install)

format: setup ## Format the code and mend what the linter can
	$(PYTHON) -m ruff check --fix $(CODE)
	$(PYTHON) -m ruff format $(CODE)

format-check: setup
	$(PYTHON) -m ruff format --check $(CODE)

lint: setup ## Lint
	$(PYTHON) -m ruff check $(CODE)

imports: setup ## Check who may import whom
	.venv/bin/lint-imports

types: setup ## Check the types, with two checkers
	$(PYTHON) -m mypy
	$(PYTHON) -m basedpyright

test-15: setup ## Run the tests of the database on PostgreSQL 15, the oldest that is supported, where it is installed
	@if $(PYTHON) -c 'from adapters.embedded_postgres import find_binaries; find_binaries(15)' 2>/dev/null; then \
		BRABO_TEST_POSTGRES_MAJOR=15 $(PYTHON) -m pytest tests/contract tests/integration/migrations tests/integration/postgres; \
	else echo "PostgreSQL 15 is not installed here, so nothing is tested on it."; fi

test-install: setup ## Install from nothing in a bare environment, as root and as an ordinary user, and misuse it
	$(PYTHON) scripts/test_install.py

test-offline: setup ## Run all tests where there is no network but loopback
	$(PYTHON) scripts/offline.py $(MAKE) test

chaos: setup ## Take turns under every fault at once, audit meanwhile, and reckon with the bill (SEED=1 TURNS=300)
	@PYTHONPATH=. $(PYTHON) -m chaos.run --seed $(SEED) --turns $(TURNS) $(if $(BREAK),--break $(BREAK))

chaos-long: setup ## The same with 5,000 turns, for three seeds: most of an hour
	@for seed in 1 2 3; do PYTHONPATH=. $(PYTHON) -m chaos.run --seed $$seed --turns 5000 || exit 1; done

smoke: setup ## Ask the real decision model a few times, with OPENROUTER_TEST_KEY, and say what has changed on the wire
	@$(PYTHON) scripts/smoke.py

mutants: setup ## Break the code on purpose, break by break, and see a named test go red each time
	$(PYTHON) scripts/mutants.py

bench: setup ## Measure what a turn costs
	$(PYTHON) bench/run.py

bench-router: setup ## Measure what the tool router adds to a turn
	$(PYTHON) bench/router.py

bench-settle: setup ## Measure settling on one budget, together and a transaction a turn
	@$(PYTHON) bench/settle.py

soak: setup ## 20,000 streamed turns, a third of them left: memory and connections
	@$(PYTHON) bench/soak.py

figures: setup ## Put the last measurement's figures into the README
	$(PYTHON) scripts/figures.py

figures-check: setup
	$(PYTHON) scripts/figures.py --check

lock: ## Write requirements.lock anew from pyproject.toml; versions it already names stay (remove it to renew all)
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT \
		&& python="$$(sh scripts/find-python)" && "$$python" -m venv "$$scratch" \
		&& "$$scratch/bin/python" -m pip install -qq --disable-pip-version-check uv \
		&& "$$scratch/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
			--no-header --no-emit-index-url --group pyproject.toml:dev pyproject.toml -o requirements.lock

clean: ## Remove everything that these commands made
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

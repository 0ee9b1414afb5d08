# Two commands do everything: `make run` and `make test`. Each sets up what it needs first.
PYTHON ?= python3
BIN := .venv/bin
# Test processes at once. Each loads models of its own; 0 runs all in one.
WORKERS ?= 2

.PHONY: run test check docs bench compare clean

run:  ## set up, bring a model up on this device, answer a prompt (then chat, on a terminal)
	@$(PYTHON) tools/setup_environment.py run
	@$(BIN)/edgewise up

test:  ## set up and run the tests
	@$(PYTHON) tools/setup_environment.py test
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

check:  ## lint, format, types, architecture, docs (after `make test`)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

docs:  ## build the documentation
	$(BIN)/sphinx-build -W -b html docs docs/_build/html

bench:  ## run the benchmarks and rewrite the README's tables (about 15 minutes, keep the machine quiet)
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.decode

compare:  ## build one model for every runtime, measure each, rewrite docs/comparison.md (about an hour)
	$(BIN)/python -m benchmarks.compare

clean:
	rm -rf .venv .cache docs/_build

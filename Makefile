PYTHON ?= python3
BIN := .venv/bin
USE := .venv/.ready-to-use
DEV := .venv/.ready-to-develop
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: test slow lint demo clean help

help:  ## what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.venv:
	@$(PYTHON) -c 'import sys; sys.exit("uedp needs Python 3.11 or newer, found " + sys.version.split()[0] + "; set PYTHON=python3.x" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

$(USE): pyproject.toml constraints.txt | .venv
	$(PIP) --editable .
	@touch $@

$(DEV): pyproject.toml constraints.txt | .venv
	$(PIP) --editable '.[dev]'
	@touch $@ $(USE)

test: $(DEV)  ## install if need be, run the tests
	$(BIN)/python -m pytest

slow: $(DEV)  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

lint: $(DEV)  ## ruff and mypy
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

demo: demo/corpus/corpus.json  ## from nothing to a described corpus
	$(BIN)/uedp inspect demo/corpus --plot demo/corpus.png

demo/messages.jsonl: $(wildcard src/uedp/corpus/sample*.py) | $(USE)
	@mkdir -p demo && rm -f $@
	$(BIN)/uedp sample --out $@

demo/corpus/corpus.json: demo/messages.jsonl
	$(BIN)/uedp detect $< --out demo/corpus --overwrite --label label --detector labels,patterns

clean:  ## remove what was made, .venv too
	rm -rf .venv demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

PYTHON ?= python3
BIN := .venv/bin
USE := .venv/.ready-to-use
DEV := .venv/.ready-to-develop
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: test slow fuzz lint demo paper clean help

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

test: $(DEV)  ## install if need be, run the tests on two cores
	$(BIN)/python -m pytest -n 2 --dist loadfile

slow: $(DEV)  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

fuzz: $(DEV)  ## 10,000 damaged inputs and 1,000 damaged corpora, in minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz

lint: $(DEV)  ## ruff and mypy
	$(BIN)/ruff check src research tests benchmarks
	$(BIN)/ruff format --check src research tests benchmarks
	$(BIN)/mypy

demo: demo/run/result.json  ## from nothing to a trained model with a certificate
	$(BIN)/uedp certificate verify demo/run
	$(BIN)/uedp evaluate demo/run
	$(BIN)/uedp generate demo/run --prompt "Hi " --count 3 --temperature 0.5

demo/run/result.json: docs/demo.yaml demo/corpus/corpus.json demo/others/corpus.json
	rm -rf demo/run
	OMP_NUM_THREADS=1 $(BIN)/uedp train docs/demo.yaml --out demo/run

demo/messages.jsonl: $(wildcard src/uedp/corpus/sample*.py) | $(USE)
	@mkdir -p demo && rm -f demo/*.jsonl
	$(BIN)/uedp sample --people 4000 --out $@ --held-out demo/others.jsonl

demo/others.jsonl: demo/messages.jsonl

demo/corpus/corpus.json: demo/messages.jsonl
	$(BIN)/uedp detect $< --out demo/corpus --overwrite --label label --detector labels,patterns

demo/others/corpus.json: demo/others.jsonl
	$(BIN)/uedp detect $< --out demo/others --overwrite --label label --detector labels,patterns

paper: $(DEV)  ## write docs/results.md from results/; with DATA=DIR NER=DIR, first rerun what needs no training
ifdef DATA
	for name in breakdown integrity budget; do \
	  $(BIN)/python -m research $$name --data $(DATA) --out results --model ner=$(NER) || exit; done
endif
	$(BIN)/python -m research report --results results --out docs/results.md

clean:  ## remove what was made, .venv too
	rm -rf .venv demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

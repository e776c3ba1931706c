# Every target sets itself up in .venv; nothing outside this directory is written.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test docker lint format bench soak gpu clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[embedded,tensorrt-rtx,docker,test]'
	touch $@

demo: $(STAMP)
	$(BIN)/python -m examples.demo

test: $(STAMP)
	$(BIN)/python -m pytest tests -m "not soak and not gpu"

# What needs a Docker engine: the one that runs, or one of its own (as root) that is removed again.
docker: $(STAMP)
	.ci/docker up
	eval "$$(.ci/docker env)"; $(BIN)/python -m pytest tests -m docker; status=$$?; .ci/docker down; exit $$status

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

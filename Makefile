# Everything lives in .venv; the first target that needs it makes it.
# TORCH pins the build the project is tested with; `make TORCH=torch` takes the newest.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test check bench reproduced clean

help:
	@echo "make demo    learn five digit tasks in several orders, APD against plain fine-tuning"
	@echo "make test    run the tests"
	@echo "make check   lint, format and type checks"
	@echo "make bench   speed and memory beside the plain PyTorch loop"
	@echo "make reproduced   write REPRODUCED.md and the figures of docs/methods.md from the result files"

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/digits.py

test: $(STAMP)
	$(BIN)/python -m pytest --cov=sigmatau --cov-report=term:skip-covered
	$(BIN)/python -m coverage report --include='*/sigmatau/core/*' --fail-under=95

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

reproduced: $(STAMP)
	$(BIN)/sigmatau reproduced results --methods docs/methods.md

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .coverage .hypothesis

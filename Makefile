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

.PHONY: install install-dev audit test shapes release-check promises hunt slow reproductions bench-peers bench-gpu lint format docs clean

# Plain installation: what the example audit needs.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	# Its filters import without the servers and containers that it depends on.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps "nvflare>=2.7" msgpack
	touch $@

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

# The example audit on real photos; the page is audit-out/report.html.
audit: install
	$(BIN)/leakgauge audit -o audit-out

# Two workers: the suite is single-threaded numerics. A file stays with one, whose tests share what they made.
test: install-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile

# The contracts once more with every shape and type checked at run time, which doubles the time.
shapes: install-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --jaxtyping-packages=$(CHECKED),beartype.beartype $(CONTRACTS)

# The wheel alone, elsewhere, with the newest and the oldest Python and dependencies: twenty minutes, 6 GB of downloads
# where no index has CPU builds of torch.
release-check:
	.ci/release-check

# docs/reference/promises.md, the table of what was tried and what failed, in one go.
PROMISES := tests/test_damaged_files.py tests/test_chaos.py tests/test_odd.py tests/test_read_only.py \
            tests/test_hostile.py tests/study/test_honest.py
promises: install-dev
	rm -rf .promises
	LEAKGAUGE_PROMISES=.promises $(BIN)/python -m pytest -n 2 --dist loadfile -m slow $(PROMISES)
	$(BIN)/python tests/promises.py .promises docs/reference/promises.md

# What takes minutes, and the page of promises.
slow: promises
	$(BIN)/python -m pytest -m slow $(addprefix --ignore=,$(PROMISES))

# Random clients, defences and networks in other words, read twice: what is read must not depend on how it is written.
# Half an hour on one core; each new cause is a script of ten lines in .hunt.
hunt: install-dev
	PYTHONPATH=tests nice -n 10 $(BIN)/python -m hunt

# Tables and figures of the papers, hours on one core; goes on where it stopped. DATA holds the Parquet files.
reproductions: install-dev
	nice -n 19 $(BIN)/python -m reproduce.queue --data $(DATA)

# Beside breaching, in an environment of its own: ten held-out photos on LeNet, then the cost of steps. An hour on one
# core; goes on where it stopped. DATA holds the Parquet files.
.venv-peers/.installed: pyproject.toml constraints.txt
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.venv-peers/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[parquet]" hydra-core
	.venv-peers/bin/pip install --quiet --disable-pip-version-check --no-deps breaching==0.1.2
	touch $@

bench-peers: .venv-peers/.installed
	.venv-peers/bin/python benchmarks/peers.py run --data $(DATA)/cifar10-test.parquet
	for network in lenet convnet resnet20 resnet18; do \
	  .venv-peers/bin/python benchmarks/peers.py run --kind steps --networks $$network --evaluations 6; done
	for shape in "--batch 8" "--restarts 8" "--size 64"; do \
	  .venv-peers/bin/python benchmarks/peers.py run --kind steps --networks lenet --evaluations 20 $$shape; done
	.venv-peers/bin/python benchmarks/peers.py run --kind steps --networks convnet --evaluations 6 --width 16
	.venv-peers/bin/python benchmarks/peers.py page

# Steps a second, time to 20 dB and memory on a GPU, at most eight minutes. Without one: --device cpu --quick.
bench-gpu: install
	$(BIN)/python benchmarks/gpu.py

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# All pages anew: Sphinx' search forgets what pages that have not changed are called in the index.
docs: install-dev
	$(BIN)/python -m sphinx -W --keep-going -q -a -b html docs docs/_build/html
	$(BIN)/python -m pytest -n 2 -m notebook tests/docs/test_notebooks.py

clean:
	rm -rf $(VENV) audit-out docs/_build

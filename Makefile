# A machine with Python 3.11 or later (with venv and pip) and make is all that is needed:
# every target installs what it uses into $(VENV), and again only when the pins or the package's metadata change.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# The first two pin what is installed and, for older and newer pip, what builds the package.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP_INSTALL := $(BIN)/python -m pip install -qq

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test check docs bench bench-memory bench-scale wheel hostile vulnerabilities constraints clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-25s%s\n", $$1, $$2 }'

demo: $(VENV)/.core ## audit a model on scikit-learn's digits into demo-out/
	$(BIN)/plmia demo -o demo-out
	@echo "Open demo-out/report.html; demo-out/metrics.json has the numbers, demo-out/records.csv the most exposed records."

# A file's tests share simulations, so one worker runs a whole file. One thread each: two workers with threads of
# OpenMP on two cores are several times slower.
test: $(VENV)/.dev ## run the tests (ARGS="-k cauchy" to choose)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests $(ARGS)

check: $(VENV)/.dev ## lint, formatting, types, import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_imports.py

# Not --quiet: that would hide broken links from --strict.
docs: $(VENV)/.dev ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.dev ## measure the speed of scoring and of training
	$(BIN)/python benchmarks/scoring.py $(ARGS)
	$(BIN)/python benchmarks/training.py

bench-memory: $(VENV)/.dev ## measure the memory of score, report and compare; half an hour (ARGS=--quick for less)
	$(BIN)/python benchmarks/memory.py $(ARGS)

bench-scale: $(VENV)/.dev ## measure small audits and extrapolate to 10^9 records; ten minutes (ARGS=--quick for less)
	$(BIN)/python benchmarks/scale.py $(ARGS)

# One thread: campaigns fork.
hostile: $(VENV)/.dev ## try hostile input, kills and full disks; minutes (ARGS="--scale 6 --faults 2" for longer)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile $(ARGS)

# pip-audit has an environment of its own: it would change the version of pip in the other one.
vulnerabilities: $(VENV)-audit/.made ## compare the pinned versions with known vulnerabilities, where a service answers
	$(VENV)-audit/bin/python scripts/audit_dependencies.py $(ARGS)

# Time of the last commit: whoever builds it again gets the same bytes.
EPOCH = $(shell git log -1 --format=%ct 2>/dev/null || echo 1577836800)

# Built and installed with the pinned versions, too: an isolated build reads the same constraints.
wheel: $(VENV)/.dev ## build sdist and wheel into dist/, and try each in an empty environment outside of the checkout
	rm -rf dist
	SOURCE_DATE_EPOCH=$(EPOCH) $(BIN)/python -m build -o dist .
	SOURCE_DATE_EPOCH=$(EPOCH) $(BIN)/python scripts/smoke.py dist/*

.PHONY: reproduce reproduce-quick reproduce-whole
reproduce: $(VENV)/.core ## run the paper's tables and figures into out/reproduce/ (ARGS="--data FILE" to train)
	$(BIN)/plmia reproduce all -o out/reproduce $(ARGS)

reproduce-quick: $(VENV)/.core ## the same on small signals, compared with the committed results
	$(BIN)/plmia reproduce all --quick --quiet -o out/reproduce-quick
	$(BIN)/plmia reproduce table-2 table-s2 --quick --quiet --signals experiments/signals/cifar100_wrn.npz \
	    -o out/reproduce-quick/cifar-100
	$(BIN)/python -m experiments.compare out/reproduce-quick experiments/results/quick
	$(BIN)/python -m experiments.compare out/reproduce-quick/cifar-100 experiments/results/quick/cifar-100

# Some networks on CIFAR-100 are kept in the repository. Training adds the others, unless KEPT=only: the committed
# results are from the kept ones alone.
WHOLE := out/reproduce-whole
CIFAR100 := cifar100_wrn cifar100_wrn_plain cifar100_wrn_long cifar100_wrn_jpeg
reproduce-whole: $(VENV)/.dev ## train what full/ lacks on the data in DATA=FOLDER; the committed results anew, compared
	@test -d "$(DATA)" || { echo "name the folder of the data sets: make reproduce-whole DATA=FOLDER" >&2; exit 1; }
	@test -z "$(KEPT)" || test "$(KEPT)" = only || { echo "KEPT is $(KEPT): give KEPT=only, or none" >&2; exit 1; }
	for name in $(if $(KEPT),$(CIFAR100)); do $(BIN)/python -m experiments.kept write $$name full || exit 1; done
	$(BIN)/python -m experiments.whole "$(DATA)" full
	$(BIN)/plmia reproduce all --signals full --quiet -o $(WHOLE)
	$(BIN)/plmia reproduce table-2 table-3 --targets 30 --signals full --quiet -o $(WHOLE)
	$(BIN)/plmia reproduce table-5 figure-2 figure-4 table-s3 --signals full/cifar10_wrn_plain --quiet \
	    -o $(WHOLE)/no-augmentation
	$(BIN)/plmia reproduce table-2 table-3 table-4 table-5 table-s1 table-s2 table-s3 figure-2 figure-3 figure-4 \
	    --signals full/cifar100_wrn --quiet -o $(WHOLE)/cifar-100
	$(BIN)/plmia reproduce table-2 table-3 table-4 table-5 table-s2 table-s3 figure-2 figure-3 figure-4 \
	    --signals full/cifar100_wrn_plain --quiet -o $(WHOLE)/cifar-100-no-augmentation
	$(BIN)/python -m experiments.compare $(WHOLE) experiments/results --retrained
	for name in no-augmentation cifar-100 cifar-100-no-augmentation; do \
	    $(BIN)/python -m experiments.compare $(WHOLE)/$$name experiments/results/$$name --retrained || exit 1; done

constraints: ## compile constraints.txt anew (ARGS=--upgrade for the newest releases)
	PYTHON="$(PYTHON)" sh scripts/compile_constraints.sh $(ARGS)

clean: ## remove the virtual environment and everything else that was made
	rm -rf $(VENV) $(VENV)-audit demo-out bench-out site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.made:
	@command -v "$(PYTHON)" >/dev/null || \
	    { echo "$(PYTHON) was not found: install Python 3.11 or later, or name it: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$$("$(PYTHON)" --version) is too old, 3.11 is needed: name another: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "$(PYTHON) has no venv module: install it (on Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

$(VENV)-audit/.made: $(VENV)/.made .ci/pip-audit.txt
	$(BIN)/python -m venv $(VENV)-audit
	PIP_CONSTRAINT= $(VENV)-audit/bin/python -m pip install -qq -r .ci/pip-audit.txt
	@touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP_INSTALL) -e '.[dev,all]'
	@touch $(VENV)/.core $@

# make install: create the environment
# make demo: run a study of the three architectures, 10 minutes of CPU time: outputs/studies/demo/report.html
# make quick: run the tests that a change needs, within a minute; on a busy machine, make quick SECONDS=200
# make test: run the tests, the longest files first; make test DURATIONS=1 writes their durations to tests/durations.json
# make docs: build the documentation site and test it in a browser: outputs/site/index.html; a warning is an error
# make faults: run the fault tests a few times each, four files at a time; make faults FULL=1: as often as
#   docs/fault_injection.md states
# make nightly: run the tests that make test and make faults skip; writes the tested commit to outputs/nightly.json
# make cases: choose the cases of tests that only make nightly runs; takes twice as long as all tests of make test
# make fuzz: train, stop, resume, evaluate and export random configurations; make fuzz N=600 SEED=1: numbers 1 to 600. A
#   failure prints the command that repeats it
# make release: before a release, test blocks, models and tasks with the latest packages from pip (downloads gigabytes);
#   requires make nightly at the same commit
# make versions: add a row to docs/versions.md for PYTHON=python3.13 TORCH=2.14.1 (may download gigabytes, and deletes them)
# make families: write docs/families.md, measurements of the published families
# make compatibility: write docs/compatibility.md, which parts work with which architectures, tasks, precisions and other parts
# make bench: write benchmarks/speed.md, training and decoding compared with other libraries (on an idle machine)
# make gpu: write docs/gpu.md, results on the GPU of this machine; make gpu PART=decoder: one part; make gpu DEVICE=cpu: a
#   small trial. It uses a python3 with torch, and the packages in wheels/, if that folder exists
# make wheels: fill wheels/ with the packages that make gpu needs, except torch, lightning and transformers, for a machine
#   without a network
# All other targets create their environment in .venv, with the versions in constraints.txt.

PYTHON ?= python3
FAULTS = tests/faults/processes $(sort $(shell grep -rl mark.faults tests --include='test_*.py')) # longest first
export PYTHONDONTWRITEBYTECODE = # tests start hundreds of processes; none of them should compile files

.PHONY: install demo quick test docs faults nightly cases fuzz release versions families claims compatibility bench gpu growth wheels check clean

install: .venv/installed
	@echo "next: .venv/bin/triptych train experiment=dates/translation, or .venv/bin/triptych list"

demo: .venv/base
	.venv/bin/triptych study demo

quick: .venv/installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python tests/quick.py $(SECONDS)

test: .venv/installed
	TRIPTYCH_DURATIONS=$(if $(DURATIONS),write,read) .venv/bin/python -m pytest

docs: .venv/installed
	PYTHONPATH=$(CURDIR)/tests/quick_start .venv/bin/sphinx-build --quiet --fail-on-warning --conf-dir docs . outputs/site
	.venv/bin/python -m pytest -n 0 -m site tests/test_site.py

faults: .venv/installed
	PYTHONPATH=$(CURDIR)/tests/quick_start TRIPTYCH_FAULTS=$(if $(FULL),full) TRIPTYCH_FAULTS_TABLE=outputs/faults.md .venv/bin/python -m pytest -m "faults$(if $(FULL),, and not nightly)" -n 4 $(FAULTS)
	cat outputs/faults.md

nightly: .venv/installed
	.venv/bin/python tests/nightly.py

cases: export TRIPTYCH_CASES = $(CURDIR)/outputs/cases
cases: export COVERAGE_PROCESS_START = $(CURDIR)/pyproject.toml
cases: export COVERAGE_FILE = $(TRIPTYCH_CASES)/lines
cases: .venv/installed
	rm -rf $(TRIPTYCH_CASES)
	mkdir -p $(TRIPTYCH_CASES)
	.venv/bin/python -m pytest $(TESTS)
	env -u COVERAGE_PROCESS_START .venv/bin/python tests/nightly_cases.py

fuzz: .venv/installed
	OMP_NUM_THREADS=1 .venv/bin/python tests/fuzz.py $(or $(N),100) $(or $(SEED),1)

release:
	$(PYTHON) tests/nightly.py --check
	$(PYTHON) -m venv --clear outputs/release
	outputs/release/bin/python -m pip install --quiet --disable-pip-version-check '.[dev]'
	outputs/release/bin/python -m pip list | grep -E '^(torch|triton|lightning|hydra-core|transformers) '
	outputs/release/bin/python -m pytest tests/nn tests/models tests/tasks tests/interop
	outputs/release/bin/python -m pytest -m release tests/test_release.py tests/test_packages.py

versions:
	$(PYTHON) tests/versions_page.py $(TORCH)

families: .venv/installed
	.venv/bin/python tests/families_page.py docs/families.md

claims: .venv/installed
	.venv/bin/python tests/claims_page.py

compatibility: .venv/installed
	.venv/bin/python tests/compatibility_page.py docs/compatibility.md

bench: .venv/installed
	.venv/bin/python benchmarks/speed.py --compile --output benchmarks/speed.md

gpu:
	bash benchmarks/gpu.sh $(PART) $(if $(DEVICE),--device $(DEVICE) --output outputs/gpu/$(DEVICE).md)

growth: .venv/installed
	.venv/bin/python benchmarks/growth.py outputs/growth --output benchmarks/growth.md

wheels: .venv/installed
	.venv/bin/python benchmarks/gpu_wheels.py

check: .venv/installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/python tests/phrases.py
	.venv/bin/shellcheck --exclude=SC1091 .ci/run slurm/*.sbatch # SC1091: .venv is not followed

# A newer pip than Python's resolves in half the time. Python compiles a module at its first import, pip all of them: minutes.
# Packages without a wheel are built with the pinned setuptools; seqeval's version comes from setuptools-scm.
INSTALL = .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

.venv/pip: constraints.txt
	@echo "installing into .venv what is needed, once: some hundred megabytes, a minute or two with a fast network"
	$(PYTHON) -m venv .venv
	$(INSTALL) --upgrade pip setuptools setuptools-scm
	touch $@

.venv/base: .venv/pip pyproject.toml
	$(INSTALL) --no-build-isolation --editable .
	touch $@

.venv/installed: .venv/pip pyproject.toml
	$(INSTALL) --no-build-isolation --editable '.[dev,bench,docs]'
	touch .venv/base $@

clean:
	rm -rf .venv outputs

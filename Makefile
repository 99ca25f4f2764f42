# make demo      train a small network under stepscope and show where the results are
# make demo-cluster  four ranks that train together and stream to a collector, while things break; DIR=... leaves what it made there
# make test      the everyday tests, in minutes
# make test-all  all tests: also the slow ones, with both event loops
# make coverage  the branches that the everyday tests run: 85 % or more
# make messages  tests/messages.json, of what errors, warnings and commands say in the tests
# make check     formatting, lint, imports, spelling, types
# make nightly   newest and lowest dependencies, other Pythons, coverage, sanitizers, torture, chance, planted programs, fuzzing
# make test-newest  the everyday tests with the newest versions of all dependencies but torch
# make test-lowest  the everyday tests with the lowest versions that pyproject.toml allows, of all dependencies but torch
# make sanitize  tests of the native core under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer
# make fuzz      the decoders with atheris, FUZZ_SECONDS=60 for each
# make bench     the benchmarks, beside other tracers
# make planted   runs programs with planted faults, and compares what `stepscope explain` finds, about seven minutes, for docs/answers.md
# make torture   breaks the runtime in every way, about five minutes, and writes docs/reliability.md
# make chance    breaks the runtime as chance has it, CHANCE_MINUTES=10
# make endurance 100 million spans and 10,000 starts, about sixteen minutes, for docs/reliability.md
# make docs      docs/settings.md, commands.md and messages.md, of what settings, commands and code say, the table of releases, and tests/checklist.json
# make site      the documentation as a site, build/site/index.html
# make links     are the outside pages there to which the documentation links? Needs the network; not part of make check
# make wheel     dist/
# Each target makes what it needs; what is there already is not made again.

# The first that runs: shims of pyenv exist for interpreters that it will not run.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14; do \
	$$python -c "" 2>/dev/null && echo $$python && exit; done; echo python3.11)
VENV := .venv
# Who names a Python while there is an environment of another one would be passed over in silence.
ifneq ($(filter environment command,$(firstword $(origin PYTHON))),)
ifneq ($(wildcard $(VENV)/bin/python),)
version = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
ifneq ($(call version,$(PYTHON)),$(call version,$(VENV)/bin/python))
$(error $(VENV) has Python $(call version,$(VENV)/bin/python), not $(PYTHON): remove $(VENV) first, or leave PYTHON out)
endif
endif
endif
HTA_VENV := .venv-hta
PHOENIX_VENV := .venv-phoenix
MINDSPORE_VENV := .venv-mindspore
COMPOSER_VENV := .venv-composer
JAX_VENV := .venv-jax
FUZZ_VENV := .venv-fuzz
NEWEST_VENV := .venv-newest
LOWEST_VENV := .venv-lowest
FUZZ_SECONDS ?= 60
CHANCE_MINUTES ?= 10
STAMPS := $(VENV)/stamps
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# In pyenv's own folders, for the same reason.
OTHER_PYTHONS := $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python3.12 $(HOME)/.pyenv/versions/3.13.*/bin/python3.13)
# Those that only Debian testing has, in a chroot: it takes root and debootstrap.
DEBIAN_PYTHONS ?= python3.14 python3.15
DEBIAN_TESTING ?= $(HOME)/.cache/stepscope/debian-testing
CORE := $(wildcard runtime/core/*.[ch] runtime/core/*/*.[ch])
# Tests wait about as long as they compute, so there are more processes than processors. Each file runs in one process. The files
# stay in order: those of units, which are short, come last, so that all processes end together.
WORKERS := $(shell echo $$(( ($$(nproc) * 3 + 1) / 2 )))
PYTEST_ARGS ?= --numprocesses $(WORKERS) --maxprocesses 6 --dist loadfile --no-loadscope-reorder --maxfail 12

# Without byte code each of the processes that tests start would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help install demo demo-cluster test test-all test-newest test-lowest coverage slow-tests messages planted nightly check lint types bench torture chance endurance docs site links wheel hta phoenix mindspore composer jax viewers viewers-if-npm test-pythons clean distclean sanitize fuzz

help:
	@sed -n '/^# make/s/^# //p' Makefile

install: $(STAMPS)/core

$(STAMPS)/venv:
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

# torch alone and first: the pinned build then stays, whatever the other packages would like.
$(STAMPS)/torch: constraints.txt | $(STAMPS)/venv
	@echo "installing torch (once)"
	@$(PIP) install -c constraints.txt torch "setuptools>=77"
	@touch $@

# What shows stepscope takes a fraction of what tests it.
$(STAMPS)/demo: pyproject.toml $(CORE) $(STAMPS)/torch
	@echo "installing stepscope and what its demo needs"
	@$(PIP) install --no-build-isolation -c constraints.txt -e ".[demo]"
	@touch $@

$(STAMPS)/dev: pyproject.toml $(STAMPS)/torch
	@echo "installing stepscope and what its tests need"
	@$(PIP) install --no-build-isolation -c constraints.txt -e ".[dev]"
	@touch $@

$(STAMPS)/core: $(STAMPS)/dev $(CORE)
	@echo "building the native core"
	@$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

$(STAMPS)/bench: $(STAMPS)/core
	@echo "installing the tracers to compare with"
	@$(PIP) install --no-build-isolation -c constraints.txt -e ".[bench]"
	@touch $@

# Where everything is installed, that does.
demo: $(if $(wildcard $(STAMPS)/dev),install,$(STAMPS)/demo)
	@$(BIN)/stepscope demo

demo-cluster: install
	@$(BIN)/python -m tools.demo_cluster $(if $(DIR),--dir "$(DIR)")

test: install
	@$(BIN)/pytest $(PYTEST_ARGS)

test-all: install viewers-if-npm
	@mkdir -p build
	@$(BIN)/pytest --all --junitxml=build/tests.xml $(PYTEST_ARGS)

# Programs that the tests start count as well; of those that are killed it is not known what they ran.
coverage: install
	@rm -f build/coverage/.coverage*
	@$(BIN)/pytest --cov --cov-report=term-missing:skip-covered --cov-fail-under=85 $(PYTEST_ARGS)

# After make test-all: which tests are too slow for make test.
slow-tests: install
	@$(BIN)/python -m tools.slow_tests build/tests.xml

# A file that is named runs also its slow tests.
messages: install
	@$(BIN)/pytest --update-messages $(PYTEST_ARGS) $$(grep -rl "tests.support.messages" tests --include="test_*.py")

nightly: test-newest test-lowest test-pythons coverage sanitize torture chance planted fuzz

# Torch stays, as an open range would bring gigabytes. The versions are in build/newest.txt.
test-newest: UPGRADE = $(NEWEST_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade \
	--upgrade-strategy eager -c $(NEWEST_VENV)/constraints.txt
test-newest:
	@test -d $(NEWEST_VENV) || $(PYTHON) -m venv $(NEWEST_VENV)
	@mkdir -p build
	@grep '^torch==' constraints.txt >$(NEWEST_VENV)/constraints.txt
	@echo "upgrading $(NEWEST_VENV)"
	@$(UPGRADE) torch "setuptools>=77"
	@$(UPGRADE) --no-build-isolation -e ".[dev]"
	@$(NEWEST_VENV)/bin/python -m pip freeze --exclude-editable >build/newest.txt
	@$(NEWEST_VENV)/bin/pytest $(PYTEST_ARGS)

# Of what only the tests need, the versions are those that go with these. All are in build/lowest.txt.
test-lowest: PIN = $(LOWEST_VENV)/bin/python -m pip --disable-pip-version-check --quiet install -c $(LOWEST_VENV)/constraints.txt
test-lowest:
	@test -d $(LOWEST_VENV) || $(PYTHON) -m venv $(LOWEST_VENV)
	@mkdir -p build
	@$(LOWEST_VENV)/bin/python -m tools.lowest >$(LOWEST_VENV)/constraints.txt
	@echo "installing the lowest versions in $(LOWEST_VENV)"
	@$(PIN) torch "setuptools>=77"
	@$(PIN) --no-build-isolation -e ".[dev]"
	@$(LOWEST_VENV)/bin/python -m pip freeze --exclude-editable >build/lowest.txt
	@$(LOWEST_VENV)/bin/pytest $(PYTEST_ARGS)

check: lint types

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CORE)
	$(BIN)/codespell
	@$(BIN)/python -m tools.check_imports

types: install
	@$(BIN)/python -m tools.check_types

sanitize: install
	PYTHON=$(BIN)/python tests/stress/sanitize.sh address
	PYTHON=$(BIN)/python tests/stress/sanitize.sh thread

# In an environment of its own: atheris instruments what it imports, and is of no other use. What it finds is below build/fuzz.
fuzz: $(FUZZ_VENV)/stamp install
	$(FUZZ_VENV)/bin/python -m tests.stress.fuzz --seconds $(FUZZ_SECONDS)

$(FUZZ_VENV)/stamp:
	@echo "making $(FUZZ_VENV) (once)"
	@$(PYTHON) -m venv $(FUZZ_VENV)
	@$(FUZZ_VENV)/bin/python -m pip --disable-pip-version-check --quiet install atheris numpy msgspec anyio aiofiles zstandard opentelemetry-proto aiohttp
	@touch $@

bench: $(STAMPS)/bench
	@$(BIN)/python -m benchmarks

planted: install
	@$(BIN)/python -m tests.planted.live --markdown docs/answers.md

torture: install
	@$(BIN)/python -m tests.stress.torture --markdown docs/reliability.md

chance: install
	@$(BIN)/python -m tests.stress.torture --chance --minutes $(CHANCE_MINUTES)

endurance: install
	@$(BIN)/python -m benchmarks.endurance --markdown docs/reliability.md --plot docs/endurance.svg

docs: install
	@$(BIN)/python -m docs.settings
	@$(BIN)/python -m docs.commands
	@$(BIN)/python -m docs.messages
	@$(BIN)/python -m benchmarks.harness.release_plot
	@$(BIN)/python -m tools.checklist

# Every warning is an error: a link or anchor that leads nowhere, a page that no menu has, a docstring that cannot be shown.
site: install
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

links: install
	@$(BIN)/python -m tools.check_links

# Through the source distribution, which shows that it is complete; for each Python at hand. auditwheel gives them the manylinux tag.
wheel: install
	@rm -rf dist build/wheels && mkdir -p build/wheels
	@( $(BIN)/python -m build --sdist --outdir dist && \
	for python in $(BIN)/python $(OTHER_PYTHONS); do \
		"$$python" -m pip wheel --no-deps --wheel-dir build/wheels dist/*.tar.gz || exit 1; done && \
	PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --wheel-dir dist build/wheels/*.whl ) >build/wheel.log 2>&1 \
		|| { cat build/wheel.log; exit 1; }
	@ls dist/*

# Holistic Trace Analysis needs a pandas of its own. Of what it asks for, jupyterlab serves only its notebooks.
hta: $(HTA_VENV)/stamp

$(HTA_VENV)/stamp:
	@echo "making $(HTA_VENV) (once)"
	@$(PYTHON) -m venv $(HTA_VENV)
	@$(HTA_VENV)/bin/python -m pip --disable-pip-version-check --quiet install numpy "pandas<3" networkx plotly pydot ipywidgets pyyaml
	@$(HTA_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps HolisticTraceAnalysis==0.5.0
	@touch $@

# Arize Phoenix, a store for OTLP, brings a web server and database of 850 MB: tests start it, nothing imports it.
phoenix: $(PHOENIX_VENV)/stamp

$(PHOENIX_VENV)/stamp:
	@echo "making $(PHOENIX_VENV) (once)"
	@$(PYTHON) -m venv $(PHOENIX_VENV)
	@$(PHOENIX_VENV)/bin/python -m pip --disable-pip-version-check --quiet install arize-phoenix==20.26.1
	@touch $@

# MindSpore needs numpy 1, and is 800 MB: tests start trainings in an environment of its own.
mindspore: $(MINDSPORE_VENV)/stamp

$(MINDSPORE_VENV)/stamp: pyproject.toml
	@echo "making $(MINDSPORE_VENV)"
	@$(PYTHON) -m venv $(MINDSPORE_VENV)
	@$(MINDSPORE_VENV)/bin/python -m pip --disable-pip-version-check --quiet install -e . mindspore==2.10.0 "numpy<2"
	@touch $@

# Composer asks for a torch that is older than ours and brings gigabytes for GPUs; it runs with ours, seen through a .pth. So
# what it needs besides is named here; torchvision's operators are missing then, of which it uses none.
composer: $(COMPOSER_VENV)/stamp

$(COMPOSER_VENV)/stamp: constraints.txt | $(STAMPS)/core
	@echo "making $(COMPOSER_VENV)"
	@$(PYTHON) -m venv $(COMPOSER_VENV)
	@path='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$$path")')" >"$$($(COMPOSER_VENV)/bin/python -c "$$path")/development.pth"
	@$(COMPOSER_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps mosaicml==0.32.1 torch_optimizer==0.3.0 torchvision==0.28.0 coolname tabulate==0.9.0 py-cpuinfo
	@$(COMPOSER_VENV)/bin/python -m pip --disable-pip-version-check --quiet install "mosaicml-cli<0.8" "importlib-metadata<9" 2>$(COMPOSER_VENV)/pip.log || { cat $(COMPOSER_VENV)/pip.log; exit 1; }
	@touch $@

# Keras on JAX, and no torch. Not where all tests run: Keras imports JAX wherever it is, and JAX warns of every fork.
jax: $(JAX_VENV)/stamp

$(JAX_VENV)/stamp: pyproject.toml
	@echo "making $(JAX_VENV)"
	@$(PYTHON) -m venv $(JAX_VENV)
	@$(JAX_VENV)/bin/python -m pip --disable-pip-version-check --quiet install -e . "keras>=3.15" jax==0.10.2
	@touch $@

# What TensorBoard's trace view would load from the network; tests serve it from here.
viewers: .cache/viewers/webcomponents/package/webcomponents.min.js .cache/viewers/axe-core/package/axe.min.js \
	.cache/viewers/typescript/package/lib/tsc.js

.cache/viewers/webcomponents/package/webcomponents.min.js:
	@mkdir -p .cache/viewers/webcomponents
	npm pack --silent --pack-destination .cache/viewers webcomponents.js@0.7.24
	tar -xzf .cache/viewers/webcomponents.js-0.7.24.tgz -C .cache/viewers/webcomponents
	@touch $@

# What looks whether everybody can use the collector's page.
.cache/viewers/axe-core/package/axe.min.js:
	@mkdir -p .cache/viewers/axe-core
	npm pack --silent --pack-destination .cache/viewers axe-core@4.14.1
	tar -xzf .cache/viewers/axe-core-4.14.1.tgz -C .cache/viewers/axe-core
	@touch $@

# What checks the types of the collector's page.
.cache/viewers/typescript/package/lib/tsc.js:
	@mkdir -p .cache/viewers/typescript
	npm pack --silent --pack-destination .cache/viewers typescript@5.9.3
	tar -xzf .cache/viewers/typescript-5.9.3.tgz -C .cache/viewers/typescript
	@touch $@

viewers-if-npm:
	@if command -v npm >/dev/null; then $(MAKE) -s viewers || echo "no viewers: tests that need them are skipped"; \
	else echo "npm is missing: tests that need the viewers are skipped"; fi

test-pythons: wheel
	@set -e; for python in $(OTHER_PYTHONS); do .ci/test-python "$$python"; done; \
	if [ -z "$(OTHER_PYTHONS)" ]; then echo "neither Python 3.12 nor 3.13 found"; fi
	@if [ "$$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then \
		echo "$(DEBIAN_PYTHONS) not tried: this takes root, and debootstrap (apt-get install debootstrap)"; exit; fi; \
	for python in $(DEBIAN_PYTHONS); do tools/debian_testing.sh "$(DEBIAN_TESTING)" .ci/test-python "$$python" || exit 1; done

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage runtime/_core*.so $(STAMPS)/core $(STAMPS)/demo
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .venv-* .cache

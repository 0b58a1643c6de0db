# Tests and pages start hundreds of processes: each would compile all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

# `make demo` and `make test` set up .venv themselves; PYTHON names the interpreter to start from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.jax_cache

.PHONY: demo test test-slow test-all test-versions check notebooks docs pictures wheel clean

demo: $(VENV)/.demo
	$(BIN)/fedjax-sim run quickstart

# The tests that a person waits for. Most of their time is compilation, so XLA optimises little,
# and the tests of one file share a process, which compiles each program once.
FAST := --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true
# Flags that not every version of JAX has.
QUICK := $(FAST) --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
test: $(VENV)/.test
	XLA_FLAGS="$(QUICK) $$XLA_FLAGS" $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

# The rest: real data, processes, kills, experiments, and whatever takes long to compile.
test-slow: $(VENV)/.test
	XLA_FLAGS="$(QUICK) $$XLA_FLAGS" $(BIN)/python -m pytest -n 2 --dist loadfile -m slow

# All in one run: modules are collected once, and slow tests find the quick ones' programs.
test-all: $(VENV)/.test
	XLA_FLAGS="$(QUICK) $$XLA_FLAGS" $(BIN)/python -m pytest -n 2 --dist loadfile

# Examples and pages have many small programs in common with each other and with tests.
CACHE_ALL := JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0

# Style, types and the examples of the docstrings.
check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	XLA_FLAGS="$(QUICK) $$XLA_FLAGS" $(CACHE_ALL) \
	  $(BIN)/python -m pytest -n 2 --dist loadfile --doctest-modules fedjax_sim
	$(BIN)/python -m pytest --doctest-modules --doctest-ignore-import-errors experiments benchmarks

# Committed notebooks have no outputs; `make docs` runs them.
notebooks: $(VENV)/.dev
	$(BIN)/nbstripout --verify notebooks/*.ipynb

# The site in docs/_build/html: code runs, warnings are errors, links and pages are checked.
docs: $(VENV)/.docs
	XLA_FLAGS="$(QUICK) $$XLA_FLAGS" $(CACHE_ALL) $(BIN)/python docs/execute.py
	rm -rf docs/_build/html
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python -m pytest docs/checks

# Committed pictures and outputs of README.md and of pages, and the page of algorithms. Results in
# experiments/results/pictures are measured only where they are absent.
pictures: $(VENV)/.docs
	$(BIN)/python docs/extensions/algorithms.py
	$(BIN)/python docs/pictures.py
	$(BIN)/python docs/outputs.py

# The quick tests with the oldest or the newest versions that pyproject.toml allows.
VERSIONS ?= newest
test-versions: .venv-$(VERSIONS)/.test
	XLA_FLAGS="$(FAST) $$XLA_FLAGS" .venv-$(VERSIONS)/bin/python -m pytest -n 2 --dist loadfile -m "not slow" -W ignore::DeprecationWarning

.venv-%/.test: pyproject.toml
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet uv
	.venv-$*/bin/uv pip install --quiet --python .venv-$*/bin/python --upgrade \
	  --resolution $(if $(filter oldest,$*),lowest-direct,highest) --editable '.[test]'
	touch $@

# A wheel and a source archive in dist/, and a check of the wheel in an empty environment.
wheel: $(VENV)/.dev
	rm -rf dist build
	$(BIN)/python -m build --no-isolation --outdir dist . > /dev/null
	bash .ci/check_wheel $(BIN)/python dist/*.whl

$(VENV)/.demo: requirements/demo.txt pyproject.toml
$(VENV)/.test: requirements/test.txt requirements/demo.txt pyproject.toml
$(VENV)/.dev: requirements/dev.txt requirements/test.txt requirements/demo.txt pyproject.toml
$(VENV)/.docs: requirements/docs.txt requirements/test.txt requirements/demo.txt pyproject.toml

# Compiling all modules takes a minute; Python compiles those that are imported.
$(VENV)/.demo $(VENV)/.test $(VENV)/.dev $(VENV)/.docs: $(VENV)/.%: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --requirement requirements/$*.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) .venv-* dist build .jax_cache .pytest_cache .ruff_cache .hypothesis results
	rm -rf docs/_build docs/notebooks docs/reference docs/changelog.md docs/contributing.md

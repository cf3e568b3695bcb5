# Two commands do everything on a machine with Python 3.11 or newer: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin

# Several devices of one process call OpenBLAS at once; its threads then wait for each other, now and then for ever.
export OPENBLAS_NUM_THREADS := 1

# The partitioner, which is under test, works as ever; only machine code is made with less care, which saves half, and
# each program in one piece, since every core has programs of its own to compile.
QUICKLY := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true \
  --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

.PHONY: setup test test-long test-harness test-packages test-random test-kills demo lint \
  bench-plans bench-plan-time bench-predict bench-audit bench-unseen bench-unseen-time bench-published bench-waits \
  bench-loops bench-brought bench-reuse bench-copied bench-quick bench-single bench-solver clean

setup: .venv/installed

# Stamps, so that each step is done again only when what it reads has changed. Bytecode is compiled on all cores, where
# pip would take one, without that of packages' own tests, a quarter of it; as with pip, what does not compile stops
# nothing.
.venv/locked: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Meshwright needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version)." \
	       "Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --no-deps --no-compile -r requirements.lock
	-$(BIN)/python -m compileall -q -j 0 -x '/tests/' .venv/lib
	touch $@

.venv/installed: .venv/locked pyproject.toml
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	$(BIN)/python -m planner.solve.warm
	touch $@

test: lint
	$(QUICKLY) $(BIN)/python -m pytest -n auto --dist loadscope -m "not alone and not long"
	$(BIN)/python -m pytest -m "alone and not long"

test-long: setup
	$(QUICKLY) $(BIN)/python -m pytest -n auto --dist loadscope -m "long and not alone"
	$(BIN)/python -m pytest -m "long and alone"

# They go on where they were stopped; `python tests/sweep.py --fresh` begins again.
test-harness: setup
	$(QUICKLY) $(BIN)/python tests/sweep.py harness
	$(QUICKLY) $(BIN)/python tests/sweep.py vmapped
	$(QUICKLY) $(BIN)/python tests/sweep.py odd
	$(QUICKLY) $(BIN)/python tests/against_shardy.py

test-random: setup
	$(QUICKLY) $(BIN)/python tests/sweep.py random --count 2000

.venv/packages: .venv/installed requirements-packages.lock
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-packages.lock
	touch $@

test-packages: .venv/packages
	$(QUICKLY) $(BIN)/python tests/sweep.py packages

test-kills: setup
	KILLS=20 $(BIN)/python -m pytest tests/test_runner.py -k killed

demo: setup
	$(BIN)/meshwright demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-plans: setup
	$(BIN)/python -m experiments.bench_plans

bench-predict: setup
	$(BIN)/python -m experiments.bench_predict

bench-audit: setup
	$(BIN)/python -m experiments.bench_audit

bench-plan-time: setup
	$(BIN)/python -m experiments.bench_plan_time

bench-unseen: setup
	$(BIN)/python -m experiments.bench_unseen

bench-unseen-time: setup
	$(BIN)/python -m experiments.bench_unseen_time

bench-published: setup
	$(BIN)/python -m experiments.bench_published $(if $(DATA),--data $(DATA))

bench-waits: setup
	$(BIN)/python -m experiments.bench_waits

bench-loops: setup
	$(BIN)/python -m experiments.bench_loops

bench-brought: setup
	$(BIN)/python -m experiments.bench_brought

bench-reuse: setup
	$(BIN)/python -m experiments.bench_reuse

bench-copied: setup
	$(BIN)/python -m experiments.bench_copied

bench-single: setup
	$(BIN)/python -m experiments.bench_single

bench-quick: setup
	$(BIN)/python -m experiments.bench_quick

bench-solver: setup
	$(BIN)/python -m experiments.bench_solver $(if $(DATA),--data $(DATA))

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info

# A machine with Python and make needs two commands: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TOOL := $(VENV)/.tool
READY := $(VENV)/.ready
DRAWS := $(VENV)/.draws

# Most tests wait, so three processes keep two cores busy. Each test file stays in one process; tests/conftest.py sets
# the order of the files.
WORKERS ?= 3

# The campaign: make chaos MINUTES=20 SEED=7 HUNT=8 OUT=docs/campaign
MINUTES ?= 3
SEED ?= 1
OUT ?= build/campaign
HUNT ?= 0

.PHONY: demo test check format bench chaos fuzz matrix trials nfs docs wheels clean

demo: $(TOOL)  ## show several workers and one lock: one worker is killed, one is frozen and its late write is refused
	$(BIN)/python -m holdfast.demo $(ARGS)

test: check  ## run all checks and tests
	$(BIN)/python -m pytest --cache-clear -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS) || $(BIN)/python tools/second_chance.py

check: $(READY)  ## format, lint, types, imports, commit messages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/commits.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DRAWS)  ## compare with raw sockets and other libraries, or with BEFORE=commit; QUICK=1 for a short run, BENCH_PYTHON=… for another interpreter
	QUICK=$(QUICK) $(BIN)/python -m bench $(if $(BEFORE),--before $(BEFORE)) $(if $(BENCH_PYTHON),--python $(BENCH_PYTHON)) $(ARGS)

chaos: $(DRAWS)  ## run the fault campaign, with a report and pictures in OUT; see MINUTES, SEED and HUNT above
	$(BIN)/python -m chaos --minutes $(MINUTES) --seed $(SEED) --hunt $(HUNT) --out $(OUT) $(ARGS)

fuzz: $(READY)  ## fuzz what others may write or send, with new examples for MINUTES; .hypothesis keeps counter-examples
	$(BIN)/python tools/fuzz.py --minutes $(MINUTES) $(ARGS)

matrix: $(READY)  ## run the laws and the Redis tests on every server of this machine, and with redis-py 5 to 8
	HOLDFAST_SERVERS=valkey,redis-6.2,redis HOLDFAST_GROUPS=all $(BIN)/python -m pytest tests/laws tests/engines/redis $(ARGS)
	$(BIN)/python tools/redis_versions.py

trials: $(READY)  ## run long tests: a minute of lending, 20 npm trials, a kill at every line, queues with 1 M messages
	HOLDFAST_LENDING_S=60 $(BIN)/python -m pytest tests/engines/redis/test_pools.py -k independent_count $(ARGS)
	HOLDFAST_TRIALS=20 $(BIN)/python -m pytest tests/npm -k trial $(ARGS)
	HOLDFAST_LINES=1 $(BIN)/python -m pytest tests/build tests/engines/files -k any_line $(ARGS)
	HOLDFAST_FLEETS=large $(BIN)/python -m pytest tests/engines/redis/test_queue_*.py tests/engines/redis/test_queues_in_groups.py tests/queue -s $(ARGS)
	HOLDFAST_ROUNDS=10000 $(BIN)/python -m pytest tests/laws/test_queue_race_laws.py -k same_instant $(ARGS)

nfs: $(READY)  ## test shared directories on real NFS, v3 and v4.2, between three user-mode kernels
	$(BIN)/python tools/nfs $(ARGS)

docs: $(READY)  ## regenerate docs/acceptance.md and docs/reference.md
	$(BIN)/python tools/acceptance.py
	$(BIN)/python tools/reference.py

wheels: $(READY)  ## the three wheels, holdfast, holdfast-conformance and holdfast-lancedb, in dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist . packages/conformance packages/lancedb

clean:
	rm -rf $(VENV) dist .venv-bench .venv-redis-* .mypy_cache .ruff_cache .pytest_cache

$(TOOL): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cli]'
	touch $(TOOL)

$(READY): $(TOOL)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(READY)

$(DRAWS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[report]'
	touch $(DRAWS)

# Two commands do everything on a machine with Python and make: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TOOL := $(VENV)/.tool
READY := $(VENV)/.ready
DRAWS := $(VENV)/.draws

# Most tests wait for something, so that three at a time keep two cores busy. A file of tests stays in one process;
# in which order they are begun is said in tests/conftest.py.
WORKERS ?= 3

# The campaign: make chaos MINUTES=20 SEED=7 HUNT=8 OUT=docs/campaign
MINUTES ?= 3
SEED ?= 1
OUT ?= build/campaign
HUNT ?= 0

.PHONY: demo test check format bench chaos matrix trials nfs docs clean

demo: $(TOOL)  ## several workers, one lock: one is killed, one is frozen and refused
	$(BIN)/python -m holdfast.demo $(ARGS)

test: check  ## everything that must hold
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

bench: $(DRAWS)  ## the race against the floor and the peers; QUICK=1 for a short one, BENCH_PYTHON=… for all contenders
	QUICK=$(QUICK) $(BIN)/python -m bench $(if $(BENCH_PYTHON),--python $(BENCH_PYTHON)) $(ARGS)

chaos: $(DRAWS)  ## the fault campaign, with a report and pictures in OUT; MINUTES, SEED and HUNT as you like
	$(BIN)/python -m chaos --minutes $(MINUTES) --seed $(SEED) --hunt $(HUNT) --out $(OUT) $(ARGS)

matrix: $(READY)  ## the laws and the Redis tests on every server and group that this machine has, and with redis-py 5 to 8
	HOLDFAST_SERVERS=valkey,redis-6.2,redis HOLDFAST_GROUPS=all $(BIN)/python -m pytest tests/laws tests/engines/redis $(ARGS)
	$(BIN)/python tools/redis_versions.py

trials: $(READY)  ## a minute of lending; twenty trials of npm packages; a death at every line; queues: 1 M messages, fleets, races
	HOLDFAST_LENDING_S=60 $(BIN)/python -m pytest tests/engines/redis/test_pools.py -k independent_count $(ARGS)
	HOLDFAST_TRIALS=20 $(BIN)/python -m pytest tests/npm -k trial $(ARGS)
	HOLDFAST_LINES=1 $(BIN)/python -m pytest tests/build tests/engines/files -k any_line $(ARGS)
	HOLDFAST_FLEETS=large $(BIN)/python -m pytest tests/engines/redis/test_queue_*.py tests/engines/redis/test_queues_in_groups.py tests/queues -s $(ARGS)
	HOLDFAST_ROUNDS=10000 $(BIN)/python -m pytest tests/laws/test_queue_race_laws.py -k same_instant $(ARGS)

nfs: $(READY)  ## shared directories on real NFS, v3 and v4.2: three kernels of its own, from Debian's packages
	$(BIN)/python tools/nfs $(ARGS)

docs: $(READY)  ## make the generated pages again
	$(BIN)/python tools/acceptance.py
	$(BIN)/python tools/reference.py

clean:
	rm -rf $(VENV) .venv-bench .venv-redis-* .mypy_cache .ruff_cache .pytest_cache

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

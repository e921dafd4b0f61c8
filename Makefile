# make            checks and quick tests, minutes      make run       starts the broker, the name server and the dashboard
# make test-all   all tests                            make test ARGS="tests/engine -k recovery"   some of the quick ones
# make watch      the quick tests of what changed, at each save
# make test-long  those that make test leaves out; CI runs both
# make proof      what takes hours: 20 kills, memory from 1 GiB to 4, 10,000 broken stores, 10^6 power cuts, 10^6 frames of HTTP/2
# make bench      the figures, beside Apache's         make run ARGS="--web-port 9090 --set flushDiskType=SYNC_FLUSH"
# make deps       what tests and figures need beside Python packages: jars, Go modules, Chromium
# make check      style, format and types              make fix       formats and repairs what ruff can
# make pipeline   installs Spark for the pipeline jobs
# make wheel      the program as a package in dist/, for pip install 'dist/headpond-...whl[server]'
# make docs       the documentation as a site in build/site, with an environment of its own
PYTHON ?= python3
VENV   ?= .venv
DATA   ?= data
ARGS   ?=
# Processes that share the tests, a file each at a time. One more than cores: many tests wait for a disk or a process. The long
# tests wait half of their time, most of all for a client's retry or for Apache's broker.
ifeq ($(origin TESTERS),undefined)
TESTERS = $(shell expr $$(nproc) + 1)
test-long test-all: TESTERS = $(shell expr $$(nproc) \* 2)
endif
BIN    := $(VENV)/bin
DOCS   := build/docs-venv
GRPC   := broker_store/protocol/grpc
PROTOS := definition service
export BROKER_DATA_DIR = $(DATA)
# uv comes into the environment by pip; where it cannot be had or finds no index, pip does the work.
install = { $(BIN)/python -m pip install -q --disable-pip-version-check uv && $(BIN)/uv pip install -q --python $(BIN)/python -r $(1); } \
          2>/dev/null || $(BIN)/python -m pip install -q --disable-pip-version-check -r $(1)

# Bytecode first, of the packages once after they were installed: where PYTHONDONTWRITEBYTECODE is set, as in most images, each start
# would compile 1,400 modules from their source. Packages bring files that are no Python of this version; those stay as they are.
prepare = { test $(VENV)/.bytecode -nt $(VENV)/.core || { $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib; touch $(VENV)/.bytecode; }; } \
          && $(BIN)/python -m compileall -q manage.py broker_store mqadmin \
          && echo "Preparing the kernels (compiled once, which can take a minute)" && $(BIN)/python -m broker_store.kernels

.PHONY: all run serve test test-long test-all watch proof prove-stores prove-crashes check fix bench deps pipeline docs protos wheel clean
all: check test

run: $(VENV)/.core
	@mkdir -p $(DATA) && chmod 700 $(DATA)
	@$(prepare)
	@$(BIN)/python manage.py collectstatic -v 0 --noinput
	@exec $(BIN)/python manage.py runbroker --data $(DATA) $(ARGS)
serve: run

# What drives Java, Go, a browser or Spark, and what takes more than some seconds, is left to test-all.
test: LEFT_OUT = -m "not slow and not client and not browser and not proof"
test-long: LEFT_OUT = --long -m "(slow or client or browser) and not proof"
test-all: LEFT_OUT = -m "not proof"
proof: LEFT_OUT = -m proof
test test-long test-all proof watch: export BROKER_DATA_DIR = build/test-data
# pytest rewrites each test's assertions: half of the 25 s that a process takes to collect, where it keeps no bytecode.
test test-long test-all proof watch: export PYTHONDONTWRITEBYTECODE =
test test-long test-all proof: $(VENV)/.dev
	@$(prepare)
	@mkdir -p $(BROKER_DATA_DIR) && $(BIN)/python manage.py collectstatic -v 0 --noinput
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder $(LEFT_OUT) $(ARGS)
proof: prove-stores prove-crashes
watch: $(VENV)/.dev
	@mkdir -p $(BROKER_DATA_DIR)
	@$(BIN)/watchfiles '$(BIN)/python -m tests.support.affected' broker_store mqadmin templates tests
prove-stores: $(VENV)/.dev
	$(BIN)/python -m tests.support.broken_stores
prove-crashes: $(VENV)/.dev
	$(BIN)/python -m tests.support.explore_crashes
check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
fix: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
bench: $(VENV)/.dev
	$(BIN)/python -m tests.bench.run $(if $(ONLY),--only $(ONLY)) $(ARGS)
deps: $(VENV)/.dev
	bash tests/interop/deps.sh
pipeline: $(VENV)/.full
docs: $(DOCS)/.docs
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet && echo "The site is build/site/index.html"
# What protoc makes of Apache's .proto files, which lie in the npm package rocketmq-client-nodejs 1.0.8. Committed, so that
# nothing but `protobuf` is needed to run; its version must be at least that of the compiler.
protos:
	@$(PYTHON) -m venv build/protos-venv
	@build/protos-venv/bin/python -m pip install -q --disable-pip-version-check grpcio-tools==1.85.1
	build/protos-venv/bin/python -m grpc_tools.protoc -I $(GRPC)/proto --python_out=build/protos-venv --pyi_out=build/protos-venv $(PROTOS:%=apache/rocketmq/v2/%.proto)
	for name in $(PROTOS); do for kind in py pyi; do \
	  { sed -n '/^\/\//!q; s|^//|#|; p' $(GRPC)/proto/apache/rocketmq/v2/$$name.proto; echo; \
	    sed -e 's|^from apache.rocketmq.v2 import|from broker_store.protocol.grpc.v2 import|' -e 's|_Mapping\]|_Mapping[str, object]]|g' build/protos-venv/apache/rocketmq/v2/$${name}_pb2.$$kind; \
	  } > $(GRPC)/v2/$${name}_pb2.$$kind; done; done
# The build writes beside its sources; what an earlier one left would be in the wheel.
wheel: $(BIN)/python
	@rm -rf build/lib build/bdist.* headpond.egg-info
	@$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w dist .
	@rm -rf build/lib build/bdist.* headpond.egg-info
	@ls dist/*.whl
clean:
	rm -rf $(VENV) build dist staticfiles .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { echo "Python 3.11, 3.12 or 3.13 is needed and $(PYTHON) is not one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is missing: install the package python3-venv (Debian, Ubuntu: sudo apt install $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'))."; exit 1; }
	@$(PYTHON) -m venv $(VENV)
$(VENV)/.core: requirements-core.txt | $(BIN)/python
	@echo "Installing requirements-core.txt into $(VENV)" && $(call install,requirements-core.txt) && touch $@
$(VENV)/.full: requirements.txt requirements-core.txt | $(BIN)/python
	@echo "Installing requirements.txt into $(VENV)" && $(call install,requirements.txt) && touch $@ $(VENV)/.core
$(VENV)/.dev: requirements-dev.txt requirements.txt requirements-core.txt | $(BIN)/python
	@echo "Installing requirements-dev.txt into $(VENV)" && $(call install,requirements-dev.txt) && touch $@ $(VENV)/.full $(VENV)/.core
$(DOCS)/.docs: requirements-docs.txt
	@$(PYTHON) -m venv $(DOCS)
	@echo "Installing requirements-docs.txt into $(DOCS)"
	@$(DOCS)/bin/python -m pip install -q --disable-pip-version-check -r requirements-docs.txt && touch $@

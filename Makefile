# Everything a user or a maintainer runs. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
# Many unit tests wait for a thread or a process: one more than there are cores keeps all of them busy.
WORKERS := $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
# DataStax's agent (jar) and connector (NAR), to measure them beside ours; without, nothing is compared.
RIVAL_AGENT ?=
RIVAL := $(if $(RIVAL_AGENT),--rival-agent $(RIVAL_AGENT))
RIVAL_NAR ?=

# A set-up that was interrupted leaves packages in pieces, which pip takes for whole ones, or a pip that does not start. Its mark
# stays behind, and the next set-up begins anew. An environment that is whole is only brought up to date.
define new-environment
@if [ -e $(1).unfinished ] || ! $(1)/bin/python -m pip --version >/dev/null 2>&1; then rm -rf $(1); fi
@mkdir -p $(1) && touch $(1).unfinished
@$(PYTHON) -m venv $(1)
endef
environment-is-ready = @touch $@ && rm $(@D).unfinished

.DEFAULT_GOAL := help
.PHONY: help demo setup fetch test test-all test-fast test-servers test-agent test-compatibility test-connector test-spark test-spark-reading test-spark-jobs test-compose test-spark35 test-spark42 test-multinode test-faults test-spark-workload bench bench-agent bench-connector bench-delay bench-decode bench-spark bench-commitlog compile faults faults-resolved faults-sinks soak fuzz audit lock nar lint fmt prerequisites clean

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do printf '  %-20s %s\n' "$$name" "$$text"; done

demo: setup ## Real Cassandra -> agent -> real Pulsar -> connector -> Spark, every row checked (DEMO_ARGS=--json)
	@$(BIN)/cdc demo $(DEMO_ARGS)

setup: $(VENV)/.ready ## Compile, and download meanwhile what the demo and a sandbox need
	@$(MAKE) --no-print-directory -j2 compile fetch

fetch: $(VENV)/.ready ## Download the servers of the demo and what the connector's archive needs, unless they are there
	@$(BIN)/cdc sandbox fetch
	@$(BIN)/cdc nar --fetch-only --out build

# The faults strike servers of their own, when the others are down: both together would only wait for each other.
# Linters and compilers keep one core busy each, so they run side by side. What they have made is not made again (-o): a part that
# waits for it would be overtaken by a shorter one, and end alone.
test: $(VENV)/.ready ## Everything that CI runs: linters, unit tests, integration tests on real servers, a fault plan
	@$(MAKE) --no-print-directory -j3 --output-sync=target lint compile spark35
ifeq ($(PYTEST_ARGS),)
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not integration"
	@$(MAKE) --no-print-directory -j3 --output-sync=target -o compile -o spark35 \
	    test-spark-reading test-spark-jobs test-agent test-compatibility test-connector
	@$(BIN)/pytest tests/faults --fault-plan -k short -s
else
	@$(BIN)/pytest $(PYTEST_ARGS)
endif

test-all: ## `make test` with its extended tests, then the full fault plan: before a release (some three hours)
	@PYTEST_ADDOPTS=--extended $(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-faults

test-fast: compile ## Unit tests, no servers, and not those that try every cut and every flipped bit
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not integration and not exhaustive" $(PYTEST_ARGS)

test-servers: test-agent test-compatibility test-connector ## Integration tests without Spark

# `make test` runs three of these five at a time, on servers of their own: one alone leaves half of two cores idle, two a fifth, and
# the idle servers of a fourth one take more than it gains. The long ones come first.
test-agent: compile ## Integration tests of the agent and the commands (part of `make test`)
	@$(BIN)/pytest tests/integration -m "not spark and not connector and not compatibility" $(PYTEST_ARGS)

test-compatibility: compile ## Deployment, logins, DataStax's cases, the decoder beside Cassandra's own reader (part of `make test`)
	@$(BIN)/pytest tests/integration -m "compatibility and not spark" $(PYTEST_ARGS)

test-connector: compile ## Integration tests of the connector (part of `make test`)
	@$(BIN)/pytest tests/integration -m "connector and not spark" $(PYTEST_ARGS)

test-spark: test-spark-reading test-spark-jobs ## Integration tests with Spark

test-spark-reading: compile spark35 ## Reading topics and archives, tables and types, fresh tables, PySpark 3.5 (part of `make test`)
	@$(BIN)/pytest tests/integration -m "spark and not spark_jobs" $(PYTEST_ARGS)

test-spark-jobs: compile ## Mirrors, verify, backfill; with PYTEST_ADDOPTS=--extended kills and a cluster, too (part of `make test`)
	@$(BIN)/pytest tests/integration -m "spark and spark_jobs" $(PYTEST_ARGS)

test-multinode: compile ## Two data centres, an upgrade in place, nodes down, repaired, silent, replaced, joining, leaving, faults (some 20 minutes)
	@$(BIN)/pytest tests/multinode --multinode $(PYTEST_ARGS)

test-faults: compile ## 90 faults by a seed, nearly every kind three times or more, an encrypted log, a rebuilt Pulsar, sinks (some 30 minutes)
	@$(BIN)/pytest tests/faults --fault-plan -k "not short" -s $(PYTEST_ARGS)

test-spark35: compile spark35 ## The tests on PySpark 3.5 (part of `make test`)
	@$(BIN)/pytest tests/integration -m spark35 $(PYTEST_ARGS)

test-spark42: compile spark42 ## Readers, views, mirrors and limits on PySpark 4.2, in an environment of its own (not part of `make test`)
	@PYTHONPATH=$(CURDIR) $$($(BIN)/python -m tests.spark.environment 4.2) -m pytest $(PYTEST_ARGS)

test-spark-workload: compile spark35 ## Random statements while Spark mirrors them and is killed (STATEMENTS=100000 KILLS=3: both lines of Spark)
	@CDC_TEST_STATEMENTS=$(STATEMENTS) CDC_TEST_KILLS=$(KILLS) $(BIN)/pytest tests/integration --spark-workload -s $(PYTEST_ARGS)

# Environments of their own in the cache folder: the lines of Spark exclude each other.
.PHONY: spark35 spark42
spark35: SPARK_LINE := 3.5
spark42: SPARK_LINE := 4.2
spark35 spark42: $(VENV)/.ready
	@$(BIN)/python -m tests.spark.environment $(SPARK_LINE) >/dev/null

# The containers share folders with the tests, so they run as the user who runs the tests.
COMPOSE := CDC_UID=$$(id -u) CDC_GID=$$(id -g) docker compose

test-compose: compile ## Integration tests on the servers of docker-compose.yml (needs Docker; see README)
	mkdir -p build/compose/cassandra build/compose/agent
	$(COMPOSE) up --detach --wait cassandra pulsar
	CDC_TEST_SERVERS=compose $(BIN)/pytest -m integration $(PYTEST_ARGS); \
	    code=$$?; $(COMPOSE) down --volumes; rm -rf build/compose; exit $$code

bench: compile ## Time, memory and rates of every stage, beside the machine's load
	@$(BIN)/python -m benchmarks.stages $(RIVAL) $(BENCH_ARGS)

bench-agent: compile ## The agent: backlog to events topic, delay, what Cassandra feels of it, its idle CPU
	@$(BIN)/python -m benchmarks.drain $(RIVAL) $(DRAIN_ARGS)
	@$(BIN)/python -m benchmarks.delay $(DELAY_ARGS)

bench-connector: compile ## The connector: backlogs to the data topic by shape of table, many tables, delay; some 20 minutes
	@$(BIN)/python -m benchmarks.connector $(if $(RIVAL_NAR),--rival-nar $(RIVAL_NAR)) $(BENCH_ARGS)

bench-spark: $(VENV)/.ready ## Spark: raw read, typed decode beside from_avro alone, mirror, backfill (BENCH_ARGS='--stages read')
	@$(BIN)/python -m benchmarks.spark $(BENCH_ARGS)

bench-delay: compile ## Insert to events topic and data topic, default sync, beside DataStax's (RIVAL_AGENT=JAR RIVAL_NAR=NAR)
	@$(BIN)/python -m benchmarks.line_delay $(RIVAL) $(if $(RIVAL_NAR),--rival-nar $(RIVAL_NAR)) $(BENCH_ARGS)

bench-decode: compile ## The decoder, compiled and plain, beside Cassandra's own reader
	@$(BIN)/python -m benchmarks.decode $(BENCH_ARGS)

bench-commitlog: compile ## The commit log as a DataFrame beside Cassandra's own reader, on one core each
	@$(BIN)/python -m benchmarks.commitlog_frame $(BENCH_ARGS)

FUZZ_ARGS ?= --inputs 500000

fuzz: compile ## Thirteen million wrong inputs for everything that reads bytes (FUZZ_ARGS="mutation --seconds 3600")
	@$(BIN)/python -m tests.fuzz.run $(FUZZ_ARGS)

audit: $(VENV)/.ready ## Known weaknesses of the pinned packages (pip-audit; needs a network)
	@$(BIN)/python -m pip install --quiet 'pip-audit>=2.7,<3'
	@$(BIN)/pip-audit --require-hashes --disable-pip -r requirements.lock

lock: $(VENV)/.ready ## Pin all packages by version and hash anew (LOCK_ARGS=--upgrade takes the newest; SECURITY.md)
	@$(BIN)/python -m pip install --quiet 'pip-tools>=7.5,<8'
	@$(BIN)/python -m tests.tools.dependency_lock $(LOCK_ARGS)

compile: $(VENV)/.ready ## Compile the decoder and the connector's row path where there is a C compiler; all works without, slower
	@$(BIN)/cdc compile --if-possible

faults: compile ## Break everything on purpose, and compare every row (FAULTS_ARGS='--seed 7 --minutes 60'; docs/faults.md)
	@$(BIN)/python -m tests.fault_kit run $(FAULTS_ARGS)

faults-resolved: compile ## Look for resolved timestamps that come too early, while faults strike (docs/faults.md)
	@$(BIN)/python -m tests.fault_kit resolved $(FAULTS_ARGS)

faults-sinks: compile ## Compare sinks with tables that lose rows in every way, while faults strike (docs/faults.md)
	@$(BIN)/python -m tests.fault_kit sinks $(FAULTS_ARGS)

soak: compile ## 30 minutes of load: memory, files, threads, lag, and a plot (SOAK_ARGS='--minutes 480' for 8 hours)
	@$(BIN)/python -m tests.fault_kit soak $(SOAK_ARGS)

nar: compile ## Build the connector's archive: build/cassandra-cdc-source-*.nar
	@$(BIN)/cdc nar --out build

.PHONY: dist dist-check chart-check docs docs-serve reference
dist: compile ## What is given out, in dist/: wheels, sources, NAR, chart, image files, SBOM, checksums
	@$(BIN)/python deploy/make_dist.py

dist-check: ## Install the wheel of dist/ in a new environment, run it, and build the NAR with it
	@$(BIN)/python deploy/make_dist.py --check

chart-check: $(VENV)/.ready ## The Helm chart: helm lint, helm template, and the schemas of Kubernetes (needs helm)
	@$(BIN)/python -m pip install --quiet 'kubernetes-validate>=1.29,<2'
	@$(BIN)/pytest -rs tests/unit/test_helm_chart.py

# An environment of its own: nothing of it is needed for anything else.
DOCS := build/docs-env
$(DOCS)/.ready: pyproject.toml | prerequisites
	$(call new-environment,$(DOCS))
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.5,<10'
	$(environment-is-ready)

docs: $(DOCS)/.ready ## The documentation as a site with search: build/site/index.html
	@$(DOCS)/bin/mkdocs build --strict --quiet
	@echo build/site/index.html

docs-serve: $(DOCS)/.ready ## Show that site on http://127.0.0.1:8000
	@$(DOCS)/bin/mkdocs serve

reference: $(VENV)/.ready ## Write docs/reference, docs/schemas and the dashboard anew, from the code
	@PYTHONPATH=. $(BIN)/python docs/make_reference.py
	@$(BIN)/python deploy/monitoring/dashboard.py

lint: $(VENV)/.ready ## ruff, mypy strict, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

fmt: $(VENV)/.ready ## Format and fix what can be fixed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

prerequisites:
	@sh cdc/prerequisites.sh $(PYTHON)

# Of the lines of Spark that the extra `spark` takes, the one that the lock has.
CONSTRAINTS := tests/tools/dependency_lock_constraints.txt

# pip would compile the packages' modules on one core. Files of tests that are no valid Python are left uncompiled, as by pip.
# The stamp is newer than pyproject.toml when the environment holds what it asks for.
$(VENV)/.ready: pyproject.toml $(CONSTRAINTS) | prerequisites
	@echo "preparing $(VENV) (once; some minutes on a slow network)"
	$(call new-environment,$(VENV))
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-compile --editable '.[dev,spark]' --constraint $(CONSTRAINTS)
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	$(environment-is-ready)

clean: ## Remove what was built here (not the cache of servers)
	rm -rf build change_agent/_compiled source_connector/_compiled .venv .venv.unfinished .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info

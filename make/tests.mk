# Tests that need a server, a JDK (17 or later), Maven or Spark
.PHONY: fuzz test-s3 test-kafka test-linearizability test-monitoring test-fault-day test-page test-cleaner test-plugin test-cluster test-oldest test-reconcile kafka-archive

FUZZER := var/fuzz/venv
FUZZ_SECONDS ?= 60

fuzz: install $(FUZZER)/.installed ## Coverage-guided fuzzing of every parser of foreign bytes, for a minute
	PYTHONPATH=$(CURDIR):$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') \
	  $(FUZZER)/bin/python -m tests.fuzz.guided --seconds $(FUZZ_SECONDS)

$(FUZZER)/.installed: tests/fuzz/fuzzer.txt $(STAMP)
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(FUZZER)
	$(BIN)/uv pip install --quiet --python $(FUZZER)/bin/python -r $<
	@touch $@

test-s3: install ## The tests against a real S3 server (SeaweedFS)
	RLMM_TEST_S3=1 $(BIN)/pytest -q -m "s3 and not slow" $(PYTEST_ARGS) tests/contract tests/s3

# make test-cleaner has these.
NOT_CLEANER := --ignore tests/kafka/test_cleaner.py --ignore tests/kafka/test_observation.py
# Two clusters side by side: their tests mostly wait.
TWO := -n 2 --dist loadfile

test-kafka: install kafka-archive ## The tests that need a real Kafka, on clusters of three nodes
	RLMM_TEST_KAFKA=1 $(BIN)/pytest -q -m "kafka and not slow" $(PYTEST_ARGS) tests/kafka $(NOT_CLEANER)

CHECK := var/linearizability/check

test-linearizability: install $(CHECK) ## Histories of a register over a quorum's processes, judged by Porcupine (Go)
	RLMM_TEST_LINEARIZABILITY=1 $(BIN)/pytest -q $(PYTEST_ARGS) tests/linearizability

$(CHECK): $(wildcard tests/linearizability/check/*)
	@mkdir -p $(@D)
	cd tests/linearizability/check && go build -buildvcs=false -o $(CURDIR)/$@ .

test-page: install ## The page at the admin port in a headless Chromium
	RLMM_TEST_PAGE=1 $(BIN)/pytest -q $(PYTEST_ARGS) tests/page

MONITORING := var/monitoring

test-monitoring: install $(MONITORING)/promtool $(MONITORING)/prometheus $(MONITORING)/dashboard ## Alerts and dashboard before a real Prometheus
	RLMM_TEST_MONITORING=1 $(BIN)/pytest -q $(PYTEST_ARGS) tests/monitoring

test-fault-day: install kafka-archive $(MONITORING)/prometheus ## Faults found from page, alert and explain alone (needs root)
	RLMM_TEST_FAULT_DAY=1 $(BIN)/pytest -q $(PYTEST_ARGS) tests/fault_day

$(MONITORING)/dashboard: tests/monitoring/dashboard/go.mod tests/monitoring/dashboard/main.go
	@mkdir -p $(@D)
	cd $(<D) && go build -buildvcs=false -o $(CURDIR)/$@ .

$(MONITORING)/%: tests/monitoring/prometheus/go.mod
	@mkdir -p $(@D)
	cd $(<D) && go build -buildvcs=false -tags remove_all_sd -o $(CURDIR)/$@ github.com/prometheus/prometheus/cmd/$*

test-cleaner: install kafka-archive ## Topics that go while daemons, brokers and S3 die, on real ones
	RLMM_TEST_KAFKA=1 $(BIN)/pytest -q $(PYTEST_ARGS) tests/kafka/test_cleaner.py tests/kafka/test_observation.py

test-plugin: install ## The plugin's tests, against a real daemon
	$(MVN) -Poldest compile
	$(MVN) package -Drlmm.command=$(CURDIR)/$(BIN)/rlmm

test-cluster: install plugin kafka-archive ## Real brokers with the plugin, a daemon beside each
	RLMM_TEST_KAFKA=1 $(BIN)/pytest -q -m "kafka and not slow" $(TWO) $(PYTEST_ARGS) tests/plugin

OLDEST := var/kafka-libs-oldest

test-oldest: install plugin ## A real broker of the oldest Kafka that is supported, with the plugin
	[ -d $(OLDEST) ] || mvn -q -B -f deploy/dev/stack/kafka/pom.xml -Dkafka.version=4.1.1 dependency:copy-dependencies \
	  -DoutputDirectory=$(CURDIR)/$(OLDEST) -DincludeScope=runtime
	RLMM_TEST_KAFKA_LIBS=$(CURDIR)/$(OLDEST) $(BIN)/pytest -q $(PYTEST_ARGS) tests/plugin/test_broker.py

test-reconcile: install-spark ## The nightly job's tests, on a real Spark, S3 and Kafka
	RLMM_TEST_KAFKA=1 $(BIN)/pytest -q $(PYTEST_ARGS) tests/reconcile tests/unit/reconcile

# What makes the JVMs of tests start sooner, made once.
kafka-archive: install
	$(BIN)/python -m deploy.dev.stack.kafka.archive

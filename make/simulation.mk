# Simulation: the daemon on disks that tear, brokers that lose records, operators who err
.PHONY: sim sim-mutants sim-kafka sim-kafka-mutants sim-operators sim-operators-mutants sim-cleaner sim-cleaner-mutants
.PHONY: sim-quorum sim-quorum-mutants sim-quorum-search

SEEDS ?= 200

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

sim-quorum: install ## The quorum's consensus in simulation: make sim-quorum SEEDS=10000
	$(BIN)/python -m tests.simulation.quorum.run --seeds $(SEEDS)
	$(BIN)/python -m tests.simulation.quorum.run --world submitting --seeds $(SEEDS)

sim-quorum-mutants: install ## Planted bugs that the quorum's simulation must find
	$(BIN)/python -m tests.simulation.quorum.run --mutants

sim-quorum-search: install ## Every order of events of three voters, as far as it can be looked through
	$(BIN)/python -m tests.simulation.quorum.exhaustive

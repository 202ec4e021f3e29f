# Every target sets up what it needs: from a bare clone, `make demo` and `make test` are all there is to know.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
STUBS := $(VENV)/stubs
PROTOS := $(shell cd proto && find . -name '*.proto' | sed 's|^\./||' | sort)
EXAMPLE_PROTOS := examples/flights/flights.proto examples/word_count/word_count.proto examples/enrich/enrich.proto examples/fraud/fraud.proto
SERVICE_PROTOS := consumer/protocol/allocation.proto consumer/protocol/elastic.proto consumer/protocol/fragments.proto consumer/protocol/journal.proto consumer/protocol/keyed.proto consumer/protocol/keys.proto \
	consumer/protocol/peer.proto consumer/protocol/recovery.proto consumer/protocol/shard.proto consumer/protocol/state.proto \
	consumer/protocol/watch.proto
BENCH ?= skeleton
SEEDS ?= 0:2000
SIM_JOBS ?= 2
# Tests wait for a good part of their time, so three at once keep two processors busy.
TEST_JOBS ?= 3
SIMULATORS ?= allocator shards families divisions keyed
DURATION ?= 600
HOGS ?= 2
ROUNDS ?= 3
HOSTS ?= spark
SECONDS ?= 120
SPARK_VERSION ?= 4.2
PYTEST := $(BIN)/python -m pytest
NIGHTLY := $(sort $(shell grep -oE '^nightly-[a-z]+' $(MAKEFILE_LIST)))

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-versions test-flaky test-sim chaos soak fuzz powercut nightly peers lint hooks release-notes coverage fmt types docs proto proto-check proto-accept pictures screenshots bench requirements clean

help: ## list targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(READY) ## make the virtual environment from pinned, hashed requirements

$(READY): requirements/dev.txt pyproject.toml
	@requirements/make_venv.sh $(PYTHON) $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup ## run the main job on real data: Spark, etcd, broker, a kill, and the proof of exactly-once
	$(BIN)/python -m broadsheet.examples.flights.demo

test: setup ## run every tier that CI runs, in TEST_JOBS=3 processes, and list the 30 slowest tests
	$(PYTEST) -q -n $(TEST_JOBS) --dist loadgroup --durations=30

test-fast: setup ## run what needs no server and no JVM
	$(PYTEST) -q -m "not etcd and not azurite and not postgresql and not e2e and not spark"

test-versions: setup ## resolve the newest and the lowest versions of dependencies for each Python, and run the fast tests in both, or SET=lowest
	$(BIN)/python -m tests.versions --jobs $(TEST_JOBS) $(if $(SET),--set $(SET))

test-flaky: TEST_JOBS = 4
test-flaky: setup ## run the suite ROUNDS=3 times: too many tests at once, beside HOGS=2 busy loops, each looking away for a while
	hogs=""; trap 'kill $$hogs 2>/dev/null' EXIT INT TERM; \
	for hog in $$(seq $(HOGS)); do $(BIN)/python -c 'while True: pass' & hogs="$$hogs $$!"; done; \
	status=0; for round in $$(seq $(ROUNDS)); do \
		BROADSHEET_TEST_LINGER_SECONDS=0.5 $(PYTEST) -q -n $(TEST_JOBS) --dist loadgroup || status=1; \
	done; exit $$status

fmt: setup ## format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-sim: setup ## simulate clusters, shards, splits, divisions and keyed state: 2,000 seeds of each, or SEEDS=first:end, SIMULATORS=shards, SEED=n to replay one
	status=0; for simulator in $(SIMULATORS); do \
		$(BIN)/python -m broadsheet.testing.$$simulator $(if $(SEED),--seed $(SEED) --trace,--seeds $(SEEDS) --jobs $(SIM_JOBS)) || status=1; \
	done; exit $$status

chaos: setup ## kill, freeze, drain and restart everything for DURATION=600 seconds; SEED=n to repeat, HOSTS=processes without Spark
	$(BIN)/python -m tests.chaos --seconds $(DURATION) --hosts $(HOSTS) $(if $(SEED),--seed $(SEED))

soak: DURATION = 3600
soak: setup ## steady traffic without faults for DURATION=3600 seconds, and whether memory stays and is given back; SEED=n to repeat
	$(BIN)/python -m tests.soak --seconds $(DURATION) $(if $(SEED),--seed $(SEED))

fuzz: setup ## feed mutated bytes to every decoder for SECONDS=120; SEED=n to repeat, DECODER=name for some
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(DECODER),--decoder $(DECODER))

powercut: setup ## cut the power under stores, broker and staging for DURATION=600 seconds; SEED=n to repeat, SUBJECT=name for one
	$(BIN)/python -m tests.powercut --seconds $(DURATION) $(if $(SEED),--seed $(SEED)) $(if $(SUBJECT),--subject $(SUBJECT))

# What is too long for CI. A tier is one line: its target, with what a night gives it. `make -k nightly` runs all, whichever fails.
nightly: $(NIGHTLY) ## run every long tier: the targets whose names begin with nightly-
.PHONY: $(NIGHTLY)
nightly-powercut: ; $(MAKE) powercut DURATION=1800
nightly-sim: ; $(MAKE) test-sim SEEDS=0:10000
nightly-fuzz: ; $(MAKE) fuzz SECONDS=1800
# Operators of streams against SQL, and a death at each step.
nightly-streams: ; STREAM_EXAMPLES=2000 $(PYTEST) -q --timeout 0 tests/property/consumer/test_streams_and_sql.py
# Spark's processors on a real Spark and on shards: 200 traces a seed; tests/spark/test_random_processors.py has one.
nightly-keyed: ; KEYED_SEEDS=0:60 $(PYTEST) -q --timeout 0 tests/spark/random_queries.py
# The newest Spark for which Delta and Iceberg have packages compacts the tables of one.
nightly-examples: .cache/pyspark-4.1/.ready ; $(PYTEST) -q --timeout 0 tests/e2e/docs/keyed_examples.py tests/e2e/docs/lakehouse_example.py
.cache/pyspark-4.1/.ready: | setup ; $(BIN)/uv pip install --quiet --target $(@D) "pyspark==4.1.*" && touch $@
# Queries that stop on a real Spark, and go on on shards; and the tutorial that does so.
nightly-import: ; IMPORT_SEEDS=0:24 $(PYTEST) -q --timeout 0 tests/spark/taken_over_queries.py tests/spark/tutorial_streaming_query.py
nightly-strangers: ; STRANGER_ROUNDS=3 $(PYTEST) -q tests/integration/consumer/test_strangers.py
nightly-gazette: ; $(PYTEST) -q tests/gazette/real_brokers.py tests/gazette/go_members.py
# SINK_KILLS says how many processes of each sink are killed.
nightly-sinks: export SINK_KILLS ?= 1000
nightly-sinks: export SINK_STEPS = started,recorded,acknowledged,finished
nightly-sinks: ; $(PYTEST) -q -s tests/sinks/real_kills.py tests/sinks/real_tables.py tests/sinks/secured_kafka.py tests/sinks/registered_schemas.py tests/sinks/totals_example.py tests/sinks/printed_sink.py $(wildcard tests/sinks/test_*.py) tests/spark/test_sink_faults.py
# 72 splits and 128 merges of shards, 50 more whose output goes to Kafka and to a table, and 30 divisions of journals, in
# which a member is killed at each step; 48 more divisions, in which processes are killed, or stopped and go on, at each
# place; and every rule of splits, merges and divisions, broken on purpose.
nightly-elastic: export SPLIT_ROUNDS ?= 8
nightly-elastic: export MERGE_ROUNDS ?= 8
nightly-elastic: export JOURNAL_SPLIT_ROUNDS ?= 5
nightly-elastic: ; SPLIT_STEPS=all MERGE_STEPS=all JOURNAL_SPLIT_STEPS=all JOURNAL_KILL_PLACES=all BROKEN_RULES=all $(PYTEST) -q tests/simulation/consumer/test_simulated_families.py tests/simulation/consumer/test_simulated_divisions.py \
	tests/integration/consumer/test_splits.py tests/integration/consumer/test_merges.py tests/integration/consumer/test_journal_splits.py \
	tests/e2e/consumer/test_journal_splits_killed.py tests/sinks/real_families.py
nightly-commands: ; COMMAND_KILLS=60 $(PYTEST) -q tests/e2e/consumer/commands_killed.py
# The client in Go of examples/clients, which needs Go on PATH.
nightly-clients: ; $(PYTEST) -q tests/integration/consumer/go_client.py
nightly-image: ; $(PYTEST) -q tests/deploy/real_image.py
# From a wheel of the previous release, which is built from git's history: a shallow clone does not have it.
nightly-upgrade: setup ; $(PYTEST) -q tests/upgrade/rolling.py
nightly-disaster: setup ; $(PYTEST) -q tests/disaster/runbooks.py
nightly-production: setup ; $(PYTEST) -q tests/deploy/production_page.py
nightly-versions: ; $(MAKE) test-versions
# The wheel on each Python that the machine has; PYTHONS="3.12 3.13" names those that must be there.
nightly-pythons: ; $(BIN)/python -m tests.wheels $(foreach version,$(PYTHONS),--python $(version))
# An earlier Spark than the pinned one, before it on the path.
nightly-spark: OTHER_SPARK = .cache/pyspark-$(SPARK_VERSION)
# Before 4.2 there is no format "journal", and 4.0 has no publish_dataframe (docs/spark.md): what remains are members and tables.
nightly-spark: OF_MEMBERS = shard_cluster member_placement task_resolver shard_tables executor_errors shipping elastic_session
nightly-spark: SPARK_TESTS = $(if $(filter 4.0 4.1,$(SPARK_VERSION)),$(patsubst %,tests/spark/test_%.py,$(OF_MEMBERS) $(if $(filter 4.1,$(SPARK_VERSION)),publish_dataframe)) tests/unit/spark_bridge/test_spark_version.py,tests/spark tests/unit/spark_bridge tests/property/spark_bridge)
# It publishes by publish_dataframe.
nightly-spark: SPARK_LEFT_OUT = $(if $(filter 4.0,$(SPARK_VERSION)),--deselect tests/spark/test_shard_cluster.py::test_shard_cluster_worker_killed_in_mid_run_counts_each_flight_once)
# Their PySpark leaves the sockets of collected rows to the garbage collector.
nightly-spark: SPARK_WARNINGS = $(if $(filter 4.0 4.1,$(SPARK_VERSION)),-W "ignore:unclosed <socket:ResourceWarning")
nightly-spark: setup
	test -e $(OTHER_SPARK)/.ready || { $(BIN)/uv pip install --quiet --target $(OTHER_SPARK) "pyspark==$(SPARK_VERSION).*" && touch $(OTHER_SPARK)/.ready; }
	PYTHONPATH=$(CURDIR)/$(OTHER_SPARK) $(PYTEST) -q -n $(TEST_JOBS) --dist loadgroup $(SPARK_WARNINGS) $(SPARK_LEFT_OUT) $(SPARK_TESTS)
nightly-chaos: ; $(MAKE) chaos DURATION=1800 HOSTS=processes

peers: setup ## have ours meet other systems (Gazette, Azure, Kafka, KCL), and print a table of what was tried
	$(BIN)/python -m tests.peers

lint: setup ## lint, formatting, spelling and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/lint-imports

hooks: setup ## have git run the checks of .pre-commit-config.yaml at each commit
	$(BIN)/pre-commit install

release-notes: setup ## show what changes/ adds to the CHANGELOG, or fold it in and remove it with VERSION=0.2.0
	$(BIN)/towncrier build $(if $(VERSION),--yes --version $(VERSION),--draft --version next)

coverage: setup ## measure the lines and branches that unit and property tests reach, into .cache/coverage
	rm -rf .cache/coverage && mkdir -p .cache/coverage
	status=0; $(BIN)/coverage run -m pytest -q -n $(TEST_JOBS) --dist loadgroup tests/unit tests/property \
		-m "not etcd and not azurite and not postgresql and not e2e and not spark" || status=1; \
	$(BIN)/coverage combine --quiet && $(BIN)/coverage html --quiet --directory .cache/coverage/html && \
	$(BIN)/coverage report && exit $$status

types: setup ## strict types
	$(BIN)/mypy

docs: setup ## build docs/ and the reference as a site into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

proto: setup ## generate stubs from proto/
	rm -rf $(STUBS) && mkdir -p $(STUBS)
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=$(STUBS) --mypy_out=$(STUBS) \
		--plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy $(PROTOS)
	$(BIN)/python -m grpc_tools.protoc -I proto --grpc_python_out=$(STUBS) --mypy_grpc_out=$(STUBS) \
		--plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc $(SERVICE_PROTOS)
	$(BIN)/python -m grpc_tools.protoc -I proto -I . --python_out=$(STUBS) --mypy_out=$(STUBS) --grpc_python_out=$(STUBS) \
		--mypy_grpc_out=$(STUBS) --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
		--plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc $(EXAMPLE_PROTOS)
	# protoc names modules after .proto files, whose names are names of the wire: the modules are elsewhere.
	find $(STUBS) -type f -exec sed -i -E \
		-e 's/^from consumer\.protocol( |\.)/from broadsheet.wire\1/' -e 's/^from (allocator|examples)\./from broadsheet.\1./' \
		-e "s/^(_builder\.BuildTopDescriptorsAndMessages\(DESCRIPTOR, ')consumer\.protocol\./\1broadsheet.wire./" \
		-e "s/^(_builder\.BuildTopDescriptorsAndMessages\(DESCRIPTOR, ')(allocator|examples)\./\1broadsheet.\2./" {} +
	cp $(STUBS)/consumer/protocol/* broadsheet/wire/
	cp -r $(STUBS)/allocator $(STUBS)/examples .

proto-check: proto ## lint proto/, refuse breaking changes, refuse stale stubs
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/released.binpb
	git diff --exit-code -- '*_pb2.py' '*_pb2.pyi' '*_pb2_grpc.py' '*_pb2_grpc.pyi'

proto-accept: setup ## make the present proto/ the baseline of the breaking check
	$(BIN)/buf build -o proto/released.binpb

pictures: setup ## draw docs/pictures/*.svg from the texts beside them
	$(BIN)/d2 fmt docs/pictures/*.d2
	for text in docs/pictures/*.d2; do $(BIN)/d2 --scale 1 $$text $${text%.d2}.svg || exit 1; done

screenshots: setup ## take docs/pictures/live-page-*.png as the tests of the live page see it
	BROADSHEET_PICTURES=1 $(PYTEST) -q tests/integration/consumer/test_live_page.py

bench: setup ## run one benchmark, e.g. make bench BENCH=skeleton; a JSON object a line
	$(BIN)/python -m bench.$(BENCH)

requirements: setup ## pin and hash requirements
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header -q -o requirements/dev.txt
	$(BIN)/uv pip compile pyproject.toml --extra image --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header -q -c requirements/dev.txt -o requirements/image.txt

clean: ## remove what the targets made
	rm -rf $(VENV) .cache .demo build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

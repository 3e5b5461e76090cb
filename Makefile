# Every command of the project. `make help` lists them.
# Build output goes to one place for all clones; what a run wrote in detail goes to $(BUILD).
export CARGO_TARGET_DIR ?= $(HOME)/.cache/freshet/target
export FRESHET_CACHE ?= $(HOME)/.cache/freshet
BUILD ?= build
DEMO_DIR ?= $(BUILD)/demo
LISTEN ?= 127.0.0.1:8090
SECONDS ?=
ARGS ?=
SCHEDULES ?= 20
EXPERIMENTS ?= 1000
SUITE = python3 tools/suite.py --logs $(BUILD)
FRESHET = $(CARGO_TARGET_DIR)/debug/freshet

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-full soak advisories bench scale lint fmt crds cluster cluster-down cluster-tools clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: ## install what is missing: a linker, protoc, Python's venv, the crates' sources
	@tools/setup

build: setup ## the development binary, target/debug/freshet of CARGO_TARGET_DIR
	@$(SUITE) build

demo: build ## writers roll out, Freshet merges behind them (SECONDS=30 ends by itself, ARGS=… for more)
	@exec $(FRESHET) demo --dir $(DEMO_DIR) --listen $(LISTEN) $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

test: setup ## the whole suite, world by world; ends with "N passed, 0 failed" (WORLDS="lint unit" for some)
	@$(SUITE) test $(WORLDS)

test-full: setup ## the suite with the tests that take long
	@$(SUITE) test --full $(WORLDS)

soak: setup ## kills: seeded schedules (SCHEDULES=20 times those of `make test`) and all seeds of the clients
	@SCHEDULES=$(SCHEDULES) $(SUITE) soak

advisories: setup ## known vulnerabilities of the locked crates (needs the network)
	@tools/advisories

bench: setup ## side-by-side ratios
	@$(SUITE) bench

scale: setup cluster-tools ## what EXPERIMENTS=1000 cost one controller: memory, time, requests (FRESHET=… for another binary)
	@EXPERIMENTS=$(EXPERIMENTS) $(SUITE) scale

lint: setup ## rustfmt --check, clippy -D warnings, the rooms' arrows, licences, bans and sources
	@$(SUITE) test lint rooms supply

fmt: ## format the sources
	@cargo fmt

crds: build ## write crds/ and the chart's copy from the code
	@$(FRESHET) crds
	@$(FRESHET) crds --dir charts/freshet/files/crds

cluster: build cluster-tools ## a real Kubernetes on this machine with our image and the chart installed, and a shell on it (needs root)
	@python3 tests/cluster/cluster.py up --product $(FRESHET) --chart charts/freshet --keep-in $(BUILD)/cluster

cluster-down: ## end the cluster of `make cluster`
	@python3 tests/cluster/cluster.py down --keep-in $(BUILD)/cluster

cluster-tools: setup ## the programs of the test cluster, built once: about 10 minutes cold (PROGRAMS="etcd kubectl" for some)
	@python3 tests/cluster/tools/build.py $(PROGRAMS)

clean: cluster-down ## remove this clone's logs, demo and cluster; `cargo clean` removes the shared build output
	@rm -rf $(BUILD)

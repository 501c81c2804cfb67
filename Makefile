# Two commands matter: `make demo` and `make test`. `make help` lists the rest.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO := .ci/cargo
STEP := .ci/step
TARGET := $(or $(CARGO_TARGET_DIR),target)
FOREBAY := $(TARGET)/release/forebay
# CI must not change what was resolved; at a desk a new dependency may.
LOCKED := $(if $(CI),$(if $(wildcard Cargo.lock),--locked))

.PHONY: help
help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|'

.PHONY: demo
demo: release ## Build, then move real bytes over every engine of this machine and print a table
	@$(STEP) "Demo" $(FOREBAY) demo

.PHONY: release
release: ## Build the release binary (target/release/forebay)
	@$(STEP) "Release build" $(CARGO) build --release $(LOCKED) -p forebay-cli

.PHONY: test
test: skips-start lint ptx doc release smoke unit skips ## Install what tests need and run everything

.PHONY: lint
lint: fmt clippy typos deny ## rustfmt, clippy, typos, cargo-deny

.PHONY: fmt
fmt: ## Check formatting
	@$(STEP) "Formatting (rustfmt)" $(CARGO) fmt --all --check

.PHONY: clippy
clippy: ## Clippy, warnings are errors
	@$(STEP) "Clippy" $(CARGO) clippy $(LOCKED) --workspace --all-targets -- -D warnings

.PHONY: tools
tools: ## Install the lint tools if they are missing
	@$(STEP) "Lint tools" .ci/tools

.PHONY: typos
typos: tools ## Spelling
	@$(STEP) "Spelling (typos)" env PATH="$$(.ci/tools 2>/dev/null | tail -n 1):$$PATH" typos

.PHONY: deny
deny: tools ## Licences, bans and sources of dependencies
	@$(STEP) "Dependencies (cargo-deny)" env PATH="$$(.ci/tools 2>/dev/null | tail -n 1):$$PATH" \
		$(CARGO) deny --log-level warn check --hide-inclusion-graph licenses bans sources

.PHONY: ptx
ptx: ## The checked-in PTX is what the kernels' source compiles to
	@$(STEP) "GPU kernels (PTX)" .ci/ptx

.PHONY: doc
doc: ## API documentation, warnings are errors
	@$(STEP) "Documentation" env RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(LOCKED) --workspace --no-deps --lib

.PHONY: smoke
smoke: release ## Our own cost per operation on the noop engine
	@$(STEP) "Smoke (noop engine)" .ci/smoke $(FOREBAY)

.PHONY: unit
unit: ## All tests
	@$(STEP) "Tests" $(CARGO) test $(LOCKED) --workspace --no-fail-fast

.PHONY: bench-local
bench-local: release ## The comparison tables that need no GPU (fio is built if it is missing)
	@[ -x bench/bin/fio ] || $(STEP) "fio" bench/build-fio.sh
	@$(STEP) "Local tables" env FOREBAY=$(FOREBAY) FIO=bench/bin/fio bench/table.sh local

.PHONY: clean
clean: ## Remove what was built
	@$(CARGO) clean

# Steps that cannot run here say why in this file, so that the end of the output repeats it.
.PHONY: skips-start skips
skips-start:
	@mkdir -p $(TARGET) && : >$(TARGET)/skipped-steps.txt
skips:
	@echo; if [ -s $(TARGET)/skipped-steps.txt ]; then echo "Steps skipped on this machine:"; \
		sed 's/^/  /' $(TARGET)/skipped-steps.txt; fi; echo "make test: passed"
# The steps share one target folder and one machine: in parallel they would only wait for each other.
.NOTPARALLEL:

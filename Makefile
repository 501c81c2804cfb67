# Three commands matter: `make demo`, `make check` and `make test`. `make help` lists the rest.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO := .ci/cargo
STEP := .ci/step
TARGET := $(or $(CARGO_TARGET_DIR),target)
FOREBAY := $(TARGET)/release/forebay
# What scripts of `make test` run. CI takes the command that the tests have built, with debug assertions: another build would cost
# it minutes. `make nightly` tries the release.
TRIED := $(TARGET)/$(if $(CI),debug,release)/forebay
# Packages are installed without compiled modules: the first process that imports one compiles it, for all.
unexport PYTHONDONTWRITEBYTECODE
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

.PHONY: command
command: $(if $(CI),tests-built,release) ## Build the command that scripts of `make test` run

.PHONY: tests-built
tests-built: ## Compile the whole workspace for its tests
	@$(STEP) "Test build" .ci/tests --workspace --no-run

# Two steps at a time where they wait for servers or the network; each is told in one piece when it has ended.
TWO := --no-print-directory --jobs=2 --output-sync=target IS_PARALLEL=yes
.PHONY: test
test: skips-start ## Install what tests need and run everything
	@$(MAKE) $(TWO) fmt python-tools clippy $(filter-out fmt clippy,$(LINTS)) ptx
	@$(MAKE) --no-print-directory doc command unit torture-quick asan-quick python-test fuzz
	@$(MAKE) $(TWO) docs s3 clients s3-tests-quick smoke nfs
	@$(MAKE) --no-print-directory lab-quick skips

.PHONY: check
check: ## Formatting, clippy and the tests of the crates that this branch has changed (BASE=main)
	@.ci/check $(BASE)

LINTS := fmt clippy typos deny features rooms seams words pages links versions
.PHONY: lint
lint: $(LINTS) ## rustfmt, clippy, typos, cargo-deny, features of dependencies, circles between folders, banned words, long paragraphs, links, versions

# All crates but forebay-torture, whose attacks share one room. The picture is the engine's: the first of them.
ROOMS = $(addsuffix /src,crates/forebay-engine $(filter-out crates/forebay-engine crates/forebay-torture %.md,$(wildcard crates/*)))

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

.PHONY: features
features: ## Every selection of packages builds the same dependencies
	@$(STEP) "Features" .ci/features

.PHONY: rooms
rooms: ## No circle between the folders of a crate; docs/rooms.svg is what the code says
	@$(STEP) "Rooms" .ci/rooms $(ROOMS) --check docs/rooms.svg

.PHONY: seams
seams: ## The engine names no protocol and depends on none
	@$(STEP) "Seams" .ci/seams

.PHONY: words
words: ## No word that STYLE.md bans
	@$(STEP) "Banned words" .ci/words --fail

.PHONY: links
links: ## Links, anchors and pictures of all pages; docs/SUMMARY.md names each page
	@$(STEP) "Links" .ci/links

.PHONY: versions
versions: ## One version everywhere
	@$(STEP) "Versions" .ci/versions

.PHONY: pages
pages: ## No line over 120 characters and no paragraph over six lines in the guides
	@$(STEP) "Guides" .ci/pages

.PHONY: ptx
ptx: ## The checked-in PTX is what the kernels' source compiles to
	@$(STEP) "GPU kernels (PTX)" .ci/ptx

# rustdoc links to a crate whose folder is there when it runs; cargo does not run it in the order of dependencies.
DOC_FOLDERS = $(addprefix $(TARGET)/doc/,$(subst -,_,$(notdir $(filter-out %.md,$(wildcard crates/*)))))

.PHONY: doc
doc: ## API documentation, warnings are errors
	@mkdir -p $(DOC_FOLDERS)
	@$(STEP) "Documentation" env RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(LOCKED) --workspace --no-deps --lib

.PHONY: docs
docs: doc ## The documentation as a site: pages, search, the APIs of Rust and Python (target/site/book/html)
	@$(STEP) "Site" .ci/site/build

.PHONY: smoke
smoke: command ## Our own cost per operation on the noop engine; a quick report
	@$(STEP) "Smoke (noop engine, quick report)" .ci/smoke $(TRIED)

.PHONY: nfs
nfs: command ## Read and write files of a real NFS server (nfs-ganesha) over TCP
	@$(STEP) "NFS (nfs-ganesha)" .ci/nfs $(TRIED)

.PHONY: s3
s3: command ## Read and write objects of real S3 servers (moto, rclone, and ours)
	@$(STEP) "S3 (moto, rclone, forebay)" .ci/s3 $(TRIED) moto rclone forebay

.PHONY: clients
clients: command ## boto3, rclone and obstore against our gateway
	@$(STEP) "Clients of S3" .ci/clients $(TRIED) boto3 rclone obstore

.PHONY: clients-long
clients-long: release ## The same with aws-cli, s5cmd, s3fs, pyarrow and ours
	@$(STEP) "Clients of S3 (all)" .ci/clients $(FOREBAY)

.PHONY: s3-servers
s3-servers: release ## The same with versitygw, which Go builds, and Ceph's own gateway
	@$(STEP) "S3 (versitygw, Ceph)" .ci/s3 $(FOREBAY) versitygw ceph

.PHONY: s3-tests
s3-tests: release ## The cases of ceph/s3-tests on our gateway (it is fetched; OUT_DIR keeps the logs)
	@$(STEP) "S3 tests" .ci/s3-tests $(FOREBAY)

.PHONY: s3-tests-quick
s3-tests-quick: command ## The minute of them that `make test` runs
	@$(STEP) "S3 tests (quick)" .ci/s3-tests $(TRIED) quick

# Programs in C under the address sanitizer are asan-quick's.
.PHONY: unit
unit: ## All tests
	@$(STEP) "Tests" .ci/tests --workspace -- --skip address_sanitizer

# Attacks over the software GPU, all together for so many seconds. The seed is printed; what attacks do follows from it.
TORTURE_SECONDS ?=
TORTURE_SEED ?=
TORTURE_ONLY ?=
TORTURE = forebay-torture --skips $(TARGET)/skipped-steps.txt \
	$(if $(TORTURE_SEED),--seed $(TORTURE_SEED)) $(if $(TORTURE_ONLY),--only $(TORTURE_ONLY))

.PHONY: torture
torture: ## Attack it for half an hour (TORTURE_SECONDS, TORTURE_SEED, TORTURE_ONLY="NAME,…")
	@$(STEP) "What is attacked" $(CARGO) build --release $(LOCKED) -p forebay-torture -p forebay-cli -p forebay-cufile -p fake-cuda
	@$(STEP) "Torture" $(TARGET)/release/$(TORTURE) --seconds $(or $(TORTURE_SECONDS),1800)

# By what the tests have built, with debug assertions.
.PHONY: torture-quick
torture-quick: tests-built ## The minute of it that `make test` runs
	@$(STEP) "Torture (quick)" $(TARGET)/debug/$(TORTURE) --seconds $(or $(TORTURE_SECONDS),60)

# All side by side.
FUZZ_SECONDS ?=
.PHONY: fuzz
fuzz: ## Fuzz the readers of files from anywhere for 40 seconds (FUZZ_SECONDS)
	@$(STEP) "Fuzz targets" .ci/fuzz $(FUZZ_SECONDS)

.PHONY: fuzz-long
fuzz-long: ## The same for half an hour, and the gateway's requests
	@$(STEP) "Fuzz targets" .ci/fuzz $(or $(FUZZ_SECONDS),1800)
	@$(STEP) "Fuzz targets of the gateway" .ci/fuzz $(or $(FUZZ_SECONDS),1800) fuzz/gateway

.PHONY: asan
asan: ## The library, the engine, what is below it and the NFS client under the address sanitizer
	@$(STEP) "Address sanitizer" .ci/asan

.PHONY: asan-quick
asan-quick: ## The part of it that `make test` runs: the drop-in library with its C programs
	@$(STEP) "Address sanitizer (quick)" .ci/asan quick

.PHONY: miri
miri: ## Layouts, records and parsers under Miri, where a nightly toolchain has it
	@$(STEP) "Miri" .ci/miri

.PHONY: lab
lab: lab-build python ## Kernel paths in QEMU guests (SCENARIO="NAME …" for some; lab/run --list)
	@$(STEP) "Lab" lab/run $(SCENARIO)

.PHONY: lab-build
lab-build:
	@$(STEP) "What the lab's guests are given" lab/build $(LOCKED)

# Five minutes at most; kernels that take half an hour to build are not built for it.
.PHONY: lab-quick
lab-quick: command ## The scenarios of the lab that `make test` runs
	@$(STEP) "What the lab's guests are given" lab/build --quick $(LOCKED)
	@$(STEP) "Lab (quick)" env FOREBAY_LAB_FOREBAY="$$(realpath $(TRIED))" lab/run --quick --no-build $(if $(CI),--patience 3 --minutes 12,--minutes 5)

# What needs servers, gigabytes or more minutes than CI has. Each is a target of its own.
NIGHTLY ?= lab torture asan fuzz-long signatures s3-long gateway-long gateway-cluster clients-long s3-tests prometheus dist dist-test aarch64 python-test-release serving s3-servers
.PHONY: nightly
nightly: ## What CI has no time for, each step a target of its own; ends with a summary (NIGHTLY="STEP …" for some)
	@.ci/nightly $(NIGHTLY)

.PHONY: signatures
signatures: ## 300 000 random requests to S3, signed by our client, and beside two other implementations
	@$(STEP) "Signatures" $(CARGO) test --release $(LOCKED) -p forebay-objects --lib account:: -- --ignored

.PHONY: s3-long
s3-long: ## A silent server of objects for a minute; copies of an object of 20 GiB, whose memory is measured
	@$(STEP) "Objects (long)" $(CARGO) test --release $(LOCKED) -p forebay-objects -p forebay-cli \
		--no-fail-fast --test objects --test objects_memory -- --ignored

.PHONY: gateway-long
gateway-long: ## A gateway killed at each system call of PUT, DELETE and the end of an upload
	@$(STEP) "Gateway (killed)" $(CARGO) test --release $(LOCKED) -p forebay-gateway --test killed -- --ignored

# Over which file systems; one that cannot be had here is said at the end.
CLUSTERS ?= gluster ceph moosefs local
.PHONY: gateway-cluster
gateway-cluster: release ## Two gateways behind HAProxy over GlusterFS, CephFS, MooseFS and a directory, one killed (root; CLUSTERS="NAME …")
	@failed=; for one in $(CLUSTERS); do $(STEP) "Two gateways ($$one)" .ci/cluster $(FOREBAY) $$one || failed+=" $$one"; done; \
		[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

.PHONY: prometheus
prometheus: release ## Debian's Prometheus scrapes `forebay stats --listen`, and answers the queries of the Grafana board
	@$(STEP) "Prometheus" tests/prometheus/check $(FOREBAY) || [ $$? = 77 ]

.PHONY: python
python: ## Build the Python wheel with the command and the drop-in library (dist/; PYTHON=… names the interpreter)
	@$(STEP) "Python wheel" .ci/python wheel

.PHONY: python-tools
python-tools: ## What the Python tests need besides, which is fetched
	@$(STEP) "Python tools" .ci/python tools

.PHONY: python-test
python-test: ## A wheel, compiled as tests are, in a virtual environment: style, types, stubs, tests
	@$(STEP) "Python" .ci/python test

.PHONY: python-test-release
python-test-release: ## The same with the wheel that users get
	@$(STEP) "Python (release)" .ci/python test release

.PHONY: serving
serving: ## vLLM (its CPU build), SGLang's iterator and diffusers load models by forebay, equal to their own loaders
	@$(STEP) "Serving engines" tests/serving/check

.PHONY: dist
dist: ## A release in dist/: wheels, .deb, .rpm, tarballs for x86-64 and aarch64, SBOM, checksums (ARCH=… for one)
	@$(STEP) "Release" .ci/dist $(ARCH)

.PHONY: dist-test
dist-test: ## Install the release of `make dist` on clean roots and run it there (root, Debian's mirrors)
	@$(STEP) "Release on clean roots" .ci/dist-test

.PHONY: aarch64
aarch64: ## Tests of the base, the formats and the sources for aarch64, under qemu-user
	@$(STEP) "aarch64 under qemu" .ci/aarch64

.PHONY: bench-local
bench-local: release ## The comparison tables that need no GPU (fio is built if it is missing)
	@[ -x bench/bin/fio ] || $(STEP) "fio" bench/build-fio.sh
	@$(STEP) "Local tables" env FOREBAY=$(FOREBAY) FIO=bench/bin/fio bench/table.sh local

# Where `make install` puts things. DESTDIR stands before all of them, for packages.
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
PCFILE ?= $(LIBDIR)/pkgconfig/cufile.pc
SHAREDIR ?= $(PREFIX)/share
UNITDIR ?= $(PREFIX)/lib/systemd/system
# Set it to install what is in that folder already instead of building.
BUILT :=
INSTALL_FROM = $(or $(BUILT),$(TARGET)/release)
# A forebay that runs here and writes the manual pages, where the one to install does not.
PAGES_BY = $(DESTDIR)$(BINDIR)/forebay
# The names under which the command takes the flags of NVIDIA's tools.
TOOLS := gdsio gdscheck gdscheck.py gdsio_verify gds_stats
UNITS := forebay-stats.service forebay-s3.service
CUFILE := crates/forebay-cufile

.PHONY: library
library: ## Build the drop-in library (target/release/libcufile.so)
	@$(STEP) "Release build (libcufile)" $(CARGO) build --release $(LOCKED) -p forebay-cufile

.PHONY: install
install: $(if $(BUILT),,release library) ## Install the command, its manual and completions, libcufile.so.0, header, pkg-config file, units (PREFIX, DESTDIR)
	@install -d "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(LIBDIR)" "$$(dirname "$(DESTDIR)$(PCFILE)")" "$(DESTDIR)$(INCLUDEDIR)" \
		"$(DESTDIR)$(UNITDIR)"
	@install -m 755 "$(INSTALL_FROM)/forebay" "$(DESTDIR)$(BINDIR)/forebay"
	@for tool in $(TOOLS); do ln -sfn forebay "$(DESTDIR)$(BINDIR)/$$tool"; done
	@install -m 755 "$(INSTALL_FROM)/libcufile.so" "$(DESTDIR)$(LIBDIR)/libcufile.so.0"
	@ln -sfn libcufile.so.0 "$(DESTDIR)$(LIBDIR)/libcufile.so"
	@# Programs may be linked with this name as well; nothing is called in it.
	@$(CC) -shared -nostdlib -Wl,-soname,libcufile_rdma.so.1 -x c /dev/null -o "$(DESTDIR)$(LIBDIR)/libcufile_rdma.so.1"
	@install -m 644 $(CUFILE)/include/cufile.h "$(DESTDIR)$(INCLUDEDIR)/cufile.h"
	@sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' \
		$(CUFILE)/cufile.pc.in >"$(DESTDIR)$(PCFILE)"
	@"$(PAGES_BY)" pages "$(DESTDIR)$(SHAREDIR)" >/dev/null
	@for unit in $(UNITS); do sed -e 's|@BINDIR@|$(BINDIR)|' packaging/$$unit.in >"$(DESTDIR)$(UNITDIR)/$$unit"; done
	@install -d "$(DESTDIR)$(SHAREDIR)/forebay"
	@install -m 644 packaging/haproxy-s3.cfg "$(DESTDIR)$(SHAREDIR)/forebay/haproxy-s3.cfg"
	@echo "Installed below $(DESTDIR)$(PREFIX). If programs do not find libcufile.so.0 there: ldconfig, or LD_LIBRARY_PATH=$(LIBDIR)"

.PHONY: uninstall
uninstall: ## Remove what `make install` put there (same PREFIX, DESTDIR)
	@rm -f $(foreach name,forebay $(TOOLS),"$(DESTDIR)$(BINDIR)/$(name)") "$(DESTDIR)$(INCLUDEDIR)/cufile.h" \
		$(foreach name,libcufile.so libcufile.so.0 libcufile_rdma.so.1,"$(DESTDIR)$(LIBDIR)/$(name)") \
		"$(DESTDIR)$(PCFILE)" $(foreach unit,$(UNITS),"$(DESTDIR)$(UNITDIR)/$(unit)") "$(DESTDIR)$(SHAREDIR)/forebay/haproxy-s3.cfg" \
		"$(DESTDIR)$(SHAREDIR)"/man/man1/forebay-*.1 $(foreach name,forebay $(TOOLS), \
		"$(DESTDIR)$(SHAREDIR)/man/man1/$(name).1" "$(DESTDIR)$(SHAREDIR)/bash-completion/completions/$(name)" \
		"$(DESTDIR)$(SHAREDIR)/zsh/site-functions/_$(name)" "$(DESTDIR)$(SHAREDIR)/fish/vendor_completions.d/$(name).fish")

.PHONY: clean
clean: ## Remove what was built
	@$(CARGO) clean

# Steps that cannot run here say why in this file, so that the end of the output repeats it.
.PHONY: skips-start skips
skips-start:
	@mkdir -p $(TARGET) && : >$(TARGET)/skipped-steps.txt
skips:
	@echo; if [ -s $(TARGET)/skipped-steps.txt ]; then echo "Steps skipped on this machine:"; \
		awk '!told[$$0]++ { print "  " $$0 }' $(TARGET)/skipped-steps.txt; fi; echo "make test: passed"
# The steps share one target folder and one machine: most would only wait for each other.
ifndef IS_PARALLEL
.NOTPARALLEL:
endif

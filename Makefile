# lockstep's commands. `make` lists them. Each sets up what it needs; nothing is installed outside this directory.

GIVEN_PYTHON := $(PYTHON)
PYTHON ?= python3#        any Python >= 3.11: the environments are made with it (make gpu: its packages are used)
ARGS ?=#                  more options for pytest: make test ARGS="-k loader -x"
JOBS ?=#                  files of tests that run at a time (2 of make test, 4 of make test-all); 0: one, as pytest does it
REPEATS ?= 1#            so many times the random draws of tests that kill at random: make test-all test-longest REPEATS=5
DEMO ?= verify examples/digits.py -- --epochs 2# what make demo runs: make demo DEMO="compare examples/digits.py"
N ?=#                     rounds of make soak and make soak-cluster
WORLDS ?= 1,3,16,64,128# numbers of processes of make scale
SOAK_ARGS ?=#             its options: make soak N=200 SOAK_ARGS="--seed 7"
HOSTS ?=#                 hosts of make cluster (2)
SLURM ?=#                 make cluster SLURM=1: with Slurm on them
CLUSTER_ARGS ?=#          its other options: make cluster SLURM=1 CLUSTER_ARGS="--gpus 4"
BENCH ?=#                 one benchmark of make bench, by name: make bench BENCH=startup
BENCH_ARGS ?=#            its options: make bench BENCH=startup BENCH_ARGS="--nproc 8"
PYTHONS ?= 3.11 3.13#    versions of make python

VENV := .venv
BENCH_VENV := .venv-bench
# Needs a third of the packages of .venv, and is made only where that is not there.
DEMO_VENV := $(if $(wildcard $(VENV)/.installed),$(VENV),.venv-demo)
# Written after a whole installation, and older than what it was made from when that changes.
STAMP := $(VENV)/.installed
BENCH_STAMP := $(BENCH_VENV)/.installed
DEMO_STAMP := .venv-demo/.installed
# Threads of OpenMP that wait let others compute: there are more processes than cores.
PYTEST := OMP_WAIT_POLICY=passive $(VENV)/bin/python -m pytest
BENCHMARKS := $(wildcard benchmarks/$(or $(BENCH:.py=),[!_]*).py)

# Thousands of processes start: where this is set, each compiles all of lockstep anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# One thing at a time, also under make -j: these commands time what they run.
.NOTPARALLEL:
.PHONY: help install horovod demo test test-all test-failed test-longest soak scale soak-cluster cluster check bench bench-install gpu simulated wheel release-check docs python clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

install: $(STAMP) ## make .venv with the pinned requirements and lockstep itself

horovod: $(STAMP) ## build Horovod against the torch of .venv and install it there (once: some 3 minutes)
	@tools/horovod.sh $(VENV)/bin/python

demo: $(if $(filter $(VENV),$(DEMO_VENV)),,$(DEMO_STAMP)) ## train on 1, 2 and 3 processes, kill and resume: ends with PASS, and the digest (some 2 minutes)
	$(DEMO_VENV)/bin/lockstep $(DEMO)

test: $(STAMP) ## the quick tests, some 4 minutes on 2 cores: what is pure, and what starts processes for a promise
	$(PYTEST) -n $(or $(JOBS),2) --dist loadfile --no-loadscope-reorder -m "not long and not cuda" $(ARGS)

# Four at a time, also on two cores: tests of several machines mostly wait, for Slurm or for a time limit. A test that hangs in C
# code is deaf to its own time limit, which comes by a signal: after the longest of all it ends with its process, and is named.
test-all: $(STAMP) ## the tests, with the long ones: what CI runs
	LOCKSTEP_REPEATS=$(REPEATS) $(PYTEST) -o faulthandler_timeout=1500 -o faulthandler_exit_on_timeout=true -n $(or $(JOBS),4) --dist loadfile --no-loadscope-reorder -m "not longest and not cuda" $(ARGS)

test-failed: $(STAMP) ## what failed last, once more, one after another: what passes now depends on what ran beside it
	LOCKSTEP_REPEATS=$(REPEATS) $(PYTEST) --last-failed --last-failed-no-failures none -m "not longest and not cuda" $(ARGS)

test-longest: $(STAMP) ## those that CI leaves out: whole benchmarks, large scripts, kills at random (REPEATS=5: more of them)
	LOCKSTEP_REPEATS=$(REPEATS) $(PYTEST) -n $(or $(JOBS),4) --dist loadfile --no-loadscope-reorder -m "longest and not cuda" $(ARGS)

soak: $(STAMP) ## kill N runs at random moments, go on at other world sizes, and look that nothing was lost (N=20)
	PYTHONPATH=tests $(VENV)/bin/python tests/recovery/soak.py $(N) $(SOAK_ARGS)

scale: $(STAMP) ## one training on 1 to 128 processes of this machine, stopped and resumed: one digest (WORLDS=1,3,16,64,128)
	$(VENV)/bin/python tests/scale/scale.py --worlds $(WORLDS) $(SCALE_ARGS)

soak-cluster: $(STAMP) ## the same on two hosts, with power lost and links cut (N=50; needs root)
	PYTHONPATH=tests:tools $(VENV)/bin/python tests/cluster/soak_hosts.py $(N) $(SOAK_ARGS)

cluster: $(STAMP) ## hosts on this machine with a prompt to work on them, until Ctrl-C (HOSTS=2, SLURM=1; needs root)
	@PYTHONPATH=tools $(VENV)/bin/python -m cluster $(if $(HOSTS),--hosts $(HOSTS)) $(if $(SLURM),--slurm) $(CLUSTER_ARGS)

check: $(STAMP) ## ruff, mypy, the layers, and whether all tests can be collected
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PYTEST) -q tests/test_layers.py
	$(PYTEST) -qq --collect-only --no-summary > /dev/null || $(PYTEST) -qq --collect-only

bench: $(BENCH_STAMP) ## every benchmark beside its peers; the JSON lines again at the end
	@test -n "$(BENCHMARKS)" || { echo "no such benchmark: benchmarks/$(or $(BENCH:.py=),*).py" >&2; exit 1; }
	@results=$$(mktemp -d) && trap 'rm -rf "$$results"' EXIT && status=0; \
	for file in $(BENCHMARKS); do \
		name=$$(basename "$$file" .py); log="$$results/$$name"; \
		echo "== $$file $(BENCH_ARGS)"; \
		{ $(BENCH_VENV)/bin/python "$$file" $(BENCH_ARGS); echo $$? > "$$log.status"; } | tee "$$log.log"; \
		if [ "$$(cat "$$log.status")" = 0 ]; then tail -n 1 "$$log.log" > "$$log.last"; \
		elif [ "$$(cat "$$log.status")" = 77 ]; then echo "$$file cannot run on this machine" > "$$log.last"; \
		else echo "$$file FAILED with status $$(cat "$$log.status")" > "$$log.last"; status=1; fi; \
	done; \
	echo "== results"; cat "$$results"/*.last; exit $$status

bench-install: $(BENCH_STAMP) ## make .venv-bench, with the peers

# A Python that is given is used as it is: a machine with a GPU has a torch that fits it, and often no network.
gpu: $(if $(GIVEN_PYTHON),,$(STAMP)) ## what to run first on a CUDA GPU, and a report to send (ARGS="--to 5": 10 minutes; PYTHON=... has torch)
	@$(or $(GIVEN_PYTHON),$(VENV)/bin/python) tools/gpu $(ARGS)

# For the time limit see test-all.
simulated: $(STAMP) ## the paths of a GPU, on an accelerator that is simulated: built once with g++ (a minute), kept in ~/.cache
	SIM_DEVICES=4 PYTHONPATH=$(CURDIR)/tests/simulated/autoload:$(CURDIR)/tests/cuda $(PYTEST) -q -o faulthandler_timeout=400 -o faulthandler_exit_on_timeout=true -n $(or $(JOBS),2) --dist loadfile --no-loadscope-reorder $(or $(SIMULATED),tests/simulated tests/cuda) $(ARGS)

wheel: $(STAMP) ## build dist/*.whl and dist/*.tar.gz
	@rm -rf dist
	$(VENV)/bin/python -m build --outdir dist

release-check: wheel ## check dist/ as a release would be, in clean environments, and say what is left to publish it
	$(VENV)/bin/python tools/release_check.py

docs: $(STAMP) ## build the documentation site into build/site, strictly and without the network
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

python: ## a small set of tests with Python 3.11 and the oldest torch, and with 3.13 (PYTHONS="3.12" for others)
	tools/pythons.sh $(PYTHONS)

clean: ## remove the environments and all that was built (never runs/)
	rm -rf $(VENV) $(BENCH_VENV) .venv-demo .venv-3.* build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call environment,DIRECTORY): a virtual environment there, or a message that says what is missing.
define environment
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
		sys.exit(f"lockstep needs Python 3.11 or later, and $(PYTHON) is Python {v[0]}.{v[1]}: make PYTHON=python3.12 ..." \
		if v < (3, 11) else 0)'
	@test -x $(1)/bin/python || $(PYTHON) -m venv --clear $(1) || { rm -rf $(1); \
		echo "$(PYTHON) cannot make a virtual environment (on Debian: apt-get install python3-venv)" >&2; exit 1; }
endef

$(STAMP): pyproject.toml constraints.txt
	$(call environment,$(VENV))
	@echo "installing lockstep and its pinned requirements into $(VENV) (torch is large: this can take minutes) ..."
	@$(VENV)/bin/python -m pip install -qq -c constraints.txt -e '.[dev]'
	@touch $@

$(DEMO_STAMP): pyproject.toml constraints.txt
	$(call environment,.venv-demo)
	@echo "installing lockstep and what its examples need into .venv-demo (torch is large: this can take minutes) ..."
	@.venv-demo/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[examples]'
	@touch $@

$(BENCH_STAMP): pyproject.toml constraints.txt benchmarks/requirements.txt
	$(call environment,$(BENCH_VENV))
	@echo "installing lockstep and its peers into $(BENCH_VENV) (torch is large: this can take minutes) ..."
	@$(BENCH_VENV)/bin/python -m pip install -qq -r benchmarks/requirements.txt -e '.[examples]'
	@touch $@

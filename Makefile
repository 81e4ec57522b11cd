# lockstep's commands. `make` lists them. Each installs what it needs, inside this directory only.

GIVEN_PYTHON := $(PYTHON)
PYTHON ?= python3#        Python >= 3.11 that creates the environments (make gpu: uses its packages)
ARGS ?=#                  more options for pytest: make test ARGS="-k loader -x"
JOBS ?=#                  test files that run at the same time (make test 2, make test-all 4); 0: no extra process
REPEATS ?= 1#            factor for the number of random kills in tests: make test-longest REPEATS=5
DEMO ?= verify examples/digits.py -- --epochs 2# the command of make demo: make demo DEMO="compare examples/digits.py"
N ?=#                     number of rounds of make soak and make soak-cluster
WORLDS ?= 1,3,16,64,128# numbers of processes of make scale
SOAK_ARGS ?=#             options of make soak: make soak N=200 SOAK_ARGS="--seed 7"
HOSTS ?=#                 number of hosts of make cluster (2)
SLURM ?=#                 make cluster SLURM=1: with Slurm on the hosts
CLUSTER_ARGS ?=#          other options of make cluster: make cluster SLURM=1 CLUSTER_ARGS="--gpus 4"
BENCH ?=#                 the only benchmark to run, by name: make bench BENCH=startup
BENCH_ARGS ?=#            options of the benchmark: make bench BENCH=startup BENCH_ARGS="--nproc 8"
FAULTS ?=#                the only table of faults: make mutants FAULTS=tests/mutants/sync.toml
SURVEY ?=#                make mutants SURVEY=1: all tests of CI (TIER=quick: of make test) on groups of faults (GROUP=8), by hand
LOWEST ?= 2.6.0#          version of Lightning of make lowest
PYTHONS ?= 3.11 3.13#    Python versions of make python

VENV := .venv
BENCH_VENV := .venv-bench
# The demo needs a third of the packages of .venv: its environment is created only if .venv is missing.
DEMO_VENV := $(if $(wildcard $(VENV)/.installed),$(VENV),.venv-demo)
# Written after a complete installation. If pyproject.toml or constraints.txt is newer, make installs again.
STAMP := $(VENV)/.installed
BENCH_STAMP := $(BENCH_VENV)/.installed
DEMO_STAMP := .venv-demo/.installed
# Waiting OpenMP threads yield the core: the tests start more processes than there are cores.
PYTEST := OMP_WAIT_POLICY=passive $(VENV)/bin/python -m pytest
BENCHMARKS := $(wildcard benchmarks/$(or $(BENCH:.py=),[!_]*).py)

# Tests start thousands of processes. With this variable, each would compile all of lockstep again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# One target at a time, also with make -j: these commands measure time.
.NOTPARALLEL:
.PHONY: help install horovod demo test test-all test-failed test-longest soak scale soak-cluster cluster check bench bench-install gpu simulated lowest mutants wheel release-check docs python clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

install: $(STAMP) ## install lockstep and its pinned requirements into .venv (2.2 GB, minutes)

horovod: $(STAMP) ## build Horovod against the torch of .venv and install it there (once, about 3 minutes)
	@tools/horovod.sh $(VENV)/bin/python

demo: $(if $(filter $(VENV),$(DEMO_VENV)),,$(DEMO_STAMP)) ## train on 1, 2 and 3 processes, kill and resume, compare the weights: prints PASS (1 minute after the installation)
	$(DEMO_VENV)/bin/lockstep $(DEMO)

test: $(STAMP) ## run the quick tests (about 4 minutes on 2 cores)
	$(PYTEST) -n $(or $(JOBS),2) --dist loadfile --no-loadscope-reorder -m "not long and not cuda" $(ARGS)

# Four files at a time, also on two cores: tests of several machines mostly wait, for Slurm or for a time limit. A test that hangs in
# C code does not receive the signal of its own time limit. After the longest of all limits, faulthandler ends its process and names it.
test-all: $(STAMP) ## run all tests that CI runs, including the long ones
	LOCKSTEP_REPEATS=$(REPEATS) $(PYTEST) -o faulthandler_timeout=1500 -o faulthandler_exit_on_timeout=true -n $(or $(JOBS),4) --dist loadfile --no-loadscope-reorder -m "not longest and not cuda" $(ARGS)

test-failed: $(STAMP) ## run the tests that failed last again, one at a time
	LOCKSTEP_REPEATS=$(REPEATS) $(PYTEST) --last-failed --last-failed-no-failures none -m "not longest and not cuda" $(ARGS)

test-longest: $(STAMP) ## run the tests that CI leaves out: whole benchmarks, large scripts, random kills (REPEATS=5: more kills)
	LOCKSTEP_REPEATS=$(REPEATS) $(PYTEST) -n $(or $(JOBS),4) --dist loadfile --no-loadscope-reorder -m "longest and not cuda" $(ARGS)

soak: $(STAMP) ## kill N runs at random moments, resume on other numbers of processes, check that nothing is lost (N=20)
	PYTHONPATH=tests $(VENV)/bin/python tests/state/recovery/soak.py $(N) $(SOAK_ARGS)

scale: $(STAMP) ## run one training on 1 to 128 processes of this machine, stopped and resumed each time (WORLDS=1,3,16,64,128)
	$(VENV)/bin/python tests/scale/scale.py --worlds $(WORLDS) $(SCALE_ARGS)

soak-cluster: $(STAMP) ## the same as soak on two hosts, with power loss and cut links (N=50; needs root)
	PYTHONPATH=tests:tools $(VENV)/bin/python tests/cluster/soak_hosts.py $(N) $(SOAK_ARGS)

cluster: $(STAMP) ## start hosts on this machine and open a prompt on them, until Ctrl-C (HOSTS=2, SLURM=1; needs root)
	@PYTHONPATH=tools $(VENV)/bin/python -m cluster $(if $(HOSTS),--hosts $(HOSTS)) $(if $(SLURM),--slurm) $(CLUSTER_ARGS)

check: $(STAMP) ## run ruff, mypy and the test of layers, and check that all tests can be collected
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PYTEST) -q tests/test_layers.py
	$(PYTEST) -qq --collect-only --no-summary > /dev/null || $(PYTEST) -qq --collect-only

bench: $(BENCH_STAMP) ## run every benchmark of lockstep and other libraries; print the JSON lines again at the end
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

bench-install: $(BENCH_STAMP) ## install lockstep and the other libraries into .venv-bench

# With PYTHON=, that environment is used unchanged: a machine with a GPU has a matching torch, and often no network.
gpu: $(if $(GIVEN_PYTHON),,$(STAMP)) ## run the first tests on a CUDA GPU and write a report to send (ARGS="--to exact": the most important; PYTHON=... has torch)
	@$(or $(GIVEN_PYTHON),$(VENV)/bin/python) tools/gpu $(ARGS)

# For the time limit, see test-all.
simulated: $(STAMP) ## test the code paths of a GPU on a simulated device (built once with g++, a minute; kept in ~/.cache)
	SIM_DEVICES=4 PYTHONPATH=$(CURDIR)/tests/simulated/autoload:$(CURDIR)/tests/cuda $(PYTEST) -q -o faulthandler_timeout=400 -o faulthandler_exit_on_timeout=true -n $(or $(JOBS),2) --dist loadfile --no-loadscope-reorder $(or $(SIMULATED),tests/simulated tests/cuda) $(ARGS)

lowest: $(STAMP) ## run Lightning's tests with the lowest version of it that is supported (LOWEST=2.6.0, installed into build/)
	@test -d build/lightning-$(LOWEST) || $(VENV)/bin/python -m pip install --disable-pip-version-check -qq --no-deps --target build/lightning-$(LOWEST) lightning==$(LOWEST)
	@PYTHONPATH=build/lightning-$(LOWEST) $(VENV)/bin/python -c "import lightning; assert lightning.__version__ == '$(LOWEST)'"
	PYTHONPATH=$(CURDIR)/build/lightning-$(LOWEST) $(PYTEST) -q -n $(or $(JOBS),2) --dist loadfile -m "not longest and not cuda" tests/integrations/hosts/test_lightning*.py $(ARGS)

mutants: $(STAMP) ## plant the faults of tests/mutants, one at a time, and run the tests that must fail (ARGS="--only buffers")
	$(VENV)/bin/python tests/mutants/$(if $(SURVEY),survey.py $(if $(TIER),--tier $(TIER)) $(if $(GROUP),--group $(GROUP)),run.py) $(if $(JOBS),--jobs $(JOBS)) $(FAULTS) $(ARGS)

wheel: $(STAMP) ## build dist/*.whl and dist/*.tar.gz
	@rm -rf dist
	$(VENV)/bin/python -m build --outdir dist

release-check: wheel ## check dist/ as for a release, in clean environments, and list what is missing to publish it
	$(VENV)/bin/python tools/release_check.py

docs: $(STAMP) ## build the documentation site into build/site, strictly and without the network
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

python: ## run a small set of tests with Python 3.11 and the oldest torch, and with 3.13 (PYTHONS="3.12" for others)
	tools/pythons.sh $(PYTHONS)

clean: ## remove the environments and everything that was built (never runs/)
	rm -rf $(VENV) $(BENCH_VENV) .venv-demo .venv-3.* build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call environment,DIRECTORY): create a virtual environment there, or print what is missing.
define environment
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
		sys.exit(f"lockstep needs Python 3.11 or later, and $(PYTHON) is Python {v[0]}.{v[1]}: make PYTHON=python3.12 ..." \
		if v < (3, 11) else 0)'
	@test -x $(1)/bin/python || $(PYTHON) -m venv --clear $(1) || { rm -rf $(1); \
		echo "$(PYTHON) cannot make a virtual environment (on Debian: apt-get install python3-venv)" >&2; exit 1; }
endef

$(STAMP): pyproject.toml constraints.txt
	$(call environment,$(VENV))
	@echo "installing lockstep and its pinned requirements into $(VENV): 2.2 GB, this takes minutes"
	@$(VENV)/bin/python tools/install.py -c constraints.txt -e '.[dev]'
	@touch $@

$(DEMO_STAMP): pyproject.toml constraints.txt
	$(call environment,.venv-demo)
	@echo "installing lockstep and the requirements of its examples into .venv-demo: this takes minutes"
	@.venv-demo/bin/python tools/install.py -c constraints.txt -e '.[examples]'
	@touch $@

$(BENCH_STAMP): pyproject.toml constraints.txt benchmarks/requirements.txt
	$(call environment,$(BENCH_VENV))
	@echo "installing lockstep and the libraries to compare with into $(BENCH_VENV): this takes minutes"
	@$(BENCH_VENV)/bin/python tools/install.py -r benchmarks/requirements.txt -e '.[examples]'
	@touch $@

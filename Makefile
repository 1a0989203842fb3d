# One verb each. Every target first makes what it needs, in a virtual environment of its own, and only once:
#   make train                                     make test ARGS="-k queue"
#   make train PYTHON=python3.12 VENV=.venv-3.12   make train ARGS="--resume"
PYTHON ?= python3
VENV ?= .venv
CONFIG ?= config/examples/volley.yaml
# Half as many again as the smallest machine has cores: many tests wait for processes that start, or end.
WORKERS ?= 3
# By files, in the order of tests/conftest.py.
SPREAD = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
ARGS ?=
# Where Wine and CPython for Windows are built, once.
WINDOWS ?= $(HOME)/.cache/headrace-windows
BIN = $(VENV)/bin
# All but those that want to be told a task, a finished run or a peer, and those that train for minutes or hours.
UNASKED = bare_loop.py kill.py main_job.py learning.py acceptance.py connect_four.py pursuit.py compare.py peer_sb3.py peer_rltools.py reference_numpy_ppo.py reference_torch_ppo.py soak.py cuda_graphs.py
BENCHMARKS = $(filter-out $(addprefix benchmarks/,$(UNASKED)),$(shell grep -l __main__ benchmarks/*.py))
DESCRIPTION = setup.cfg pyproject.toml constraints.txt setup.py stages/policy/network/kernels/kernels.c stages/policy/network/kernels/vectors.h
# Else each of pytest's workers, and each of the hundreds of processes that tests start, would compile ours anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help train test fast windows check lint formatted types format docs site proto bench clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

train: $(VENV)/.installed ## install, then train the built-in game by self-play; an earlier such run is put aside
	$(BIN)/run-pipeline $(CONFIG) --force $(ARGS)

test: $(VENV)/.installed-dev ## install, then run the tests; all but the slow ones, which ARGS="-m slow" runs
	$(BIN)/python -m pytest $(SPREAD) $(ARGS)

# These tests wait for no processes, so a third worker would only import everything once more.
fast: WORKERS = 2
fast: $(VENV)/.installed-dev ## install, then run the tests that need no seconds each: for every save
	$(BIN)/python -m pytest $(SPREAD) -m "not slow and not lengthy" $(addprefix --ignore=tests/,end_to_end chaos zoo) $(ARGS)

windows: ## run a part of the tests in CPython for Windows, under Wine, which takes root and 4 GB to build; skipped where it can't be
	@PYTHON=$(PYTHON) tests/windows/setup.sh $(WINDOWS); status=$$?; \
	if [ $$status = 3 ]; then echo "make windows: skipped, see the reason above"; exit 0; fi; \
	[ $$status = 0 ] && timeout -k 10 7200 tests/windows/run.sh $(WINDOWS) -m pytest -p no:cacheprovider -n 2 --dist loadfile \
		--timeout-method thread -m "not slow and (windows or windows_too)" $(ARGS)

check: $(VENV)/.installed-dev ## lint, formatting and types, those of the tests too
	@$(MAKE) --no-print-directory --keep-going -j 2 lint formatted types

lint:
	$(BIN)/ruff check .

formatted:
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy -n 2

format: $(VENV)/.installed-dev ## sort imports, mend what can be mended, format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev ## write the pages that are generated from the code and from tests/zoo
	$(BIN)/python tests/configuration_pages.py docs
	$(BIN)/run-pipeline --schema > config/schema.json
	$(BIN)/python tests/zoo_page.py > docs/environments.md

site: $(VENV)/.installed-dev ## build the site of the documentation into build/site; a dead link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

PROTOS = stages/environments/engines/unity/proto/communicator_objects.proto $(wildcard pipeline/serving/proto/*.proto)
proto: $(VENV)/.installed-dev ## compile the descriptions of protocols, after a change of one
	for file in $(PROTOS); do $(BIN)/python -m grpc_tools.protoc -I$$(dirname $$file) \
		--descriptor_set_out=$${file%.proto}.binpb $$file || exit 1; done

bench: $(VENV)/.installed-dev ## run the benchmarks, one after the other
	set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done

clean: ## remove the virtual environment and what tools left behind; keeps results/
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.installed: $(DESCRIPTION)
	$(call install,.[train])
	touch $@

$(VENV)/.installed-dev: $(DESCRIPTION)
	$(call install,.[dev])
	touch $(VENV)/.installed $@

define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headrace needs Python 3.11 or later, not " \
		+ sys.version.split()[0] + "; name one: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '$(1)'
endef

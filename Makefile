# Set-up, checks and the demonstration of da3_ros; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-fast lint bench soak generated docs clean distclean

PYTHON ?= python3
PYTEST_ARGS ?=
DEMO_ARGS ?=
export TORCH_SPEC TORCH_INDEX_URL

# Every command that needs the packages starts so. Set -u is off while ROS's own scripts run.
ENV := set +u; source tools/env.sh || exit 1; set -u;
# Only this machine, and a domain of this run's own: a robot or a second run nearby stays unheard.
# 10 to 99: above 101, Linux may give the ports of a domain to others.
ALONE := export ROS_DOMAIN_ID=$$((RANDOM % 90 + 10)) \
  $(if $(filter humble,$(ROS_DISTRO)),ROS_LOCALHOST_ONLY=1,ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST);
# Workers: see test/conftest.py. A worker that has nothing left takes from the others. Bytecode is
# kept also where the environment forbids it: else each worker translates all tests in each run.
PYTEST := PYTHONDONTWRITEBYTECODE= python -m pytest --timeout 900 --dist worksteal --durations 30

help: ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18
	@echo
	@echo '  PYTEST_ARGS="-k export"   which tests to run'
	@echo '  DEMO_ARGS="--seed 21"     which room; -p NAME:=VALUE sets a parameter of the node'
	@echo '  PYTHON=python3.12         the interpreter to build .venv with (3.10 to 3.13)'
	@echo '  TORCH_SPEC="torch==2.13.0" what pip gets for torch; none: torch is there already'
	@echo '  TORCH_INDEX_URL=URL       where pip gets torch, e.g. the CPU-only index of PyTorch:'
	@echo '                            the default brings CUDA libraries of several gigabytes'

setup: ## virtual environment, ROS 2, messages; skipped when nothing has changed
	@command -v $(PYTHON) >/dev/null || \
	  { echo 'set-up: $(PYTHON) is missing, please run: apt install python3 python3-venv python3-dev' >&2; exit 1; }
	@$(PYTHON) tools/set_up.py

demo: setup ## a synthetic camera and the live node, held against the exact room: demo_out/
	@$(ENV) python -m da3_ros.ros.demo --output demo_out $(DEMO_ARGS)

lint: setup ## format, lint and types
	@$(ENV) ruff format --check .
	@$(ENV) ruff check .
	@$(ENV) mypy da3_ros

test: lint ## lint, then all tests but the long ones, on all cores: ten minutes on two
	@$(ENV) $(ALONE) $(PYTEST) -n auto -m "not long" $(PYTEST_ARGS)

test-all: lint ## lint, then all tests, on all cores
	@$(ENV) $(ALONE) $(PYTEST) -n auto $(PYTEST_ARGS)

test-fast: setup ## tests that start no process and take no long time: a minute and a half
	@$(ENV) $(ALONE) $(PYTEST) -n logical -m "not process and not slow and not long" $(PYTEST_ARGS)

bench: setup ## benchmarks: two things compared in one run
	@$(ENV) $(ALONE) for file in bench/bench_*.py; do [ ! -e "$$file" ] || python "$$file"; done

soak: setup ## long runs
	@$(ENV) $(ALONE) for file in bench/soak_*.py; do [ ! -e "$$file" ] || python "$$file" || exit 1; done

generated: setup ## docs/reference.md, docs/api.md and two files of config/, which are made from the code
	@$(ENV) python tools/write_config.py config/da3.yaml
	@$(ENV) python tools/write_reference.py docs/reference.md
	@$(ENV) python tools/write_api.py docs/api.md
	@$(ENV) python -m da3_ros nav2-config --camera-height 0.3 --output config/nav2_costmap.yaml

docs: site/venv/installed ## documentation site, with search: site/html
	@$(PYTHON) tools/stage_site.py site/source
	@NO_MKDOCS_2_WARNING=1 site/venv/bin/mkdocs build
	@echo 'to read it: python3 -m http.server --bind 127.0.0.1 --directory site/html, then http://localhost:8000'

# A virtual environment of its own: the site needs neither ROS nor PyTorch.
site/venv/installed: tools/requirements-docs.txt
	@rm -rf site/venv
	@$(PYTHON) -m venv site/venv
	@site/venv/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

clean: ## remove what was built; keeps the virtual environments
	@rm -rf build install log underlay demo_out site/source site/html .pytest_cache .mypy_cache .ruff_cache

distclean: clean ## remove the virtual environments too
	@rm -rf .venv site

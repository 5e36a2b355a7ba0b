# Needs only make and Python 3.11 or newer; everything else is installed into .venv from locked wheels.
#
#   make demo            the story, told live; stays up (ONCE=1: ends by itself)
#   make up              the same stack without the story
#   make test            all tests, in parallel       make test T=tests/effects
#   make check           format, lint, types, imports, migrations
#   make bench           what a refund costs
#   make frameworks      eight agent frameworks under eleven faults, against this and against a naive tool
#   make campaign        500 SIGKILLs at random instants while refunds go on (ARGS="--kills 50 --seed 7")
#   make mutation        change the rules in every small way; some test must notice each
#   make fuzz            schemathesis against a running stack for 10 minutes (MINUTES=2)
#   make contract        the provider suite: sandbox, and Stripe when STRIPE_CONTRACT_KEY is set
#   make lock            compile requirements*.in
#   make clean           remove .venv, caches and the local data

SHELL := /bin/sh
PY := .venv/bin/python
# How many test processes. The suite starts real servers and workers: more than the cores only slows it.
N ?= 2
T ?= tests
# The suite starts Python hundreds of times: where the machine forbids it to keep what it compiled, each
# start compiles this source again.
unexport PYTHONDONTWRITEBYTECODE

# The first Python that is new enough; PYTHON=/path/to/python names another.
define find_python
for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python); do \
  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
    python="$$candidate"; break; \
  fi; \
done; \
if [ -z "$$python" ]; then \
  echo "Python 3.11 or newer is needed and was not found (tried: $(or $(PYTHON),python3, python3.13, python3.12, python3.11, python)). Nothing was installed. Install it, or say where it is: make PYTHON=/path/to/python3.11" >&2; \
  exit 2; \
fi
endef

.PHONY: help deps deps-run deps-examples up demo test check format lock bench frameworks campaign mutation fuzz contract \
  clean

help:
	@sed -n 's/^#  //p' Makefile

deps:
	@$(find_python); "$$python" .ci/bootstrap.py dev

deps-run:
	@$(find_python); "$$python" .ci/bootstrap.py run

deps-examples:
	@$(find_python); "$$python" .ci/bootstrap.py examples

up: deps-run
	@exec $(PY) -m config.up

demo: deps-run
	@exec $(PY) -m config.demo $(if $(ONCE),--once)

test: deps deps-examples
	@exec $(PY) -m pytest -n $(N) $(T) $(ARGS)

check: deps
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy .
	.venv/bin/lint-imports
	$(PY) -m config.embedded.run sh -ec '$(PY) manage.py makemigrations --check --dry-run; \
	  $(PY) manage.py check --fail-level WARNING'

format: deps
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

lock: deps
	$(PY) .ci/lock.py

bench: deps
	@exec $(PY) -m bench $(ARGS)

frameworks: deps deps-examples
	@exec $(PY) -m tests.frameworks $(ARGS)

campaign: deps
	@exec $(PY) -m tests.acceptance.campaign $(ARGS)

mutation: deps
	@exec $(PY) -m tests.mutation --processes $(N) $(ARGS)

fuzz: deps
	@exec $(PY) -m tests.agents.fuzz --minutes $(or $(MINUTES),10) $(ARGS)

contract: deps
	@exec $(PY) -m pytest tests/contract $(ARGS)

clean:
	@if [ -x $(PY) ]; then $(PY) -m config.embedded.clean; fi
	rm -rf .venv .venv.lock .venv-agents* .venv-langchain* examples/js/node_modules examples/js/.node_modules.lock
	rm -rf .data .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache staticfiles
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# make demo       a question answered and a workload served by a live cluster, on this machine's CPU
# make test       the tests; `make test-slow` runs those that take minutes
# make lint       ruff and the rules on which room may import which
# make lock       pins anew what pyproject.toml asks for; delete requirements.lock first to move to newer versions
# make clean      removes what was built, and leaves results in outputs/ and multirun/

SHELL := /bin/bash
PYTHON := .venv/bin/python
INSTALLED := .venv/installed

.PHONY: help demo test test-slow lint lock clean

help:
	@sed -n 's/^# //p' Makefile

demo: $(INSTALLED)
	$(PYTHON) scripts/replay.py ask="What is the capital of France? Answer in one sentence."

test: $(INSTALLED)
	$(PYTHON) -m pytest -m "not slow" -n 2 --dist loadfile

test-slow: $(INSTALLED)
	$(PYTHON) -m pytest -m slow

lint: $(INSTALLED)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	.venv/bin/lint-imports

lock: $(PYTHON)
	$(PYTHON) -m venv .venv/lock
	.venv/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv/lock/bin/python -m uv pip compile pyproject.toml --extra test --extra lint --extra build --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header --no-annotate --python-version 3.12 --output-file requirements.lock --quiet
	rm -r .venv/lock

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(PYTHON):
	@for candidate in python3.12 python3; do \
		if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2> /dev/null; then \
			$$candidate -m venv .venv || { rm -rf .venv; exit 1; }; exit 0; \
		fi; \
	done; echo "error: Python 3.12 or newer is needed; neither python3.12 nor python3 is one" >&2; exit 1

$(INSTALLED): requirements.lock | $(PYTHON)
	@echo "installing the pinned packages into .venv; this takes about a minute"
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Every target sets up what it needs first: .venv from requirements.txt, node_modules from
# package-lock.json (only where npm exists; without it the pages load MathJax and the widgets from a CDN).

VENV := .venv
PY   := $(VENV)/bin/python
BOOK := $(VENV)/bin/jupyter-book build . -n -W --keep-going --all --quiet
LINT := { $(PY) -m ruff check --quiet . && $(PY) -m ruff format --quiet --check . && \
  $(PY) -m sgemm_lab notebooks; } || { echo "make lint mends what can be mended." >&2; exit 1; }
TEST := $(PY) -m pytest -n 2 --dist loadscope --nbval
ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help setup book test test-all test-newest test-colab lab run measure lint clean
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' Makefile | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

book: setup ## build the book into _build/html
	$(BOOK)
	@echo "Open _build/html/index.html"

test: setup ## everything CI checks: pages, committed outputs, unit tests, every notebook with nbval
	$(LINT)
	$(BOOK)
	$(PY) -m sgemm_lab run --check
	$(TEST) tests book

test-all: TEST += -m "not gpu and not colab"
test-all: test ## the same, and the slow tests

test-newest: ## pages, tests and notebooks with the newest packages instead of the pinned, in .venv-newest
	$(MAKE) VENV=.venv-newest newest

.PHONY: newest
newest: setup  # jupyter-book 2 reads neither _config.yml nor _toc.yml
	sed 's/^jupyter-book==.*/jupyter-book<2/; s/==[^;]*//' requirements.txt \
	  | $(PY) -m pip install --quiet --disable-pip-version-check --upgrade -r /dev/stdin
	$(BOOK)
	$(TEST) tests book

test-colab: book ## every notebook on Colab's packages and Pythons (3.12, 3.13), where these are here
	$(PY) -m pytest -m colab tests/test_colab.py

lab: setup ## open the notebooks in JupyterLab, trusted, so that it shows their charts
	@$(PY) -m jupyter trust book/*.ipynb >/dev/null
	$(PY) -m jupyterlab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/book/00_setup.ipynb $(ROOT)

run: setup ## execute every notebook, write its outputs and what it compiled
	$(PY) -m sgemm_lab run

measure: setup ## time the kernels on this machine's GPU, record the result
	$(PY) -m sgemm_lab bench

lint: setup ## format the Python and check it; notebooks into the form that is committed
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
	$(PY) -m sgemm_lab notebooks --fix

clean: ## remove what the build made (the environment stays)
	rm -rf _build .pytest_cache .ruff_cache

setup: $(VENV)/.ready node_modules/.ready ## make .venv and node_modules, when missing or stale

# The newest Python on the path from 3.11 on; the plain name first.
$(VENV)/.ready: requirements.txt pyproject.toml
	@for p in python3 python3.13 python3.12 python3.11; do \
	  if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$p; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "This book needs Python 3.11 or newer; python3 here is: $$(python3 --version 2>&1)."; \
	  echo "Debian, Ubuntu: sudo apt-get install python3.11 python3.11-venv (or a newer one). Then run make again."; \
	  exit 1; fi; \
	if ! $$found -c 'import venv, ensurepip' 2>/dev/null; then \
	  echo "$$found cannot make a virtual environment here."; \
	  v=$$($$found -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  echo "Debian, Ubuntu: sudo apt-get install python3-venv (or $$v). Then run make again."; \
	  exit 1; fi; \
	$(PY) -c 'import pip' 2>/dev/null || { echo "Making $(VENV) with $$($$found --version)"; $$found -m venv --clear $(VENV); }
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

node_modules/.ready: package.json package-lock.json
	@if ! command -v npm >/dev/null; then \
	  echo "npm is not here: the pages will load MathJax and the widgets from a CDN."; \
	elif npm ci --silent; then touch $@; \
	else echo "npm ci failed: the pages will load MathJax and the widgets from a CDN."; fi

# Two commands matter: `make demo` and `make test`. Each installs what it needs into .venv first.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
HALF   := $(VENV)/.installing
HAS_GPU = nvidia-smi -L >/dev/null 2>&1
# Two at a time, on any machine: more would slow down those that wait for processes.
UNIT = $(PY) -m pytest -n 2 --dist worksteal -m "unit and not soak"

# Where modules are compiled anew for each process, an engine takes a minute longer to start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast soak lint type

help:  ## Say what each command does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP)  ## Install the package and its pinned dependencies into .venv

demo: $(STAMP)  ## Summarize real documents on two engines with a local Ray cluster, into out/demo
	@$(PY) -m arkv_sglang.demo

test: $(STAMP)  ## Run every test this machine can run in 25 minutes
	@CUDA_VISIBLE_DEVICES= $(UNIT)
	@if $(HAS_GPU); then \
	    CUDA_VISIBLE_DEVICES= $(PY) -m pytest -m "(engine or job) and not soak" && \
	    $(PY) -m pytest -m "gpu and not soak"; \
	else \
	    $(PY) -m pytest -m "not unit and not soak"; \
	fi

test-fast: $(STAMP)  ## Run the unit tests (under 4 minutes)
	@CUDA_VISIBLE_DEVICES= $(UNIT)

soak: $(STAMP)  ## Run the long tests (minutes to hours)
	@$(PY) -m pytest -m soak

lint: $(STAMP)  ## Check style and formatting
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

type: $(STAMP)  ## Check types
	@$(PY) -m mypy

# A run that was cut off in mid-install leaves $(HALF) behind, and the next one starts over.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Installing into $(VENV) (a minute with a warm cache, else a download of several GB) ..."
	@if [ -e $(HALF) ]; then rm -rf $(VENV); fi
	@mkdir -p $(VENV) && rm -f $(STAMP) && touch $(HALF)
	@if command -v uv >/dev/null; then uv venv --quiet --allow-existing --python "$(PYTHON)" $(VENV); \
	    else "$(PYTHON)" -m venv $(VENV) && $(PY) -m pip install --quiet uv; fi
	@PATH="$$PATH:$(CURDIR)/$(VENV)/bin" uv pip install --python $(PY) \
	    --constraint constraints.txt --editable ".[batch,demo,dev,sglang,test]"
	@mv $(HALF) $(STAMP)

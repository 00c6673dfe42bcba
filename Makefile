# Every target sets up what it needs: a fresh clone needs nothing but Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
WITH := dev

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs bench bench-cluster fuzz test-extras test-gpu clean

help: ## What can be made here
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# One constraints file pins torch to a release that has a CPU build, so that no CUDA libraries are pulled. pip compiles
# modules one after another; compileall does on all cores, without what is seldom imported, and fails over files of other
# versions of Python.
$(READY): pyproject.toml constraints.txt
	@echo "Installing PyTorch (CPU build), Triton, evo-kernel and its tools into $(@D), once: silent for one to five minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv $(@D)
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt 'torch==2.13.0'
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt -e '.[$(WITH)]'
	$(BIN)/python -m compileall -qq -j 0 -x '/(tests?|botocore|fontTools|proxy|onnx|scipy)/' $(@D)/lib || true
	touch $(READY)

demo: $(READY) ## Search softmax and matmul with the embedded default (2 minutes, no GPU, no key) and print what it found
	$(BIN)/python -P benchmarks/demo.py

# With compiled modules on disk, the second process of the tests that needs one loads it.
test: $(READY) ## Run the tests (no GPU needed)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist=worksteal

lint: $(READY) ## ruff, pyright and the import contracts
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright && $(BIN)/lint-imports

docs: $(READY) ## Build the documentation into site/ (open site/index.html)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(READY) ## Print the tables behind the figures in docs/results/benchmarks.md
	$(BIN)/python -m benchmarks.population --sizes 1000,10000,100000
	$(BIN)/python -m benchmarks.dashboard
	$(BIN)/python -m benchmarks.phases softmax rmsnorm
	$(BIN)/python -m benchmarks.looks

bench-cluster: $(READY) ## Simulate a search over 1 to 1,000 GPUs; hold the simulation against eight real servers
	$(BIN)/python -m benchmarks.cluster --model-s 0 --width 24
	$(BIN)/python -m benchmarks.cluster --real --attempts 1600

# New programs, then what an H200 computed for stored ones. EXAMPLES: how many; more modes: python -m benchmarks.fuzz --help
fuzz: $(READY) ## Hold the executor of Triton IR against compiled kernels, with generated programs (a GPU is used if there is one)
	$(BIN)/python -m benchmarks.fuzz live --examples $(or $(EXAMPLES),300)
	$(BIN)/python -m benchmarks.fuzz compare

# In an environment of its own, which has what most users do not need.
EXTRAS := tests/operators/learning tests/cli/test_judge_ray.py
test-extras: ## Run the tests of the extras rl and ray
	$(MAKE) .venv-extras/.ready BIN=.venv-extras/bin READY=.venv-extras/.ready WITH=dev,rl,ray
	.venv-extras/bin/python -m pytest $(EXTRAS)

test-gpu: ## Run tests/gpu/ with the current python, on a machine with an NVIDIA GPU
	$(PYTHON) -m pytest tests/gpu

clean: ## Remove the virtual environment and caches
	rm -rf .venv .venv-extras site demo .pytest_cache .ruff_cache .hypothesis

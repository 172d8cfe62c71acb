# The whole set-up: `make serve` or `make test` on a machine with Python 3.11+ makes .venv and goes on.
#   PYTHON=python3.12   the Python to make the environment with (default: python3, or a newer one found on PATH)
#   GLMSPARK_VENV=DIR   where the environment lies (default: .venv)
#   ARGS="--tp 1"       further arguments of `glmspark up` or pytest

ifeq ($(origin PYTHON),undefined)
  PYTHON := python3
  NO_PYTHON := on Debian and Ubuntu: tools/debian-packages.sh --install
else
  EXACT := --exact-python
  NO_PYTHON := name one that is (PYTHON=/path/to/python3.12), or leave PYTHON out
endif
VENV := $(or $(GLMSPARK_VENV),.venv)
BIN := $(VENV)/bin
TESTS := $(wildcard tests/unit tests/engine tests/lab)
# Many unit tests wait for small processes of their own: four at a time keep two cores busy to the end.
MANY := -n 4 --dist worksteal
# The lab makes network namespaces, which takes root. In CI its absence is a failure, not a matter of taste.
ifneq ($(shell id -u),0)
ifndef CI
  TESTS := $(filter-out tests/lab,$(TESTS))
  LEFT_OUT := echo "tests/lab is left out: it needs root (sudo make test)"
endif
endif

.PHONY: help serve test faults soak calibrate unit lint bootstrap clean
.DEFAULT_GOAL := help
# Where this is set, each of the many small processes of the tests would compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## say what there is
	@echo "make serve   set everything up, serve glm-tiny on this machine, print the endpoint"
	@echo "make test    set everything up, run every check and test"
	@echo "make unit    the unit tests alone (under a minute)"
	@echo "make faults  every fault of a start on a cluster, each followed by a start that gets ready (root, minutes)"
	@echo "make calibrate  the speed model against published measurements; ARGS=--write keeps its constants"
	@echo "make soak    random faults for a deployment that comes back each time (root; goes on where it was)"
	@echo "make lint    ruff, mypy and the import contract alone"
	@echo "make clean   stop what is served from here and remove .venv and caches"
	@echo "Settings: PYTHON=python3.12  GLMSPARK_VENV=DIR  ARGS=\"...\"  (see the head of the Makefile)"

bootstrap:
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "error: $(PYTHON) is not on this machine; glmspark needs Python 3.11 or newer." >&2; \
	  echo "  next:  $(NO_PYTHON)" >&2; exit 1; }
	@"$(PYTHON)" tools/bootstrap.py $(EXACT)

serve: bootstrap
	@"$(BIN)/glmspark" up $(ARGS)

lint: bootstrap
	@"$(BIN)/ruff" check .
	@"$(BIN)/ruff" format --check .
	@"$(BIN)/mypy"
	@"$(BIN)/lint-imports" --no-logo

test: lint
	@$(LEFT_OUT)
	@"$(BIN)/python" -m pytest $(MANY) tests/unit $(ARGS)
	@"$(BIN)/python" -m tools.layers $(filter-out tests/unit,$(TESTS)) -- $(ARGS)

soak: bootstrap ## random faults for a deployment on a lab of its own (root, hours); ARGS="--faults 200 --seed 7"
	@"$(BIN)/python" -m tests.lab.soak --state .soak $(ARGS)

faults: bootstrap ## every fault of a start on a cluster, each followed by a start that gets ready (root)
	@GLMSPARK_EVERY_START=1 "$(BIN)/python" -m pytest tests/lab/test_launch_faults.py $(ARGS)

calibrate: bootstrap ## fit the speed model, each source predicted from the others
	@"$(BIN)/python" -m tools.calibrate $(ARGS)

unit: bootstrap
	@"$(BIN)/python" -m pytest $(MANY) tests/unit $(ARGS)

clean:
	@if [ -x "$(BIN)/glmspark" ]; then "$(BIN)/glmspark" down --all; fi
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

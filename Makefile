# Two commands do all the set-up on a machine that has Python (3.10 to 3.13), pip and make:
#   make demo    install into .venv and run the main job
#   make test    install with the test tools, then lint, type-check and test
#   make docs    install mkdocs and build the documentation into site/
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INPUTS := pyproject.toml lab/pyproject.toml constraints.txt src/surgicalmamba/version.py

.PHONY: demo test docs demo-model clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	$(BIN)/surgicalmamba demo

test: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

docs: $(VENV)/installed-docs
	$(BIN)/mkdocs build --strict --quiet
	@echo 'open site/index.html in a browser; to search, serve it: python3 -m http.server -d site'

# The model that ships in src/surgicalmamba/assets/demo; see docs/synthetic.md.
demo-model: $(VENV)/installed
	$(BIN)/surgicalmamba prepare synthetic --out synthetic-demo --videos 100 --short --fps 1 --seed 11
	$(BIN)/surgicalmamba prepare custom --source synthetic-demo --out synthetic-demo-prepared
	$(BIN)/surgicalmamba train --config configs/demo-start.yaml
	$(BIN)/surgicalmamba train --config configs/demo-backbone.yaml
	$(BIN)/surgicalmamba prepare synthetic --out synthetic-demo-more --videos 200 --short --fps 1 --seed 13
	$(BIN)/surgicalmamba prepare custom --source synthetic-demo-more --out synthetic-demo-features --features runs/demo-backbone/best
	$(BIN)/surgicalmamba train --config configs/demo-temporal.yaml
	$(BIN)/surgicalmamba prepare custom --source synthetic-demo-more --out synthetic-demo-more-prepared
	$(BIN)/surgicalmamba train --config configs/demo.yaml
	cp runs/demo/best/config.json runs/demo/best/model.safetensors src/surgicalmamba/assets/demo/

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python $(INPUTS)
	$(PIP) install --quiet -c constraints.txt -e . -e lab
	touch $@

$(VENV)/installed-test: $(VENV)/bin/python $(INPUTS)
	$(PIP) install --quiet -c constraints.txt -e '.[test]' -e lab
	touch $(VENV)/installed $@

$(VENV)/installed-docs: $(VENV)/bin/python $(INPUTS)
	$(PIP) install --quiet -c constraints.txt -e '.[docs]' -e lab
	touch $(VENV)/installed $@

clean:
	rm -rf $(VENV)

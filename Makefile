.DEFAULT_GOAL := help
.PHONY: help setup engine base-image registry demo rehearse live docs reference record fuzz check test test-lowest soak test-images test-gpu lint policy mutants nightly bench bench-elastic bench-step-cost lock lock-images release-check wheels publish-images clean clean-images

PYTHON ?= python3
PYTEST_ARGS ?=
LOCK_ARGS ?=
LIVE_ARGS ?=
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
# More than there are cores, for tests wait. All together need 6 GiB.
PYTEST_PROCESSES ?= 6
PYTEST_PARALLEL ?= -n $(PYTEST_PROCESSES) --dist loadgroup --no-loadscope-reorder
BIN := $(CURDIR)/.venv/bin
# A docker command with BuildKit, where the machine's has none: tools/engine.sh.
export PATH := $(CURDIR)/.cache/docker:$(PATH)
# Commands under test start as an installed one does: from compiled files.
unexport PYTHONDONTWRITEBYTECODE
# uv, for `lock` and `test-lowest`, knows none of pip's settings.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.complete ## .venv/ with hvdcloud and its development tools

.venv/.complete: pyproject.toml tools/setup.sh tools/locks/dev.txt
	@PYTHON="$(PYTHON)" tools/setup.sh
	@touch $@

lock: .cache/lock/.complete ## tools/locks/, after pyproject.toml; newer versions: make lock LOCK_ARGS=--upgrade
	@tools/lock.sh $(LOCK_ARGS)

lock-images: setup engine ## dockerfiles/base-images.txt: the digests that the registries have now
	@$(BIN)/python -m tools.lock_images dockerfiles/base-images.txt

engine: ## a Docker engine that answers: installed and started if need be
	@tools/engine.sh

base-image: engine ## debian:bookworm-slim in the engine: pulled, or made with debootstrap
	@tools/base-image.sh

registry: ## Debian's docker-registry, which the push tests start
	@tools/registry.sh

demo: setup base-image ## one experiment's whole life on this machine, in ./hvdcloud-demo/
	@tools/demo.sh hvdcloud-demo $(BIN)/hvdcloud

docs: .cache/docs/.complete ## the documentation as a site, in ./site/; a broken link fails
	@NO_MKDOCS_2_WARNING=1 .cache/docs/bin/mkdocs build --strict
	@if grep -lE '<(script|link|img)[^>]*"(https?:)?//' site/*.html; then echo "these pages load something from elsewhere"; exit 1; fi

rehearse: setup base-image registry .cache/terraform/.complete ## an experiment on Compute Engine, on stand-ins of Google's services on this machine
	@$(BIN)/python -m tests.rehearse

live: setup ## an hour on Google's own servers, which costs a dollar: make live LIVE_ARGS="--project my-lab"
	@$(BIN)/python -m tests.live $(LIVE_ARGS)

test: setup base-image registry .cache/terraform/.complete ## every test; some: make test PYTEST_ARGS=tests/unit
	@$(BIN)/python -m tests.prepare
	@$(BIN)/python -m pytest $(PYTEST_PARALLEL) $(PYTEST_ARGS)

nightly: ## what takes hours: tests with the mark, all kill points, witnesses, soak, mutants, images, fuzz
	@$(MAKE) --no-print-directory test PYTEST_ARGS="-m nightly $(PYTEST_ARGS)"
	@$(MAKE) --no-print-directory mutants
	@$(MAKE) --no-print-directory soak
	@$(MAKE) --no-print-directory test-images
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=600

check: lint ## while you work: lint, and the unit tests
	@$(BIN)/python -m pytest $(PYTEST_PARALLEL) tests/unit $(PYTEST_ARGS)

# The lowest versions are no lock's: what uv finds is installed without hashes.
test-lowest: .cache/lock/.complete ## unit tests with the lowest versions that pyproject.toml allows
	@rm -rf .cache/lowest && $(PYTHON) -m venv .cache/lowest
	@.cache/lock/bin/uv pip install --quiet --python .cache/lowest --resolution lowest-direct --group dev --editable .
	@.cache/lowest/bin/python -m pytest tests/unit $(PYTEST_ARGS)

soak: setup base-image ## random losses of nodes in one elastic run: make soak SOAK_COUNT=20 SOAK_SEED=7
	@$(BIN)/python -m tests.soak

reference: setup ## docs/reference.md, from the commands and the configuration's models
	@$(BIN)/python -m tools.reference docs/reference.md

record: setup base-image .cache/record/.complete ## docs/launch.svg: a terminal in which one experiment is launched on this machine
	@[ -t 0 ] || { echo "make record records a terminal: start it in one"; exit 2; }
	@folder=$$(mktemp -d /tmp/hvdcloud.XXXXXX) && trap 'rm -rf "$$folder"' EXIT && \
		export HVDCLOUD_STATE_DIR="$$folder/state" && \
		$(BIN)/hvdcloud init "$$folder/digits" && $(BIN)/hvdcloud -c "$$folder/digits/hvdcloud.yaml" build && \
		cd "$$folder/digits" && PATH="$(BIN):$$PATH" TERM=xterm-256color $(CURDIR)/.cache/record/bin/termtosvg \
			$(CURDIR)/docs/launch.svg --screen-geometry 100x32 --min-frame-duration 250 --max-frame-duration 1000 \
			--loop-delay 8000 --command "sh -c 'echo \"\$$ hvdcloud launch\"; exec hvdcloud launch'"

test-images: setup base-image ## the images for GPUs and newer TensorFlow, really built; no GPU needed
	@$(BIN)/python -m pytest tests/images $(PYTEST_ARGS)

test-gpu: setup ## Horovod with NCCL on this machine's GPU, compiled by the images' recipe; no Docker needed
	@$(BIN)/python -m pytest tests/gpu -s $(PYTEST_ARGS)

lint: setup ## ruff, mypy --strict of tests too, which room imports which, declared dependencies, shellcheck, terraform fmt and zizmor
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --cache-dir .cache/import_linter
	@$(BIN)/deptry .
	@$(BIN)/shellcheck -x tools/*.sh .ci/run hvdcloud/providers/gce/plan/startup/*.sh
	@$(BIN)/shellcheck dockerfiles/build/* dockerfiles/requirements/* $$(find dockerfiles/own -name '*.sh')
	@$(BIN)/zizmor --offline --quiet --strict-collection .github
	@if command -v terraform >/dev/null; then TF_CLI_CONFIG_FILE=/dev/null terraform fmt -check -recursive -diff terraform; fi
	@$(BIN)/shellcheck tests/standins/compute/machine/init tests/standins/compute/machine/runc tests/standins/compute/machine/nvidia-smi tests/standins/compute/machine/bin/* tests/standins/gpus/nvidia-*

release-check: setup engine ## what a release does, but for its publishing: both packages in ./dist/, built twice, installed, tried
	@$(BIN)/python -m tools.release_check

wheels: setup base-image ## a wheel of Horovod with the images' patches, in ./dist/wheels/: make wheels ROW=torch-2.13.0-cpu
	@$(BIN)/python -m tools.wheels $(ROW)

publish-images: setup engine ## builds and pushes a row's images, for published.txt: make publish-images REGISTRY=127.0.0.1:5000/hvdcloud ROW=torch-2.13.0-cpu
	@mkdir -p dist && $(BIN)/python -m tools.published publish "$(ROW)" --to "$(REGISTRY)" > dist/published.txt
	@$(BIN)/python -m tools.published write dist/published.txt

policy: .cache/terraform/.complete ## checkov on terraform/: does it give anybody more than it has to?
	@.cache/terraform/bin/checkov --config-file .checkov.yaml

mutants: setup ## damaged copies of the package, each of which a test has to notice; no Docker needed
	@$(BIN)/python -m tests.mutants

fuzz: setup .cache/fuzz/.complete ## hostile input for whatever a node, bucket or file can say: make fuzz FUZZ_SECONDS=600
	@PYTHONPATH=$(CURDIR):$$(echo .cache/fuzz/lib/python3.*/site-packages) $(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

bench: setup base-image .cache/bench/.complete ## a launch, against the same job started by hand, and by TorchX
	@$(BIN)/python -m tests.bench

bench-elastic: setup base-image ## from the loss of a node to the next step of an elastic run
	@$(BIN)/python -m tests.bench.elastic

bench-step-cost: setup base-image ## what a training step costs, against horovodrun started by hand
	@$(BIN)/python -m tests.bench.step_cost

.cache/record/.complete: tools/setup.sh tools/locks/record.txt
	@PYTHON="$(PYTHON)" tools/setup.sh .cache/record record
	@touch $@

.cache/bench/.complete: tools/setup.sh tools/locks/bench.txt
	@PYTHON="$(PYTHON)" tools/setup.sh .cache/bench bench
	@touch $@

.cache/docs/.complete: tools/setup.sh tools/locks/docs.txt
	@PYTHON="$(PYTHON)" tools/setup.sh .cache/docs docs
	@touch $@

.cache/fuzz/.complete: tools/setup.sh tools/locks/fuzz.txt
	@PYTHON="$(PYTHON)" tools/setup.sh .cache/fuzz fuzz
	@touch $@

.cache/lock/.complete: tools/setup.sh tools/locks/lock.txt
	@PYTHON="$(PYTHON)" tools/setup.sh .cache/lock lock
	@touch $@

# Terraform itself is not ours to install; without it, the tests of terraform/ are skipped.
.cache/terraform/.complete: tools/setup.sh tools/locks/terraform.txt
	@PYTHON="$(PYTHON)" tools/setup.sh .cache/terraform terraform
	@touch $@

clean: ## removes .venv/ and all caches of this folder
	@rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache dist site
	@find . -name __pycache__ -prune -exec rm -rf {} +

clean-images: ## removes hvdcloud's images from the engine
	@docker images --format '{{.Repository}}:{{.Tag}}' 'hvdcloud*/*' | xargs -r docker rmi

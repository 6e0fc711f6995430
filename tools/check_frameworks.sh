#!/usr/bin/env bash
# Test what needs large frameworks, each group in an environment of its own, because they pin releases
# of packages that the other tests use: Flower with its simulation, NVIDIA FLARE, the libraries of
# examples/trainers.py, torchft, and the newest release of PyTorch, whose distributed packages change
# with each release. Needs CPython 3.11 or newer and the Python package index.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1

# Install packages in a new environment, and run the tests that match an expression there.
check() {
    local chosen=$1
    shift
    python3 -m venv --clear "$work/own"
    "$work/own/bin/pip" install . pytest pytest-xdist hypothesis "$@"
    "$work/own/bin/python" -m pytest --quiet -n 0 -k "$chosen" \
        tests/adapters/test_flower.py tests/adapters/test_nvflare.py tests/adapters/test_torch_*.py \
        tests/test_site.py tests/test_examples.py
}

check "flower or federated" 'flwr[simulation]>=1.42'
check nvflare 'nvflare>=2.9'
# The newest release of PyTorch has no CPU build under its plain name; this one does.
check trainers torch==2.13.0 lightning accelerate transformers 'ray[train]'
check torchft torch==2.13.0 'torchft>=0.2'
check test_torch torch  # some gigabytes, with the libraries of CUDA

#!/usr/bin/env bash
# Test the adapters of Flower, with its simulation, and of NVIDIA FLARE, each in an environment of its
# own, because both pin releases of packages that the other tests use. Needs CPython 3.11 or newer and
# the Python package index.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1
for framework in 'flwr[simulation]>=1.42' 'nvflare>=2.9'; do
    python3 -m venv --clear "$work/own"
    "$work/own/bin/pip" install . pytest pytest-xdist hypothesis "$framework"
    "$work/own/bin/python" -m pytest --quiet -n 0 -k "flower or nvflare or federated" \
        tests/adapters/test_flower.py tests/adapters/test_nvflare.py tests/test_site.py \
        tests/test_examples.py
done

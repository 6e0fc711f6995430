#!/usr/bin/env bash
# Compile gcodec's kernels for aarch64 on an x86-64 machine, and test them, under emulation.
#
# Usage: bash tools/aarch64.sh [-j JOBS] [FOLDER]
#
# The script runs on Debian and Ubuntu. It needs pip, as `python3 -m pip` or as that of $PYTHON.
#
#   1. It installs QEMU with apt-get, as root or through sudo, unless QEMU is there. All that
#      follows runs as any user. It downloads a Python for aarch64 from Debian, and the packages
#      that gcodec and its tests import from PyPI, and unpacks both into FOLDER (build/aarch64).
#      They take 500 MB.
#   2. It compiles all kernels into gcodec/runtime/shipped/aarch64.zip, in JOBS processes (1), with
#      tools/compile_kernels.py.
#   3. It runs the tests of golden files. The compiler is disabled meanwhile, so that every kernel
#      comes from the archive.
#
# A step whose result is there is skipped, other than the tests. Remove FOLDER to start afresh.
# `GCODEC_WHEEL_MACHINE=aarch64 python -m build --wheel` then makes the wheel.
set -euo pipefail

readonly SUITE=bookworm VERSION=3.11 # a release of Debian, and its Python
readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
readonly TESTS=(tests/test_golden.py tests/test_golden_errors.py tests/test_wire_format.py)

say() {
    printf '\n== %s\n' "$*"
}

find_emulator() {
    command -v qemu-aarch64-static || command -v qemu-aarch64
}

install_tools() {
    if find_emulator > /dev/null && [[ -e $KEYRING ]]; then
        return
    fi
    say "Install QEMU and the keys of Debian"
    local as_root=()
    if [[ $(id -u) != 0 ]]; then
        as_root=(sudo)
    fi
    "${as_root[@]}" apt-get update
    "${as_root[@]}" apt-get install -y --no-install-recommends \
        qemu-user-static debian-archive-keyring
}

# Unpack a Python for aarch64. Here, apt-get works on folders of its own, not on the system's.
unpack_python() {
    if [[ -x $emulated ]]; then
        return
    fi
    say "Unpack Python $VERSION for aarch64 into $root"
    local apt=$folder/apt archive
    mkdir -p "$apt"/etc/apt/{apt.conf,preferences,sources.list}.d "$apt"/var/lib/dpkg \
        "$apt"/var/lib/apt/lists/partial "$apt"/var/cache/apt/archives/partial
    : > "$apt/var/lib/dpkg/status"
    echo "deb [signed-by=$KEYRING] http://deb.debian.org/debian $SUITE main" \
        > "$apt/etc/apt/sources.list"
    local options=(
        -o "Dir=$apt" -o "Dir::State::status=$apt/var/lib/dpkg/status"
        -o APT::Architecture=arm64 -o APT::Architectures=arm64
        -o APT::Sandbox::User= -o APT::Install-Recommends=false
    )
    apt-get "${options[@]}" update
    apt-get "${options[@]}" install -y --download-only \
        "python$VERSION" libgomp1 libstdc++6 zlib1g
    rm -rf "$root"
    mkdir -p "$root"
    for archive in "$apt"/var/cache/apt/archives/*.deb; do
        dpkg -x "$archive" "$root"
    done
    # Python starts further processes by its own name, so it gets that of a script of the host.
    cat > "$emulated.new" << END
#!/bin/sh
exec "$(find_emulator)" -0 "\$0" -L "$root" "$root/usr/bin/python$VERSION" "\$@"
END
    chmod +x "$emulated.new"
    mv "$emulated.new" "$emulated"
}

# Install what gcodec and its tests import. The pip of the host runs no code of these packages.
install_packages() {
    local requirements=$folder/requirements.txt installed=$packages/requirements.txt
    "$emulated" - pyproject.toml > "$requirements" << 'END'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    dependencies = tomllib.load(file)["project"]["dependencies"]
print(*dependencies, "pytest>=8", "hypothesis>=6.100", sep="\n")
END
    if cmp -s "$requirements" "$installed"; then
        return
    fi
    say "Install packages for aarch64 into $packages"
    rm -rf "$packages"
    local options=(--python-version "$VERSION" --implementation cp --only-binary=:all:) tag
    for tag in _2_28 _2_27 _2_17 2014; do
        options+=(--platform "manylinux${tag}_aarch64")
    done
    "${PYTHON:-python3}" -m pip --no-cache-dir --disable-pip-version-check \
        install --quiet --no-compile --target "$packages" "${options[@]}" -r "$requirements"
    cp "$requirements" "$installed"
}

test_kernels() {
    local started=$SECONDS
    NUMBA_DISABLE_JIT=1 "$emulated" -m pytest -q -p no:cacheprovider "${TESTS[@]}"
    say "The kernels for aarch64 pass, in $((SECONDS - started)) s"
}

main() {
    local jobs=1 option
    while getopts j: option; do
        case $option in
            j) jobs=$OPTARG ;;
            *) exit 2 ;;
        esac
    done
    shift $((OPTIND - 1))

    umask 022 # gcodec refuses caches that others can write to
    local sources
    sources=$(cd "$(dirname "$0")/.." && pwd)
    folder=${1:-$sources/build/aarch64}
    mkdir -p "$folder"/{home,tmp}
    folder=$(cd "$folder" && pwd)
    root=$folder/root packages=$folder/packages emulated=$folder/root/usr/bin/python
    cd "$sources"
    unset GCODEC_TARGET GCODEC_CHECKED PYTHONHOME XDG_CACHE_HOME

    install_tools
    unpack_python
    (
        unset PYTHONPATH
        install_packages
    )
    export PYTHONPATH=$sources:$packages PYTHONPYCACHEPREFIX=$folder/bytecode PYTHONNOUSERSITE=1
    export HOME=$folder/home TMPDIR=$folder/tmp GCODEC_CACHE_DIR=$folder/cache
    say "Compile the kernels, unless their archive is there; this may take half an hour"
    "$emulated" tools/compile_kernels.py --missing --level aarch64 -j "$jobs"
    say "Test them"
    test_kernels
}

main "$@"

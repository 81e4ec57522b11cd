#!/usr/bin/env bash
# A small set of tests with other interpreters than .venv's: tools/pythons.sh 3.11 3.13   (make python)
#
# The oldest Python takes the oldest torch that pyproject.toml admits, the others the one in constraints.txt. Each has an
# environment of its own, .venv-VERSION, in which pip installs what the registry has: 5 GB, for outside PyTorch's own index
# torch comes with CUDA. (Each torch says itself with which setuptools it works.) An interpreter that is not on the machine is skipped, unless LOCKSTEP_REQUIRE names python.
set -euo pipefail
cd "$(dirname "$0")/.."

requirement() { sed -nE "s/^ *\"?$1\"?,?\$/\1/p" "$2"; }
oldest_python=$(requirement 'requires-python = ">=([0-9.]+)' pyproject.toml)
oldest_torch=$(requirement 'torch>=([0-9.]+)' pyproject.toml).0
pinned_torch=$(requirement 'torch==([0-9.]+)' constraints.txt)

# What the interpreter, the standard library and torch decide: planning, the answer, reducing, checkpoints, launching, reading.
tests=(tests/plan tests/contract/test_up_to_rounding.py tests/sync tests/state/checkpoint tests/joining/team tests/data tests/tools/replay
    tests/launch/test_function.py tests/launch/test_source.py tests/launch/test_server.py tests/launch/test_worker.py
    tests/events/measure tests/base/test_stopping.py tests/test_layers.py)

# find VERSION: an interpreter that starts, of the path or of pyenv.
find_python() {
    local python
    for python in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if "$python" -c 'import ensurepip' 2> /dev/null; then
            echo "$python"
            return
        fi
    done
    return 1
}

# install VERSION PYTHON: the environment, made anew where what is to be installed has changed since.
install() {
    local environment=.venv-$1 torch=$pinned_torch
    [ "$1" = "$oldest_python" ] && torch=$oldest_torch
    [ -z "$(find pyproject.toml constraints.txt tools/pythons.sh -newer "$environment/.installed" 2>&1)" ] && return
    echo "installing torch $torch for Python $1 into $environment (a minute or two, 5 GB) ..."
    "$2" -m venv --clear "$environment" &&
        sed -E '/^(torch|setuptools)==/d' constraints.txt > "$environment/constraints.txt" &&
        "$environment/bin/python" -m pip install -qq --disable-pip-version-check -c "$environment/constraints.txt" \
            "torch==$torch" -e '.[examples]' cloudpickle hypothesis pytest pytest-timeout pytest-xdist torchmetrics &&
        touch "$environment/.installed"
}

# check VERSION
check() {
    local python=.venv-$1/bin/python
    "$python" -c 'import sys, torch; print(f"Python {sys.version.split()[0]}, torch {torch.__version__}")' &&
        OMP_WAIT_POLICY=passive "$python" -m pytest -q -n 2 --dist loadfile -m "not long and not cuda" "${tests[@]}"
}

failed=()
for version in "$@"; do
    if python=$(find_python "$version"); then
        { install "$version" "$python" && check "$version"; } || failed+=("$version")
    elif [[ ,${LOCKSTEP_REQUIRE:-}, = *,python,* ]]; then
        echo "LOCKSTEP_REQUIRE names python, and there is no Python $version with venv on this machine" >&2
        failed+=("$version")
    else
        echo "skipped: there is no Python $version with venv on this machine"
    fi
done
[ ${#failed[@]} = 0 ] || { echo "failed with Python ${failed[*]}" >&2; exit 1; }

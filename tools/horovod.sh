#!/usr/bin/env bash
# Horovod for an environment that has torch: tools/horovod.sh PYTHON   (make horovod)
#
# The registry has Horovod as source only, and what is built belongs to one version of torch and of Python. So it is built
# once, into build/wheels/<torch>/, and taken from there the next time; in another checkout, from pip's cache. With
# HOROVOD_GPU_OPERATIONS=NCCL (and its other variables) in the environment it is built for GPUs.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:?give the interpreter of the environment: tools/horovod.sh .venv/bin/python}
version=0.28.1
log=build/horovod.log

die() {
    echo "$*" >&2
    exit 1
}

torch=$("$python" -c 'import torch; print(torch.__version__)') || die "$python has no torch: make install first"
tag=$("$python" -c 'import sys; print(f"cp{sys.version_info[0]}{sys.version_info[1]}")')
kind=torch-$torch${HOROVOD_GPU_OPERATIONS:+-$HOROVOD_GPU_OPERATIONS}
wheels=build/wheels/$kind
pip=("$python" -m pip --disable-pip-version-check)
# A part of pip's cache for each: pip itself would take the wheel that was built for another torch.
cache=$("${pip[@]}" cache dir 2> /dev/null) || cache=$PWD/build/cache
cache=$cache/lockstep-$kind
"${pip[@]}" install -qq -c constraints.txt setuptools wheel packaging cffi cloudpickle psutil pyyaml

find_wheel() { compgen -G "$wheels/horovod-$version-$tag-*.whl"; }

if wheel=$(find_wheel); then
    echo "Horovod $version for torch $torch was built before: $wheel"
else
    compiler=${CXX:-g++}
    command -v "$compiler" > /dev/null || die "there is no C++ compiler $compiler to build Horovod with: apt-get install g++"
    command -v cmake > /dev/null || "${pip[@]}" install -qq -c constraints.txt cmake
    echo "building Horovod $version for torch $torch: some 3 minutes on 2 cores, told in $log ..."
    mkdir -p build
    bin=$(cd "$(dirname "$python")" && pwd) # its cmake, and the python that finds torch's headers
    if ! env PATH="$bin:$PATH" LOCKSTEP_CXX="$compiler" CXX="$PWD/tools/c++17" \
        MAKEFLAGS="-j$(nproc)" \
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
        HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 CMAKE_POLICY_VERSION_MINIMUM=3.5 \
        "${pip[@]}" wheel -v --cache-dir "$cache" --no-deps --no-build-isolation --no-binary horovod -w "$wheels" "horovod==$version" \
        > "$log" 2>&1; then
        grep -E 'error|Error' "$log" | tail -n 20 >&2 || true
        die "Horovod was not built: the whole story is in $log"
    fi
    wheel=$(find_wheel) || die "pip built no wheel for $tag in $wheels: see $log"
    echo "built in $SECONDS s: $wheel"
fi
"${pip[@]}" install -qq --no-deps --force-reinstall "$wheel"
"$python" -c '
import horovod.torch as hvd, torch
hvd.init()
assert hvd.gloo_built() and hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
' || die "Horovod is installed and does not run: remove $wheel, and make horovod builds it again"
echo "Horovod $version is in $("$python" -c 'import sys; print(sys.prefix)'): lockstep run --strategy horovod, horovodrun"

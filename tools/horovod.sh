#!/usr/bin/env bash
# Horovod for an environment that has torch: tools/horovod.sh PYTHON   (make horovod)
#
# The registry has Horovod as source only, and a build fits one version of torch and of Python. So this
# script builds it once, into build/wheels/<torch>/, and uses that wheel the next time; another checkout
# uses pip's cache. To build it for GPUs, set HOROVOD_GPU_OPERATIONS=NCCL (and its other variables).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:?give the interpreter of the environment: tools/horovod.sh .venv/bin/python}
version=0.28.1
log=build/horovod.log

die() {
    echo "$*" >&2
    exit 1
}

torch=$("$python" -c 'import torch; print(torch.__version__)') || die "$python has no torch. Run make install first"
tag=$("$python" -c 'import sys; print(f"cp{sys.version_info[0]}{sys.version_info[1]}")')
kind=torch-$torch${HOROVOD_GPU_OPERATIONS:+-$HOROVOD_GPU_OPERATIONS}
wheels=build/wheels/$kind
pip=("$python" -m pip --disable-pip-version-check)
# Separate caches: pip would use a wheel that was built for another torch.
cache=$("${pip[@]}" cache dir 2> /dev/null) || cache=$PWD/build/cache
cache=$cache/lockstep-$kind
"${pip[@]}" install -qq -c constraints.txt setuptools wheel packaging cffi cloudpickle psutil pyyaml

find_wheel() { compgen -G "$wheels/horovod-$version-$tag-*.whl"; }

if wheel=$(find_wheel); then
    echo "Horovod $version for torch $torch is already built: $wheel"
else
    compiler=${CXX:-g++}
    command -v "$compiler" > /dev/null || die "C++ compiler $compiler not found. Install it: apt-get install g++"
    command -v cmake > /dev/null || "${pip[@]}" install -qq -c constraints.txt cmake
    echo "building Horovod $version for torch $torch: about 3 minutes on 2 cores, log in $log ..."
    mkdir -p build
    bin=$(cd "$(dirname "$python")" && pwd) # its cmake, and the python that finds torch's headers
    if ! env PATH="$bin:$PATH" LOCKSTEP_CXX="$compiler" CXX="$PWD/tools/c++17" \
        MAKEFLAGS="-j$(nproc)" \
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
        HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 CMAKE_POLICY_VERSION_MINIMUM=3.5 \
        "${pip[@]}" wheel -v --cache-dir "$cache" --no-deps --no-build-isolation --no-binary horovod -w "$wheels" "horovod==$version" \
        > "$log" 2>&1; then
        grep -E 'error|Error' "$log" | tail -n 20 >&2 || true
        die "Horovod was not built (see $log)"
    fi
    wheel=$(find_wheel) || die "pip built no wheel for $tag in $wheels (see $log)"
    echo "built in $SECONDS s: $wheel"
fi
"${pip[@]}" install -qq --no-deps --force-reinstall "$wheel"
"$python" -c '
import horovod.torch as hvd, torch
hvd.init()
assert hvd.gloo_built() and hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
' || die "Horovod is installed but does not run. Remove $wheel and repeat make horovod"
echo "Horovod $version is in $("$python" -c 'import sys; print(sys.prefix)'): lockstep run --strategy horovod, horovodrun"

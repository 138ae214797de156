#!/usr/bin/env bash
# make gpu: runs measure_gpu.py with the python3 that is there, which has torch, and with wheels/, if there is one, where no
# package can be downloaded. Nothing is installed into that Python: what is missing goes into outputs/gpu/packages.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
packages=outputs/gpu/packages
if [ ! -d wheels ]; then
    make install
    exec .venv/bin/python benchmarks/measure_gpu.py "$@"
fi
rm -rf "$packages"
"$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$packages" wheels/*.whl
"$python" -m pip install -q --no-index --no-deps --no-build-isolation --no-cache-dir --target "$packages" --upgrade .
export PYTHONPATH="$PWD/$packages${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" benchmarks/measure_gpu.py "$@"

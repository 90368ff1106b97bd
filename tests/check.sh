#!/usr/bin/env bash
# Every check of this repository: lint, format, types, tests. People and CI run this file.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 SDL_VIDEODRIVER=dummy
ruff check .
ruff format --check .
mypy
python -m pytest -n 2 --dist loadgroup "$@"

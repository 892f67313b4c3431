#!/usr/bin/env bash
# usage: try-wheel.sh PYTHON WHEEL   installs the wheel into a bare venv, away from the sources,
# with the locked dependencies only, and runs it.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
wheel=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
bare=$(mktemp -d)
trap 'rm -rf "$bare"' EXIT
cd "$bare"
"$python" -m venv venv
"$(dirname "$python")/uv" pip install --quiet --python venv/bin/python --require-hashes -r "$here/requirements.lock"
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "$wheel"
venv/bin/python -m pip check
venv/bin/rlmm --version
venv/bin/rlmm check-config "$here/config/rlmm.toml" >/dev/null
if venv/bin/python -c 'import pyspark' 2>/dev/null; then
  echo "the base wheel brought pyspark along" >&2
  exit 1
fi
echo "$(basename "$wheel") works in a bare venv"

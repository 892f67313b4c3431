#!/usr/bin/env bash
# Prints the Python to use; or names each missing tool with its install command and fails.
set -u
missing=0
miss() {
  printf 'missing: %s\n  install it with: %s\n' "$1" "$2" >&2
  missing=1
}
install() {
  if command -v apt-get >/dev/null; then echo "sudo apt-get install $1"
  elif command -v dnf >/dev/null; then echo "sudo dnf install $2"
  elif command -v brew >/dev/null; then echo "brew install $3"
  else echo "your package manager: $1"
  fi
}

python=
for each in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
  if "$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$each
    break
  fi
done
if [ -z "$python" ]; then
  miss "Python 3.11 or newer" "$(install python3 python3.11 python@3.11)"
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  miss "Python's venv module" "$(install python3-venv python3 python@3.11)"
fi
if [ "$(uname -s)" != Linux ]; then
  miss "Linux (peer credentials, fdatasync, sendfile)" "a Linux machine or container"
fi
command -v make >/dev/null || miss make "$(install make make make)"
[ "$missing" = 0 ] && echo "$python"
exit "$missing"

#!/usr/bin/env bash
# Runs make targets again and again, to find tests that pass only sometimes: soak_stages.sh ROUNDS
# LOADS TARGET...; LOADS processes that only burn processor time run beside them. Prints for each
# round what failed, and ends with 1 if anything did.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
rounds=$1 loads=$2
shift 2
out=var/soak-stages
mkdir -p "$out"
burners=()
trap 'kill "${burners[@]}" 2>/dev/null' EXIT
for ((n = 0; n < loads; n++)); do
  # Bounded, should this script be killed before it can end them.
  timeout 36000 sh -c 'while :; do :; done' &
  burners+=($!)
done
failed=0
for ((round = 1; round <= rounds; round++)); do
  for target in "$@"; do
    file=$out/$target-$round.log
    began=$SECONDS
    if make "$target" PYTEST_ARGS="${PYTEST_ARGS:-}" >"$file" 2>&1; then
      rm -f "$file"
      printf '%s round %d: passed, %d s\n' "$target" "$round" $((SECONDS - began))
    else
      failed=$((failed + 1))
      printf '%s round %d: FAILED, %d s, %s\n' "$target" "$round" $((SECONDS - began)) "$file"
      grep -E '^(FAILED|ERROR) |\[ERROR\]' "$file" | head -20
    fi
  done
done
printf '%d of %d runs failed\n' "$failed" $((rounds * $#))
[ "$failed" -eq 0 ]

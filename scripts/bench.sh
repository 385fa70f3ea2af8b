#!/usr/bin/env bash
# Prints how long the scenario and single commands take on the embedded broker: the median of several runs, in
# milliseconds, beside its target. Whole processes, from start to end; the machine's own noise is in the figures.
#
#   scripts/bench.sh [RUNS]      11 unless given
set -euo pipefail

runs=${1:-11}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cargo build --release --locked --quiet --manifest-path "$root/Cargo.toml" --target-dir "$root/target"
lab=$root/target/release/outbox-lab
work=$(mktemp -d "${TMPDIR:-/tmp}/outbox-lab-bench.XXXXXX")
unset OUTBOX_LAB_DIR OUTBOX_LAB_DB OUTBOX_LAB_TOPIC KAFKA_BOOTSTRAP
trap '"$lab" --dir "$work/.lab" clean >/dev/null 2>&1; rm -rf "$work" "${memory:-}"' EXIT
cd "$work"
TIMEFORMAT=%3R

# median COMMAND…: runs it so many times, and leaves the middle figure in $ms.
median() {
  local i
  : >figures
  for ((i = 0; i < runs; i++)); do
    # Only the shell's own figure goes to the file: the command's output has gone before.
    { time "$@" >/dev/null 2>&1; } 2>>figures
  done
  ms=$(sort -n figures | sed -n "$((runs / 2 + 1))p" | awk '{ printf "%d", $1 * 1000 }')
}

# row NAME TARGET COMMAND…
row() {
  local name=$1 target=$2
  shift 2
  median "$@"
  printf '%-34s %8d ms   target: under %s ms\n' "$name" "$ms" "$target"
}

scenario() {
  rm -rf play
  mkdir play
  OUTBOX_LAB_BIN=$lab bash "$root/scripts/scenario.sh" play
}

echo "embedded broker, median of $runs runs"
row "the whole scenario" 1000 scenario
"$lab" reset >/dev/null 2>&1
"$lab" write 5 >/dev/null
"$lab" publish 5 >/dev/null
row "verify" 20 "$lab" verify
row "naive: commit, send, ack" 100 "$lab" naive
row "write 1" 100 "$lab" write 1
row "publish 1" 100 "$lab" publish 1
row "consume" 100 "$lab" consume
row "reconcile" 100 "$lab" reconcile
row "reset" 100 "$lab" reset

# sweep DIR [OPTION…]: leaves the middle figure in $rate. The sweep says its own, calibration not counted.
sweep() {
  local dir=$1 figures='' i
  shift
  for ((i = 0; i < runs; i++)); do
    rm -rf "$dir"
    figures=$figures$("$lab" --dir "$dir" sweep "$@" 2>&1 >/dev/null | sed -n 's/.*, \([0-9]*\) a second$/\1/p')$'\n'
  done
  rate=$(sort -n <<<"$figures" | grep . | sed -n "$((runs / 2 + 1))p")
}

sweep "$work/sweep"
kills=$rate
printf '%-34s %8d /s   target: at least %s\n' "proved kills of the sweep" "$kills" 80
sweep "$work/sweep" --bare 100
printf '%-34s %8d /s\n' "a bare loop of spawn, ack, kill" "$rate"
printf '%-34s %7d %%\n' "the sweep against the bare loop" "$((100 * kills / rate))"
# What it kills tells nothing of a disk: without one it shows what the processes alone take.
if [ -d /dev/shm ] && [ -w /dev/shm ]; then
  memory=$(mktemp -d /dev/shm/outbox-lab-bench.XXXXXX)
  sweep "$memory/sweep"
  printf '%-34s %8d /s\n' "the sweep, its files in memory" "$rate"
fi

# What the relay does, beside the book's publish and what the machine can do.
"$root/scripts/bench-relay.sh" $(((runs + 3) / 4))

#!/usr/bin/env bash
# Prints what the relay does beside the book's publish and beside what this machine cannot beat, each figure with its target
# and its raw times. Times run from the first acknowledgement to the last mark; ratios are of one run, interleaved, the median
# of several rounds. On the embedded broker, or on a real Kafka where KAFKA_BOOTSTRAP is set.
#
#   scripts/bench-relay.sh [ROUNDS]      3 unless given; ROWS=200000 unless set. scripts/bench.sh runs it, too
set -euo pipefail

rounds=${1:-3}
rows=${ROWS:-200000}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cargo build --release --locked --quiet --manifest-path "$root/Cargo.toml" --target-dir "$root/target"
lab=$root/target/release/outbox-lab
work=$(mktemp -d "${TMPDIR:-/tmp}/outbox-lab-bench.XXXXXX")
unset OUTBOX_LAB_DIR OUTBOX_LAB_DB
export OUTBOX_LAB_TOPIC=outbox-lab.bench.$$
follower=
finish() {
  [ -z "$follower" ] || kill "$follower" 2>/dev/null || true
  "$lab" --dir "$work/.lab" clean >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT
cd "$work"

fail() {
  echo "bench-relay.sh: $*" >&2
  exit 1
}

# await WHAT COMMAND…: until the command succeeds, for as long as the relay that follows is alive, and a minute at the most.
await() {
  local what=$1 deadline=$((SECONDS + 60))
  shift
  until "$@"; do
    kill -0 "$follower" 2>/dev/null || fail "the relay ended before $what: $(cat said)"
    ((SECONDS < deadline)) || fail "a minute has passed without $what: $(cat said)"
    sleep 0.05
  done
}

# fresh PARTITIONS ROWS [AGGREGATES]: an empty topic, and so many pending rows.
fresh() {
  "$lab" reset --partitions "$1" >/dev/null 2>&1
  "$lab" fill "$2" ${3:+--aggregates "$3"} >/dev/null
}

# Each prints "RATE FIRST_ACK_MS PEAK_MB" of what relayed its rows.
traced() {
  "$@" --trace 2>told >/dev/null || fail "$* failed: $(cat told)"
  sed -n 's/.*ment after \([0-9.]*\) s; \([0-9]*\) rows in \([0-9.]*\) s.*peak memory \([0-9]*\) MB.*/\1 \2 \3 \4/p' told |
    awk '{ printf "%d %d %d\n", $2 / $3, $1 * 1000, $4 }'
}
# limit WHAT: a rate.
limit() { "$lab" measure "$@" | sed 's/.*times=\([0-9]*\) seconds=\([0-9.]*\)/\1 \2/' | awk '{ printf "%d\n", $1 / $2 }'; }

median() { sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
of() { median <"$1"; }
raw() { sort -n "$1" | tr '\n' ' '; }
# row NAME FIGURE UNIT TARGET RAW…
row() { printf '%-46s %10s %-6s target: %-16s %s\n' "$1" "$2" "$3" "$4" "${5:-}"; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }

if [ -n "${KAFKA_BOOTSTRAP:-}" ]; then
  broker="Kafka at $KAFKA_BOOTSTRAP" few=1000 times=500
else
  broker="embedded broker" few=3000 times=100
fi
echo "$broker, $rows rows, median of $rounds rounds; rates are events a second"
for ((i = 0; i < rounds; i++)); do
  fresh 1 $few
  traced "$lab" publish $few | cut -d' ' -f1 >>publish.rates
  fresh 1 "$rows"
  limit sends >>sends.rates
  limit marks >>marks.rates
  fresh 1 "$rows"
  traced "$lab" relay >relay.now
  cut -d' ' -f1 relay.now >>relay.rates
  cut -d' ' -f2 relay.now >>first
  cut -d' ' -f3 relay.now >>memory
  if [ -n "${KAFKA_BOOTSTRAP:-}" ]; then
    "$lab" reconcile --expect "$rows/$rows/$rows/$rows" >reconciled ||
      fail "records are missing, or there twice: $(tail -n 1 reconciled)"
  else
    there=$("$lab" measure ends | sed 's/.*times=\([0-9]*\) .*/\1/')
    [ "$there" -eq "$rows" ] || fail "records are missing, or there twice: the topic has $there, and $rows were to be sent"
  fi
  for spread in "$rows" 100 1; do
    fresh 4 "$rows" "$spread"
    traced "$lab" relay --key aggregate | cut -d' ' -f1 >>"aggregates.$spread"
  done
  fresh 1 10000
  traced "$lab" relay | cut -d' ' -f1 >>small
done
fresh 1 1000000
traced "$lab" relay >relay.now
cut -d' ' -f1 relay.now >large
cut -d' ' -f3 relay.now >memory.large

lower=$(awk -v a="$(of sends.rates)" -v b="$(of marks.rates)" 'BEGIN { print (a < b) ? a : b }')
row "the relay over the book's publish" "$(ratio "$(of relay.rates)" "$(of publish.rates)")" times "at least $times" \
  "relay $(raw relay.rates)/ publish $(raw publish.rates)"
row "the relay over the limit" "$(ratio "$(of relay.rates)" "$lower")" "" "at least 0.70" \
  "sends $(raw sends.rates)/ marks $(raw marks.rates)"
row "4 partitions by aggregate, all different" "$(of "aggregates.$rows")" /s "" "$(raw "aggregates.$rows")"
for spread in 100 1; do
  row "the same, $spread aggregates, over that" "$(ratio "$(of "aggregates.$spread")" "$(of "aggregates.$rows")")" "" \
    "at least 0.80" "$(raw "aggregates.$spread")"
done
row "1000000 rows over 10000, cost of each" "$(ratio "$(of small)" "$(of large)")" "" "at most 1.20" \
  "10000: $(raw small)/ 1000000: $(raw large)"
row "peak memory, 1000000 rows over $rows" "$(ratio "$(of memory.large)" "$(of memory)")" "" "at most 1.20" \
  "$(of memory) MB, $(of memory.large) MB"
row "process start to first acknowledgement" "$(of first)" ms "" "$(raw first)"

# The poll, with a long history behind it and with none.
fresh 1 100
none=$(limit polls)
"$lab" reset >/dev/null 2>&1
"$lab" fill 1000000 --published >/dev/null
"$lab" fill 100 >/dev/null
behind=$(limit polls)
row "a poll, 1000000 published rows over none" "$(ratio "$none" "$behind")" "" "at most 1.20" "$none and $behind polls a second"

# From commit to acknowledgement, rows written one by one.
"$lab" reset >/dev/null 2>&1
"$lab" write 1 >/dev/null
: >said
"$lab" relay --follow --metrics 127.0.0.1:0 2>said >/dev/null &
follower=$!
serves() {
  address=$(sed -n 's|.*metrics at http://\(.*\)/metrics|\1|p' said)
  [ -n "$address" ]
}
all_published() { "$lab" verify | grep -q 'unpublished=0'; }
await "the address of its metrics" serves
# The first one waits for the connection.
await "the first mark" all_published
for ((i = 0; i < 200; i++)); do "$lab" write 1 >/dev/null; done
await "the last mark" all_published
exec 3<>"/dev/tcp/${address%:*}/${address##*:}"
printf 'GET /metrics HTTP/1.1\r\nHost: lab\r\n\r\n' >&3
cat <&3 >metrics
exec 3>&-
within=$(sed -n 's/^outbox_.*_bucket{le="0.01"} \([0-9]*\).*/\1/p' metrics)
row "follow: acknowledged within 10 ms of the commit" "$((100 * within / 201))" % "at least 50" "$within of 201 rows"

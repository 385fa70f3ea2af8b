#!/usr/bin/env bash
# Counts business rows, outbox rows, records and distinct event ids for itself, and compares them with what is expected.
#
#   scripts/reconcile.sh [B/O/R/E]      5/5/8/5 unless given
#
# It does not ask `outbox-lab reconcile`: a lab that judged its own counting would prove nothing. The records come from
# `consume` and are counted by the shell's tools; the rows are counted by sqlite3 where it is installed and can read them,
# else taken from `verify`. Exit codes: 0 as expected; 1 not; 2 usage; otherwise that of the command that failed.
set -euo pipefail
# With it `cd` may go to another folder, and prints where it went.
unset CDPATH

expected=${1:-5/5/8/5}
case $expected in
  */*/*/*/* | *[!0-9/]* | /* | */ | *//*) valid=no ;;
  */*/*/*) valid=yes ;;
  *) valid=no ;;
esac
if [ "$valid" = no ]; then
  echo "reconcile.sh: usage: scripts/reconcile.sh [B/O/R/E], four numbers as in 5/5/8/5" >&2
  exit 2
fi

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lab=${OUTBOX_LAB_BIN:-$scripts/../target/release/outbox-lab}
db=${OUTBOX_LAB_DB:-${OUTBOX_LAB_DIR:-.lab}/outbox.db}

# Both are read whole before anything is counted, so that a failure ends this script and is not counted as 0. As JSON a
# record is one line, whatever is in it.
counts=$("$lab" verify)
records=$("$lab" --json consume)

# -init: whatever ~/.sqliterc says about headers and columns.
rows() { sqlite3 -batch -init /dev/null -readonly "$db" "SELECT count(*) FROM $1"; }

from_verify=yes
if command -v sqlite3 >/dev/null 2>&1; then
  if business=$(rows business_loan) && outbox=$(rows outbox); then
    from_verify=no
  else
    # One older than 3.37 cannot read STRICT tables, and would turn a right count red.
    echo "reconcile.sh: this sqlite3 cannot read $db; the rows are taken from verify" >&2
  fi
fi
if [ "$from_verify" = yes ]; then
  business=$(sed -n 's/.*business_loan=\([0-9]*\).*/\1/p' <<<"$counts")
  outbox=$(sed -n 's/.* outbox=\([0-9]*\).*/\1/p' <<<"$counts")
fi

# The event id is in the header `id`. A record without one is a record all the same, and of no event.
ids=$(sed -n 's/.*"headers":\[\["id","\([^"]*\)"\].*/\1/p' <<<"$records")
lines() { grep -c . || true; }
total=$(lines <<<"$records")
distinct=$(sort -u <<<"$ids" | lines)
with_id=$(lines <<<"$ids")

echo "business rows       $business"
echo "outbox rows         $outbox"
echo "Kafka records       $total"
echo "distinct event ids  $distinct"
sort <<<"$ids" | uniq -c | while read -r times id; do
  if [ "$times" -gt 1 ]; then
    echo "more than once      $id x$times"
  fi
done

if [ "$with_id" -ne "$total" ]; then
  echo "without event id    $((total - with_id))"
fi

found=$business/$outbox/$total/$distinct
if [ "$found" != "$expected" ] || [ "$with_id" -ne "$total" ]; then
  echo "MISMATCH: expected $expected, found $found"
  exit 1
fi
echo "RECONCILED: $found"

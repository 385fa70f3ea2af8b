#!/usr/bin/env bash
# Plays the book's chapter (7.1) in its order, with a real `kill -9` at each crash, and prints the transcript.
#
#   scripts/scenario.sh FOLDER      FOLDER is empty; everything that the scenario makes lies in it
#
# Each `$ command` of the transcript can be typed by hand. Exit codes: 0 played to its end; 1 a count is wrong;
# 3 a kill missed or a hold was not reached; otherwise that of the command that failed.
set -euo pipefail
# With it `cd` may go to another folder, and prints where it went.
unset CDPATH

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lab=${OUTBOX_LAB_BIN:-$scripts/../target/release/outbox-lab}
case $lab in
  /*) ;;
  # As the caller meant it, whose folder is left now.
  */*) lab=$PWD/$lab ;;
  *) lab=$(command -v "$lab") ;;
esac
cd "${1:?usage: scripts/scenario.sh FOLDER}"

# So that each command runs as it is shown.
mkdir bin
ln -s "$lab" bin/outbox-lab
PATH=$PWD/bin:$PATH

# The lab directory is .lab in this folder, whatever the caller's own is.
unset OUTBOX_LAB_DIR OUTBOX_LAB_DB

# On the embedded broker the topic is the book's. A real Kafka is shared, so there each run takes topics of its own.
topic=v2c7.outbox
if [ -n "${KAFKA_BOOTSTRAP:-}" ]; then
  topic=v2c7.outbox.$(date +%s).$$.$RANDOM
fi
export OUTBOX_LAB_TOPIC=$topic

clean_up() {
  trap '' INT TERM HUP
  # Not by $held: a signal can come between a start and the noting of its pid.
  local job
  for job in $(jobs -p); do
    kill -9 "$job" 2>/dev/null || true
  done
  # The embedded brokers end, or the topics of this run are deleted.
  "$lab" --dir .lab clean >/dev/null || true
  "$lab" --dir second clean >/dev/null || true
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# show COMMAND…: prints the command as it would be typed, and runs it.
show() {
  echo "\$ $*"
  "$@"
}

# hold COMMAND…: runs a command in the background until it prints its HOLD line.
hold() {
  echo "\$ $*"
  rm -f output
  mkfifo output
  "$@" >output &
  held=$!
  local line reached=no
  # The deadline is only for a process that neither holds nor ends.
  while IFS= read -r -t 60 line <&3; do
    echo "$line"
    case $line in *HOLD*) reached=yes && break ;; esac
  done 3<output
  if [ "$reached" = no ]; then
    # The status is its own if it ended by itself, and that of this kill if the deadline passed.
    local status=0
    kill -9 "$held" 2>/dev/null || true
    wait "$held" 2>/dev/null || status=$?
    echo "scenario.sh: $* came to no HOLD (status $status)" >&2
    case $status in
      0 | 3 | 137) exit 3 ;;
      *) exit "$status" ;;
    esac
  fi
}

# crash: kills the held process from outside, and asserts that it died of that.
crash() {
  local status=0
  echo "\$ kill -9 <pid>"
  kill -9 "$held" || true
  # The shell reports the death on standard error; the status tells it as well: 128 + 9.
  wait "$held" 2>/dev/null || status=$?
  if [ "$status" -ne 137 ]; then
    echo "scenario.sh: process $held did not die of signal 9 (status $status): the kill missed" >&2
    exit 3
  fi
}

echo "# The counter-example: a committed row that no one will ever send"
hold outbox-lab --db naive.db naive-hold
crash
show outbox-lab --db naive.db verify
echo
echo "# The first crash: five rows written, none published"
show outbox-lab reset
hold outbox-lab write-hold 5
crash
show outbox-lab verify
echo
echo "# The shared fate: the outbox row is refused, so the loan goes with it"
show outbox-lab rollback
echo
echo "# The second crash: three rows sent, none marked"
hold outbox-lab publish-hold 3
crash
show outbox-lab verify
echo
echo "# The third start: everything pending is sent, those three again"
show outbox-lab publish 10
show outbox-lab verify
echo
echo "# The final count"
show outbox-lab consume
show outbox-lab reconcile --expect 5/5/8/5
echo "\$ scripts/reconcile.sh 5/5/8/5"
OUTBOX_LAB_BIN=$lab bash "$scripts/reconcile.sh" 5/5/8/5
echo
echo "# The relay killed between the second acknowledgement and its mark"
export OUTBOX_LAB_DIR=second OUTBOX_LAB_TOPIC=$topic.second
echo "\$ export OUTBOX_LAB_DIR=second"
show outbox-lab reset
show outbox-lab write 5
hold outbox-lab publish 10 --hold-at after-ack@2
crash
show outbox-lab publish 10
show outbox-lab reconcile --expect 5/5/6/5

#!/usr/bin/env bash
# Without an argument: builds the lab, plays the book's chapter with real kills, and compares the transcript with
# expected/. With a lab command: runs that command. `./run.sh --accept` takes a changed transcript for the right one.
#
# Exit codes: 0 PASS; 1 the transcript differs; 2 usage; 3 inconclusive (a kill missed); 4 the lab could not do it.
set -euo pipefail
# With it `cd` may go to another folder, and prints where it went.
unset CDPATH

# Called by a link, it is still the script of its own project.
self=${BASH_SOURCE[0]}
while [ -L "$self" ]; do
  link=$(readlink "$self")
  case $link in
    /*) self=$link ;;
    *) self=$(dirname "$self")/$link ;;
  esac
done
root=$(cd "$(dirname "$self")" && pwd)

# need TOOL WHAT DEBIAN FEDORA MACOS: names a missing tool, and the command that installs it.
need() {
  command -v "$1" >/dev/null 2>&1 && return
  cat >&2 <<END
run.sh: $1 is missing ($2). Install it:
  Debian/Ubuntu  $3
  Fedora         $4
  macOS          $5
END
  exit 4
}

# Builds the lab and leaves the path of its binary in $lab. OUTBOX_LAB_BIN names another binary to play with, such as
# one that is to be judged; nothing is built then.
build() {
  if [ -n "${OUTBOX_LAB_BIN:-}" ]; then
    lab=$OUTBOX_LAB_BIN
    if ! command -v "$lab" >/dev/null 2>&1; then
      echo "run.sh: OUTBOX_LAB_BIN names $lab, and there is no such program" >&2
      exit 4
    fi
    return
  fi
  need cargo "Rust builds the lab" "sudo apt-get install rustup && rustup default stable" \
    "sudo dnf install rustup && rustup-init -y" "brew install rustup && rustup default stable"
  need cc "a C compiler builds SQLite and librdkafka" "sudo apt-get install gcc" "sudo dnf install gcc" "xcode-select --install"
  need c++ "librdkafka's build asks for a C++ compiler" "sudo apt-get install g++" "sudo dnf install gcc-c++" "xcode-select --install"
  need make "make builds librdkafka" "sudo apt-get install make" "sudo dnf install make" "xcode-select --install"
  lab=$root/target/release/outbox-lab
  local quiet=--quiet
  if [ ! -x "$lab" ]; then
    echo "run.sh: the first build takes a few minutes" >&2
    quiet=
  fi
  if ! cargo build --release --locked ${quiet:+"$quiet"} --manifest-path "$root/Cargo.toml" --target-dir "$root/target" >&2; then
    echo "run.sh: the lab could not be built; the reason stands above" >&2
    exit 4
  fi
}

remove_work() {
  # An impatient second Ctrl-C would stop it halfway.
  trap '' INT TERM HUP
  if [ -n "$work" ]; then
    # An embedded broker that was just coming up may put a file there meanwhile; then it leaves.
    rm -rf "$work" 2>/dev/null || { sleep 1 && rm -rf "$work"; }
  fi
}

# The whole scenario, in a folder of its own.
play() {
  need diff "it compares the transcript" "sudo apt-get install diffutils" "sudo dnf install diffutils" "xcode-select --install"
  build

  work=
  trap remove_work EXIT
  # Only noted for now: so run.sh waits for the scenario, which cleans up behind itself in the folder that the exit removes,
  # and for mktemp, which has a folder before it has told its name.
  signal=
  trap 'signal=130' INT
  trap 'signal=143' TERM
  trap 'signal=129' HUP
  local made=no
  if work=$(trap '' INT TERM HUP && mktemp -d "${TMPDIR:-/tmp}/outbox-lab.XXXXXX") && mkdir "$work/play"; then
    made=yes
  fi
  if [ -n "$signal" ]; then
    exit "$signal"
  fi
  if [ "$made" = no ]; then
    echo "FAIL: there is no folder to play in; TMPDIR names another place for it"
    exit 4
  fi
  transcript=$work/transcript

  status=0
  # pipefail: the status is the scenario's, tee's being 0.
  OUTBOX_LAB_BIN=$lab bash "$root/scripts/scenario.sh" "$work/play" | tee "$transcript" || status=$?
  trap 'exit 130' INT
  trap 'exit 143' TERM
  trap 'exit 129' HUP
  if [ -n "$signal" ]; then
    exit "$signal"
  fi
  case $status in
    0) ;;
    1)
      compare || true
      echo "FAIL: a count is wrong, as the transcript's end shows"
      exit 1
      ;;
    3)
      echo "INCONCLUSIVE: a kill missed or a hold was not reached; the reason stands above"
      exit 3
      ;;
    129 | 130 | 143) exit "$status" ;;
    *)
      echo "FAIL: the lab could not play the scenario to its end; the reason stands above"
      exit 4
      ;;
  esac

  if [ "$1" = accept ]; then
    # Whole or not at all.
    cp "$transcript" "$root/expected/chapter.txt.new"
    mv "$root/expected/chapter.txt.new" "$root/expected/chapter.txt"
    echo "ACCEPTED: expected/chapter.txt is this transcript now; git diff shows the change"
  elif compare; then
    echo "PASS: the transcript is the one in expected/chapter.txt"
  else
    echo "FAIL: the transcript differs from expected/chapter.txt, as shown above"
    exit 1
  fi
}

compare() {
  diff -u "$root/expected/chapter.txt" "$transcript"
}

# The book starts a Java class: `./run.sh -Doutbox.db=PATH OutboxLab COMMAND` is `./run.sh --db PATH COMMAND`. Only what
# stands in front is the book's; the rest is the lab's own command line, whatever words are in it.
run_command() {
  local book=()
  while [ $# -gt 0 ]; do
    case $1 in
      -Doutbox.db=*) book+=(--db "${1#-Doutbox.db=}") ;;
      -D*)
        echo "run.sh: the lab has no property $1; of the book's it knows -Doutbox.db=PATH" >&2
        exit 2
        ;;
      OutboxLab) ;;
      *) break ;;
    esac
    shift
  done
  build
  # In this process's place: so the pid that is killed is the lab's.
  exec "$lab" ${book[@]+"${book[@]}"} "$@"
}

case ${1:-} in
  "") play compare ;;
  --accept) play accept ;;
  *) run_command "$@" ;;
esac

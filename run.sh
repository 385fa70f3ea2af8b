#!/usr/bin/env bash
# Without an argument: builds the lab, plays the book's chapter, the experiments and the sweep with real kills, and compares
# what they print with expected/. `./run.sh --chapter` plays the chapter alone, `./run.sh --accept` takes changed transcripts
# for the right ones. With a lab command: runs that command.
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

# Ends the play if a signal has come.
heed_signal() {
  if [ -n "$signal" ]; then
    exit "$signal"
  fi
}

# Plays in a folder of its own: the book's chapter, then (unless only the chapter is asked for) the experiments and the
# matrix. What differs from expected/ is shown, and the last line says how it ended.
play() {
  local parts=$1 verb=$2
  need diff "it compares the transcript" "sudo apt-get install diffutils" "sudo dnf install diffutils" "xcode-select --install"
  need awk "it takes transcripts apart" "sudo apt-get install mawk" "sudo dnf install gawk" "xcode-select --install"
  build

  work=
  trap remove_work EXIT
  # Only noted: so run.sh waits for what plays, which cleans up behind itself in the folder that the exit removes, and for
  # mktemp, which has a folder before it has told its name.
  signal=
  trap 'signal=130' INT
  trap 'signal=143' TERM
  trap 'signal=129' HUP
  local made=no
  if work=$(trap '' INT TERM HUP && mktemp -d "${TMPDIR:-/tmp}/outbox-lab.XXXXXX") && mkdir "$work/play" "$work/golden"; then
    made=yes
  fi
  heed_signal
  if [ "$made" = no ]; then
    echo "FAIL: there is no folder to play in; TMPDIR names another place for it"
    exit 4
  fi
  broker=embedded
  [ -z "${KAFKA_BOOTSTRAP:-}" ] || broker=kafka
  # Where scripts/kafka.sh leaves on record how it started a broker that experiments freeze.
  export KAFKA_DIR=${KAFKA_DIR:-$root/.lab/kafka}

  local part differs=
  for part in $parts; do
    play_part "$part"
    if [ "$verb" = accept ]; then
      accept "$part"
    elif ! compare "$part"; then
      differs="$differs $part"
    fi
    heed_signal
  done
  if [ "$verb" = accept ]; then
    echo "ACCEPTED: expected/ has these transcripts now; git diff shows the change"
  elif [ -n "$differs" ]; then
    echo "FAIL: what was printed differs from expected/, as shown above:$differs"
    exit 1
  else
    echo "PASS: what was printed is what expected/ has: $parts"
  fi
}

# Plays one part, and keeps its transcript. A play that comes to no end ends this script.
play_part() {
  local status=0
  # Each in the place of the subshell: that would die of a signal at once, and nobody would wait for what cleans up.
  case $1 in
    chapter) exec env OUTBOX_LAB_BIN="$lab" bash "$root/scripts/scenario.sh" "$work/play" ;;
    experiments) own_lab run ;;
    matrix) own_lab sweep ;;
  esac | tee "$work/$1" || status=$?
  heed_signal
  # pipefail: the status is that of the play, tee's being 0.
  case $status in
    0) ;;
    1)
      compare "$1" || true
      echo "FAIL: $1: something was found that was not predicted, as shown above"
      exit 1
      ;;
    3)
      echo "INCONCLUSIVE: $1: a kill missed or a hold was not reached; the reason stands above"
      exit 3
      ;;
    129 | 130 | 143) exit "$status" ;;
    *)
      echo "FAIL: $1: the lab could not play to the end; the reason stands above"
      exit 4
      ;;
  esac
}

# Becomes a lab command in a lab directory of this play, never in the participant's.
own_lab() {
  exec env -u OUTBOX_LAB_DB -u OUTBOX_LAB_TOPIC OUTBOX_LAB_DIR="$work/lab" "$lab" "$@"
}

# Shows how a part differs from its golden.
compare() {
  golden "$1" >"$work/golden/$1"
  diff -u "$work/golden/$1" "$work/$1"
}

# The golden of a part. That of the experiments is put together in the order in which they were played: each has a file,
# or one for each broker where one of the two cannot show all of it.
golden() {
  local name
  case $1 in
    experiments)
      sed -n 's/^# //p' "$work/experiments" | while read -r name; do
        cat "$root/expected/experiments/$name.$broker.txt" 2>/dev/null || cat "$root/expected/experiments/$name.txt"
      done
      cat "$root/expected/experiments/total.$broker.txt"
      ;;
    *) cat "$root/expected/$1.txt" ;;
  esac
}

# Takes the transcript of a part for the right one, whole or not at all.
accept() {
  case $1 in
    experiments)
      mkdir -p "$root/expected/experiments" "$work/split"
      awk -v folder="$work/split" '
        /^# / { file = folder "/" $2 ".txt" }
        /^[0-9]+ experiments: / { file = folder "/total.txt" }
        { print > file }
      ' "$work/experiments"
      local file name
      for file in "$work/split"/*; do
        name=$(basename "$file" .txt)
        if [ "$name" = total ] || grep -q SKIPPED "$file" || [ -e "$root/expected/experiments/$name.embedded.txt" ]; then
          name=$name.$broker
        fi
        mv "$file" "$root/expected/experiments/$name.txt"
      done
      ;;
    *)
      cp "$work/$1" "$root/expected/$1.txt.new"
      mv "$root/expected/$1.txt.new" "$root/expected/$1.txt"
      ;;
  esac
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
  "") play "chapter experiments matrix" compare ;;
  --chapter) play chapter compare ;;
  --accept) play "chapter experiments matrix" accept ;;
  *) run_command "$@" ;;
esac

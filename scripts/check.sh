#!/usr/bin/env bash
# One command checks everything: format, clippy, shellcheck, tests, goldens. With KAFKA_BOOTSTRAP set, tests and
# goldens run on that Kafka as well as on the embedded broker.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step() {
  echo
  echo "== $*"
  "$@"
}

command -v shellcheck >/dev/null || {
  echo "check.sh: shellcheck is missing: apt-get install shellcheck, dnf install ShellCheck, brew install shellcheck" >&2
  exit 4
}

step cargo fmt --check
# Declared by a macro, which cargo fmt does not look into.
step rustfmt --check --edition 2024 src/experiment/*.rs
step cargo clippy --locked --all-targets -- -D warnings
step shellcheck run.sh scripts/*.sh .ci/run
step cargo test --locked
step env -u KAFKA_BOOTSTRAP ./run.sh
if [ -n "${KAFKA_BOOTSTRAP:-}" ]; then
  step ./run.sh
fi
echo
echo "check.sh: all is well"

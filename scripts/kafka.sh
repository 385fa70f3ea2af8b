#!/usr/bin/env bash
#
# One real Apache Kafka for the lab: one node, on 127.0.0.1 only.
# It runs in Docker where a Docker engine answers, otherwise on Java 17 or newer.

set -euo pipefail
# With it `cd` may go to another folder, and prints where it went.
unset CDPATH

usage() {
    cat <<'END'
usage: scripts/kafka.sh up | down | status | console-consumer TOPIC

  up                      start the broker and wait until it answers
  down                    stop it; its data stay
  status                  one line; exit 0 if it is up, 1 if not
  console-consumer TOPIC  print every record of TOPIC as KEY,VALUE with Kafka's own
                          consumer; ends once no record has come for 4 s

  KAFKA_PORT  the broker's port on 127.0.0.1 (default 9092);
              the port after it is taken too, by Kafka's controller
  KAFKA_DIR   where data and state are kept (default .lab/kafka of the project);
              with Docker the data are in a volume named after the container

exit: 2 wrong usage; 4 something is missing or in the way, or the broker failed
END
}

die() {
    local code=$1
    shift
    printf 'kafka: %s\n' "$@" >&2
    exit "$code"
}

say() { printf 'kafka: %s\n' "$@" >&2; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
files=$here/kafka
log_config=$files/log4j2.properties

port=${KAFKA_PORT:-9092}
case $port in
    '' | 0* | *[!0-9]* | ??????*) die 2 "KAFKA_PORT=$port is not a port" ;;
esac
[ "$port" -lt 65535 ] || die 2 "KAFKA_PORT=$port leaves no port after it for the controller"

java=java
[ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java

# --- What is running -----------------------------------------------------------------------------

# $record says how the broker was started, for this script and for whoever wants to freeze or
# kill the broker. Two lines: "pid PID" or "docker CONTAINER"; then the bootstrap address.

read_record() {
    kind='' id='' address=''
    [ -f "$record" ] || return 0
    { read -r kind id && read -r address; } <"$record" || die 4 "cannot make sense of $record"
}

write_record() {
    printf '%s\n' "$kind $id" "$address" >"$record.new"
    mv -f "$record.new" "$record"
}

alive() {
    local command
    case $kind in
        pid)
            # After a crash or a reboot the pid may belong to any program: only the command
            # line tells. It names the properties file, so another folder's broker is not ours.
            command=$(ps -ww -o command= -p "$id") || return 1
            [[ $command == *" kafka.Kafka $properties"* ]]
            ;;
        docker)
            [ "$(docker inspect --format '{{.State.Running}}' "$id" 2>/dev/null)" = true ]
            ;;
        *) return 1 ;;
    esac
}

how() {
    case $kind in
        pid) echo "java, pid $id" ;;
        docker) echo "docker, container $id" ;;
    esac
}

broker_log() {
    case $kind in
        pid) cat "$log" ;;
        docker) docker logs "$id" 2>&1 ;;
    esac
}

# --- Running Kafka's classes ---------------------------------------------------------------------

# The classpath goes through the environment: as an argument it would fill every `ps`.
run_java() { CLASSPATH=$(cat "$classpath") "$java" -Dlog4j2.configurationFile="$log_config" "$@"; }

run_in_docker() { docker exec --env JMX_PORT= "$id" /opt/kafka/bin/kafka-run-class.sh "$@"; }

# A tool must run from where the broker does: in Docker this machine may well have no Java.
run_tool() {
    case $kind in
        pid) run_java "$@" ;;
        docker) run_in_docker "$@" ;;
    esac
}

compose() {
    KAFKA_CONTAINER=$id KAFKA_PORT=${address##*:} KAFKA_CONTROLLER_PORT=$((${address##*:} + 1)) \
        docker compose --project-name "$id" --file "$files/compose.yaml" "$@"
}

# --- up ------------------------------------------------------------------------------------------

# The client is installed more often than an engine runs, and Compose is a plugin of its own.
docker_works() { docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1; }

die_of_missing() {
    die 4 "$1" \
        'Kafka needs either a running Docker with Compose, or Java 17 or newer with Maven:' \
        '  Debian, Ubuntu:  sudo apt-get install openjdk-21-jre-headless maven' \
        '                   (Debian 12: openjdk-17-jre-headless)' \
        '  Fedora:          sudo dnf install java-latest-openjdk-headless maven' \
        '  macOS:           brew install openjdk@21 maven' \
        "                   export JAVA_HOME=\"\$(brew --prefix openjdk@21)\""
}

need_java() {
    local version
    # macOS has a `java` that only says that there is none, so being there is not enough.
    version=$("$java" -version 2>&1) || die_of_missing "no Docker engine answers, and $java does not run."
    # Java 8 called itself 1.8.
    version=$(printf '%s\n' "$version" | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p')
    [ "${version:-0}" -ge 17 ] || die_of_missing "no Docker engine answers, and $java is Java ${version:-?}."
}

classpath_is_whole() {
    local jar jars
    [ -f "$classpath" ] && [ "$classpath" -nt "$files/pom.xml" ] || return 1
    # Maven's own cache may have been emptied since.
    IFS=: read -r -a jars <"$classpath" || [ "${#jars[@]}" -gt 0 ] || return 1
    for jar in "${jars[@]}"; do
        [ -f "$jar" ] || return 1
    done
}

need_classpath() {
    if classpath_is_whole; then
        return
    fi
    command -v mvn >/dev/null || die_of_missing 'no Docker engine answers, and there is no Maven (mvn).'
    say 'Maven looks for the jars; the first time it downloads some 60 MB'
    mvn -q -B -Dstyle.color=never -f "$files/pom.xml" dependency:build-classpath \
        -Dmdep.outputFile="$classpath.new" >&2 || die 4 'Maven could not get the jars: see above'
    mv -f "$classpath.new" "$classpath"
}

is_taken() { (: <>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

need_free_ports() {
    local number deadline=$((SECONDS + 3))
    for number in "$@"; do
        while is_taken "$number"; do
            # A broker that was killed a moment ago may not have let go of its ports yet.
            [ "$SECONDS" -lt "$deadline" ] ||
                die 4 "port $number is in use by another program: choose a port with KAFKA_PORT" \
                    '(the port after KAFKA_PORT must be free too)'
            sleep 0.1
        done
    done
}

write_properties() {
    cat >"$properties.new" <<END
node.id=1
process.roles=broker,controller
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:$((port + 1))
# Relative to where the broker is started: a comma or an umlaut in the path would be misread here.
log.dirs=data
num.partitions=1
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
# There is one node to replicate to.
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
END
    mv -f "$properties.new" "$properties"
    # By default a client waits a minute for a broker that is frozen.
    printf '%s\n' default.api.timeout.ms=20000 request.timeout.ms=10000 >"$client_properties"
}

format_storage() {
    local cluster
    [ ! -f data/meta.properties ] || return 0
    cluster=$(run_java kafka.tools.StorageTool random-uuid) || die 4 'Kafka does not run: see above'
    run_java kafka.tools.StorageTool format --standalone --cluster-id "$cluster" \
        --config "$properties" >/dev/null || die 4 "Kafka could not format $dir/data: see above"
}

start_in_java() {
    need_java
    need_free_ports "$port" $((port + 1))
    need_classpath
    write_properties
    say "starting the broker; its log is $log"
    format_storage
    [ ! -f "$log" ] || mv -f "$log" "$log.1"

    # With nohup it outlives this terminal; with no stream of ours left open, whoever reads our
    # output through a pipe gets to its end.
    CLASSPATH=$(cat "$classpath") nohup "$java" -Xmx512m \
        -Dlab.log.level=INFO -Dlog4j2.configurationFile="$log_config" \
        kafka.Kafka "$properties" </dev/null >"$log" 2>&1 &
    id=$!
    write_record
    # Until the fork has become Java it carries this script's command line, and seems dead.
    while ! alive && kill -0 "$id" 2>/dev/null; do
        sleep 0.1
    done
}

start_in_docker() {
    need_free_ports "$port"
    id=outbox-lab-kafka
    [ "$port" = 9092 ] || id=$id-$port
    write_record
    # A container that is started again keeps its old log, with the line we are about to wait for.
    compose up --detach --force-recreate >&2 || {
        rm -f "$record"
        die 4 'Docker could not start the broker: see above'
    }
}

answers() {
    local topics=org.apache.kafka.tools.TopicCommand
    case $kind in
        pid) run_java $topics --bootstrap-server "$address" --list --command-config "$client_properties" ;;
        # Docker itself refuses to run anything in a container that is frozen.
        docker) run_in_docker $topics --bootstrap-server "$address" --list ;;
    esac >/dev/null 2>&1
}

# The port accepts connections long before the broker serves them; after a kill -9 the new broker
# also waits, for up to 10 s, until the old one's registration has expired. Kafka's line comes
# after both, and a client of our own proves it.
wait_until_it_answers() {
    local deadline=$((SECONDS + 60))
    # Not grep -q: it would leave at the first match and fail the pipe by breaking it.
    until broker_log | grep 'Kafka Server started' >/dev/null; do
        alive || {
            broker_log | tail -n 20 >&2
            rm -f "$record"
            die 4 'the broker died while it was starting: its last words are above'
        }
        [ "$SECONDS" -lt "$deadline" ] ||
            die 4 'the broker is running but not ready after 60 s; "down" stops it'
        sleep 0.2
    done
    answers || die 4 'the broker says that it has started but answers no client; "down" stops it'
}

say_up() {
    echo "kafka: up $address ($(how))"
    echo "kafka: in each terminal type: export KAFKA_BOOTSTRAP=$address" >&2
}

up() {
    if alive; then
        [ "$address" = "127.0.0.1:$port" ] ||
            die 4 "a broker is up on $address, not on KAFKA_PORT=$port: take it down first"
        if answers; then
            say 'it is up already'
            say_up
            return
        fi
        # One that was killed a moment ago may have looked alive to us.
        ! alive || die 4 "the broker ($(how)) is running but answers no client. Is it frozen?" \
            'Continue it with kill -CONT or docker unpause, or stop it with "down".'
    fi
    address=127.0.0.1:$port
    if docker_works; then
        kind=docker
        start_in_docker
    else
        kind=pid
        start_in_java
    fi
    wait_until_it_answers
    say_up
}

# --- down, status, console-consumer --------------------------------------------------------------

gone_within() {
    local deadline=$((SECONDS + $1))
    while alive; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.1
    done
}

down() {
    if ! alive; then
        rm -f "$record"
        echo 'kafka: nothing is running'
        return
    fi
    case $kind in
        pid)
            # It may end between our look and our signal: then there is nothing to complain of.
            kill -TERM "$id" 2>/dev/null || true
            # A broker that a drill has frozen gets no SIGTERM before it runs again.
            kill -CONT "$id" 2>/dev/null || true
            gone_within 30 || {
                say 'it does not stop; killing it'
                kill -KILL "$id" 2>/dev/null || true
                gone_within 10 || die 4 "pid $id cannot be killed"
            }
            ;;
        docker)
            docker unpause "$id" >/dev/null 2>&1 || true
            compose down >&2
            ;;
    esac
    rm -f "$record"
    echo 'kafka: down'
}

status() {
    if alive; then
        echo "kafka: up $address ($(how))"
    else
        echo 'kafka: down'
        return 1
    fi
}

console_consumer() {
    alive || die 4 'the broker is down: start it with "up"'
    # Kafka logs an error, with exit code 0, for the very end that --timeout-ms asks for.
    say 'the ERROR with a TimeoutException that comes last is the regular end'
    run_tool org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server "$address" \
        --topic "$1" --from-beginning --timeout-ms 4000 \
        --formatter-property print.key=true --formatter-property key.separator=,
}

# -------------------------------------------------------------------------------------------------

case "$#:${1:-}" in
    1:up | 1:down | 1:status | 2:console-consumer) ;;
    *)
        usage >&2
        exit 2
        ;;
esac
command -v ps >/dev/null || die 4 'ps is missing (Debian, Ubuntu, Fedora: the package procps or procps-ng)'

# From here on a relative KAFKA_DIR, and Kafka's relative log.dirs, mean the same folder.
dir=${KAFKA_DIR:-$here/../.lab/kafka}
mkdir -p "$dir"
cd "$dir"
dir=$(pwd -P)
record=$dir/how
properties=$dir/server.properties
client_properties=$dir/client.properties
classpath=$dir/classpath
log=$dir/broker.log
read_record

case $1 in
    up) up ;;
    down) down ;;
    status) status ;;
    console-consumer) console_consumer "$2" ;;
esac

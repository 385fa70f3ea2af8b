//! What is wrong with the command line alone: exit code 2, and nothing is touched.

use crate::bad_input::{content, refused};
use crate::support::{Ended, Lab};

/// Runs a command line, word by word, that must be a usage error and change nothing.
#[track_caller]
fn usage(lab: &Lab, words: &[&str]) -> Ended {
    let before = content(&lab.path(""));
    let ended = Ended::of(&format!("{words:?}"), lab.command(words).output().unwrap()).exits(2);
    assert_eq!(ended.stdout, "");
    assert_eq!(content(&lab.path("")), before, "{ended:?}");
    ended
}

#[test]
fn n_is_a_whole_number_from_1_to_a_million() {
    let lab = Lab::new();
    for command in ["write", "write-hold", "publish", "publish-hold"] {
        for n in ["0", "-1", "-1000000", "five", "1.5", "0x10", "1000001", "99999999999999999999", ""] {
            usage(&lab, &[command, n]).says(&format!("invalid value '{n}' for '<N>'")).says("try '--help'");
        }
        for n in ["0", "1000001"] {
            usage(&lab, &[command, n]).says("is not in 1..=1000000");
        }
        usage(&lab, &[command]).says("<N>").says("try '--help'");
        usage(&lab, &[command, "1", "2"]).says("unexpected argument '2'");
    }
}

#[test]
fn an_unknown_subcommand_names_the_nearest() {
    let lab = Lab::new();
    usage(&lab, &["wirte", "5"]).says("unrecognized subcommand 'wirte'").says("'write'").says("try '--help'");
    usage(&lab, &["OutboxLab"]).says("unrecognized subcommand 'OutboxLab'").says("try '--help'");
    usage(&lab, &["broker", "restart"]).says("unrecognized subcommand 'restart'").says("'start'");
}

#[test]
fn no_subcommand_lists_them_all() {
    let lab = Lab::new();
    let listed = usage(&lab, &[]).stderr;
    let commands =
        "reset naive naive-hold write write-hold rollback publish publish-hold verify consume reconcile broker clean";
    for command in commands.split(' ') {
        let is_listed = listed.lines().any(|line| line.split_whitespace().next() == Some(command));
        assert!(is_listed, "{command} is not in {listed}");
    }
    let listed = usage(&lab, &["broker"]).says("start").says("stop").says("status");
    assert!(!listed.stderr.contains("serve"), "that one is not for users: {listed:?}");
}

#[test]
fn an_illegal_topic_name_says_what_a_legal_one_is() {
    let lab = Lab::new();
    let too_long = "a".repeat(250);
    let illegal = ["", " ", ".", "..", "a b", "a/b", "../a", "a:b", "a\nb", "straße", "*", &too_long];
    for name in illegal {
        for command in [&["publish", "1"][..], &["consume"], &["verify"]] {
            usage(&lab, &[&["--topic", name], command].concat())
                .says("a topic name is 1 to 249 letters, digits, dots, underscores and dashes")
                .says("try '--help'");
        }
    }
    let in_environment = lab.command(["consume"]).env("OUTBOX_LAB_TOPIC", "a b").output().unwrap();
    Ended::of("consume", in_environment).exits(2).says("a topic name is");

    // The longest that is legal.
    let longest = "a".repeat(249);
    lab.ok(&format!("--topic {longest} naive"));
    assert_eq!(lab.ok(&format!("--topic {longest} consume")).lines().count(), 1);
}

#[test]
fn a_malformed_bootstrap_says_how_to_write_it() {
    let lab = Lab::new();
    let malformed = [
        "localhost",
        "localhost:",
        ":9092",
        "localhost:0",
        "localhost:65536",
        "localhost:kafka",
        "localhost:9092,",
        "localhost:9092,,localhost:9093",
        "localhost:9092, localhost:9093",
        "localhost:9092 localhost:9093",
        ",",
        " ",
        "http://localhost:9092",
        "localhost:9092/",
    ];
    for servers in malformed {
        for command in [&["publish", "1"][..], &["consume"], &["reset"], &["verify"]] {
            usage(&lab, &[&["--bootstrap", servers], command].concat())
                .says("write HOST:PORT, as in 127.0.0.1:9092, with commas between several")
                .says("try '--help'");
        }
        let in_environment = lab.command(["consume"]).env("KAFKA_BOOTSTRAP", servers).output().unwrap();
        Ended::of("consume", in_environment).exits(2).says("write HOST:PORT");
    }
}

#[test]
fn a_property_that_librdkafka_does_not_take_is_refused_by_every_command() {
    let lab = Lab::new();
    lab.ok("write 3");
    lab.ok("publish 1");
    let wrong = [
        ("acks", "write KEY=VALUE, as in -X security.protocol=SSL", "try '--help'"),
        ("bootstrap.servers=127.0.0.1:9092", "name the servers by --bootstrap", "try '--help'"),
        ("metadata.broker.list=127.0.0.1:9092", "name the servers by --bootstrap", "try '--help'"),
        ("akcs=all", "librdkafka has no property \"akcs\"", "\n  next: "),
        ("=all", "librdkafka has no property \"\"", "\n  next: "),
        ("message.timeout.ms=soon", "does not take message.timeout.ms=soon", "\n  next: correct the -X option"),
        ("message.timeout.ms=-5", "does not take message.timeout.ms=-5", "\n  next: correct the -X option"),
        ("enable.idempotence=maybe", "true or false", "\n  next: correct the -X option"),
        ("security.protocol=TLS", "does not take security.protocol=TLS", "\n  next: correct the -X option"),
    ];
    let commands = ["reset", "naive", "write 1", "rollback", "publish 1", "publish-hold 1", "verify", "consume"];
    let others = ["reconcile", "broker start", "broker stop", "clean"];
    for (property, reason, next) in wrong {
        for command in commands.iter().chain(&others) {
            refused(&lab, &format!("-X {property} {command}"), 2).says(reason).says(next);
        }
    }
    refused(&lab, "publish 1 -X", 2).says("a value is required for '-X <KEY=VALUE>'");
    lab.ok("reconcile --expect 3/3/1/1");
}

#[test]
#[cfg(not(feature = "tls"))]
fn tls_in_the_default_build_says_how_to_build_it() {
    let lab = Lab::new();
    lab.ok("write 3");
    lab.ok("publish 1");
    for property in ["security.protocol=SSL", "security.protocol=SASL_SSL", "ssl.ca.location=ca.pem"] {
        for command in ["publish 1", "consume", "reconcile", "reset", "--bootstrap 127.0.0.1:1 publish 1"] {
            refused(&lab, &format!("-X {property} {command}"), 4)
                .says(&format!("{property} needs TLS, and this build has none"))
                .names_next_step()
                .says("--features tls");
        }
    }
    lab.ok("reconcile --expect 3/3/1/1");
}

#[test]
fn what_to_expect_is_four_numbers() {
    let lab = Lab::new();
    for four in ["5/5", "a/b/c/d", "5/5/8/5/1", "5/5/8/", "", "5,5,8,5", "5/5/8/-5", "5/5/8/99999999999999999999"] {
        usage(&lab, &["reconcile", "--expect", four]).says("write four numbers, as in 5/5/8/5").says("try '--help'");
    }
    usage(&lab, &["reconcile", "--expect"]).says("a value is required");
    usage(&lab, &["verify", "--expect", "5/5/8/5"]).says("unexpected argument '--expect'");
}

#[test]
fn a_path_that_is_empty_is_a_usage_error() {
    let lab = Lab::new();
    for option in ["--dir", "--db"] {
        usage(&lab, &[option, "", "write", "1"]).says(&format!("a value is required for '{option}"));
    }
    for variable in ["OUTBOX_LAB_DIR", "OUTBOX_LAB_DB"] {
        let ended = Ended::of("write 1", lab.command(["write", "1"]).env(variable, "").output().unwrap());
        ended.exits(2).says("a value is required");
    }
    assert!(content(&lab.path("")).is_empty());
}

#[test]
fn the_embedded_brokers_commands_are_a_usage_error_beside_a_real_kafka() {
    let lab = Lab::new();
    for command in [["broker", "start"], ["broker", "stop"], ["broker", "status"]] {
        let beside = lab.command(command).env("KAFKA_BOOTSTRAP", "kafka.example.org:9092").output().unwrap();
        Ended::of(&command.join(" "), beside)
            .exits(2)
            .says("this lab uses the Kafka at kafka.example.org:9092, not the embedded broker")
            .names_next_step()
            .says("KAFKA_BOOTSTRAP");
    }
    assert!(content(&lab.path("")).is_empty());
}

#[test]
fn an_empty_kafka_bootstrap_means_the_embedded_broker() {
    let lab = Lab::new();
    let ok = |line: &str| {
        let output = lab.command(line.split_whitespace()).env("KAFKA_BOOTSTRAP", "").output().unwrap();
        Ended::of(line, output).exits(0).stdout
    };
    ok("write 1");
    assert!(ok("broker start").starts_with("[broker] up 127.0.0.1:"));
    ok("publish 1");
    ok("reconcile --expect 1/1/1/1");
    lab.ok("reconcile --expect 1/1/1/1");
}

//! Bootstrap servers where no Kafka is.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::Lab;

/// Addresses where no Kafka answers, each for another reason, for as long as the value lives.
struct Strangers {
    servers: Vec<String>,
    _silent: TcpListener,
    _connection: (TcpListener, TcpStream),
}

impl Strangers {
    fn new() -> Self {
        let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
        // A port with no listener, and none can come: it is the near end of a connection.
        let far_end = listener();
        let near_end = TcpStream::connect(far_end.local_addr().unwrap()).unwrap();
        let silent = listener();
        let speaking = |answer: &'static [u8]| {
            let listener = listener();
            let address = listener.local_addr().unwrap();
            // It ends with the test's process.
            thread::spawn(move || {
                for mut caller in listener.incoming().flatten() {
                    let _ = caller.read(&mut [0; 1]);
                    let _ = caller.write_all(answer);
                }
            });
            address
        };
        let servers = [
            near_end.local_addr().unwrap(),
            silent.local_addr().unwrap(),
            speaking(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
            speaking(&[0, 0, 0, 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ];
        let servers = servers.iter().map(ToString::to_string).collect();
        Self { servers, _silent: silent, _connection: (far_end, near_end) }
    }
}

#[test]
fn a_bootstrap_that_is_no_kafka_is_named_and_nothing_is_changed() {
    let lab = Lab::new();
    lab.ok("write 3");
    let strangers = Strangers::new();
    let commands = ["publish 1", "publish-hold 1", "consume", "reconcile", "naive", "naive-hold"];
    let lines: Vec<_> = strangers
        .servers
        .iter()
        .flat_map(|server| commands.map(|command| format!("--bootstrap {server} {command}")))
        .collect();
    let begun = Instant::now();
    for ended in lab.at_once(lines) {
        let server = ended.line.split_whitespace().nth(1).unwrap().to_owned();
        assert_eq!(ended.stdout, "");
        ended
            .exits(4)
            .says(&format!("no Kafka answers at {server}"))
            .names_next_step()
            .says("see that the broker is up");
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(lab.counts(), [3, 3, 0, 3]);
    lab.ok("publish 10");
    lab.ok("reconcile --expect 3/3/3/3");
}

#[test]
fn a_reset_without_a_kafka_empties_nothing() {
    let lab = Lab::new();
    let strangers = Strangers::new();
    // A reset is alone in its lab directory, so each has one of its own.
    let places: Vec<_> = (0..strangers.servers.len()).map(|nth| format!("--dir {nth}")).collect();
    for place in &places {
        lab.ok(&format!("{place} write 3"));
        lab.ok(&format!("{place} publish 1"));
    }
    let resets =
        places.iter().zip(&strangers.servers).map(|(place, server)| format!("{place} --bootstrap {server} reset"));
    for (ended, server) in lab.at_once(resets).into_iter().zip(&strangers.servers) {
        assert_eq!(ended.stdout, "");
        ended.exits(4).says(&format!("no Kafka answers at {server}")).names_next_step();
    }
    for place in &places {
        lab.ok(&format!("{place} reconcile --expect 3/3/1/1"));
        lab.ok(&format!("{place} clean"));
    }
}

#[test]
fn one_server_of_several_is_enough() {
    let Some(mut lab) = Lab::on_kafka("one_server_of_several_is_enough") else { return };
    lab.ok("write 1");
    lab.ok("publish 1");
    let strangers = Strangers::new();
    let (servers, topic) = lab.kafka.clone().unwrap();
    lab.kafka = Some((format!("{},{servers}", strangers.servers[0]), topic));
    lab.ok("reconcile --expect 1/1/1/1");
}

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use tempfile::TempDir;

use super::{Metrics, exposition, loopback_only, serve};
use crate::failure::Failure;
use crate::store::{Leased, Stats, Store};

/// A server on a free port, over a database with two pending rows.
struct Serving {
    folder: TempDir,
    at: SocketAddr,
    metrics: Arc<Metrics>,
}

impl Serving {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::make(&folder.path().join("outbox.db")).unwrap();
        store.fill(2, 2, false).unwrap();
        let metrics = Arc::new(Metrics::new());
        let at = serve("127.0.0.1:0".parse().unwrap(), &metrics, store).unwrap();
        Self { folder, at, metrics }
    }

    /// Sends this, and returns everything that comes back.
    fn answer(&self, request: &[u8]) -> String {
        let mut client = TcpStream::connect(self.at).unwrap();
        client.write_all(request).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }

    fn scrape(&self) -> String {
        self.answer(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    }
}

fn stats() -> Stats {
    let lease = Leased { owner: "a \"b\"\\c\n".to_owned(), slots: 64, left_ms: 27_400 };
    Stats { oldest_pending_age_seconds: Some(1.5), pending: 2, dead: 1, published: 7, attempts: 9, leases: vec![lease] }
}

#[test]
fn the_text_has_every_metric_with_its_help_type_and_unit() {
    let metrics = Arc::new(Metrics::new());
    metrics.acknowledged([-3, 0, 1, 2, 10, 11, 60_000, 60_001]);
    metrics.published(8);
    metrics.marks_refused(1);
    metrics.rejected(2);
    metrics.in_doubt(3);
    metrics.new_producer();
    let text = exposition(&stats(), Some(&metrics));
    for line in [
        "# HELP outbox_oldest_pending_age_seconds How long the oldest pending row has waited; 0 where none is pending",
        "# TYPE outbox_oldest_pending_age_seconds gauge",
        "outbox_oldest_pending_age_seconds 1.5",
        "outbox_pending_rows 2",
        "outbox_dead_rows 1",
        "outbox_published_rows 7",
        "outbox_rejected_attempts 9",
        r#"outbox_lease_slots{owner="a \"b\"\\c\n"} 64"#,
        r#"outbox_lease_left_seconds{owner="a \"b\"\\c\n"} 27.4"#,
        "# TYPE outbox_relay_published_rows_total counter",
        "outbox_relay_published_rows_total 8",
        "outbox_relay_refused_marks_total 1",
        "outbox_relay_rejected_records_total 2",
        "outbox_relay_in_doubt_sends_total 3",
        "outbox_relay_new_producers_total 1",
        "# TYPE outbox_relay_commit_to_ack_seconds histogram",
        r#"outbox_relay_commit_to_ack_seconds_bucket{le="0.001"} 3"#,
        r#"outbox_relay_commit_to_ack_seconds_bucket{le="0.002"} 4"#,
        r#"outbox_relay_commit_to_ack_seconds_bucket{le="0.01"} 5"#,
        r#"outbox_relay_commit_to_ack_seconds_bucket{le="0.02"} 6"#,
        r#"outbox_relay_commit_to_ack_seconds_bucket{le="60"} 7"#,
        r#"outbox_relay_commit_to_ack_seconds_bucket{le="+Inf"} 8"#,
        "outbox_relay_commit_to_ack_seconds_sum 120.025",
        "outbox_relay_commit_to_ack_seconds_count 8",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(text.contains(&format!("# HELP {family} ")) && text.contains(&format!("# TYPE {family} ")), "{line}");
    }
    assert!(text.ends_with('\n'));
}

#[test]
fn without_a_relay_there_are_the_gauges_alone() {
    let text = exposition(&Stats { oldest_pending_age_seconds: None, leases: vec![], ..stats() }, None);
    assert!(text.contains("\noutbox_oldest_pending_age_seconds 0.0\n"), "{text}");
    assert!(!text.contains("relay_"), "{text}");
}

#[test]
fn a_scrape_has_the_database_and_the_counters_of_that_moment() {
    let serving = Serving::new();
    let first = serving.scrape();
    let (head, body) = first.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
        "{head}"
    );
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
    assert!(body.contains("\noutbox_pending_rows 2\n"), "{body}");
    assert!(body.contains("\noutbox_relay_published_rows_total 0\n"), "{body}");
    serving.metrics.published(2);
    assert!(serving.answer(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n").contains("\noutbox_relay_published_rows_total 2\n"));
}

#[test]
fn any_other_request_is_answered_for_what_it_is() {
    let serving = Serving::new();
    let too_long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 100_000], b"\r\n\r\n"].concat();
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404 Not Found"),
        (b"GET /metrics/ HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody", "405 Method Not Allowed"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        (b"GET /metrics\r\n\r\n", "400 Bad Request"),
        (b"\r\n\r\n", "400 Bad Request"),
        (b"\x16\x03\x01\x02\x00\xff\xfe\r\n\r\n", "400 Bad Request"),
        (&too_long, "200 OK"),
    ] {
        let answer = serving.answer(request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer} to {}", request.escape_ascii());
    }
}

#[test]
fn a_database_that_cannot_be_read_is_named_with_what_to_do() {
    let serving = Serving::new();
    let db = serving.folder.path().join("outbox.db");
    rusqlite::Connection::open(&db).unwrap().execute_batch("DROP TABLE outbox").unwrap();
    let answer = serving.scrape();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
    assert!(body.starts_with(&format!("the database {} refused (SQLite: ", db.display())), "{body}");
    assert!(body.contains("\n  next: look at "), "{body}");
}

#[test]
fn a_client_that_is_slow_or_leaves_early_keeps_nobody_waiting() {
    let serving = Serving::new();
    let connect = || TcpStream::connect(serving.at).unwrap();
    // Twice as many as there are workers leave at once, or in the middle of a word.
    for request in [&b""[..], b"GET /met"].into_iter().cycle().take(8) {
        let mut client = connect();
        client.write_all(request).unwrap();
    }
    let silent: Vec<_> = (0..3).map(|_| connect()).collect();
    assert!(serving.scrape().starts_with("HTTP/1.1 200 OK"));
    drop(silent);
    // Whoever stops in the middle is told so.
    let mut half = connect();
    half.write_all(b"GET").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    half.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[test]
fn silent_clients_on_every_worker_are_given_up_after_a_while() {
    let serving = Serving::new();
    let _silent: Vec<_> = (0..8).map(|_| TcpStream::connect(serving.at).unwrap()).collect();
    assert!(serving.scrape().starts_with("HTTP/1.1 200 OK"));
}

#[test]
fn an_address_that_cannot_be_served_on_says_why_and_what_to_type() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |addr: SocketAddr| {
        let store = Store::make(&folder.path().join("outbox.db")).unwrap();
        Failure::from(serve(addr, &Arc::new(Metrics::new()), store).unwrap_err()).to_string()
    };
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let in_use = refused(other.local_addr().unwrap());
    assert!(in_use.contains("another program serves there") && in_use.contains("next: --metrics: take another port"));
    // An address of the block for documentation, which no machine has.
    let not_here = refused("192.0.2.1:9464".parse().unwrap());
    assert!(not_here.contains("this machine has no such address") && not_here.contains("127.0.0.1:9464"), "{not_here}");
}

#[test]
fn an_address_that_others_can_reach_has_to_be_meant() {
    for text in ["127.0.0.1:9464", "127.1.2.3:0", "[::1]:9464", "[::ffff:127.0.0.1]:9464"] {
        loopback_only(text.parse().unwrap(), false).unwrap();
    }
    for text in ["0.0.0.0:9464", "[::]:9464", "192.0.2.1:80"] {
        let addr = text.parse().unwrap();
        let refused = Failure::from(loopback_only(addr, false).unwrap_err());
        assert_eq!(refused.exit, crate::failure::Exit::Usage);
        assert!(refused.to_string().contains("--metrics-anywhere"), "{refused}");
        loopback_only(addr, true).unwrap();
    }
}

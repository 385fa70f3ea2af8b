//! Other people's clients read the embedded broker: those that are built on librdkafka.

use std::process::Command;

use crate::support::{Ended, Lab, ROOT, not_run};

/// The book's eight records.
const RECORDS: &str = r#"evt-1001,{"eventId":"evt-1001","loanId":"L-1001","bookId":"B-101"}
evt-1002,{"eventId":"evt-1002","loanId":"L-1002","bookId":"B-102"}
evt-1003,{"eventId":"evt-1003","loanId":"L-1003","bookId":"B-103"}
evt-1001,{"eventId":"evt-1001","loanId":"L-1001","bookId":"B-101"}
evt-1002,{"eventId":"evt-1002","loanId":"L-1002","bookId":"B-102"}
evt-1003,{"eventId":"evt-1003","loanId":"L-1003","bookId":"B-103"}
evt-1004,{"eventId":"evt-1004","loanId":"L-1004","bookId":"B-104"}
evt-1005,{"eventId":"evt-1005","loanId":"L-1005","bookId":"B-105"}
"#;

/// Plays the chapter, and returns where the embedded broker says that it is.
fn address_after_the_chapter(lab: &Lab) -> String {
    lab.play_chapter();
    let status = lab.ok("broker status");
    status.strip_prefix("[broker] up ").unwrap().trim_end().to_owned()
}

/// Can this be run here?
fn runs(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

#[test]
fn kcat_reads_the_books_eight_records() {
    if !runs("kcat", &["-V"]) {
        return not_run("kcat_reads_the_books_eight_records", "kcat is not installed");
    }
    let lab = Lab::new();
    let address = address_after_the_chapter(&lab);
    let args = ["-b", &address, "-t", "v2c7.outbox", "-C", "-e", "-q", "-K,"];
    let kcat = Ended::of("kcat", lab.program("kcat", args).output().unwrap()).exits(0);
    assert_eq!(kcat.stdout, RECORDS);
}

#[test]
fn confluent_kafka_reads_them_with_their_event_ids() {
    let python = std::env::var("OUTBOX_LAB_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    if !runs(&python, &["-c", "import confluent_kafka"]) {
        let why = format!("{python} has no confluent_kafka; OUTBOX_LAB_PYTHON names another python3");
        return not_run("confluent_kafka_reads_them_with_their_event_ids", &why);
    }
    let lab = Lab::new();
    let address = address_after_the_chapter(&lab);
    let script = format!("{ROOT}/tests/lab/read_topic.py");
    let read = lab.program(&python, [&script, &address, "v2c7.outbox"]).output().unwrap();
    let read = Ended::of("read_topic.py", read).exits(0);
    let expected: String = RECORDS
        .lines()
        .map(|record| {
            let event_id = record.split_once(',').unwrap().0;
            format!("{record} id={event_id}\n")
        })
        .collect();
    assert_eq!(read.stdout, expected);
}

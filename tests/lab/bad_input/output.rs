//! Standard output that nobody reads, or that is full.

use std::io::{BufRead, BufReader, pipe};
use std::process::Stdio;

use crate::support::{Ended, Lab, all_to_their_ends};

/// Runs a command whose output nobody reads: the other end of the pipe is closed before it begins.
fn unread(lab: &Lab, line: &str) -> Ended {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    onto(lab, line, writer)
}

/// Runs a command whose output goes there.
fn onto(lab: &Lab, line: &str, stdout: impl Into<Stdio>) -> Ended {
    let mut command = lab.command(line.split_whitespace());
    command.stdout(stdout).stderr(Stdio::piped());
    all_to_their_ends(vec![(line.to_owned(), command)]).remove(0)
}

#[test]
fn a_reader_that_leaves_ends_a_command_in_silence() {
    let lab = Lab::new();
    lab.ok("write 50");
    lab.ok("publish 50");
    for line in ["consume", "--json consume", "verify", "reconcile", "broker status"] {
        assert_eq!(unread(&lab, line).exits(4).stderr, "", "{line}");
    }
    assert_eq!(lab.keys().len(), 50);
    lab.ok("reconcile --expect 50/50/50/50");
}

#[test]
fn a_reader_of_the_first_line_gets_it() {
    let lab = Lab::new();
    lab.ok("write 500");
    lab.ok("publish 500");
    // As `consume | head -1` does; all of it is more than a pipe holds.
    let mut consume = lab.command(["--json", "consume"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(consume.stdout.take().unwrap());
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    assert!(first.contains("evt-1001"), "{first}");
    drop(reader);
    let ended = Ended::of("consume", consume.wait_with_output().unwrap()).exits(4);
    assert_eq!(ended.stderr, "");
    lab.ok("reconcile --expect 500/500/500/500");
}

#[test]
fn what_was_committed_before_the_reader_left_is_there() {
    let lab = Lab::new();
    lab.ok("reset");
    assert_eq!(unread(&lab, "write 50").exits(4).stderr, "");
    assert_eq!(lab.counts(), [1, 1, 0, 1], "it stopped at the first line that it could not print");
    unread(&lab, "write-hold 50").exits(4);
    assert_eq!(lab.counts(), [2, 2, 0, 2]);
    unread(&lab, "rollback").exits(4);
    assert_eq!(lab.counts(), [2, 2, 0, 2]);
    lab.ok("write 48");
    lab.ok("reconcile --expect 50/50/0/0");

    assert_eq!(unread(&lab, "publish 50").exits(4).stderr, "");
    assert_eq!(lab.counts(), [50, 50, 1, 49]);
    lab.ok("reconcile --expect 50/50/1/1");
    // One is sent, and none is marked.
    unread(&lab, "publish-hold 50").exits(4);
    assert_eq!(lab.counts(), [50, 50, 1, 49]);
    lab.ok("publish 50");
    let found = lab.ok("reconcile --expect 50/50/51/50");
    assert!(found.contains("duplicate evt-1002 x2 partition=0 offsets=1,2"), "{found}");
    unread(&lab, "reset").exits(4);
    assert_eq!(lab.counts(), [0; 4]);
}

#[test]
fn an_error_that_nobody_reads_keeps_its_exit_code() {
    let lab = Lab::new();
    for (line, code) in [("verify", 4), ("consume", 3), ("bogus", 2), ("write 0", 2)] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let output = lab.command(line.split_whitespace()).stderr(writer).output().unwrap();
        Ended::of(line, output).exits(code);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn an_output_that_is_full_is_named_and_what_was_done_is_there() {
    let lab = Lab::new();
    let onto_full = |line: &str| {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ended = onto(&lab, line, full).exits(4);
        ended.says("standard output cannot be written").names_next_step().says("see by verify");
    };
    onto_full("reset");
    onto_full("write 50");
    assert_eq!(lab.counts(), [1, 1, 0, 1]);
    lab.ok("write 49");
    onto_full("publish 50");
    assert_eq!(lab.counts(), [50, 50, 1, 49]);
    lab.ok("publish 50");
    for line in ["consume", "--json consume", "verify", "reconcile", "rollback", "broker status"] {
        onto_full(line);
    }
    lab.ok("reconcile --expect 50/50/50/50");
    for line in ["write-hold 1", "publish-hold 1", "write 1 --hold-at after-commit"] {
        onto_full(line);
    }
    // naive stops between its commit and its send: that is the gap that the outbox closes.
    onto_full("naive");
    let found = lab.ok("reconcile");
    assert!(found.contains("orphan row L-2001"), "{found}");
    assert!(!found.contains("lost event") && !found.contains("phantom event"), "{found}");
}

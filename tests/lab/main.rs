//! The lab as a user runs it: real processes, a real database, a real broker, a real `kill -9`.
//!
//! Every test has a lab directory of its own, so they run side by side. Tests that want a real Kafka run where
//! `KAFKA_BOOTSTRAP` is set, and say in one line that they did not where it is not.

// In a test a failed expectation is what a panic is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

mod bad_input;
mod book;
mod clients;
mod experiments;
mod faults;
mod holds;
mod ids;
mod kafka;
mod migration;
mod otherwise;
mod outbox;
mod relay;
mod scripts;
mod sweep;

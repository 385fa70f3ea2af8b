//! The values of options: how each is written, and what is said of one that is not.

use std::net::SocketAddr;
use std::time::Duration;

use crate::lab::is_topic_name;

/// What the lab's counting stands on: an acknowledgement that is one, a reader that reads everything and says when it
/// cannot.
const OWN_PROPERTIES: &[&str] = &[
    "acks",
    "request.required.acks",
    "delivery.report.only.error",
    "partitioner",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "enable.partition.eof",
    "allow.auto.create.topics",
];

/// 1000 years. No outbox is older, and the time so long ago is still one that SQLite can write.
const LONGEST: Duration = Duration::from_secs(1_000 * 31_557_600);

/// The rows of a killed relay wait for its lease to expire: nobody wants to wait longer.
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration <= LONGEST => Ok(duration),
        Ok(_) => Err("1000 years are the most".to_owned()),
        Err(_) => Err("write a number and its unit, as in 500ms, 30s, 15m or 7d".to_owned()),
    }
}

pub(super) fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    if lease <= LONGEST_LEASE {
        return Ok(lease);
    }
    Err("a day (24h) is the most, since the rows of a killed relay wait for its lease to expire".to_owned())
}

pub(super) fn topic(name: &str) -> Result<String, String> {
    if is_topic_name(name) {
        return Ok(name.to_owned());
    }
    Err("a topic name is 1 to 249 letters, digits, dots, underscores and dashes, and neither . nor ..".to_owned())
}

pub(super) fn owner(name: &str) -> Result<String, String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=64).contains(&name.len()) && name.chars().all(legal) {
        return Ok(name.to_owned());
    }
    Err("a name is 1 to 64 letters, digits, dots, underscores and dashes".to_owned())
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "write ADDRESS:PORT, as in 127.0.0.1:9464 or [::1]:9464; port 0 takes a free one".to_owned())
}

pub(super) fn servers(list: &str) -> Result<String, String> {
    let legal = |server: &str| {
        let (host, port) = server.rsplit_once(':')?;
        let is_name = !host.is_empty() && !host.contains(|c: char| c == '/' || c.is_whitespace());
        (is_name && port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(())
    };
    if list.is_empty() || list.split(',').all(|server| legal(server).is_some()) {
        return Ok(list.to_owned());
    }
    Err("write HOST:PORT, as in 127.0.0.1:9092, with commas between several".to_owned())
}

pub(super) fn property(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, as in -X security.protocol=SSL")?;
    match key {
        "bootstrap.servers" | "metadata.broker.list" => Err("name the servers by --bootstrap".to_owned()),
        "message.timeout.ms" | "delivery.timeout.ms" if value.parse().is_ok_and(|ms: u32| ms == 0 || ms > 10_000) => {
            Err("a send is waited for 10 s at the most, as in the book: 1 to 10000".to_owned())
        }
        key if OWN_PROPERTIES.contains(&key) || key.starts_with("test.") => {
            Err("the lab stands on this one: it does not give it away".to_owned())
        }
        _ => Ok((key.to_owned(), value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn an_address_that_is_none_says_how_to_write_one() {
        for text in ["", "9464", "localhost:9464", "127.0.0.1", "127.0.0.1:65536", "::1:9464"] {
            assert!(address(text).is_err_and(|how| how.contains("127.0.0.1:9464")), "{text}");
        }
    }
}

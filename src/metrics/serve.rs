//! `GET /metrics` over HTTP, for a Prometheus on this machine. There is one path and one method, each answer ends its
//! connection, and whatever comes in, the relay goes on.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Metrics;
use super::exposition::{CONTENT_TYPE, exposition};
use crate::clock::now_ms;
use crate::failure::Failure;
use crate::store::{Store, in_words};

/// Who serves: a client that is slow keeps one of them, and the others go on.
const WORKERS: usize = 4;

/// How long a client may take, from its first byte to its last.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a request may be: its first line and its headers.
const REQUEST: usize = 8 * 1024;

/// Refuses an address that others can reach, unless they are meant to.
///
/// # Errors
/// Usage: it is not a loopback address.
pub fn loopback_only(addr: SocketAddr, anywhere: bool) -> Result<()> {
    if anywhere || addr.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(Failure::usage(
        format!("{addr} is not a loopback address: whoever reaches it would read the metrics"),
        format!("--metrics 127.0.0.1:{}, or add --metrics-anywhere if that is meant", addr.port()),
    ))
}

/// Serves the gauges of a database and the counters of a relay, for as long as the process lives. The store is a connection
/// of the server's own: [`Store::again`]. Returns the address, whose port is known only now if it was 0.
///
/// # Errors
/// The address is in use, or not this machine's, or not permitted.
pub fn serve(addr: SocketAddr, metrics: &Arc<Metrics>, store: Store) -> Result<SocketAddr> {
    let listener = TcpListener::bind(addr).map_err(|error| cannot_serve(addr, &error))?;
    let listening = listener.local_addr()?;
    let server = Arc::new(Server { listener, metrics: Arc::clone(metrics), store: Mutex::new(store) });
    for _ in 0..WORKERS {
        let server = Arc::clone(&server);
        thread::Builder::new().name("metrics".to_owned()).spawn(move || server.work())?;
    }
    Ok(listening)
}

fn cannot_serve(addr: SocketAddr, error: &io::Error) -> anyhow::Error {
    let (why, next) = match error.kind() {
        ErrorKind::AddrInUse => ("another program serves there", "take another port; 0 takes a free one".to_owned()),
        ErrorKind::PermissionDenied => ("not permitted", "take a port above 1023; 0 takes a free one".to_owned()),
        ErrorKind::AddrNotAvailable => {
            ("this machine has no such address", format!("take one that it has: 127.0.0.1:{}", addr.port()))
        }
        _ => ("the system refuses", "take another address".to_owned()),
    };
    Failure::failed(format!("the metrics cannot be served on {addr}: {why} ({error})"), format!("--metrics: {next}"))
}

struct Server {
    listener: TcpListener,
    metrics: Arc<Metrics>,
    store: Mutex<Store>,
}

struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Answer {
    fn plain(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() + "\n" }
    }
}

impl Server {
    fn work(&self) {
        loop {
            match self.listener.accept() {
                // Whoever leaves early needs no answer.
                Ok((client, _)) => drop(self.serve(client)),
                // No file descriptor is free, or the like: not to be asked for again at once.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        client.set_write_timeout(Some(PATIENCE))?;
        let request = read_request(&mut client, deadline)?;
        let Answer { status, content_type, body } = self.answer(&request);
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nAllow: GET\r\n\
             Connection: close\r\n\r\n",
            body.len()
        );
        client.write_all((head + &body).as_bytes())?;
        client.shutdown(Shutdown::Write)?;
        // Closed with something unread, the connection would be reset, and the answer lost with it.
        while read_some(&mut client, deadline, &mut [0; 1024])? > 0 {}
        Ok(())
    }

    fn answer(&self, request: &[u8]) -> Answer {
        let line = request.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or_default();
        let mut words = std::str::from_utf8(line).unwrap_or_default().split(' ');
        let (method, target, version) = (words.next(), words.next(), words.next());
        let (Some(method), Some(target), true) = (method, target, version.is_some_and(|v| v.starts_with("HTTP/1.")))
        else {
            return Answer::plain("400 Bad Request", "this is no HTTP/1 request");
        };
        if target.split('?').next() != Some("/metrics") {
            return Answer::plain("404 Not Found", "the metrics are at /metrics");
        }
        if method != "GET" {
            return Answer::plain("405 Method Not Allowed", "the metrics are to be had by GET");
        }
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        match store.stats(now_ms()) {
            Ok(stats) => {
                Answer { status: "200 OK", content_type: CONTENT_TYPE, body: exposition(&stats, Some(&self.metrics)) }
            }
            Err(error) => {
                let failure = Failure::from(in_words(error, store.path()));
                Answer::plain("500 Internal Server Error", failure.to_string())
            }
        }
    }
}

/// The first line and the headers, or what there was of them when the client stopped.
fn read_request(client: &mut TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    while request.len() < REQUEST && !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match read_some(client, deadline, &mut piece)? {
            0 => break,
            n => request.extend_from_slice(&piece[..n]),
        }
    }
    Ok(request)
}

/// Reads what has come until the deadline, not a byte a minute for ever.
fn read_some(client: &mut TcpStream, deadline: Instant, piece: &mut [u8]) -> io::Result<usize> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    client.set_read_timeout(Some(left))?;
    client.read(piece)
}

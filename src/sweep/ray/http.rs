//! As much of HTTP/1.1 as Ray's Jobs API needs: one request a connection, JSON both ways, no encryption.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A server at `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    host: String,
}

impl Server {
    /// From an address; otherwise what is wrong with it.
    pub fn new(address: &str) -> Result<Self, String> {
        let host = match address.split_once("://") {
            Some(("http", rest)) => rest,
            None => address,
            Some((scheme, _)) => {
                return Err(format!(
                    "{address}: {scheme} is not spoken here; use http://HOST:PORT of the dashboard (port 8265)"
                ));
            }
        };
        let host = host.trim_end_matches('/');
        if host.is_empty() || host.contains(['/', ' ']) {
            return Err(format!("{address}: expected http://HOST:PORT"));
        }
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:8265") };
        Ok(Self { host })
    }

    /// Sends a request; the answer, or what went wrong.
    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let body = body.map_or(String::new(), Value::to_string);
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAccept: application/json\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.host,
            body.len()
        );
        let answer =
            self.exchange(request.as_bytes()).map_err(|error| format!("http://{}{path}: {error}", self.host))?;
        let (status, content) =
            parse(&answer).ok_or_else(|| format!("http://{}{path}: no HTTP answer came", self.host))?;
        if !(200..300).contains(&status) {
            let said = String::from_utf8_lossy(&content);
            let said: String =
                said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("").chars().take(300).collect();
            return Err(format!("http://{}{path}: status {status}: {said}", self.host));
        }
        serde_json::from_slice(&content)
            .map_err(|error| format!("http://{}{path}: the answer is no JSON: {error}", self.host))
    }

    fn exchange(&self, request: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut failure = std::io::Error::other("the address has no host");
        for address in self.host.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Err(error) => failure = error,
                Ok(mut stream) => {
                    stream.set_read_timeout(Some(TIMEOUT))?;
                    stream.set_write_timeout(Some(TIMEOUT))?;
                    stream.write_all(request)?;
                    let mut answer = Vec::new();
                    stream.read_to_end(&mut answer)?;
                    return Ok(answer);
                }
            }
        }
        Err(failure)
    }
}

/// Status and content of an answer; `None` when it is none, or ends too early.
fn parse(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = memchr::memmem::find(answer, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<(String, &str)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim()))
        .collect();
    let header = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value);
    let rest = &answer[end + 4..];
    if header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        return Some((status, unchunked(rest)?));
    }
    match header("content-length") {
        Some(length) => Some((status, rest.get(..length.parse().ok()?)?.to_vec())),
        None => Some((status, rest.to_vec())),
    }
}

/// The content of pieces that each say their length (RFC 9112, section 7.1).
fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let end = memchr::memmem::find(rest, b"\r\n")?;
        let length = std::str::from_utf8(&rest[..end]).ok()?;
        let length = usize::from_str_radix(length.split(';').next()?.trim(), 16).ok()?;
        rest = &rest[end + 2..];
        if length == 0 {
            return Some(content);
        }
        content.extend_from_slice(rest.get(..length)?);
        rest = rest.get(length..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_whole_in_pieces_and_cut_off() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(parse(whole), Some((200, b"{}".to_vec())));
        let pieces =
            b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n";
        assert_eq!(parse(pieces), Some((404, b"abcde".to_vec())));
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), None, "{length} bytes of an answer were taken for all of it");
        }
        for length in 0..pieces.len() - 3 {
            assert_eq!(parse(&pieces[..length]), None, "{length} bytes of an answer were taken for all of it");
        }
    }

    #[test]
    fn addresses() {
        let host = |address: &str| Server::new(address).map(|server| server.host);
        assert_eq!(host("http://127.0.0.1:8265/"), Ok("127.0.0.1:8265".to_owned()));
        assert_eq!(host("head"), Ok("head:8265".to_owned()));
        assert!(host("ray://head:10001").unwrap_err().contains("http://HOST:PORT"));
        assert!(host("http://").is_err());
    }
}

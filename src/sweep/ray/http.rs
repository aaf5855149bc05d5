//! The subset of HTTP/1.1 that Ray's Jobs API needs: one request per connection, JSON in both directions, no encryption.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a response; a job's log comes in one response.
const MOST_BYTES: u64 = 64 << 20;

/// A server at `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    host: String,
}

impl Server {
    /// Parses an address; the default port is 8265.
    ///
    /// # Errors
    /// A message for an address that is not `http://HOST:PORT`.
    pub fn new(address: &str) -> Result<Self, String> {
        let host = match address.split_once("://") {
            Some(("http", rest)) => rest,
            None => address,
            Some((scheme, _)) => {
                return Err(format!(
                    "{address}: {scheme} is not supported; use http://HOST:PORT of the dashboard (port 8265)"
                ));
            }
        };
        let host = host.trim_end_matches('/');
        if host.is_empty()
            || host.contains(|letter: char| letter == '/' || letter.is_whitespace() || letter.is_control())
        {
            return Err(format!("{address:?}: expected http://HOST:PORT"));
        }
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:8265") };
        Ok(Self { host })
    }

    /// Sends a request and returns the response's JSON.
    ///
    /// # Errors
    /// A message if the request fails, its status is not 2xx, or the response is not JSON.
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
            parse(&answer).ok_or_else(|| format!("http://{}{path}: no valid HTTP response", self.host))?;
        if !(200..300).contains(&status) {
            let said = String::from_utf8_lossy(&content);
            let said: String =
                said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("").chars().take(300).collect();
            return Err(format!("http://{}{path}: status {status}: {said}", self.host));
        }
        serde_json::from_slice(&content)
            .map_err(|error| format!("http://{}{path}: the response is not JSON: {error}", self.host))
    }

    fn exchange(&self, request: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut failure = std::io::Error::other("the host name has no address");
        for address in self.host.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Err(error) => failure = error,
                Ok(mut stream) => {
                    stream.set_read_timeout(Some(TIMEOUT))?;
                    stream.set_write_timeout(Some(TIMEOUT))?;
                    stream.write_all(request)?;
                    return read_answer(stream, MOST_BYTES);
                }
            }
        }
        Err(failure)
    }
}

/// Reads until the server closes the connection.
///
/// # Errors
/// If the response is longer than `most_bytes`: an endless one would fill the memory.
fn read_answer(stream: impl Read, most_bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    stream.take(most_bytes + 1).read_to_end(&mut answer)?;
    if answer.len() as u64 > most_bytes {
        return Err(std::io::Error::other(format!("the response is longer than the limit of {most_bytes} bytes")));
    }
    Ok(answer)
}

/// Parses a response into status and content; `None` if it is invalid or truncated.
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

/// Decodes the chunked transfer coding (RFC 9112, section 7.1); `None` if it is invalid or truncated.
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
            assert_eq!(parse(&whole[..length]), None, "{length} bytes of a response were accepted as complete");
        }
        for length in 0..pieces.len() - 3 {
            assert_eq!(parse(&pieces[..length]), None, "{length} bytes of a response were accepted as complete");
        }
    }

    #[test]
    fn an_endless_answer_is_cut_off() {
        let said = read_answer(std::io::repeat(b'x'), 1000).unwrap_err().to_string();
        assert_eq!(said, "the response is longer than the limit of 1000 bytes");
        assert_eq!(read_answer(std::io::repeat(b'x').take(1000), 1000).unwrap().len(), 1000);
    }

    #[test]
    fn a_server_that_never_ends_its_answer_is_an_error() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::new(&listener.local_addr().unwrap().to_string()).unwrap();
        let answers = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            // Until the client closes the connection.
            while stream.write_all(&[b' '; 1 << 16]).is_ok() {}
        });
        let said = server.call("GET", "/api/jobs/", None).unwrap_err();
        assert!(said.ends_with("/api/jobs/: the response is longer than the limit of 67108864 bytes"), "{said}");
        answers.join().unwrap();
    }

    #[test]
    fn addresses() {
        let host = |address: &str| Server::new(address).map(|server| server.host);
        assert_eq!(host("http://127.0.0.1:8265/"), Ok("127.0.0.1:8265".to_owned()));
        assert_eq!(host("head"), Ok("head:8265".to_owned()));
        assert!(host("ray://head:10001").unwrap_err().contains("http://HOST:PORT"));
        assert!(host("http://").is_err());
        assert!(host("head\r\nX-Header: 1").unwrap_err().contains("expected http://HOST:PORT"));
    }
}

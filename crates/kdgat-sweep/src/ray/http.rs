//! Requests to Ray's Jobs API: one per connection, JSON in both directions, no encryption.

use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::http::Request;

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
    /// A message if the request fails, its status is not 2xx, or the response is incomplete, too long or not JSON.
    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let url = format!("http://{}{path}", self.host);
        let (status, content) = self.exchange(method, &url, body, MOST_BYTES).map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(limit) => {
                format!("{url}: the response is longer than the limit of {limit} bytes")
            }
            error => format!("{url}: {error}"),
        })?;
        if !(200..300).contains(&status) {
            let said = String::from_utf8_lossy(&content);
            let said: String =
                said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("").chars().take(300).collect();
            return Err(format!("{url}: status {status}: {said}"));
        }
        serde_json::from_slice(&content).map_err(|error| format!("{url}: the response is not JSON: {error}"))
    }

    /// Sends a request; returns the response's status and content.
    fn exchange(
        &self,
        method: &str,
        url: &str,
        body: Option<&Value>,
        most_bytes: u64,
    ) -> Result<(u16, Vec<u8>), ureq::Error> {
        let agent: Agent = Agent::config_builder()
            .timeout_connect(Some(TIMEOUT))
            .timeout_send_request(Some(TIMEOUT))
            .timeout_send_body(Some(TIMEOUT))
            .timeout_recv_response(Some(TIMEOUT))
            .timeout_recv_body(Some(TIMEOUT))
            // An error's text is in its body.
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections(0)
            // The cluster is addressed directly, whatever proxy is set for other programs.
            .proxy(None)
            .build()
            .into();
        let request = Request::builder()
            .method(method)
            .uri(url)
            .header("Accept", "application/json")
            .header("Content-Type", "application/json");
        let mut response = match body {
            Some(body) => agent.run(request.body(body.to_string())?)?,
            None => agent.run(request.body(())?)?,
        };
        // An endless response would fill the memory.
        let content = response.body_mut().with_config().limit(most_bytes).read_to_vec()?;
        Ok((response.status().as_u16(), content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Answers one request with `answer`, then closes the connection; returns what `ask` makes of it.
    fn answered_with<T>(answer: &[u8], ask: impl FnOnce(&Server, &str) -> T) -> T {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::new(&listener.local_addr().unwrap().to_string()).unwrap();
        let url = format!("http://{}/api/jobs/", server.host);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut request, mut block) = (Vec::new(), [0; 4096]);
                while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                    let count = stream.read(&mut block).unwrap();
                    assert!(count > 0, "the request ended early");
                    request.extend_from_slice(&block[..count]);
                }
                // The client closes the connection early if the answer is longer than it accepts.
                let _ = stream.write_all(answer);
            });
            ask(&server, &url)
        })
    }

    #[test]
    fn answers_whole_in_pieces_and_cut_off() {
        let exchange =
            |answer: &[u8]| answered_with(answer, |server, url| server.exchange("GET", url, None, MOST_BYTES));
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(exchange(whole).unwrap(), (200, b"{}".to_vec()));
        let pieces =
            b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n";
        assert_eq!(exchange(pieces).unwrap(), (404, b"abcde".to_vec()));
        for length in 0..whole.len() {
            assert!(exchange(&whole[..length]).is_err(), "{length} bytes of a response were accepted as complete");
        }
        for length in 0..pieces.len() - 3 {
            assert!(exchange(&pieces[..length]).is_err(), "{length} bytes of a response were accepted as complete");
        }
    }

    #[test]
    fn an_endless_answer_is_cut_off() {
        let answer = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &[b' '; 2000]].concat();
        let exchange = |most_bytes| answered_with(&answer, |server, url| server.exchange("GET", url, None, most_bytes));
        assert!(matches!(exchange(1000), Err(ureq::Error::BodyExceedsLimit(1000))));
        assert_eq!(exchange(2000).unwrap().1.len(), 2000);
    }

    #[test]
    fn a_server_that_never_ends_its_answer_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
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
    fn the_text_of_an_error_is_reported() {
        let answer = b"HTTP/1.1 500 Oops\r\nContent-Length: 17\r\n\r\nTrace\nno such job";
        let said = answered_with(answer, |server, _| server.call("GET", "/api/jobs/", None)).unwrap_err();
        assert!(said.ends_with("/api/jobs/: status 500: no such job"), "{said}");
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

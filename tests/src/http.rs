//! A server on this machine whose answers a test decides.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRequest {
    /// The path, without the slash at its beginning.
    pub path: String,
    /// The bytes that `Range` names.
    pub range: Option<Range<usize>>,
    /// How many requests came before.
    pub number: usize,
}

/// What the server says.
#[derive(Debug, Clone)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// Headers, besides the length.
    pub headers: Vec<String>,
    /// The bytes that are sent.
    pub body: Vec<u8>,
    /// `Content-Length`, if it is sent.
    pub length: Option<usize>,
    /// Whether the server then keeps the connection open and is silent.
    pub stalls: bool,
}

impl HttpAnswer {
    /// A whole body.
    pub fn new(status: u16, body: &[u8]) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.to_vec(),
            length: Some(body.len()),
            stalls: false,
        }
    }

    /// The bytes of a file that a request names, all without `Range`.
    pub fn of(file: &[u8], request: &HttpRequest) -> Self {
        let Some(range) = request.range.clone() else {
            return Self::new(200, file);
        };
        let range = range.start..range.end.min(file.len());
        if range.is_empty() {
            return Self::new(416, b"");
        }
        let content = format!(
            "Content-Range: bytes {}-{}/{}",
            range.start,
            range.end - 1,
            file.len()
        );
        Self::new(206, &file[range]).with(&content)
    }

    /// With a header more.
    #[must_use]
    pub fn with(mut self, header: &str) -> Self {
        self.headers.push(header.to_owned());
        self
    }
}

/// A server on a free port. It ends with the process.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<HttpRequest>>>,
}

impl HttpServer {
    /// Answers each request as `answer` says, each on a thread of its own.
    ///
    /// # Panics
    /// Panics without a free port.
    pub fn start(answer: impl Fn(&HttpRequest) -> HttpAnswer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let (answer, count) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (answer, count) = (Arc::clone(&answer), Arc::clone(&count));
                let seen = Arc::clone(&seen);
                thread::spawn(move || {
                    let respond = || {
                        let request = read(&connection, &count)?;
                        seen.lock().expect("no panic").push(request.clone());
                        write(&connection, &answer(&request))
                    };
                    // A client that goes away is the client's business.
                    let _ = respond();
                });
            }
        });
        Self { address, requests }
    }

    /// Serves the files of a folder, with ranges.
    pub fn of_folder(folder: impl Into<std::path::PathBuf>) -> Self {
        let folder = folder.into();
        Self::start(
            move |request| match std::fs::read(folder.join(&request.path)) {
                Ok(file) => HttpAnswer::of(&file, request),
                Err(_) => HttpAnswer::new(404, b""),
            },
        )
    }

    /// The address of a file.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// The requests so far.
    ///
    /// # Panics
    /// Panics if an answer did.
    pub fn requests(&self) -> Vec<HttpRequest> {
        self.requests.lock().expect("no panic").clone()
    }
}

fn read(connection: &TcpStream, count: &AtomicUsize) -> io::Result<HttpRequest> {
    let mut lines = BufReader::new(connection).lines();
    let first = lines.next().unwrap_or(Ok(String::new()))?;
    let path = first.split_whitespace().nth(1).unwrap_or("/");
    let mut range = None;
    for line in lines {
        let line = line?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some((first, last)) = line
            .strip_prefix("range: bytes=")
            .and_then(|range| range.split_once('-'))
        {
            let number = |text: &str| text.parse::<usize>().map_err(io::Error::other);
            range = Some(number(first)?..number(last)? + 1);
        }
    }
    Ok(HttpRequest {
        path: path.trim_start_matches('/').to_owned(),
        range,
        number: count.fetch_add(1, Ordering::Relaxed),
    })
}

fn write(mut connection: &TcpStream, answer: &HttpAnswer) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", answer.status);
    for header in &answer.headers {
        head.push_str(&format!("{header}\r\n"));
    }
    if let Some(length) = answer.length {
        head.push_str(&format!("Content-Length: {length}\r\n"));
    }
    connection.write_all(format!("{head}\r\n").as_bytes())?;
    connection.write_all(&answer.body)?;
    if answer.stalls {
        // Until the client has had enough.
        connection.read_to_end(&mut Vec::new())?;
    }
    Ok(())
}

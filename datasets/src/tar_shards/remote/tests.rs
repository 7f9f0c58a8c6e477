use std::path::PathBuf;

use everburn_tests::tar::archive;
use everburn_tests::{AssertContains, HttpAnswer, HttpRequest, HttpServer};

use super::*;
use crate::tar_shards::TarShards;
use crate::{DatasetError, TarSample};

/// No pauses, and time enough for a busy machine.
const GENEROUS: Patience = Patience {
    pause: Duration::ZERO,
    tries: 3,
    ..Patience::USUAL
};

/// Files of all sizes: kept in the index, near and far to pass over.
fn shard(number: u8) -> Vec<u8> {
    let bytes = |size: u32| (0..size).map(move |at| (at * 7 + u32::from(number)) as u8);
    let [small, middle, large] = [90, 200_000, 9 << 20].map(|size| bytes(size).collect::<Vec<_>>());
    archive(&[
        ("d/000.bin", &small),
        ("d/000.cls", b"1"),
        ("d/001.bin", &middle),
        ("d/001.cls", b""),
        ("d/002.bin", &large),
        ("d/002.cls", b"22"),
        ("d/003.bin", &middle),
        ("d/003.cls", b"3"),
    ])
}

fn open(urls: &[String], patience: Patience) -> Result<TarShards, DatasetError> {
    let files: Vec<_> = urls.iter().map(PathBuf::from).collect();
    TarShards::open_with(&files, patience)
}

fn samples(shards: &TarShards) -> Vec<TarSample> {
    let samples = (0..shards.len()).map(|index| shards.sample(index).unwrap());
    samples.collect()
}

/// The error of a server that answers like this, from opening or from the last sample.
fn refused(
    patience: Patience,
    answer: impl Fn(&[u8], &HttpRequest) -> HttpAnswer + Send + Sync + 'static,
) -> String {
    let file = shard(0);
    let server = HttpServer::start(move |request| answer(&file, request));
    let url = server.url("a.tar");
    let error = match open(std::slice::from_ref(&url), patience) {
        Ok(shards) => shards.sample(3).unwrap_err(),
        Err(error) => error,
    };
    let error = error.to_string();
    let start = format!("cannot read `{url}`: ");
    assert!(error.starts_with(&start), "{error}");
    error
}

#[test]
fn samples_of_a_server_are_those_of_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["0.tar", "1.tar"];
    for (number, name) in names.iter().enumerate() {
        std::fs::write(folder.path().join(name), shard(number as u8)).unwrap();
    }
    let disk = TarShards::open(&names.map(|name| folder.path().join(name))).unwrap();
    let server = HttpServer::of_folder(folder.path());
    let remote = open(&names.map(|name| server.url(name)), GENEROUS).unwrap();
    let sizes = |requests: &[HttpRequest]| {
        let ranges = requests
            .iter()
            .map(|request| request.range.clone().unwrap());
        ranges.map(|range| range.len() as u64).collect::<Vec<_>>()
    };
    let asked = sizes(&server.requests());
    // What is far is not read.
    assert!(asked.iter().sum::<u64>() < 12 << 20, "{asked:?}");
    assert!(asked.iter().all(|size| *size <= LARGEST_REQUEST));
    assert_eq!(remote.fingerprint(), disk.fingerprint());
    // Classes are in the index.
    let before = server.requests().len();
    assert_eq!(remote.read(7, "cls").unwrap().unwrap(), b"3");
    assert_eq!(server.requests().len(), before);
    assert_eq!(samples(&remote), samples(&disk));
    assert_eq!(remote.len(), 8);
    // A sample is one request of its bytes.
    let before = server.requests().len();
    remote.sample(4).unwrap();
    assert_eq!(sizes(&server.requests()[before..]), [90]);
}

#[test]
fn a_failure_that_passes_is_tried_again_from_where_it_broke_off() {
    let file = shard(1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    std::fs::write(&path, &file).unwrap();
    let server = HttpServer::start(move |request| {
        let mut answer = HttpAnswer::of(&file, request);
        match request.number % 3 {
            0 => HttpAnswer::new(503, b"busy"),
            1 => {
                answer.body.truncate(answer.body.len() / 2);
                answer
            }
            _ => answer,
        }
    });
    let remote = open(
        &[server.url("a.tar")],
        Patience {
            tries: 5,
            ..GENEROUS
        },
    )
    .unwrap();
    let disk = TarShards::open(&[path]).unwrap();
    assert_eq!(samples(&remote), samples(&disk));
}

#[test]
fn an_answer_that_is_of_no_use_is_refused_with_what_to_check() {
    type Answers = fn(&[u8], &HttpRequest) -> HttpAnswer;
    let cases: [(Answers, &str); 11] = [
        (
            |_, _| HttpAnswer::new(404, b""),
            "404 Not Found: there is no such file",
        ),
        (
            |_, _| HttpAnswer::new(403, b""),
            "403 Forbidden: the server refuses access",
        ),
        (
            |_, _| HttpAnswer::new(500, b""),
            "500 Internal Server Error: check the server, and try again later (3 tries)",
        ),
        (
            |file, _| HttpAnswer::new(200, file),
            "200 OK: the server ignores Range",
        ),
        (
            |_, request| HttpAnswer::of(b"", request),
            "416 Range Not Satisfiable: it is empty",
        ),
        (|_, _| HttpAnswer::new(206, b"x"), "Content-Range is ``"),
        (
            |_, _| HttpAnswer::new(206, b"x").with("Content-Range: bytes 0-0/*"),
            "Content-Range is `bytes 0-0/*`",
        ),
        (
            |_, _| HttpAnswer::new(206, b"x").with("Content-Range: bytes 5-5/99"),
            "the server sends the bytes 5 to 5 of 99, and 0 to 0 were asked for",
        ),
        (
            |file, request| HttpAnswer::of(file, request).with("Content-Encoding: br"),
            "in the encoding br",
        ),
        (
            |file, request| {
                let mut answer = HttpAnswer::of(file, request);
                if request.number > 0 {
                    answer.body.pop();
                    answer.body.truncate(1);
                }
                answer
            },
            "(3 tries)",
        ),
        (
            |file, request| {
                let mut answer = HttpAnswer::of(file, request);
                if request.number > 0 {
                    answer.length = None;
                    answer.body.push(0);
                }
                answer
            },
            "the server sends more bytes than were asked for",
        ),
    ];
    for (answer, problem) in cases {
        let error = refused(GENEROUS, answer);
        assert!(error.contains(problem), "{problem}: {error}");
    }
}

#[test]
fn a_length_that_is_not_said_is_that_of_the_range() {
    let file = shard(2);
    let server = HttpServer::start(move |request| HttpAnswer {
        length: None,
        ..HttpAnswer::of(&file, request)
    });
    let shards = open(&[server.url("a.tar")], GENEROUS).unwrap();
    assert_eq!(shards.sample(0).unwrap().files["bin"].len(), 90);
}

#[test]
fn a_shard_that_changes_is_refused_by_name() {
    /// Later than the index has been read, before the last sample.
    fn later(request: &HttpRequest) -> bool {
        request
            .range
            .as_ref()
            .is_some_and(|range| range.len() == 200_000)
    }
    let tagged = refused(GENEROUS, |file, request| {
        let tag = if later(request) { "b" } else { "a" };
        HttpAnswer::of(file, request)
            .with(&format!("ETag: \"{tag}\""))
            .with("Last-Modified: now")
    });
    tagged.assert_contains(["it has changed since the training began"]);
    tagged.assert_contains([r#"its ETag was \"a\", and is \"b\""#]);
    let dated = refused(GENEROUS, |file, request| {
        let date = if later(request) { "Tuesday" } else { "Monday" };
        HttpAnswer::of(file, request).with(&format!("Last-Modified: {date}"))
    });
    dated.assert_contains(["its Last-Modified was Monday, and is Tuesday"]);
    let longer = refused(GENEROUS, |file, request| match later(request) {
        true => HttpAnswer::of(&[file, b"more"].concat(), request),
        false => HttpAnswer::of(file, request),
    });
    assert!(longer.contains("bytes, and has"), "{longer}");
}

#[test]
fn a_silent_server_is_given_up_at_the_deadline() {
    let within = |each_read| Patience {
        deadlines: Deadlines {
            each_read,
            ..Deadlines::FILE
        },
        tries: 2,
        ..GENEROUS
    };
    let short = within(Duration::from_millis(50));
    // On a busy machine the beginning of the answer may not come in that time either.
    let silent = (0..8).map(|doubled| {
        refused(
            within(short.deadlines.each_read * (1 << doubled)),
            |_, _| HttpAnswer {
                length: Some(100),
                stalls: true,
                ..HttpAnswer::new(206, b"").with("Content-Range: bytes 0-0/5000")
            },
        )
    });
    let mut silent = silent.skip_while(|error| error.contains("did not answer in time"));
    let silent = silent.next().expect("the server has begun to answer");
    silent.assert_contains(["the answer broke off", "(2 tries)"]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/a.tar", listener.local_addr().unwrap());
    // Connections are open, and nobody reads them.
    let error = open(&[url], short).unwrap_err().to_string();
    error.assert_contains(["the server did not answer in time"]);
}

#[test]
fn redirects_are_followed_a_few_times_and_not_shown() {
    let file = shard(3);
    let server = HttpServer::start(move |request| {
        let redirect = |to: &str| HttpAnswer::new(302, b"").with(&format!("Location: {to}"));
        match request.path.split('?').next() {
            Some("a.tar") => redirect("/elsewhere.tar?secret"),
            Some("elsewhere.tar") => HttpAnswer::of(&file, request),
            _ => redirect("/loop.tar?secret"),
        }
    });
    let shards = open(&[server.url("a.tar")], GENEROUS).unwrap();
    assert_eq!(shards.read(3, "cls").unwrap().unwrap(), b"3");
    assert_eq!(shards.sample(3).unwrap().files["bin"].len(), 200_000);
    let error = open(&[server.url("loop.tar")], GENEROUS)
        .unwrap_err()
        .to_string();
    error.assert_contains(["it is redirected more than 5 times"]);
    assert!(!error.contains("secret"), "{error}");
}

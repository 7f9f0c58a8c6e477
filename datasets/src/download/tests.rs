//! Downloads from a server of our own, on this machine.

#![allow(
    clippy::print_stderr,
    reason = "a test says what it measured or why it was skipped"
)]

use std::io::Write;

use everburn_tests::{AssertContains, HttpAnswer, HttpServer};

use super::*;
use crate::cifar::writing::gzip;
use crate::collection::{Content, IdxFile, Sha256Of};

const IMAGES: [&str; 2] = ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte"];
const LABELS: [&str; 2] = ["train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"];

fn labels_file() -> Vec<u8> {
    vec![0, 0, 8, 1, 0, 0, 0, 2, 3, 7]
}

fn images_file() -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28];
    bytes.extend((0..2 * 784).map(|pixel| pixel as u8));
    bytes
}

/// A set of two images a split.
fn tiny() -> Collection {
    let file = |name, content, bytes: Vec<u8>| {
        // The field is for constants; a few bytes leak in a test.
        let sha256: &'static str = format!("{:x}", Sha256::digest(bytes)).leak();
        IdxFile {
            name,
            content,
            items: 2,
            sha256: Sha256Of::Content(sha256),
        }
    };
    Collection {
        name: "tiny",
        title: "Tiny",
        folder: "tiny",
        mirrors: &[],
        files: [
            file(IMAGES[0], Content::Images, images_file()),
            file(LABELS[0], Content::Labels, labels_file()),
            file(IMAGES[1], Content::Images, images_file()),
            file(LABELS[1], Content::Labels, labels_file()),
        ],
    }
}

/// The same, published with the hashes of its compressed files.
fn tiny_compressed() -> Collection {
    let mut collection = tiny();
    for file in &mut collection.files {
        let hash = format!("{:x}", Sha256::digest(whole(file.name).body));
        file.sha256 = Sha256Of::Compressed(hash.leak());
    }
    collection
}

/// The address of a server that answers by the file's name.
fn serve(answer: impl Fn(&str) -> HttpAnswer + Send + Sync + 'static) -> String {
    HttpServer::start(move |request| answer(&request.path)).url("")
}

fn plain(name: &str) -> Vec<u8> {
    match name.contains("images") {
        true => images_file(),
        false => labels_file(),
    }
}

fn whole(name: &str) -> HttpAnswer {
    HttpAnswer::new(200, &gzip(&plain(name)))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn a_download_is_verified_and_stored_whole() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("new/tiny");
    let collection = tiny();
    fetch(&collection, &[serve(whole)], &into).unwrap();
    assert_eq!(names(&into).len(), 4, "{:?}", names(&into));
    let [train, test] = collection.read(&into).unwrap();
    assert_eq!((train.labels(), test.len()), ([3, 7].as_slice(), 2));
}

#[test]
fn an_answer_that_was_decompressed_on_the_way_is_stored_plain() {
    let folder = tempfile::tempdir().unwrap();
    let mirror = serve(|name| HttpAnswer::new(200, &plain(name)));
    fetch(&tiny(), &[mirror], folder.path()).unwrap();
    let names = names(folder.path());
    assert!(names.iter().all(|name| !name.ends_with(".gz")), "{names:?}");
    tiny().read(folder.path()).unwrap();
}

#[test]
fn what_is_there_is_not_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(LABELS[0]), labels_file()).unwrap();
    let mirror = serve(|name| {
        assert!(!name.starts_with(LABELS[0]), "fetched {name}");
        whole(name)
    });
    fetch(&tiny(), &[mirror], folder.path()).unwrap();
    assert_eq!(names(folder.path()).len(), 4);
}

#[test]
fn the_next_mirror_is_tried_after_one_that_lies_or_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let altered = serve(|_| HttpAnswer::new(200, &gzip(&labels_file()[..9])));
    let missing = serve(|_| HttpAnswer::new(404, b""));
    fetch(&tiny(), &[altered, missing, serve(whole)], folder.path()).unwrap();
    tiny().read(folder.path()).unwrap();
}

#[test]
fn when_no_mirror_helps_each_is_named_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let html = serve(|_| HttpAnswer::new(200, b"<html>log in"));
    let missing = serve(|_| HttpAnswer::new(404, b""));
    let cut = serve(|name| {
        let mut answer = whole(name);
        answer.body.truncate(answer.body.len() / 2);
        answer
    });
    let huge = serve(|_| HttpAnswer {
        length: Some(1 << 40),
        ..HttpAnswer::new(200, b"")
    });
    let mirrors = [html, missing, cut, huge, "http://127.0.0.1:1/".to_owned()];
    let error = fetch(&tiny(), &mirrors, folder.path())
        .unwrap_err()
        .to_string();
    for (mirror, reason) in mirrors.iter().zip([
        "the answer is not an IDX file of images",
        "404",
        "", // how a cut connection is reported is the HTTP client's matter
        "is too large: more than",
        "refused",
    ]) {
        let failure = error
            .split("; ")
            .find(|part| part.starts_with(mirror.as_str()));
        assert!(
            failure.is_some_and(|part| part.contains(reason)),
            "{mirror} {reason}: {error}"
        );
    }
    assert_eq!(names(folder.path()), [""; 0], "a partial file was left");
}

#[test]
fn an_altered_download_is_refused_by_its_hash() {
    for (collection, what) in [(tiny(), "file: the SHA-256"), (tiny_compressed(), "file")] {
        let folder = tempfile::tempdir().unwrap();
        let mirror = serve(|_| {
            let mut bytes = images_file();
            bytes[100] ^= 1;
            HttpAnswer::new(200, &gzip(&bytes))
        });
        let error = fetch(&collection, &[mirror], folder.path()).unwrap_err();
        let what = format!("not the published Tiny {what}");
        error.to_string().assert_contains([&what]);
        assert_eq!(names(folder.path()), [""; 0]);
    }
}

#[test]
fn compressed_files_are_verified_by_the_hash_of_what_is_downloaded() {
    let folder = tempfile::tempdir().unwrap();
    let collection = tiny_compressed();
    fetch(&collection, &[serve(whole)], folder.path()).unwrap();
    collection.read(folder.path()).unwrap();
    // The same content, compressed in another way, cannot be told from an altered one.
    let path = folder.path().join(format!("{}.gz", LABELS[0]));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    encoder.write_all(&labels_file()).unwrap();
    std::fs::write(&path, encoder.finish().unwrap()).unwrap();
    let error = collection.read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("the SHA-256 of the file is"), "{error}");
    // A plain file has no published hash.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(folder.path().join(LABELS[0]), labels_file()).unwrap();
    let error = collection.read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("cannot be verified"), "{error}");
    assert!(error.contains(&format!("put {}.gz", LABELS[0])), "{error}");
}

#[test]
fn a_folder_that_cannot_be_written_is_named_before_anything_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("file");
    std::fs::write(&in_the_way, "").unwrap();
    let mirror = serve(|name| panic!("fetched {name}"));
    let error = fetch(&tiny(), &[mirror], &in_the_way.join("tiny"))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("cannot write to ") && error.contains("file/tiny"),
        "{error}"
    );
}

#[test]
fn images_and_labels_of_different_number_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: Vec<u8>| {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    };
    write(IMAGES[0], images_file());
    write(LABELS[0], vec![0, 0, 8, 1, 0, 0, 0, 1, 3]);
    let error = tiny().read(folder.path()).unwrap_err().to_string();
    error.assert_contains(["train-labels-idx1-ubyte holds 1 labels, but "]);
    let end = "train-images-idx3-ubyte holds 2 images";
    assert!(error.ends_with(end), "{error}");
}

#[test]
fn real_mnist_is_downloaded_once_into_the_cache_or_a_named_folder_and_found_there() {
    use crate::{DataChoice, DataRequest, Surroundings, load_in};

    let Some(folder) = everburn_tests::data_folder("mnist", "downloading the real MNIST") else {
        return;
    };
    let mirror = HttpServer::of_folder(folder).url("");
    let cache = tempfile::tempdir().unwrap();
    let named = tempfile::tempdir().unwrap();
    let nowhere = "http://127.0.0.1:1/".to_owned();
    let (named, downloaded) = (Some(named.path()), format!("downloaded from {mirror}"));
    for (data_dir, mirror, reason) in [
        (None, &mirror, downloaded.as_str()),
        (None, &nowhere, "found by cache"),
        (named, &mirror, downloaded.as_str()),
        (named, &nowhere, "found by --data-dir"),
    ] {
        let surroundings = Surroundings {
            cache_dir: Some(cache.path().to_owned()),
            mirrors: Some(vec![mirror.clone()]),
            ..Surroundings::default()
        };
        let request = DataRequest {
            choice: DataChoice::Auto,
            data_dir: data_dir.map(Path::to_owned),
            ..DataRequest::default()
        };
        let description = load_in(&request, &surroundings).unwrap().description;
        assert_eq!(description.reason, reason);
        let place = data_dir.map_or(cache.path().join("everburn"), Path::to_owned);
        assert_eq!(
            description.origin,
            place.join("mnist").display().to_string()
        );
        assert_eq!((description.train, description.test), (60_000, 10_000));
    }
}

#[test]
fn an_archive_is_fetched_once_verified_and_read() {
    let cache = tempfile::tempdir().unwrap();
    let whole = crate::cifar::writing::tiny(&crate::cifar::CIFAR_100, 12);
    let sha256 = format!("{:x}", Sha256::digest(&whole));
    let served = whole.clone();
    let altered = serve(|_| HttpAnswer::new(200, &[7; 100]));
    let good = serve(move |name| {
        assert_eq!(name, "a.tar.gz");
        HttpAnswer::new(200, &served)
    });
    let folder = cache.path().join("new");
    let mirrors = [altered.clone(), good.clone()];
    let used = fetch_archive("a.tar.gz", &sha256, &mirrors, &folder).unwrap();
    assert_eq!(used, good);
    assert_eq!(std::fs::read(folder.join("a.tar.gz")).unwrap(), whole);
    let [train, _] = crate::Cifar::open(folder.join("a.tar.gz"), [32, 32]).unwrap();
    assert_eq!(train.len(), 12);
    let folder = cache.path().join("none");
    let error = fetch_archive("a.tar.gz", &sha256, &[altered], &folder).unwrap_err();
    let error = error.to_string();
    error.assert_contains([format!("expected {sha256}")]);
    assert_eq!(names(&folder), Vec::<String>::new());
}

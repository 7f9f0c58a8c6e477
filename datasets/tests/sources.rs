//! From a request to data: precedence of places, falling back, refusing.

#![allow(
    clippy::print_stderr,
    reason = "a test says what it measured or why it was skipped"
)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use everburn_datasets::{
    DataChoice, DataRequest, DatasetDescription, DatasetError, Split, Surroundings,
    SyntheticDigits, load_in,
};
use everburn_tests::AssertContains;
use tempfile::TempDir;

const FILES: [(&str, u32); 4] = [
    ("train-images-idx3-ubyte", 60_000),
    ("train-labels-idx1-ubyte", 60_000),
    ("t10k-images-idx3-ubyte", 10_000),
    ("t10k-labels-idx1-ubyte", 10_000),
];

/// Surroundings with an empty cache, no variables, and a mirror that refuses connections.
fn empty(cache: &TempDir) -> Surroundings {
    Surroundings {
        cache_dir: Some(cache.path().to_owned()),
        mirrors: Some(vec!["http://127.0.0.1:1/".to_owned()]),
        ..Surroundings::default()
    }
}

fn request(choice: DataChoice) -> DataRequest {
    DataRequest {
        choice,
        limits: Some((100, 50)),
        ..DataRequest::default()
    }
}

fn in_folder(choice: DataChoice, folder: &Path) -> DataRequest {
    DataRequest {
        data_dir: Some(folder.to_owned()),
        ..request(choice)
    }
}

/// Well-formed files of the published sizes, all pixels and labels zero.
fn write_blank_set(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for (name, count) in FILES {
        let (mut bytes, each) = if name.contains("images") {
            (vec![0, 0, 8, 3], 784)
        } else {
            (vec![0, 0, 8, 1], 1)
        };
        bytes.extend(count.to_be_bytes());
        if each > 1 {
            bytes.extend([0, 0, 0, 28, 0, 0, 0, 28]);
        }
        bytes.resize(bytes.len() + count as usize * each, 0);
        fs::write(folder.join(name), bytes).unwrap();
    }
}

/// The folder that has the real MNIST's, if this machine has it.
fn real_mnist(test: &str) -> Option<PathBuf> {
    let mnist = everburn_tests::data_folder("mnist", test)?;
    mnist.parent().map(Path::to_path_buf)
}

#[test]
fn real_mnist_is_found_by_the_variable_and_verified() {
    let Some(folder) = real_mnist("loading the real MNIST") else {
        return;
    };
    let cache = tempfile::tempdir().unwrap();
    let surroundings = with_variable(&cache, &folder);
    for choice in [DataChoice::Auto, DataChoice::Mnist] {
        let request = DataRequest {
            choice,
            ..DataRequest::default()
        };
        let data = load_in(&request, &surroundings).unwrap();
        assert_eq!((data.train.len(), data.test.len()), (60_000, 10_000));
        assert_eq!(data.train.labels()[..8], [5, 0, 4, 1, 9, 2, 1, 3]);
        assert_eq!(data.description.name, "mnist");
        assert_eq!(data.description.reason, "found by EVERBURN_DATA_DIR");
        let pixels = data.train.images();
        let sum: u64 = pixels.iter().map(|&pixel| u64::from(pixel)).sum();
        let mean = sum as f64 / 255.0 / pixels.len() as f64;
        let off = mean - f64::from(everburn_datasets::MNIST_MEAN);
        assert!(off.abs() < 1e-4, "{mean}");
    }
}

#[test]
fn mnist_in_place_of_fashion_mnist_is_refused() {
    let Some(folder) = real_mnist("MNIST in place of Fashion-MNIST") else {
        return;
    };
    let cache = tempfile::tempdir().unwrap();
    let request = in_folder(DataChoice::FashionMnist, &folder.join("mnist"));
    let error = load_in(&request, &empty(&cache)).unwrap_err().to_string();
    error.assert_contains(["is a file of MNIST, not of Fashion-MNIST"]);
}

#[test]
fn auto_without_files_and_network_takes_synthetic_digits_and_says_why() {
    let cache = tempfile::tempdir().unwrap();
    let data = load_in(&request(DataChoice::Auto), &empty(&cache)).unwrap();
    let reason = &data.description.reason;
    let expected = DatasetDescription {
        name: "synthetic-digits".to_owned(),
        origin: "generated, seed 0".to_owned(),
        reason: reason.clone(),
        train: 100,
        test: 50,
        unit: "images".to_owned(),
    };
    assert_eq!(data.description, expected);
    assert_eq!((data.train.len(), data.test.len()), (100, 50));
    let place = cache.path().join("everburn/mnist");
    let place = place.display();
    reason.assert_contains([format!("MNIST was not found in {place} and could not")]);
    reason.assert_contains(["http://127.0.0.1:1/train-images-idx3-ubyte.gz: "]);
    assert_eq!(data.description.to_string().lines().count(), 1);
}

/// An empty cache, and `EVERBURN_DATA_DIR` as given.
fn with_variable(cache: &TempDir, folder: &Path) -> Surroundings {
    Surroundings {
        data_dir: Some(folder.to_owned()),
        ..empty(cache)
    }
}

#[test]
fn mnist_by_name_does_not_fall_back_and_lists_where_it_looked() {
    let cache = tempfile::tempdir().unwrap();
    let variable = tempfile::tempdir().unwrap();
    let request = DataRequest {
        download: false,
        ..request(DataChoice::Mnist)
    };
    let error = load_in(&request, &with_variable(&cache, variable.path())).unwrap_err();
    let error = error.to_string();
    let (folder, cache) = (variable.path().display(), cache.path().display());
    error.assert_contains([
        "MNIST was not found and could not be fetched\n".to_owned(),
        format!("looked in {folder}/mnist (EVERBURN_DATA_DIR): none of the four files\n"),
        format!("looked in {cache}/everburn/mnist (cache): none of the four files\n"),
        "download: not allowed by this request\n".to_owned(),
        "--data synthetic".to_owned(),
    ]);
}

#[test]
fn a_named_folder_that_lacks_the_files_is_refused_and_no_other_is_taken() {
    let cache = tempfile::tempdir().unwrap();
    let named = tempfile::tempdir().unwrap();
    fs::write(named.path().join("train-labels-idx1-ubyte.gz"), "").unwrap();
    let variable = tempfile::tempdir().unwrap();
    write_blank_set(&variable.path().join("mnist"));
    for choice in [DataChoice::Mnist, DataChoice::Auto] {
        let request = in_folder(choice, named.path());
        let error = load_in(&request, &with_variable(&cache, variable.path())).unwrap_err();
        assert!(matches!(error, DatasetError::NotFound { .. }), "{error}");
        let (error, folder) = (error.to_string(), named.path().display());
        error.assert_contains([
            format!("looked in {folder}/mnist (--data-dir): none of the four files\n"),
            format!("looked in {folder} (--data-dir): lacks train-images-idx3-ubyte, t10k-images"),
        ]);
        for other in [variable.path(), cache.path()] {
            assert!(!error.contains(&other.display().to_string()), "{error}");
        }
    }
}

#[test]
fn a_named_folder_that_is_not_there_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    let variable = tempfile::tempdir().unwrap();
    write_blank_set(&variable.path().join("mnist"));
    let file = variable.path().join("file");
    fs::write(&file, "").unwrap();
    for (folder, problem) in [
        (variable.path().join("nowhere"), "does not exist"),
        (file.join("below"), "does not exist"),
        (file, "is no folder"),
    ] {
        for choice in [
            DataChoice::Mnist,
            DataChoice::FashionMnist,
            DataChoice::Auto,
        ] {
            let surroundings = with_variable(&cache, variable.path());
            let error = load_in(&in_folder(choice, &folder), &surroundings).unwrap_err();
            assert!(matches!(error, DatasetError::Data { .. }), "{error}");
            let error = error.to_string();
            error.assert_contains([folder.to_str().unwrap(), "--data-dir", problem]);
            // Nothing was made either.
            assert!(!folder.is_dir());
        }
    }
}

#[test]
fn a_variable_that_names_no_folder_is_refused_where_it_counts() {
    let cache = tempfile::tempdir().unwrap();
    let nowhere = cache.path().join("nowhere");
    let surroundings = with_variable(&cache, &nowhere);
    for choice in [DataChoice::Mnist, DataChoice::Auto] {
        let error = load_in(&request(choice), &surroundings).unwrap_err();
        assert!(matches!(error, DatasetError::Data { .. }), "{error}");
        let error = error.to_string();
        error.assert_contains(["EVERBURN_DATA_DIR", nowhere.to_str().unwrap()]);
    }
    load_in(&request(DataChoice::Synthetic), &surroundings).unwrap();
    let named = tempfile::tempdir().unwrap();
    let error = load_in(&in_folder(DataChoice::Mnist, named.path()), &surroundings).unwrap_err();
    assert!(matches!(error, DatasetError::NotFound { .. }), "{error}");
}

#[test]
fn the_offline_variable_keeps_away_from_the_network() {
    let surroundings = Surroundings {
        offline: Some("1".into()),
        ..Surroundings::default()
    };
    let error = load_in(&request(DataChoice::FashionMnist), &surroundings).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("Fashion-MNIST was not found"), "{error}");
    error.assert_contains(["not allowed by EVERBURN_OFFLINE"]);
    let data = load_in(&request(DataChoice::Auto), &surroundings).unwrap();
    let reason = &data.description.reason;
    reason.assert_contains(["anywhere (no folder to look in)"]);
}

#[test]
fn an_altered_file_is_refused_even_by_auto() {
    let folder = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    write_blank_set(folder.path());
    for choice in [DataChoice::Auto, DataChoice::Mnist] {
        let error = load_in(&in_folder(choice, folder.path()), &empty(&cache)).unwrap_err();
        assert!(matches!(error, DatasetError::Altered { .. }), "{error}");
        let text = error.to_string();
        let path = folder.path().join(FILES[0].0);
        assert!(text.starts_with(&path.display().to_string()), "{text}");
        assert!(text.contains("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"));
        text.assert_contains(["Delete the file so that it is downloaded again"]);
    }
}

#[test]
fn a_truncated_file_is_refused_even_by_auto() {
    let folder = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    write_blank_set(&folder.path().join("mnist"));
    let path = folder.path().join("mnist").join(FILES[1].0);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(50_000).unwrap();
    let request = in_folder(DataChoice::Auto, folder.path());
    let error = load_in(&request, &empty(&cache)).unwrap_err().to_string();
    let problem = "is truncated: expected 60008 bytes, found 50000 (decompressed)";
    assert_eq!(error, format!("{} {problem}", path.display()));
}

#[test]
fn fashion_mnist_is_verified_by_its_compressed_files() {
    let folder = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let set = folder.path().join("fashion-mnist");
    write_blank_set(&set);
    let request = in_folder(DataChoice::FashionMnist, folder.path());
    let refused = || load_in(&request, &empty(&cache)).unwrap_err();
    let error = refused();
    assert!(matches!(error, DatasetError::Altered { .. }), "{error}");
    error.to_string().assert_contains(["cannot be verified"]);

    let plain = fs::read(set.join(FILES[0].0)).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&plain).unwrap();
    let compressed = set.join(format!("{}.gz", FILES[0].0));
    fs::write(compressed, encoder.finish().unwrap()).unwrap();
    let error = refused();
    assert!(matches!(error, DatasetError::Altered { .. }), "{error}");
    let error = error.to_string();
    let expected = "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84";
    error.assert_contains(["Fashion-MNIST", expected]);

    let mut one = vec![0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28];
    one.resize(16 + 784, 0);
    fs::remove_file(set.join(format!("{}.gz", FILES[0].0))).unwrap();
    fs::write(set.join(FILES[0].0), one).unwrap();
    fs::write(set.join(FILES[1].0), [0, 0, 8, 1, 0, 0, 0, 1, 0]).unwrap();
    let error = refused().to_string();
    let end = "train-images-idx3-ubyte holds 1 items: expected 60000";
    assert!(error.ends_with(end), "{error}");
}

#[test]
fn a_limit_out_of_range_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    for count in [0, 2_000_001] {
        let request = DataRequest {
            limits: Some((10, count)),
            ..request(DataChoice::Auto)
        };
        let error = load_in(&request, &empty(&cache)).unwrap_err().to_string();
        let expected = format!("{count} test samples were asked for: expected 1 to 2000000");
        assert_eq!(error, expected);
        let drawn = SyntheticDigits::new(0).generate(Split::Test, count);
        assert_eq!(drawn.unwrap_err().to_string(), expected);
    }
}

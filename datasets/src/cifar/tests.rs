//! Tests of `cifar`.

use everburn_tests::AssertContains;
use everburn_tests::tar::archive;

use super::writing::{gzip, tiny};
use super::*;

#[test]
fn both_sets_are_read_from_archives_and_from_folders_alike() {
    for (set, images, train) in [(&CIFAR_10, 4, 20), (&CIFAR_100, 30, 30)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar.gz");
        std::fs::write(&path, tiny(set, images)).unwrap();
        let [from_archive, test] = Cifar::open(&path, [32, 32]).unwrap();
        assert_eq!((from_archive.len(), test.len()), (train, images));
        assert_eq!(
            (test.name(), test.classes()[3].as_str()),
            (set.name, "class3")
        );
        let image = test.image(3).unwrap();
        assert_eq!((image.class, image.pixels[7]), (3, 4));
        assert_eq!(image.file.to_str(), Some(&*format!("{}/test/3", set.name)));
        let below = folder.path().join(if images == 4 {
            "cifar-10-batches-bin"
        } else {
            "."
        });
        std::fs::create_dir_all(&below).unwrap();
        for (name, content) in super::from_archive(&path).unwrap() {
            std::fs::write(below.join(name), content).unwrap();
        }
        let [from_folder, _] = Cifar::open(folder.path(), [32, 32]).unwrap();
        assert_eq!(from_folder.fingerprint(), from_archive.fingerprint());
        let smaller = Cifar::open(&path, [8, 6]).unwrap();
        assert_eq!(smaller[1].image(0).unwrap().pixels.len(), 3 * 8 * 6);
    }
}

#[test]
fn what_is_missing_or_no_record_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar.gz");
    let refused = |files: &[(&str, &[u8])]| {
        std::fs::write(&path, gzip(&archive(files))).unwrap();
        Cifar::open(&path, [32, 32]).unwrap_err().to_string()
    };
    let error = refused(&[("test_batch.bin", &[0; 3073])]);
    error.assert_contains(["a.tar.gz: data_batch_1.bin: it is missing"]);
    let error = refused(&[("train.bin", &[0; 3074]), ("test.bin", &[0; 3000])]);
    error.assert_contains(["test.bin: 3000 bytes are no whole number"]);
    let mut records = vec![1; 2 * 3074];
    records[3075] = 200;
    let error = refused(&[("train.bin", &records), ("test.bin", &records)]);
    error.assert_contains(["train.bin: the label of image 1 is 200"]);
    std::fs::write(&path, b"no archive at all").unwrap();
    let error = Cifar::open(&path, [32, 32]).unwrap_err().to_string();
    assert!(error.contains("a.tar.gz"), "{error}");
}

#[test]
fn a_compressed_archive_of_other_images_is_to_be_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.tar.gz");
    std::fs::write(&path, gzip(&archive(&[("roses/1.png", b"x")]))).unwrap();
    let error = Cifar::open(&path, [32, 32]).unwrap_err().to_string();
    error.assert_contains(["s.tar.gz: members: ", "unpack it"]);
}

use everburn_tests::AssertContains;
use everburn_tests::tar::archive;
use image::{Rgb, RgbImage};

use super::*;

fn png(shade: u8) -> Vec<u8> {
    crate::damaged::png(&RgbImage::from_pixel(6, 4, Rgb([shade, 0, 0])))
}

fn written(members: &[(&str, &[u8])]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    std::fs::write(&path, archive(members)).unwrap();
    (folder, path)
}

fn refused(members: &[(&str, &[u8])]) -> String {
    let (_folder, path) = written(members);
    let opened = TarShards::open(&[path]).and_then(|shards| TarImages::open(shards, [4, 4], None));
    opened.unwrap_err().to_string()
}

#[test]
fn samples_of_several_shards_are_read_by_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..3)
        .map(|shard| folder.path().join(format!("{shard}.tar")))
        .collect();
    for (shard, file) in files.iter().enumerate() {
        let contents: Vec<_> = (0..4 + shard)
            .map(|number| format!("{shard}-{number}"))
            .collect();
        let names: Vec<_> = (0..contents.len())
            .map(|number| format!("d.x/{number:03}.seg.txt"))
            .collect();
        let members = names.iter().zip(&contents);
        let members: Vec<_> = members
            .map(|(name, content)| (name.as_str(), content.as_bytes()))
            .collect();
        std::fs::write(file, archive(&members)).unwrap();
    }
    let shards = TarShards::open(&files).unwrap();
    assert_eq!((shards.len(), shards.shards()), (4 + 5 + 6, 3));
    let content =
        |index| String::from_utf8(shards.read(index, "seg.txt").unwrap().unwrap()).unwrap();
    assert_eq!(
        (content(0), content(3), content(4), content(14)),
        ("0-0".into(), "0-3".into(), "1-0".into(), "2-5".into())
    );
    assert_eq!(
        (shards.key(4), shards.read(4, "jpg").unwrap()),
        ("d.x/000", None)
    );
    let again = TarShards::open(&files).unwrap();
    assert_eq!(shards.fingerprint(), again.fingerprint());
    assert_ne!(
        shards.fingerprint(),
        TarShards::open(&files[..2]).unwrap().fingerprint()
    );
    // A shard that has become shorter is named with the sample.
    std::fs::write(&files[2], b"").unwrap();
    let error = shards.sample(14).unwrap_err().to_string();
    assert!(error.contains("2.tar: d.x/005.seg.txt"), "{error}");
}

#[test]
fn the_class_is_a_number_or_a_folder() {
    let (dark, light) = (png(10), png(200));
    let (_folder, path) = written(&[
        ("0.png", &dark),
        ("0.cls", b"2\n"),
        ("1.cls", b"0"),
        ("1.png", &light),
    ]);
    let set = TarImages::open(TarShards::open(&[path]).unwrap(), [4, 6], None).unwrap();
    assert_eq!(set.classes(), ["0", "1", "2"]);
    let images = [0, 1].map(|index| set.image(index).unwrap());
    assert_eq!(
        images.clone().map(|image| (image.class, image.pixels[0])),
        [(2, 10), (0, 200)]
    );
    assert!(images[0].file.ends_with("a.tar/0.png"));
    let (_folder, path) = written(&[("set/tulips/0.png", &dark), ("set/roses/1.png", &light)]);
    let set = TarImages::open(TarShards::open(&[path]).unwrap(), [4, 6], None).unwrap();
    assert_eq!(set.classes(), ["roses", "tulips"]);
    assert_eq!([0, 1].map(|index| set.image(index).unwrap().class), [1, 0]);
}

#[test]
fn endings_are_read_in_upper_case_too() {
    let (dark, light) = (png(10), png(200));
    let (_folder, path) = written(&[
        ("0.PNG", &dark),
        ("0.CLS", b"1"),
        ("1.Png", &light),
        ("1.cls", b"0"),
    ]);
    let set = TarImages::open(TarShards::open(&[path]).unwrap(), [4, 6], None).unwrap();
    assert_eq!([0, 1].map(|index| set.image(index).unwrap().class), [1, 0]);
}

#[test]
fn a_sample_without_an_image_or_a_class_is_named() {
    let image = png(1);
    let error = refused(&[("0.png", &image), ("0.cls", b"1"), ("1.png", &image)]);
    assert!(error.contains("a.tar: 1: it has no file `.cls`"), "{error}");
    let error = refused(&[("0.png", &image)]);
    error.assert_contains(["a.tar: 0: neither a file `.cls` nor a folder"]);
    let error = refused(&[("0.cls", b"1"), ("0.txt", b"no image")]);
    assert!(error.contains("a.tar: 0: it has no image"), "{error}");
    for class in [
        b"-1".as_slice(),
        b"100000",
        b"99999999999999999999",
        b"rose",
        b"",
    ] {
        let error = refused(&[("0.png", &image), ("0.cls", class)]);
        error.assert_contains(["a.tar: 0.cls: `", "below 100000"]);
    }
    let error = refused(&[("0.png", &image), ("0.png", &image)]);
    error.assert_contains(["0.png: the sample has two files `.png`"]);
    let error = refused(&[("README", b"no sample")]);
    assert!(error.contains("there are no files in it"), "{error}");
    let (_folder, path) = written(&[("0.png", b"no image"), ("0.cls", b"1")]);
    let set = TarImages::open(TarShards::open(&[path]).unwrap(), [4, 6], None).unwrap();
    let error = set.image(0).unwrap_err().to_string();
    error.assert_contains(["a.tar/0.png is damaged, or no image"]);
}

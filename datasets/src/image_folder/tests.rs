use burn_dataset::Dataset;
use everburn_tests::AssertContains;
use image::codecs::jpeg::JpegEncoder;
use image::{ImageEncoder, Rgb, RgbImage};

use super::*;
use crate::damaged::Random;

/// Two classes with two images each.
fn drawn() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (class, shade) in [("dark", 10), ("light", 240)] {
        let below = folder.path().join(class);
        fs::create_dir(&below).unwrap();
        for (name, side) in [("b.png", 9), ("a.JPG", 30)] {
            let picture = RgbImage::from_pixel(side, 2 * side, Rgb([shade, shade / 2, 0]));
            let format = image::ImageFormat::from_path(name).unwrap();
            picture.save_with_format(below.join(name), format).unwrap();
        }
        fs::write(below.join("notes.txt"), "not an image").unwrap();
        fs::write(below.join(".hidden.png"), "not read").unwrap();
    }
    folder
}

#[test]
fn images_of_any_size_come_with_their_classes_in_turn() {
    let folder = drawn();
    let set = ImageFolder::open(folder.path(), [4, 6]).unwrap();
    assert_eq!(set.classes(), ["dark", "light"]);
    let classes = set.iter().map(|item| item.unwrap().class);
    assert_eq!(classes.collect::<Vec<_>>(), [0, 1, 0, 1]);
    let last = set.image(3).unwrap();
    let channel = |shade: u8| [shade; 4 * 6];
    assert_eq!(
        last.pixels[..],
        [channel(240), channel(120), channel(0)].concat()
    );
    assert_eq!(last.size, [4, 6]);
    let names = set
        .files
        .iter()
        .map(|(file, _)| file.strip_prefix(folder.path()));
    let names: Vec<_> = names
        .map(|name| name.unwrap().display().to_string())
        .collect();
    let in_turn = ["dark/a.JPG", "light/a.JPG", "dark/b.png", "light/b.png"];
    assert_eq!(names, in_turn);
}

#[test]
fn pixels_are_the_same_with_and_without_a_cache() {
    let folder = drawn();
    let cached = ImageFolder::open(folder.path(), [5, 5]).unwrap();
    let half = ImageFolder::open(folder.path(), [5, 5])
        .unwrap()
        .with_cache(2 * 75);
    assert_eq!((cached.cache.len(), half.cache.len()), (4, 2));
    for index in [0, 1, 2, 3, 3, 0] {
        assert_eq!(cached.image(index).unwrap(), half.image(index).unwrap());
    }
    assert!(Arc::ptr_eq(
        &cached.image(3).unwrap().pixels,
        &cached.image(3).unwrap().pixels
    ));
}

#[test]
fn an_image_is_turned_as_its_orientation_says() {
    let folder = drawn();
    let file = folder.path().join("dark/a.JPG");
    // Red on the left, blue on the right; orientation 6 turns it by 90 degrees clockwise: red comes on top.
    let picture = RgbImage::from_fn(64, 64, |x, _| {
        if x < 32 {
            Rgb([255, 0, 0])
        } else {
            Rgb([0, 0, 255])
        }
    });
    let mut bytes = Vec::new();
    let mut encoder = JpegEncoder::new_with_quality(&mut bytes, 100);
    let exif = [
        b"II*\0\x08\0\0\0".as_slice(),
        b"\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0",
    ];
    encoder.set_exif_metadata(exif.concat()).unwrap();
    encoder.encode_image(&picture).unwrap();
    fs::write(file, bytes).unwrap();
    let set = ImageFolder::open(folder.path(), [2, 2]).unwrap();
    let red = &set.image(0).unwrap().pixels[..4];
    assert!(
        red[0] > 200 && red[1] > 200 && red[2] < 60 && red[3] < 60,
        "{red:?}"
    );
}

#[test]
fn folders_that_are_no_image_folder_are_refused_by_name() {
    let folder = drawn();
    let path = folder.path();
    let refused = |size, path: &Path| ImageFolder::open(path, size).unwrap_err().to_string();
    assert!(refused([0, 8], path).contains("0x8 is no size"));
    assert!(refused([8, 1 << 20], path).contains("8x1048576 is no size"));
    let of_class = refused([8, 8], &path.join("dark"));
    of_class.assert_contains(["dark: it has images and no folders", "as in roses/1.jpg"]);
    let all = format!(
        "if the folders beside it are the other classes, name {}",
        path.display()
    );
    assert!(of_class.ends_with(&all), "{of_class}");
    fs::create_dir(path.join("train")).unwrap();
    fs::rename(path.join("dark"), path.join("train/dark")).unwrap();
    let of_part = refused([8, 8], &path.join("train/dark"));
    assert!(of_part.ends_with(&all), "{of_part}");
    fs::rename(path.join("train/dark"), path.join("dark")).unwrap();
    fs::remove_dir(path.join("train")).unwrap();
    fs::rename(path.join("dark"), path.join("train")).unwrap();
    let part = refused([8, 8], &path.join("train"));
    assert!(part.ends_with("into a folder of its own"), "{part}");
    fs::rename(path.join("train"), path.join("dark")).unwrap();
    assert!(refused([8, 8], &path.join("none")).contains("none"));
    fs::create_dir(path.join("empty")).unwrap();
    let empty = refused([8, 8], &path.join("empty"));
    assert!(empty.contains("empty: it has no folders"), "{empty}");
    assert!(empty.ends_with("tulips/1.jpg"), "{empty}");
    assert!(refused([8, 8], path).contains("empty: it has no JPEG or PNG file"));
    let classes = ["dark".to_owned(), "light".to_owned()];
    let refused = |classes: &[String]| {
        let error = ImageFolder::with_classes(path, [8, 8], classes).unwrap_err();
        error.to_string()
    };
    assert!(refused(&classes).contains("`empty` is not one of the classes dark, light"));
    fs::remove_dir(path.join("empty")).unwrap();
    let more = [&classes[..], &["none".to_owned()]].concat();
    assert!(refused(&more).contains("there is no folder for the class none"));
}

#[test]
fn a_set_is_split_within_each_class() {
    let folder = drawn();
    let (train, test) = ImageFolder::open(folder.path(), [3, 3])
        .unwrap()
        .split(2)
        .unwrap();
    let classes = |set: &ImageFolder| {
        set.iter()
            .map(|item| item.unwrap().class)
            .collect::<Vec<_>>()
    };
    assert_eq!((classes(&train), classes(&test)), (vec![0, 1], vec![0, 1]));
    assert!(test.files.iter().all(|(file, _)| file.ends_with("b.png")));
    assert_ne!(train.fingerprint(), test.fingerprint());
    let error = ImageFolder::open(folder.path(), [3, 3])
        .unwrap()
        .split(3)
        .unwrap_err();
    let error = error.to_string();
    error.assert_contains(["the class dark has 2 of at least 3 images"]);
}

#[test]
fn the_fingerprint_follows_names_and_lengths() {
    let folder = drawn();
    let open = || {
        ImageFolder::open(folder.path(), [3, 3])
            .unwrap()
            .fingerprint()
            .to_owned()
    };
    let before = open();
    assert_eq!(before, open());
    let (old, new) = (
        folder.path().join("dark/b.png"),
        folder.path().join("dark/c.png"),
    );
    fs::rename(&old, &new).unwrap();
    assert_ne!(before, open());
    fs::rename(&new, &old).unwrap();
    fs::write(folder.path().join("dark/a.JPG"), "shorter").unwrap();
    assert_ne!(before, open());
}

/// Damaged files, 200 of them: an error that names the file, or an image; never a panic.
#[test]
fn damaged_images_are_errors_with_the_file() {
    let folder = drawn();
    let mut random = Random(9);
    let mut refused = 0;
    for round in 0..200 {
        let name = ["a.JPG", "b.png"][round % 2];
        let file = folder.path().join("dark").join(name);
        let whole = fs::read(&file).unwrap();
        fs::write(&file, random.damage(&whole, round / 2)).unwrap();
        let set = ImageFolder::open(folder.path(), [4, 4]).unwrap();
        if let Err(error) = set.image(2 * (round % 2)) {
            assert!(error.to_string().contains(name), "{error}");
            refused += 1;
        }
        fs::write(&file, &whole).unwrap();
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn what_is_not_read_is_counted_with_the_reason() {
    let folder = drawn();
    let path = folder.path();
    fs::create_dir(path.join("dark/more")).unwrap();
    fs::write(path.join("lone.png"), "an image outside a class").unwrap();
    std::os::unix::fs::symlink("nowhere.jpg", path.join("light/link.jpg")).unwrap();
    let set = ImageFolder::open(path, [4, 4]).unwrap();
    assert_eq!(set.len(), 4);
    let expected = "; files that are neither JPEG nor PNG, left out: 2, such as dark/notes.txt\
                    ; folders inside the folder of a class, left out: 1, such as dark/more\
                    ; images outside the folders of classes, left out: 1, such as lone.png\
                    ; links that lead nowhere, left out: 1, such as light/link.jpg";
    assert_eq!(set.left_out().describe(path), expected);
    let mut both = set.left_out().clone();
    both.add(set.left_out());
    assert!(
        both.describe(path)
            .contains("left out: 4, such as dark/notes.txt")
    );
}

/// Accents as macOS writes them, and as most other systems do.
#[test]
fn names_of_classes_that_look_the_same_are_the_same() {
    let (apart, one) = ("Wu\u{308}rfel", "W\u{fc}rfel");
    let folder = drawn();
    let path = folder.path();
    fs::rename(path.join("light"), path.join(apart)).unwrap();
    let set = ImageFolder::open(path, [4, 4]).unwrap();
    assert_eq!(set.classes(), [one, "dark"]);
    assert_eq!(set.image(0).unwrap().class, 0);
    for name in [apart, one] {
        let classes = [name.to_owned(), "dark".to_owned()];
        let same = ImageFolder::with_classes(path, [4, 4], &classes).unwrap();
        assert_eq!(same.fingerprint(), set.fingerprint());
    }
    fs::create_dir(path.join(one)).unwrap();
    let error = ImageFolder::open(path, [4, 4]).unwrap_err().to_string();
    error.assert_contains(["it has two folders", "macOS"]);
}

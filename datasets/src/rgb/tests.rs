use std::path::Path;

use everburn_tests::AssertContains;
use image::{GrayImage, Luma, Rgb, RgbImage};

use super::*;
use crate::cifar::writing::tiny;

/// Three classes with twenty images each, of one shade a class.
fn flowers() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (class, shade) in [("a", 10), ("b", 120), ("c", 250)] {
        let below = folder.path().join(class);
        std::fs::create_dir(&below).unwrap();
        for number in 0..20 {
            let picture = RgbImage::from_pixel(8, 4, Rgb([shade, shade, shade]));
            let file = below.join(format!("{number:02}.png"));
            picture.save(file).unwrap();
        }
    }
    folder
}

fn request(path: &Path) -> RgbRequest {
    RgbRequest {
        file: Some(path.to_owned()),
        size: Some([4, 6]),
        ..RgbRequest::default()
    }
}

fn changed(mut request: RgbRequest, change: impl FnOnce(&mut RgbRequest)) -> RgbRequest {
    change(&mut request);
    request
}

fn nowhere(cache: &Path) -> Surroundings {
    Surroundings {
        cache_dir: Some(cache.to_owned()),
        mirrors: Some(vec!["http://127.0.0.1:1/".to_owned()]),
        ..Surroundings::default()
    }
}

#[test]
fn one_class_is_nothing_to_learn() {
    let folder = flowers();
    for class in ["b", "c"] {
        std::fs::remove_dir_all(folder.path().join(class)).unwrap();
    }
    let error = load_rgb(&request(folder.path())).unwrap_err().to_string();
    assert!(error.contains("`a` is its only class"), "{error}");
    let only_test = changed(request(folder.path()), |it| it.only_test = true);
    assert_eq!(load_rgb(&only_test).unwrap().classes, ["a"]);
}

#[test]
fn fewer_images_are_taken_from_all_classes() {
    let folder = flowers();
    let limited = RgbRequest {
        train_limit: Some(9),
        test_limit: Some(3),
        ..request(folder.path())
    };
    let loaded = load_rgb(&limited).unwrap();
    let classes = |set: &Arc<dyn Dataset<RgbItem>>| -> Vec<usize> {
        let class = |index| set.get(index).unwrap().class;
        (0..set.len()).map(class).collect()
    };
    assert_eq!(classes(&loaded.train), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    assert_eq!(classes(&loaded.test), [0, 1, 2]);
    let text = loaded.description.to_string();
    // The path that was named is where they are.
    let part =
        "9 training and 3 test images of 3 classes, scaled to 4x6: taken for a folder of images";
    assert!(text.contains(part), "{text}");
    let none = changed(request(folder.path()), |it| it.test_limit = Some(0));
    let error = load_rgb(&none).unwrap_err().to_string();
    assert!(error.contains("0 test samples were asked for"), "{error}");
}

#[test]
fn all_images_are_test_images_where_only_a_test_set_is_wanted() {
    let folder = flowers();
    let only_test = |path: &Path| changed(request(path), |it| it.only_test = true);
    let loaded = load_rgb(&only_test(folder.path())).unwrap();
    assert_eq!(loaded.test.len(), 60);
    assert!(!loaded.test_fingerprint.is_empty());
    let split = load_rgb(&request(folder.path())).unwrap();
    assert!(split.test_fingerprint.is_empty());
    let text = loaded.description.to_string();
    assert!(text.contains(", 60 test images of 3 classes"), "{text}");
    // A folder named test is the test set, unless images are in it: then it is a class.
    let parent = tempfile::tempdir().unwrap();
    std::fs::rename(folder.path(), parent.path().join("test")).unwrap();
    assert_eq!(load_rgb(&only_test(parent.path())).unwrap().test.len(), 60);
    let error = load_rgb(&request(parent.path())).unwrap_err().to_string();
    error.assert_contains(["it has test and no folder named train"]);
    let classes = parent.path().join("test");
    std::fs::rename(classes.join("a"), classes.join("test")).unwrap();
    let loaded = load_rgb(&request(&classes)).unwrap();
    assert_eq!(loaded.classes, ["b", "c", "test"]);
    // Where there is a test set, it is that.
    std::fs::rename(&classes, parent.path().join("val")).unwrap();
    let other = flowers();
    std::fs::rename(other.path(), parent.path().join("train")).unwrap();
    std::fs::rename(parent.path().join("val/test"), parent.path().join("val/a")).unwrap();
    std::fs::remove_file(parent.path().join("val/a/00.png")).unwrap();
    let loaded = load_rgb(&only_test(parent.path())).unwrap();
    assert_eq!((loaded.train.len(), loaded.test.len()), (60, 59));
    // The same images alone have the part that is theirs.
    let alone = load_rgb(&only_test(&parent.path().join("train"))).unwrap();
    assert_eq!(loaded.train_fingerprint, alone.test_fingerprint);
    assert_ne!(loaded.train_fingerprint, loaded.test_fingerprint);
}

#[test]
fn the_images_of_val_are_validated_on_where_there_is_a_test_set_too() {
    let parent = tempfile::tempdir().unwrap();
    for part in ["train", "val", "test"] {
        std::fs::rename(flowers().keep(), parent.path().join(part)).unwrap();
    }
    std::fs::remove_file(parent.path().join("val/b/00.png")).unwrap();
    std::fs::write(parent.path().join("val/b/00.webp"), "").unwrap();
    let order = ["c", "b", "a"].map(str::to_owned).to_vec();
    let request = RgbRequest {
        channels: Channels::Grey,
        classes: order,
        ..request(parent.path())
    };
    let loaded = load_rgb(&request).unwrap();
    let validation = loaded.validation.unwrap();
    assert_eq!((loaded.train.len(), loaded.test.len()), (60, 60));
    assert_eq!(validation.len(), 59);
    // In the form that was asked for.
    let first = validation.get(0).unwrap();
    assert_eq!((first.channels(), first.class), (1, 2));
    let text = loaded.description.to_string();
    let part = "one folder per class; validation: the 59 images of val; files that are neither";
    text.assert_contains([part, "val/b/00.webp"]);
    let only_test = changed(request.clone(), |it| it.only_test = true);
    assert!(load_rgb(&only_test).unwrap().validation.is_none());
    std::fs::remove_dir_all(parent.path().join("test")).unwrap();
    let with_val = load_rgb(&request).unwrap();
    assert!(with_val.validation.is_none() && with_val.test.len() == 59);
    assert_ne!(with_val.fingerprint, loaded.fingerprint);
}

#[test]
fn a_folder_without_images_is_told_what_is_missing() {
    let parent = tempfile::tempdir().unwrap();
    let refused = || {
        let error = load_rgb(&request(parent.path())).unwrap_err().to_string();
        std::fs::remove_dir_all(parent.path()).unwrap();
        std::fs::create_dir(parent.path()).unwrap();
        error
    };
    std::fs::create_dir_all(parent.path().join("training/roses")).unwrap();
    let error = refused();
    let expected = "folders such as `roses`: a class has its images in its own folder. Folders of training and of test images are named train and test";
    assert!(error.contains(expected), "{error}");
    std::fs::create_dir(parent.path().join("roses")).unwrap();
    std::fs::write(parent.path().join("roses/1.webp"), "").unwrap();
    let error = refused();
    error.assert_contains(["files such as `.webp`: convert them to JPEG or PNG"]);
}

#[test]
fn images_in_grey_have_one_channel_and_the_shade_of_grey_files() {
    let folder = flowers();
    for number in 0..20_u8 {
        let file = folder.path().join(format!("b/{number:02}.png"));
        let picture = GrayImage::from_pixel(8, 4, Luma([number * 12]));
        picture.save(file).unwrap();
    }
    let grey = changed(request(folder.path()), |it| it.channels = Channels::Grey);
    let loaded = load_rgb(&grey).unwrap();
    let image = loaded.train.get(5 * 3 + 1).unwrap();
    assert_eq!((image.class, image.channels()), (1, 1));
    assert_eq!(image.pixels[..], [5 * 12; 4 * 6]);
    let colored = RgbItem {
        pixels: vec![255, 0, 0].into(),
        size: [1, 1],
        ..image
    };
    assert_eq!(colored.to_grey().pixels[..], [76]);
}

#[test]
fn an_archive_of_cifar_is_verified_where_it_was_asked_for_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let cifar = RgbRequest {
        choice: DataChoice::Cifar10,
        data_dir: Some(folder.path().to_owned()),
        ..RgbRequest::default()
    };
    let load = || load_rgb_in(&cifar, &nowhere(folder.path()));
    let error = load().unwrap_err().to_string();
    error.assert_contains([
        "CIFAR-10 was not found",
        "lacks cifar-10-binary.tar.gz",
        "cifar10 (--data-dir)",
    ]);
    let archive = folder.path().join(CIFAR_10.archive);
    std::fs::write(&archive, tiny(&CIFAR_10, 2)).unwrap();
    let error = load().unwrap_err().to_string();
    error.assert_contains(["is not the published CIFAR-10 file"]);
    // By its path, it is taken as it is.
    for path in [folder.path(), &archive] {
        let by_path = changed(request(path), |it| it.size = None);
        let loaded = load_rgb(&by_path).unwrap();
        assert_eq!((loaded.size, loaded.kind), ([32, 32], DataKind::Cifar));
        assert_eq!((loaded.train.len(), loaded.test.len()), (10, 2));
    }
    let fingerprint = |train_limit| {
        let limited = RgbRequest {
            size: None,
            train_limit,
            ..request(&archive)
        };
        load_rgb(&limited).unwrap().fingerprint
    };
    let all = fingerprint(None);
    assert_eq!(fingerprint(Some(10)), all);
    assert_eq!(fingerprint(Some(3)), format!("{all} the first ones"));
    let text = RgbRequest {
        choice: DataChoice::Embedded,
        ..RgbRequest::default()
    };
    let error = load_rgb(&text).unwrap_err().to_string();
    assert!(error.starts_with("--data embedded is text"), "{error}");
}

#[test]
fn the_order_of_a_pretrained_models_classes_counts_where_they_are_the_same() {
    let folder = flowers();
    let load = |classes: [&str; 3]| {
        let classes = classes.map(str::to_owned).to_vec();
        let ordered = changed(request(folder.path()), |it| it.classes = classes);
        load_rgb(&ordered).unwrap()
    };
    let loaded = load(["c", "a", "b"]);
    assert_eq!(loaded.classes, ["c", "a", "b"]);
    for set in [&loaded.train, &loaded.test] {
        for index in 0..set.len() {
            let item = set.get(index).unwrap();
            let expected = match item.pixels[0] {
                250 => 0,
                10 => 1,
                _ => 2,
            };
            assert_eq!(item.class, expected, "{}", item.file.display());
        }
    }
    assert_eq!(load(["c", "a", "z"]).classes, ["a", "b", "c"]);
}

#[test]
fn a_validation_set_under_another_name_is_to_be_renamed_and_further_folders_are_counted() {
    let all = flowers();
    let folder = tempfile::tempdir().unwrap();
    for set in ["train", "valid"] {
        std::fs::create_dir(folder.path().join(set)).unwrap();
        for class in ["a", "b"] {
            let to = folder.path().join(set).join(class);
            std::fs::create_dir(&to).unwrap();
            std::fs::copy(all.path().join(class).join("00.png"), to.join("0.png")).unwrap();
        }
    }
    let error = load_rgb(&request(folder.path())).unwrap_err().to_string();
    let end = "neither test nor val: rename `valid` to val";
    assert!(error.ends_with(end), "{error}");
    std::fs::rename(folder.path().join("valid"), folder.path().join("val")).unwrap();
    std::fs::create_dir(folder.path().join("raw")).unwrap();
    let loaded = load_rgb(&request(folder.path())).unwrap();
    let expected = "; folders beside train, val and test, left out: 1, such as raw";
    assert!(
        loaded.description.reason.ends_with(expected),
        "{}",
        loaded.description.reason
    );
}

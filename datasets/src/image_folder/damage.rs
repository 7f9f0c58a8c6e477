//! Damaged images, named together: a training ends at the first.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::ImageFolder;
use crate::DatasetError;
use crate::rgb_item::decode_file;

/// How long images are tried, at most.
pub(super) const LONGEST: Duration = Duration::from_secs(10);

/// The most images that are named.
pub(super) const MOST_NAMED: usize = 10;

/// The damaged images of a folder, found when the first of them is read.
#[derive(Default)]
pub(super) struct DamageSearch {
    /// The images of the other sets of the same data.
    others: OnceLock<Vec<Arc<Path>>>,
    found: OnceLock<DamagedImages>,
}

/// What a search has found.
struct DamagedImages {
    damaged: Vec<Arc<Path>>,
    looked_at: usize,
}

impl DamageSearch {
    /// Tries these images too, after the own ones of the folder.
    pub(super) fn search_with(&self, others: impl Iterator<Item = Arc<Path>>) {
        // A second call would name the same sets.
        let _ = self.others.set(others.collect());
    }

    /// Adds to an error of a damaged image which others are damaged, and what to do. Several threads read images: the
    /// first that meets a damaged one searches, and the others wait for it.
    pub(super) fn describe(&self, error: DatasetError, folder: &ImageFolder) -> DatasetError {
        let DatasetError::Image { path, problem } = error else {
            return error;
        };
        let others = self.others.get().map_or(&[][..], Vec::as_slice);
        let files = folder.files.iter().map(|(file, _)| file).chain(others);
        let files: Vec<_> = files.collect();
        let found = self
            .found
            .get_or_init(|| search(&files, folder.size, LONGEST));
        let damaged = found.damaged.iter().map(|file| &**file);
        let others: Vec<&Path> = damaged.filter(|file| *file != path).collect();
        let others = describe(&others, found.looked_at, files.len());
        let problem = format!(
            "{problem}; put a readable image in its place, or take it out and begin a new run{others}"
        );
        DatasetError::Image { path, problem }
    }
}

fn search(files: &[&Arc<Path>], size: [u32; 2], longest: Duration) -> DamagedImages {
    let start = Instant::now();
    let (mut looked_at, mut damaged) = (0, Vec::new());
    for file in files {
        if start.elapsed() > longest || damaged.len() > MOST_NAMED + 1 {
            break;
        }
        looked_at += 1;
        if decode_file(file, size).is_err() {
            damaged.push(Arc::clone(file));
        }
    }
    DamagedImages { damaged, looked_at }
}

fn describe(others: &[&Path], looked_at: usize, images: usize) -> String {
    let of = match looked_at == images {
        true => format!("all {images} images"),
        false => format!("the first {looked_at} of {images} images"),
    };
    match others {
        [] => format!(" ({of} were tried, and no other is damaged)"),
        some => format!("; {of} were tried, and {}", others_in_words(some)),
    }
}

/// That these images are damaged, too.
pub(super) fn others_in_words(others: &[&Path]) -> String {
    let named = others.iter().take(MOST_NAMED);
    let named = named.map(|file| file.display().to_string());
    let named = named.collect::<Vec<_>>().join(", ");
    match others.len() {
        1 => format!("one other is damaged: {named}"),
        count if count > MOST_NAMED => {
            format!("more than {MOST_NAMED} others are damaged: {named}, ...")
        }
        count => format!("{count} others are damaged: {named}"),
    }
}

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

    use super::*;

    #[test]
    fn an_error_names_all_damaged_images() {
        let folder = tempfile::tempdir().unwrap();
        for class in ["a", "b"] {
            std::fs::create_dir(folder.path().join(class)).unwrap();
            for number in 0..4 {
                let file = folder.path().join(class).join(format!("{number}.png"));
                image::RgbImage::new(4, 4).save(file).unwrap();
            }
        }
        let damaged = [("a/1.png", 2), ("a/3.png", 6), ("b/0.png", 1)];
        for (name, _) in damaged {
            std::fs::write(folder.path().join(name), "no image").unwrap();
        }
        let images = ImageFolder::open(folder.path(), [4, 4]).unwrap();
        assert!(images.image(0).is_ok());
        for (name, index) in damaged {
            let error = images.image(index).unwrap_err().to_string();
            error.assert_contains([format!("{name} is damaged, or no image")]);
            let (_, others) = error
                .split_once(
                    "; put a readable image in its place, or take it out and begin a new run",
                )
                .unwrap();
            let tried = "; all 8 images were tried, and 2 others are damaged: ";
            assert!(others.starts_with(tried), "{others}");
            for (other, _) in damaged {
                assert_eq!(others.contains(other), other != name, "{others}");
            }
        }
    }

    #[test]
    fn a_search_tries_the_images_of_the_test_too() {
        let folder = tempfile::tempdir().unwrap();
        for set in ["train", "test"] {
            let class = folder.path().join(set).join("a");
            std::fs::create_dir_all(&class).unwrap();
            std::fs::write(class.join("1.png"), "no image").unwrap();
        }
        let open = |set| ImageFolder::open(folder.path().join(set), [4, 4]).unwrap();
        let (train, test) = (open("train"), open("test"));
        train.search_with(&[&test]);
        let error = train.image(0).unwrap_err().to_string();
        let (_, others) = error.split_once("; all 2 images were tried").unwrap();
        assert!(others.contains("one other is damaged"), "{error}");
        assert!(others.ends_with("test/a/1.png"), "{error}");
    }

    #[test]
    fn a_search_says_how_far_it_came_and_bounds_what_it_names() {
        assert_eq!(
            describe(&[], 7, 7),
            " (all 7 images were tried, and no other is damaged)"
        );
        let path = Path::new("x.png");
        let some = describe(&[path], 3, 7);
        let expected = "; the first 3 of 7 images were tried, and one other is damaged: x.png";
        assert_eq!(some, expected);
        let many = describe(&[path; MOST_NAMED + 1], 20, 70);
        assert!(many.contains("more than 10 others are damaged"), "{many}");
        assert_eq!(many.matches("x.png").count(), MOST_NAMED);
    }
}

//! Damaged images, named together: a training ends at the first.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::ImageFolder;
use crate::DatasetError;
use crate::rgb_item::decode_file;

/// How long images are tried, at most.
const LONGEST: Duration = Duration::from_secs(10);

/// The most images that are named.
const MOST_NAMED: usize = 10;

/// The damaged images of a folder, found when the first of them is read.
#[derive(Default)]
pub(super) struct DamageSearch(OnceLock<Found>);

/// What a search has found.
struct Found {
    /// By their numbers.
    damaged: Vec<usize>,
    looked_at: usize,
}

impl DamageSearch {
    /// Adds to an error of a damaged image which others are damaged, and what to do. Several threads read images: the
    /// first that meets a damaged one searches, and the others wait for it.
    pub(super) fn describe(&self, error: DatasetError, folder: &ImageFolder) -> DatasetError {
        let DatasetError::Image { path, problem } = error else {
            return error;
        };
        let found = self.0.get_or_init(|| search(folder, LONGEST));
        let files = found.damaged.iter().map(|index| &*folder.files[*index].0);
        let others: Vec<&Path> = files.filter(|file| **file != *path).collect();
        let others = describe(&others, found.looked_at, folder.len());
        let problem = format!("{problem}; put a readable image in its place{others}");
        DatasetError::Image { path, problem }
    }
}

fn search(folder: &ImageFolder, longest: Duration) -> Found {
    let start = Instant::now();
    let (mut looked_at, mut damaged) = (0, Vec::new());
    for (index, (file, _)) in folder.files.iter().enumerate() {
        if start.elapsed() > longest || damaged.len() > MOST_NAMED + 1 {
            break;
        }
        looked_at += 1;
        if decode_file(file, folder.size).is_err() {
            damaged.push(index);
        }
    }
    Found { damaged, looked_at }
}

fn describe(others: &[&Path], looked_at: usize, images: usize) -> String {
    let of = match looked_at == images {
        true => format!("all {images} images"),
        false => format!("the first {looked_at} of {images} images"),
    };
    let named = others.iter().take(MOST_NAMED);
    let named = named.map(|file| file.display().to_string());
    let named = named.collect::<Vec<_>>().join(", ");
    match others.len() {
        0 => format!(" ({of} were tried, and no other is damaged)"),
        count if count > MOST_NAMED => {
            format!(
                "; {of} were tried, and more than {MOST_NAMED} others are damaged: {named}, ..."
            )
        }
        1 => format!("; {of} were tried, and one other is damaged: {named}"),
        count => format!("; {of} were tried, and {count} others are damaged: {named}"),
    }
}

#[cfg(test)]
mod tests {
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
            assert!(
                error.contains(&format!("{name} is damaged, or no image")),
                "{error}"
            );
            let (_, others) = error
                .split_once("; put a readable image in its place")
                .unwrap();
            let tried = "; all 8 images were tried, and 2 others are damaged: ";
            assert!(others.starts_with(tried), "{others}");
            for (other, _) in damaged {
                assert_eq!(others.contains(other), other != name, "{others}");
            }
        }
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

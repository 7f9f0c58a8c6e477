//! Image files that are cut off or of another type, found before a training by their first and last bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use super::damage::{LONGEST, MOST_NAMED, others_in_words};
use crate::DatasetError;
use crate::error::unreadable;
use crate::files::names;
use crate::rgb_item::{decode_file, is_image};

/// How many threads read: they wait for the disk most of the time.
const THREADS: usize = 4;

/// How many bytes of a file's end are read. Its end marker may have other data after it.
const TAIL: usize = 4 << 10;

/// How PNG and JPEG files begin, and what is near their end.
const PNG: (&[u8], &[u8]) = (b"\x89PNG\r\n\x1a\n", b"IEND");
const JPEG: (&[u8], &[u8]) = (b"\xff\xd8\xff", b"\xff\xd9");

/// A damaged file, and what is wrong with it.
type Damaged = (PathBuf, String);

/// Looks for image files of a folder that are cut off or of another type: in its `train`, `test` and `val`, or, where it has no
/// `train`, in the folders of classes in it. The first and last bytes of each file are read, and a file in which they are not
/// those of a JPEG or PNG file is decoded. After 10 s the rest is left out: it is a check before a training, and each image is
/// decoded when it is read. A path that is no folder is not looked at.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::check_image_files;
///
/// let folder = tempfile::tempdir()?;
/// let class = folder.path().join("roses");
/// std::fs::create_dir(&class)?;
/// image::RgbImage::new(4, 4).save(class.join("1.png"))?;
/// check_image_files(folder.path())?;
///
/// std::fs::write(class.join("2.png"), "no image")?;
/// assert!(check_image_files(folder.path()).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`DatasetError::Image`] with the damaged files, and [`DatasetError::Read`].
pub fn check_image_files(folder: impl AsRef<Path>) -> Result<(), DatasetError> {
    let folder = folder.as_ref();
    if !folder.is_dir() {
        return Ok(());
    }
    let until = Instant::now() + LONGEST;
    let files = files_of(folder, until)?;
    let part = files.len().div_ceil(THREADS).max(1);
    let found: Result<Vec<Vec<Damaged>>, DatasetError> = thread::scope(|scope| {
        let threads = files.chunks(part);
        let threads = threads.map(|files| scope.spawn(move || look_at(files, until)));
        let threads: Vec<_> = threads.collect();
        let found = threads.into_iter();
        found
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    let mut damaged = found?.into_iter().flatten();
    let Some((path, problem)) = damaged.next() else {
        return Ok(());
    };
    let others: Vec<PathBuf> = damaged.map(|(path, _)| path).collect();
    let others: Vec<&Path> = others.iter().map(PathBuf::as_path).collect();
    let others = match others.is_empty() {
        true => String::new(),
        false => format!("; {}", others_in_words(&others)),
    };
    let problem = format!("{problem}; put a readable image in its place, or take it out{others}");
    Err(DatasetError::Image { path, problem })
}

/// The image files of all sets of a folder, in the folders that can be listed `until` then.
fn files_of(folder: &Path, until: Instant) -> Result<Vec<PathBuf>, DatasetError> {
    let sets = ["train", "test", "val"].map(|set| folder.join(set));
    let sets = match sets[0].is_dir() {
        true => sets.into_iter().filter(|set| set.is_dir()).collect(),
        false => vec![folder.to_owned()],
    };
    let mut files = Vec::new();
    for set in sets {
        for class in names(&set, Path::is_dir)? {
            if Instant::now() > until {
                return Ok(files);
            }
            let class = set.join(class);
            let images = names(&class, |path| is_image(path) && path.is_file())?;
            files.extend(images.into_iter().map(|name| class.join(name)));
        }
    }
    Ok(files)
}

fn look_at(files: &[PathBuf], until: Instant) -> Result<Vec<Damaged>, DatasetError> {
    let mut damaged = Vec::new();
    for file in files {
        if Instant::now() > until || damaged.len() > MOST_NAMED + 1 {
            break;
        }
        if has_both_ends(file).map_err(|source| unreadable(file, source))? {
            continue;
        }
        // It may be sound all the same: some cameras write more than the tail after the end of an image.
        match decode_file(file, [1, 1]) {
            Ok(_) => {}
            Err(DatasetError::Image { path, problem }) => damaged.push((path, problem)),
            Err(error) => return Err(error),
        }
    }
    Ok(damaged)
}

/// Whether a file begins as a JPEG or PNG file and has the mark of its end in its last bytes.
fn has_both_ends(file: &Path) -> io::Result<bool> {
    let file = File::open(file)?;
    let length = file.metadata()?.len();
    let mut head = [0; PNG.0.len()];
    let mut tail = [0; TAIL];
    let read = file.read_at(&mut head, 0)?;
    let head = &head[..read];
    let read = file.read_at(&mut tail, length.saturating_sub(TAIL as u64))?;
    let kind = [PNG, JPEG]
        .into_iter()
        .find(|(begin, _)| head.starts_with(begin));
    Ok(kind.is_some_and(|(_, end)| tail[..read].windows(end.len()).any(|part| part == end)))
}

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;
    use image::RgbImage;

    use super::*;

    /// Four images of each kind in each set.
    fn drawn() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for set in ["train", "val", "test"] {
            for class in ["a", "b"] {
                let class = folder.path().join(set).join(class);
                std::fs::create_dir_all(&class).unwrap();
                for number in 0..4 {
                    let picture = RgbImage::from_fn(16, 16, |x, y| {
                        image::Rgb([x as u8, y as u8, 7 * number])
                    });
                    for kind in ["png", "jpg"] {
                        let file = class.join(format!("{number}.{kind}"));
                        picture.save(file).unwrap();
                    }
                }
            }
        }
        folder
    }

    fn change(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(file).unwrap();
        change(&mut bytes);
        std::fs::write(file, bytes).unwrap();
    }

    #[test]
    fn files_that_are_cut_off_empty_or_of_another_type_are_named_together() {
        let folder = drawn();
        check_image_files(folder.path()).unwrap();
        let file = |name: &str| folder.path().join(name);
        let damaged = [
            "train/a/1.png",
            "train/b/2.jpg",
            "test/a/0.png",
            "val/b/3.jpg",
        ];
        let [cut_png, cut_jpg, empty, other] = damaged.map(file);
        change(&cut_png, |bytes| bytes.truncate(bytes.len() / 2));
        change(&cut_jpg, |bytes| bytes.truncate(bytes.len() / 2));
        change(&empty, Vec::clear);
        change(&other, |bytes| {
            *bytes = b"GIF89a\x01\0\x01\0\x80\0\0".to_vec();
        });
        let error = check_image_files(folder.path()).unwrap_err().to_string();
        error.assert_contains(["train/a/1.png is damaged", "3 others are damaged: "]);
        error.assert_contains(damaged);
        assert!(!error.contains("train/a/0.png"), "{error}");
    }

    #[test]
    fn classes_alone_are_checked_and_what_is_no_folder_of_images_is_not() {
        let folder = drawn();
        let train = folder.path().join("train");
        check_image_files(&train).unwrap();
        change(&train.join("b/0.jpg"), |bytes| bytes.truncate(40));
        let error = check_image_files(&train).unwrap_err().to_string();
        error.assert_contains(["b/0.jpg is damaged"]);
        assert!(!error.contains("other is damaged"), "{error}");
        // Tar shards, or a class without images.
        check_image_files(train.join("b/0.jpg")).unwrap();
        check_image_files(train.join("a")).unwrap();
    }

    #[test]
    fn bytes_after_the_end_are_accepted_even_many() {
        let folder = drawn();
        for (number, more) in [(0, 100), (1, 3 * TAIL)] {
            let file = folder.path().join(format!("train/a/{number}.jpg"));
            change(&file, |bytes| bytes.extend(vec![0; more]));
            assert_eq!(has_both_ends(&file).unwrap(), more < TAIL);
        }
        check_image_files(folder.path()).unwrap();
    }
}

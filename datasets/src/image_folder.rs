//! Images in folders, one folder per class.

mod damage;
mod ends;
mod left_out;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokenizers::NormalizedString;

use self::damage::DamageSearch;
pub use self::ends::check_image_files;
pub(crate) use self::left_out::LeftOut;
use crate::error::{refused, unreadable};
use crate::files::names;
use crate::proportion::in_proportion;
use crate::rgb_item::{PixelCache, checked_size, decode_file};
use crate::{DatasetError, RgbItem};

/// JPEG and PNG files of any size, in one folder per class: `roses/1.jpg`, `tulips/7.png`.
///
/// Images are decoded when they are read, turned as their EXIF orientation says, scaled to one size, and kept in memory
/// up to a [limit](Self::with_cache). The classes are the folders' names in alphabetical order, and the images of a
/// class are in the order of their names: the same on every machine. Classes alternate, so that each stretch of the images
/// has them in the proportion of the whole: a training holds out the last images for validation. Files with other extensions
/// are ignored, as are names that begin with a dot. Names of classes are compared and shown with composed accents (NFC).
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::ImageFolder;
///
/// let folder = tempfile::tempdir()?;
/// for class in ["tulips", "roses"] {
///     std::fs::create_dir(folder.path().join(class))?;
///     let picture = image::RgbImage::from_pixel(60, 40, image::Rgb([255, 0, 0]));
///     picture.save(folder.path().join(class).join("1.png"))?;
/// }
///
/// let set = ImageFolder::open(folder.path(), [32, 48])?;
/// assert_eq!(set.classes(), ["roses", "tulips"]);
/// let tulip = set.image(1)?;
/// assert_eq!((tulip.class, tulip.pixels.len()), (1, 3 * 32 * 48));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ImageFolder {
    classes: Vec<String>,
    files: Vec<(Arc<Path>, usize)>,
    /// Height and width.
    size: [u32; 2],
    cache: PixelCache,
    fingerprint: String,
    damage: DamageSearch,
    left_out: LeftOut,
}

impl ImageFolder {
    /// The images below `folder`, scaled to `size`: height and width, in pixels.
    ///
    /// # Errors
    /// [`DatasetError::Read`] if a folder cannot be listed, and [`DatasetError::Data`] if there are no classes, a
    /// class has no image, or the size is zero or too large. Images are decoded later: see [`image`](Self::image).
    pub fn open(folder: impl AsRef<Path>, size: [usize; 2]) -> Result<Self, DatasetError> {
        let folder = folder.as_ref();
        let mut classes: Vec<String> = names(folder, Path::is_dir)?;
        if classes.is_empty() {
            return Err(refused(folder, no_folders(folder)));
        }
        classes = classes.iter().map(|class| composed(class)).collect();
        classes.sort_unstable();
        classes.dedup();
        Self::with_classes(folder, size, &classes)
    }

    /// The images of these classes below `folder`: a test set has those of its training set.
    ///
    /// # Errors
    /// As [`open`](Self::open); a folder that is none of the classes is refused, too.
    pub fn with_classes(
        folder: impl AsRef<Path>,
        size: [usize; 2],
        classes: &[String],
    ) -> Result<Self, DatasetError> {
        let folder = folder.as_ref();
        let size = checked_size(folder, size)?;
        let classes: Vec<String> = classes.iter().map(|class| composed(class)).collect();
        let folders = folders_of(folder, &classes)?;
        let mut hash = Sha256::new();
        let mut files = Vec::new();
        let mut left_out = LeftOut::default();
        left_out.beside_classes(folder)?;
        for (number, (class, folder)) in classes.iter().zip(folders).enumerate() {
            let images = left_out.images_of_class(&folder)?;
            if images.is_empty() {
                return Err(refused(
                    &folder,
                    no_images(&folder, "add images of the class, or remove the folder")?,
                ));
            }
            for name in images {
                let file = folder.join(&name);
                let bytes = fs::metadata(&file).map_err(|source| unreadable(&file, source))?;
                hash.update(format!("{class}/{name} {}\n", bytes.len()));
                files.push((file.into(), number));
            }
        }
        hash.update("the classes alternate");
        let order = in_proportion(files.iter().map(|(_, class)| *class));
        let files = order.into_iter().map(|index| files[index].clone());
        let this = Self {
            classes,
            files: files.collect(),
            size,
            cache: PixelCache::default(),
            fingerprint: format!("{:x}", hash.finalize()),
            damage: DamageSearch::default(),
            left_out,
        };
        Ok(this.with_cache(PixelCache::BYTES))
    }

    /// Keeps up to this many bytes of decoded pixels in memory; 1 GiB by default. Images beyond are decoded at each use.
    #[must_use]
    pub fn with_cache(mut self, bytes: usize) -> Self {
        self.cache = PixelCache::new(self.len(), self.size, bytes);
        self
    }

    /// Moves every `every`th image of each class into a second set: a test set, where there is none.
    ///
    /// # Errors
    /// [`DatasetError::Data`] if a class has fewer than `every` images.
    ///
    /// # Panics
    /// Panics if `every` is less than 2.
    pub fn split(self, every: usize) -> Result<(Self, Self), DatasetError> {
        assert!(every >= 2, "every {every}th image leaves none");
        let mut seen = vec![0_usize; self.classes.len()];
        let folder_of = |class: usize| {
            let file = self.files.iter().find(|(_, of)| *of == class);
            file.and_then(|(file, _)| Some(file.parent()?.to_path_buf()))
        };
        let folders: Vec<_> = (0..self.classes.len()).map(folder_of).collect();
        let (second, first): (Vec<_>, Vec<_>) = self.files.into_iter().partition(|(_, class)| {
            seen[*class] += 1;
            seen[*class].is_multiple_of(every)
        });
        for ((class, count), folder) in self.classes.iter().zip(&seen).zip(folders) {
            if *count < every {
                let folder = folder.unwrap_or_else(|| class.into());
                let problem = format!(
                    "the class {class} has {count} of at least {every} images: one in {every} becomes a test image. Add images, or \
                     put test images into a folder of their own, beside that of training images"
                );
                return Err(refused(&folder, problem));
            }
        }
        let part = |files: Vec<_>, number: usize| {
            Self {
                classes: self.classes.clone(),
                files,
                size: self.size,
                cache: PixelCache::default(),
                fingerprint: format!("{} {number} of {every}", self.fingerprint),
                damage: DamageSearch::default(),
                left_out: LeftOut::default(),
            }
            .with_cache(PixelCache::BYTES)
        };
        Ok((part(first, 0), part(second, 1)))
    }

    /// Makes a search for damaged images one of these sets, too, which belong to the same data.
    pub(crate) fn search_with(&self, others: &[&Self]) {
        let files = others.iter().flat_map(|other| &other.files);
        self.damage
            .search_with(files.map(|(file, _)| Arc::clone(file)));
    }

    /// The names of the classes, in the order of their numbers.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there are no images; [`open`](Self::open) refuses such a folder.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// What is beside the images; a part that was [`split`](Self::split) off has nothing there.
    pub(crate) fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// SHA-256 of the names of classes and files and of the files' lengths, in hexadecimal. File contents are not read.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Image `index`, from the cache or decoded.
    ///
    /// # Errors
    /// [`DatasetError::Read`] and [`DatasetError::Image`], with the file.
    ///
    /// # Panics
    /// Panics if `index >= len()`.
    pub fn image(&self, index: usize) -> Result<RgbItem, DatasetError> {
        let (file, class) = &self.files[index];
        let pixels = self.cache.get(index, || decode_file(file, self.size));
        let pixels = pixels.map_err(|error| self.damage.describe(error, self))?;
        let [height, width] = self.size;
        Ok(RgbItem {
            pixels,
            size: [height as usize, width as usize],
            file: file.clone(),
            class: *class,
            mixed: None,
        })
    }
}

burn_set!(ImageFolder of RgbItem by image);

debug_by!(ImageFolder, it => classes: it.classes, len: it.len(), size: it.size);

/// The folders of classes below `folder`.
fn folders_of(folder: &Path, classes: &[String]) -> Result<Vec<PathBuf>, DatasetError> {
    let mut folders: BTreeMap<String, PathBuf> = BTreeMap::new();
    for name in names(folder, Path::is_dir)? {
        let class = composed(&name);
        if !classes.contains(&class) {
            let problem = format!("`{class}` is not one of the classes {}", classes.join(", "));
            return Err(refused(folder, problem));
        }
        if folders.insert(class, folder.join(&name)).is_some() {
            let problem = format!(
                "it has two folders `{name}`: their names look the same, and one has its accents as characters of their own, \
                 as macOS writes them. Move the images of both into one"
            );
            return Err(refused(folder, problem));
        }
    }
    let found = classes.iter().map(|class| {
        folders.remove(class).ok_or_else(|| {
            let problem =
                format!("there is no folder for the class {class}, which the training images have");
            refused(folder, problem)
        })
    });
    found.collect()
}

/// A name with each accent in one character with its letter (NFC): macOS writes some as characters of their own, and a
/// class has one name on every machine.
pub(crate) fn composed(name: &str) -> String {
    if name.is_ascii() {
        return name.to_owned();
    }
    let mut name = NormalizedString::from(name);
    name.nfc();
    name.get().to_owned()
}

/// What is wrong with a folder without folders, and what is expected.
fn no_folders(folder: &Path) -> String {
    let expected = "expected one per class, with JPEG or PNG files, as in roses/1.jpg, roses/2.jpg, tulips/1.jpg";
    let images = LeftOut::default().images_of_class(folder);
    if !images.is_ok_and(|images| !images.is_empty()) {
        return format!("it has no folders: {expected}");
    }
    let is_part = |folder: &Path| {
        let parts = ["train", "test", "val"];
        parts.iter().any(|part| folder.ends_with(part))
    };
    let above = |folder: &Path| {
        let above = folder.parent()?;
        (!above.as_os_str().is_empty()).then(|| above.to_owned())
    };
    let all = above(folder).filter(|_| !is_part(folder));
    let all = all.map(|all| above(&all).filter(|_| is_part(&all)).unwrap_or(all));
    let all = all.map_or_else(String::new, |all| {
        let all = all.display();
        format!("; if the folders beside it are the other classes, name {all}")
    });
    format!(
        "it has images and no folders: {expected}. Move the images of each class into a folder of its own{all}"
    )
}

/// Why a folder that should have images has none, and what to do: in an empty one, `help`.
pub(crate) fn no_images(folder: &Path, help: &str) -> Result<String, DatasetError> {
    let below = names(folder, Path::is_dir)?;
    if let Some(below) = below.first() {
        return Ok(format!(
            "it has no JPEG or PNG file, but folders such as `{below}`: a class has its images in its own folder. Folders of \
             training and of test images are named train and test (or val), each with a folder for each class"
        ));
    }
    let others = names(folder, Path::is_file)?;
    let other = others.iter().find_map(|name| Path::new(name).extension());
    Ok(match other {
        Some(other) => format!(
            "it has no JPEG or PNG file, but files such as `.{}`: convert them to JPEG or PNG",
            other.display()
        ),
        None => format!("it has no JPEG or PNG file: {help}"),
    })
}

#[cfg(test)]
mod tests;

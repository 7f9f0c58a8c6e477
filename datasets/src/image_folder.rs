//! Images in folders, one folder per class.

use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use burn_dataset::Dataset;
use data_encoding::HEXLOWER;
use image::imageops::FilterType;
use image::{DynamicImage, ImageDecoder, ImageReader, Limits};
use sha2::{Digest, Sha256};

use crate::DatasetError;

/// The file types that are read, by extension.
const EXTENSIONS: [&str; 3] = ["jpg", "jpeg", "png"];

/// The largest width and height of an image file, in pixels.
const MOST_PIXELS_A_SIDE: u32 = 16_384;

/// The most memory that decoding one image may take, in bytes.
const MOST_DECODER_BYTES: u64 = 1 << 30;

/// Decoded pixels that are kept in memory by default, in bytes.
const CACHE_BYTES: usize = 1 << 30;

/// JPEG and PNG files of any size, in one folder per class: `roses/1.jpg`, `tulips/7.png`.
///
/// Images are decoded when they are read, turned as their EXIF orientation says, scaled to one size, and kept in memory
/// up to a [limit](Self::with_cache). The classes are the folders' names in alphabetical order, and the images of a
/// class are in the order of their names: the same on every machine. Files with other extensions are ignored, as are
/// names that begin with a dot.
///
/// ```
/// use everburn_datasets::ImageFolder;
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
    /// The pixels of the first files, once they are decoded.
    cache: Vec<OnceLock<Arc<[u8]>>>,
    fingerprint: String,
}

/// An image and its class.
///
/// ```
/// use everburn_datasets::RgbItem;
///
/// fn show(item: &RgbItem) {
///     let [height, width] = item.size;
///     println!("class {}, {height} x {width}, {} bytes", item.class, item.pixels.len());
/// }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RgbItem {
    /// `[3, height, width]`: red, green and blue, from 0 to 255; `[1, height, width]` of a grey image.
    pub pixels: Arc<[u8]>,
    /// `[height, width]`, in pixels.
    pub size: [usize; 2],
    /// The file that it was read from.
    pub file: Arc<Path>,
    /// The number of its class, below the number of [`ImageFolder::classes`].
    pub class: usize,
    /// Of an image that is mixed of two (mixup, cutmix), the other class and its share, from 0 to a half.
    pub mixed: Option<(usize, f32)>,
}

impl RgbItem {
    /// 3, or 1 of a grey image.
    pub fn channels(&self) -> usize {
        self.pixels.len() / (self.size[0] * self.size[1]).max(1)
    }

    /// The image in a JPEG or PNG file, scaled to `size`: height and width, in pixels. Its class is 0.
    ///
    /// # Errors
    /// [`DatasetError::Read`] and [`DatasetError::Image`], with the file; [`DatasetError::ImageFolder`] if the size is
    /// zero or too large.
    pub fn read(file: impl AsRef<Path>, size: [usize; 2]) -> Result<Self, DatasetError> {
        let file = file.as_ref();
        let pixels = decode(file, checked_size(file, size)?)?;
        Ok(Self {
            pixels: pixels.into(),
            size,
            file: file.into(),
            class: 0,
            mixed: None,
        })
    }

    /// The image in a file, or all images of a folder, in the order of their names: as [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read); also if the folder cannot be listed or has no image.
    pub fn read_all(path: impl AsRef<Path>, size: [usize; 2]) -> Result<Vec<Self>, DatasetError> {
        let path = path.as_ref();
        if !path.is_dir() {
            return Ok(vec![Self::read(path, size)?]);
        }
        let files = names(path, |entry| entry.is_file() && is_image(entry))?;
        if files.is_empty() {
            return Err(refused(path, "it has no JPEG or PNG file"));
        }
        let files = files.iter().map(|name| Self::read(path.join(name), size));
        files.collect()
    }
}

impl ImageFolder {
    /// The images below `folder`, scaled to `size`: height and width, in pixels.
    ///
    /// # Errors
    /// [`DatasetError::Read`] if a folder cannot be listed, and [`DatasetError::ImageFolder`] if there are no classes, a
    /// class has no image, or the size is zero or too large. Images are decoded later: see [`image`](Self::image).
    pub fn open(folder: impl AsRef<Path>, size: [usize; 2]) -> Result<Self, DatasetError> {
        let folder = folder.as_ref();
        let classes = names(folder, Path::is_dir)?;
        if classes.is_empty() {
            let problem = "it has no folders: expected one per class, with JPEG and PNG files";
            return Err(refused(folder, problem));
        }
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
        for class in names(folder, Path::is_dir)? {
            if !classes.contains(&class) {
                let problem = format!("`{class}` is none of the classes {}", classes.join(", "));
                return Err(refused(folder, problem));
            }
        }
        let mut hash = Sha256::new();
        let mut files = Vec::new();
        for (number, class) in classes.iter().enumerate() {
            let folder = folder.join(class);
            let images = names(&folder, |entry| entry.is_file() && is_image(entry))?;
            if images.is_empty() {
                return Err(refused(&folder, "it has no JPEG or PNG file"));
            }
            for name in images {
                let file = folder.join(&name);
                let bytes = fs::metadata(&file).map_err(|source| unreadable(&file, source))?;
                hash.update(format!("{class}/{name} {}\n", bytes.len()));
                files.push((file.into(), number));
            }
        }
        let this = Self {
            classes: classes.to_vec(),
            files,
            size,
            cache: Vec::new(),
            fingerprint: HEXLOWER.encode(&hash.finalize()),
        };
        Ok(this.with_cache(CACHE_BYTES))
    }

    /// Keeps up to this many bytes of decoded pixels in memory; 1 GiB by default. Images beyond are decoded at each use.
    #[must_use]
    pub fn with_cache(mut self, bytes: usize) -> Self {
        let count = self.len().min(bytes / self.bytes_per_image());
        self.cache = (0..count).map(|_| OnceLock::new()).collect();
        self
    }

    /// Moves every `every`th image of each class into a second set: a test set, where there is none.
    ///
    /// # Errors
    /// [`DatasetError::ImageFolder`] if a class has fewer than `every` images.
    ///
    /// # Panics
    /// Panics if `every` is less than 2.
    pub fn split(self, every: usize) -> Result<(Self, Self), DatasetError> {
        assert!(every >= 2, "every {every}th image leaves none");
        let mut seen = vec![0_usize; self.classes.len()];
        let (second, first): (Vec<_>, Vec<_>) = self.files.into_iter().partition(|(_, class)| {
            seen[*class] += 1;
            seen[*class].is_multiple_of(every)
        });
        for (class, count) in self.classes.iter().zip(&seen) {
            if *count < every {
                let folder = first.first().map_or(Path::new(class), |(file, _)| file);
                let problem = format!(
                    "the class {class} has {count} of at least {every} images: one in {every} becomes a test image. Add images, or \
                     put test images into a folder of their own, beside that of training images"
                );
                return Err(refused(folder.parent().unwrap_or(folder), problem));
            }
        }
        let part = |files: Vec<_>, number: usize| {
            Self {
                classes: self.classes.clone(),
                files,
                size: self.size,
                cache: Vec::new(),
                fingerprint: format!("{} {number} of {every}", self.fingerprint),
            }
            .with_cache(CACHE_BYTES)
        };
        Ok((part(first, 0), part(second, 1)))
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
        let cached = self.cache.get(index);
        let pixels = match cached.and_then(OnceLock::get) {
            Some(pixels) => Arc::clone(pixels),
            None => {
                let pixels: Arc<[u8]> = decode(file, self.size)?.into();
                if let Some(cached) = cached {
                    // Another thread may have been faster, with the same pixels.
                    let _ = cached.set(Arc::clone(&pixels));
                }
                pixels
            }
        };
        let [height, width] = self.size;
        Ok(RgbItem {
            pixels,
            size: [height as usize, width as usize],
            file: file.clone(),
            class: *class,
            mixed: None,
        })
    }

    fn bytes_per_image(&self) -> usize {
        3 * self.size[0] as usize * self.size[1] as usize
    }
}

impl Dataset<RgbItem> for ImageFolder {
    fn get(&self, index: usize) -> Result<RgbItem, burn_dataset::DatasetError> {
        self.image(index).map_err(burn_dataset::DatasetError::new)
    }

    fn len(&self) -> usize {
        self.files.len()
    }
}

impl std::fmt::Debug for ImageFolder {
    // The derived form would print every file.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageFolder")
            .field("classes", &self.classes)
            .field("len", &self.len())
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// The pixels `[3, height, width]` of an image file.
fn decode(file: &Path, [height, width]: [u32; 2]) -> Result<Vec<u8>, DatasetError> {
    let damaged = |error: image::ImageError| DatasetError::Image {
        path: file.to_path_buf(),
        problem: error.to_string(),
    };
    let opened = fs::File::open(file).map_err(|source| unreadable(file, source))?;
    let reader = ImageReader::new(BufReader::new(opened)).with_guessed_format();
    let reader = reader.map_err(|source| unreadable(file, source))?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(MOST_PIXELS_A_SIDE);
    limits.max_image_height = Some(MOST_PIXELS_A_SIDE);
    limits.max_alloc = Some(MOST_DECODER_BYTES);
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    decoder.set_limits(limits).map_err(damaged)?;
    let orientation = decoder.orientation().map_err(damaged)?;
    let mut picture = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    picture.apply_orientation(orientation);
    let pixels = picture
        .resize_exact(width, height, FilterType::Triangle)
        .into_rgb8();
    let channel = |channel: usize| pixels.pixels().map(move |pixel| pixel[channel]);
    Ok((0..3).flat_map(channel).collect())
}

fn checked_size(path: &Path, size: [usize; 2]) -> Result<[u32; 2], DatasetError> {
    let [height, width] = size.map(|side| {
        let side = u32::try_from(side).ok();
        side.filter(|side| (1..=MOST_PIXELS_A_SIDE).contains(side))
    });
    let [given_height, given_width] = size;
    height.zip(width).map(<[u32; 2]>::from).ok_or_else(|| {
        let problem = format!(
            "{given_height}x{given_width} is no size: expected 1 to {MOST_PIXELS_A_SIDE} pixels a side"
        );
        refused(path, problem)
    })
}

/// The `wanted` names in a folder, in alphabetical order.
fn names(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<String>, DatasetError> {
    let entries = fs::read_dir(folder).map_err(|source| unreadable(folder, source))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| unreadable(folder, source))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(refused(&path, "its name is not UTF-8"));
        };
        if !name.starts_with('.') && wanted(&path) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn is_image(file: &Path) -> bool {
    let extension = file.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|own| {
        EXTENSIONS
            .iter()
            .any(|known| own.eq_ignore_ascii_case(known))
    })
}

fn unreadable(path: &Path, source: std::io::Error) -> DatasetError {
    DatasetError::Read {
        path: path.to_path_buf(),
        source,
    }
}

fn refused(folder: &Path, problem: impl Into<String>) -> DatasetError {
    DatasetError::ImageFolder {
        folder: folder.to_path_buf(),
        problem: problem.into(),
    }
}

#[cfg(test)]
mod tests;

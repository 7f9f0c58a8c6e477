//! An image of one of the data sets of images: from a file, or from the bytes of one.

mod decoding;
mod jpeg;

use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use image::GrayImage;
use image::imageops::FilterType;

pub(crate) use self::decoding::{decode_bytes, decode_file};
use crate::DatasetError;
use crate::error::refused;
use crate::files::names;
use crate::image_folder::no_images;

/// The file types that are read, by extension.
pub(crate) const EXTENSIONS: [&str; 3] = ["jpg", "jpeg", "png"];

/// The largest width and height of an image file, in pixels.
const MOST_PIXELS_A_SIDE: u32 = 16_384;

/// An image and its class.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::RgbItem;
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
    /// The number of its class, below the number of [`ImageFolder::classes`](crate::ImageFolder::classes).
    pub class: usize,
    /// Of an image that is mixed of two (mixup, cutmix), the other class and its share, from 0 to a half.
    pub mixed: Option<(usize, f32)>,
}

impl RgbItem {
    /// The largest width and height, in pixels.
    pub const MOST_PIXELS_A_SIDE: usize = MOST_PIXELS_A_SIDE as usize;

    /// 3, or 1 of a grey image.
    pub fn channels(&self) -> usize {
        self.pixels.len() / (self.size[0] * self.size[1]).max(1)
    }

    /// The same image in grey: `[1, height, width]`, by the weights of ITU-R BT.601.
    #[must_use]
    pub fn to_grey(self) -> Self {
        if self.channels() != 3 {
            return self;
        }
        let plane = self.pixels.len() / 3;
        let channel = |channel: usize| &self.pixels[channel * plane..][..plane];
        let pixels = channel(0).iter().zip(channel(1)).zip(channel(2));
        let grey = |((red, green), blue): ((&u8, &u8), &u8)| {
            let weighted = 299 * u32::from(*red) + 587 * u32::from(*green) + 114 * u32::from(*blue);
            ((weighted + 500) / 1000) as u8
        };
        let pixels: Vec<u8> = pixels.map(grey).collect();
        Self {
            pixels: pixels.into(),
            ..self
        }
    }

    /// The image in a JPEG or PNG file, scaled to `size`: height and width, in pixels. Its class is 0.
    ///
    /// # Errors
    /// [`DatasetError::Read`] and [`DatasetError::Image`], with the file; [`DatasetError::Data`] if the size is zero or too
    /// large.
    pub fn read(file: impl AsRef<Path>, size: [usize; 2]) -> Result<Self, DatasetError> {
        let file = file.as_ref();
        let pixels = decode_file(file, checked_size(file, size)?)?;
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
            let problem = match names(path, Path::is_dir)?.first() {
                Some(below) => format!(
                    "it has no JPEG or PNG file, but folders such as `{below}`: name one of these"
                ),
                None => no_images(path, "name a folder with images")?,
            };
            return Err(refused(path, problem));
        }
        let files = files.iter().map(|name| Self::read(path.join(name), size));
        files.collect()
    }

    /// The files that [`read_all`](Self::read_all) leaves out of a folder, in words, if there are some.
    pub fn left_out(folder: impl AsRef<Path>) -> Option<String> {
        // What cannot be listed cannot be read either, which says so.
        let others = names(folder.as_ref(), |entry| entry.is_file() && !is_image(entry)).ok()?;
        let what = "files that are neither JPEG nor PNG";
        others
            .first()
            .map(|first| left_out(what, others.len(), first))
    }
}

/// Decoded pixels of the first images of a set.
#[derive(Default)]
pub(crate) struct PixelCache(Vec<OnceLock<Arc<[u8]>>>);

impl PixelCache {
    /// Decoded pixels that are kept in memory by default, in bytes.
    pub(crate) const BYTES: usize = 1 << 30;

    /// Room for as many of `count` images of this size as `bytes` hold.
    pub(crate) fn new(count: usize, [height, width]: [u32; 2], bytes: usize) -> Self {
        let count = count.min(bytes / (3 * height as usize * width as usize).max(1));
        Self((0..count).map(|_| OnceLock::new()).collect())
    }

    /// The pixels of image `index`, which `decode` makes where they are not here.
    pub(crate) fn get(
        &self,
        index: usize,
        decode: impl FnOnce() -> Result<Vec<u8>, DatasetError>,
    ) -> Result<Arc<[u8]>, DatasetError> {
        let cached = self.0.get(index);
        if let Some(pixels) = cached.and_then(OnceLock::get) {
            return Ok(Arc::clone(pixels));
        }
        let pixels: Arc<[u8]> = decode()?.into();
        if let Some(cached) = cached {
            // Another thread may have been faster, with the same pixels.
            let _ = cached.set(Arc::clone(&pixels));
        }
        Ok(pixels)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Pixels `[C, height, width]` of another size.
pub(crate) fn resized(pixels: &[u8], from: [u32; 2], to: [u32; 2]) -> Vec<u8> {
    if from == to {
        return pixels.to_vec();
    }
    let plane = from[0] as usize * from[1] as usize;
    let planes = pixels.chunks_exact(plane).filter_map(|plane| {
        let plane = GrayImage::from_raw(from[1], from[0], plane.to_vec())?;
        let plane = image::imageops::resize(&plane, to[1], to[0], FilterType::Triangle);
        Some(plane.into_raw())
    });
    planes.flatten().collect()
}

pub(crate) fn checked_size(path: &Path, size: [usize; 2]) -> Result<[u32; 2], DatasetError> {
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

/// That `what` beside images is not read: how many, and one of them.
pub(crate) fn left_out(what: &str, count: usize, one: impl Display) -> String {
    format!("{what}, left out: {count}, such as {one}")
}

pub(crate) fn is_image(file: &Path) -> bool {
    let extension = file.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|own| {
        EXTENSIONS
            .iter()
            .any(|known| own.eq_ignore_ascii_case(known))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_of_another_format_is_called_that_whatever_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let told = |name: &str, bytes: &[u8]| {
            let file = folder.path().join(name);
            fs::write(&file, bytes).unwrap();
            let error = RgbItem::read(&file, [4, 4]).unwrap_err().to_string();
            fs::remove_file(file).unwrap();
            error
        };
        let gif = told("1.jpg", b"GIF89a\x01\0\x01\0\x80\0\0");
        let end = "1.jpg is a GIF: convert it to JPEG or PNG";
        assert!(gif.ends_with(end), "{gif}");
        let webp = told("2.webp", b"RIFF\x1a\0\0\0WEBPVP8L");
        let end = "2.webp is a WebP: convert it to JPEG or PNG";
        assert!(webp.ends_with(end), "{webp}");
        let none = told("3.png", b"no image");
        assert!(none.contains("3.png is damaged, or no image: "), "{none}");
    }

    #[test]
    fn files_beside_images_are_counted_and_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        image::RgbImage::new(4, 4)
            .save(folder.path().join("1.png"))
            .unwrap();
        assert_eq!(RgbItem::left_out(folder.path()), None);
        assert_eq!(RgbItem::left_out(folder.path().join("1.png")), None);
        for name in ["b.webp", "a.gif", ".hidden"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let told = RgbItem::left_out(folder.path()).unwrap();
        assert_eq!(
            told,
            "files that are neither JPEG nor PNG, left out: 2, such as a.gif"
        );
    }

    #[test]
    fn an_empty_folder_of_images_to_predict_is_no_class() {
        let folder = tempfile::tempdir().unwrap();
        let error = RgbItem::read_all(folder.path(), [4, 4]).unwrap_err();
        let error = error.to_string();
        let end = "no JPEG or PNG file: name a folder with images";
        assert!(error.ends_with(end), "{error}");
    }
}

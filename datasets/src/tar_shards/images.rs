//! Images in tar files, with their classes.

use std::path::Path;
use std::sync::Arc;

use super::TarShards;
use crate::error::damaged;
use crate::image_folder::composed;
use crate::rgb_item::{EXTENSIONS, PixelCache, checked_size, decode_bytes};
use crate::{DatasetError, RgbItem};

/// The largest number of a class: a model has a row of weights for each.
const MOST_CLASSES: usize = 100_000;

/// The images of [`TarShards`]. The class of an image is the number in a file `.cls` of its sample or, where the first
/// sample has none, the folder of the sample: `roses/000.jpg`.
///
/// ```no_run
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{TarImages, TarShards};
///
/// let shards = TarShards::open(&["train-000.tar".into(), "train-001.tar".into()])?;
/// let set = TarImages::open(shards, [224, 224], None)?;
/// println!("{} images of {} classes", set.len(), set.classes().len());
/// # Ok::<(), everburn_datasets::DatasetError>(())
/// ```
pub struct TarImages {
    shards: TarShards,
    /// Of each sample, the number of its class and the extension of its image.
    images: Vec<(u32, &'static str)>,
    classes: Vec<String>,
    size: [u32; 2],
    cache: PixelCache,
}

impl TarImages {
    /// The images of shards, scaled to `size`: height and width, in pixels. Each sample must have one, and a class: of
    /// `classes`, if they are given, as a test set has those of its training set. Images are decoded later, and kept in
    /// memory up to 1 GiB.
    ///
    /// # Errors
    /// [`DatasetError::Data`] with the shard and the sample that has no image or no class, or if the size is zero or too
    /// large.
    pub fn open(
        shards: TarShards,
        size: [usize; 2],
        classes: Option<&[String]>,
    ) -> Result<Self, DatasetError> {
        let size = checked_size(shards.place(0).0, size)?;
        let numbered = shards.extensions(0).any(|extension| extension == "cls");
        let names = (0..shards.len()).map(|index| class_of(&shards, index, numbered));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let classes = match classes {
            Some(classes) => classes.to_vec(),
            None => all_classes(&names),
        };
        let images = names.iter().enumerate().map(|(index, class)| {
            let (file, key) = shards.place(index);
            let number = match class {
                Class::Number(number) => (*number < classes.len()).then_some(*number),
                Class::Folder(name) => classes.binary_search(name).ok(),
            };
            let number = number.ok_or_else(|| {
                let count = classes.len();
                damaged(
                    file,
                    key,
                    format!("its class {class} is none of the {count} classes"),
                )
            })?;
            Ok((number as u32, image_of(&shards, index)?))
        });
        let images = images.collect::<Result<Vec<_>, DatasetError>>()?;
        Ok(Self {
            cache: PixelCache::new(shards.len(), size, PixelCache::BYTES),
            images,
            classes,
            size,
            shards,
        })
    }

    /// The names of the classes, in the order of their numbers.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// Whether there are no images; [`open`](Self::open) refuses such shards.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// The number of each image's class.
    pub fn class_numbers(&self) -> Vec<usize> {
        let classes = self.images.iter().map(|(class, _)| *class as usize);
        classes.collect()
    }

    /// The shards.
    pub fn shards(&self) -> &TarShards {
        &self.shards
    }

    /// Image `index`, from the cache or decoded.
    ///
    /// # Errors
    /// [`DatasetError::Read`], [`DatasetError::Data`] and [`DatasetError::Image`], with the shard and the sample.
    ///
    /// # Panics
    /// Panics if `index >= len()`.
    pub fn image(&self, index: usize) -> Result<RgbItem, DatasetError> {
        let (class, extension) = self.images[index];
        let (shard, key) = self.shards.place(index);
        let file = shard.join(format!("{key}.{extension}"));
        let pixels = self.cache.get(index, || {
            let bytes = self.shards.read(index, extension)?.unwrap_or_default();
            decode_bytes(&bytes, &file, self.size)
        })?;
        let [height, width] = self.size;
        Ok(RgbItem {
            pixels,
            size: [height as usize, width as usize],
            file: Arc::from(file),
            class: class as usize,
            mixed: None,
        })
    }
}

burn_set!(TarImages of RgbItem by image);

debug_by!(TarImages, it => shards: it.shards, classes: it.classes.len(), size: it.size);

enum Class {
    Number(usize),
    Folder(String),
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Folder(name) => name.fmt(f),
        }
    }
}

fn class_of(shards: &TarShards, index: usize, numbered: bool) -> Result<Class, DatasetError> {
    let (file, key) = shards.place(index);
    if numbered {
        let content = shards.read(index, "cls")?;
        let none = "it has no file `.cls`, and the first sample has one";
        let content = content.ok_or_else(|| damaged(file, key, none))?;
        let text = String::from_utf8_lossy(&content[..content.len().min(64)]);
        let number = text.trim().parse::<usize>();
        return match number {
            Ok(number) if number < MOST_CLASSES => Ok(Class::Number(number)),
            _ => {
                let problem = format!(
                    "`{}` is no class: expected a number below {MOST_CLASSES}",
                    text.trim().escape_debug()
                );
                Err(damaged(file, &format!("{key}.cls"), problem))
            }
        };
    }
    let folder = Path::new(key).parent().and_then(Path::file_name);
    let name = folder.and_then(|name| name.to_str());
    let none = "neither a file `.cls` nor a folder says its class";
    let name = name.ok_or_else(|| damaged(file, key, none))?;
    Ok(Class::Folder(composed(name)))
}

/// Names in alphabetical order, or all numbers up to the largest one.
fn all_classes(found: &[Class]) -> Vec<String> {
    let mut names = Vec::new();
    let mut count = 0;
    for class in found {
        match class {
            Class::Number(number) => count = count.max(number + 1),
            Class::Folder(name) => names.push(name.clone()),
        }
    }
    names.sort_unstable();
    names.dedup();
    names.extend((0..count).map(|number| number.to_string()));
    names
}

/// The extension of the sample's image.
fn image_of(shards: &TarShards, index: usize) -> Result<&'static str, DatasetError> {
    let known = EXTENSIONS.into_iter().find(|known| {
        let mut extensions = shards.extensions(index);
        extensions.any(|extension| extension == *known)
    });
    let (file, key) = shards.place(index);
    known.ok_or_else(|| damaged(file, key, "it has no image: expected .jpg, .jpeg or .png"))
}

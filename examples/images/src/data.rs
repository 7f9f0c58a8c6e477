//! Images from folders, and batches of them.

use std::path::{Path, PathBuf};

use everburn::burn::data::dataloader::batcher::Batcher;
use everburn::burn::prelude::*;
use everburn::burn::tensor::Int;
use everburn::prelude::*;

use crate::ImagesConfig;

/// The pixels of an image, red, green and blue one after the other, and the number of its class.
pub type Picture = (Vec<f32>, i32);

/// Images `[B, 3, size, size]` and their classes `[B]`.
pub type Pictures = (Tensor<4>, Tensor<1, Int>);

/// The images of `part`, by class and name, so that every rank has the same order.
pub fn read(config: &ImagesConfig, part: &str) -> Result<Vec<Picture>, TaskError> {
    let sorted = |folder: &Path| -> Result<Vec<PathBuf>, TaskError> {
        let entries =
            std::fs::read_dir(folder).map_err(|error| TaskError::new(format!("{}: {error}", folder.display())))?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, TaskError>>()?;
        paths.sort();
        Ok(paths)
    };
    let mut pictures = Vec::new();
    for (number, class) in config.classes.iter().enumerate() {
        for path in sorted(&config.folder.join(part).join(class))? {
            let image = image::open(&path).map_err(|error| TaskError::new(format!("{}: {error}", path.display())))?;
            let image = image.resize_exact(config.size, config.size, image::imageops::FilterType::Triangle).into_rgb8();
            let channel =
                |c: usize| image.pixels().map(move |pixel| f32::from(pixel[c]) / 127.5 - 1.0).collect::<Vec<_>>();
            pictures.push(((0..3).flat_map(channel).collect(), number as i32));
        }
    }
    Ok(pictures)
}

/// Makes a batch of several images of `size` by `size` pixels.
pub struct PictureBatcher {
    pub size: usize,
}

impl Batcher<Picture, Pictures> for PictureBatcher {
    fn batch(&self, pictures: Vec<Picture>, device: &Device) -> Pictures {
        let count = pictures.len();
        let classes = pictures.iter().map(|(_, class)| *class).collect::<Vec<_>>();
        let pixels = pictures.into_iter().flat_map(|(pixels, _)| pixels).collect::<Vec<_>>();
        let pixels = Tensor::<1>::from_floats(pixels.as_slice(), device);
        (pixels.reshape([count, 3, self.size, self.size]), Tensor::from_ints(classes.as_slice(), device))
    }
}

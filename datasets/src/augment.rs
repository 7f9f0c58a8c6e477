//! Random changes of images to learn from.

mod color;
mod geometry;
mod mix;

use std::fmt;
use std::str::FromStr;

use self::color::ColorChange;
use self::geometry::Affine;
use crate::draw::Draw;
use crate::{IMAGE_HEIGHT, IMAGE_WIDTH, ImageItem, RgbItem};
use rand_chacha::rand_core::Rng;

/// The magnitudes of RandAugment: from 0 to one below this.
const MAGNITUDES: usize = 31;

/// Random changes of images, in the words of torchvision's transforms:
///
/// | change | torchvision | what it does |
/// |---|---|---|
/// | `crop`, `crop:0.35` | `RandomResizedCrop` | a part of at least this share of the area, scaled to the whole |
/// | `flip` | `RandomHorizontalFlip` | left and right exchanged, every other time |
/// | `color`, `color:0.4` | `ColorJitter` | brightness, contrast and saturation times up to 1 ± this |
/// | `rotate`, `rotate:15` | `RandomRotation` | by up to this many degrees |
/// | `shift`, `shift:0.1` | `RandomAffine(translate)` | by up to this share of width and height |
/// | `erase`, `erase:0.25` | `RandomErasing` | a rectangle gets the mean colour, with this probability |
/// | `rand`, `rand:2:9` | `RandAugment` | as many changes out of 14, of this magnitude of 30 (Cubuk et al. 2020) |
/// | `mixup`, `mixup:0.2` | `MixUp` | a weighted mean with another image, by Beta(0.2, 0.2) (Zhang et al. 2018) |
/// | `cutmix`, `cutmix:1` | `CutMix` | a rectangle of another image in place of its own (Yun et al. 2019) |
///
/// What moves pixels is done first and all at once, with bilinear interpolation; what comes from outside of the image is
/// black. The random numbers are the caller's: a training draws them from its seed, the epoch and the number of the
/// sample, so that any number of ranks sees the same images.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{ImageAugmentation, RgbItem};
/// use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
///
/// let augmentation: ImageAugmentation = "crop:0.5,flip,color:0.2".parse()?;
/// assert_eq!(augmentation.to_string(), "crop:0.5,flip,color:0.2");
///
/// let image = RgbItem { pixels: vec![90; 3 * 8 * 8].into(), size: [8, 8],
///     file: std::path::Path::new("1.png").into(), class: 1, mixed: None };
/// let changed = augmentation.rgb(image, &mut ChaCha8Rng::seed_from_u64(7));
/// assert_eq!((changed.size, changed.class), ([8, 8], 1));
/// # Ok::<(), everburn_datasets::UnknownAugmentation>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ImageAugmentation {
    changes: Vec<Change>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    /// The smallest share of the area.
    Crop(f32),
    Flip,
    /// How far from 1 factors may be.
    Color(f32),
    /// Degrees.
    Rotate(f32),
    /// A share of width and height.
    Shift(f32),
    /// The probability.
    Erase(f32),
    /// How many changes, and their magnitude.
    Rand(usize, usize),
    /// Both parameters of the Beta distribution.
    Mixup(f32),
    /// Both parameters of the Beta distribution.
    Cutmix(f32),
}

/// A text that describes no [`ImageAugmentation`].
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::ImageAugmentation;
///
/// let error = "flip,warp".parse::<ImageAugmentation>().unwrap_err();
/// assert!(error.to_string().starts_with("`warp` is no change of images"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no change of images: expected crop:0.35 (a share of the area, above 0 to 1), flip, color:0.4 (0 to 1), \
     rotate:15 (degrees, 0 to 180), shift:0.1 (a share, 0 to 1), erase:0.25 (a probability), rand:2:9 (how many, and \
     their magnitude, 0 to 30), mixup:0.2, cutmix:1 (above 0 to 4), or several, separated by commas"
)]
pub struct UnknownAugmentation(String);

impl ImageAugmentation {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changed image: of the same size and class.
    #[must_use]
    pub fn rgb(&self, item: RgbItem, rng: &mut impl Rng) -> RgbItem {
        let [height, width] = item.size;
        let pixels = self.apply(&item.pixels, [item.channels(), height, width], rng);
        RgbItem {
            pixels: pixels.into(),
            ..item
        }
    }

    /// The changed image, with the same label.
    #[must_use]
    pub fn grey(&self, mut item: ImageItem, rng: &mut impl Rng) -> ImageItem {
        let pixels = self.apply(&item.pixels, [1, IMAGE_HEIGHT, IMAGE_WIDTH], rng);
        item.pixels.copy_from_slice(&pixels);
        item
    }

    /// Changes an image `[channels, height, width]`.
    fn apply(&self, pixels: &[u8], shape: [usize; 3], rng: &mut impl Rng) -> Vec<u8> {
        let mut draw = Draw(rng);
        let mut plan = Plan::default();
        for change in &self.changes {
            plan.add(*change, [shape[1] as f32, shape[2] as f32], &mut draw);
        }
        let mut changed = match plan.map {
            Some(map) => map.resample(pixels, shape),
            None => pixels.to_vec(),
        };
        for change in plan.colors {
            change.apply(&mut changed, shape);
        }
        changed
    }
}

/// What is done to one image.
#[derive(Default)]
struct Plan {
    /// Where each pixel comes from.
    map: Option<Affine>,
    colors: Vec<ColorChange>,
}

impl Plan {
    fn add(&mut self, change: Change, size: [f32; 2], draw: &mut Draw<impl Rng>) {
        match change {
            Change::Crop(smallest) => self.map(crop(smallest, size, draw)),
            Change::Flip => {
                if draw.unit() < 0.5 {
                    self.map(Affine::flip());
                }
            }
            Change::Color(by) => {
                let factors = [(); 3].map(|()| draw.between(1.0 - by, 1.0 + by));
                let [brightness, contrast, saturation] = factors;
                self.colors.extend([
                    ColorChange::Brightness(brightness),
                    ColorChange::Contrast(contrast),
                    ColorChange::Saturation(saturation),
                ]);
            }
            Change::Rotate(degrees) => self.map(Affine::rotation(draw.between(-degrees, degrees))),
            Change::Shift(share) => {
                let [down, across] = size.map(|side| side * draw.between(-share, share));
                self.map(Affine::shift(across, down));
            }
            Change::Erase(chance) => {
                if draw.unit() < chance
                    && let Some(change) = erased(size, draw)
                {
                    self.colors.push(change);
                }
            }
            // They take two images, which have been changed before.
            Change::Mixup(_) | Change::Cutmix(_) => {}
            Change::Rand(count, magnitude) => {
                for _ in 0..count {
                    self.add_random(magnitude, size, draw);
                }
            }
        }
    }

    fn map(&mut self, next: Affine) {
        self.map = Some(self.map.map_or(next, |map| map.of(next)));
    }

    /// One of RandAugment's changes, as torchvision has them.
    fn add_random(
        &mut self,
        magnitude: usize,
        [height, width]: [f32; 2],
        draw: &mut Draw<impl Rng>,
    ) {
        let which = draw.below(14);
        let share = magnitude as f32 / (MAGNITUDES - 1) as f32;
        let share = if draw.unit() < 0.5 { -share } else { share };
        let factor = 1.0 + 0.9 * share;
        match which {
            0 => {}
            1 => self.map(Affine::shear(0.3 * share, 0.0)),
            2 => self.map(Affine::shear(0.0, 0.3 * share)),
            3 => self.map(Affine::shift(150.0 / 331.0 * width * share, 0.0)),
            4 => self.map(Affine::shift(0.0, 150.0 / 331.0 * height * share)),
            5 => self.map(Affine::rotation(30.0 * share)),
            6 => self.colors.push(ColorChange::Brightness(factor)),
            7 => self.colors.push(ColorChange::Saturation(factor)),
            8 => self.colors.push(ColorChange::Contrast(factor)),
            9 => self.colors.push(ColorChange::Sharpness(factor)),
            10 => {
                let fewer = (magnitude as f32 / ((MAGNITUDES - 1) as f32 / 4.0)).round();
                self.colors.push(ColorChange::Posterize(8 - fewer as u32));
            }
            11 => {
                let threshold = 255.0 * (1.0 - share.abs());
                self.colors.push(ColorChange::Solarize(threshold as u8));
            }
            12 => self.colors.push(ColorChange::AutoContrast),
            _ => self.colors.push(ColorChange::Equalize),
        }
    }
}

/// A rectangle of at least `smallest` of the area, and of 3:4 to 4:3, becomes the whole image (Szegedy et al. 2015).
fn crop(smallest: f32, [height, width]: [f32; 2], draw: &mut Draw<impl Rng>) -> Affine {
    for _ in 0..10 {
        let [part_height, part_width] =
            draw.rectangle([smallest, 1.0], [0.75, 4.0 / 3.0], [height, width]);
        if part_height <= height && part_width <= width {
            let left = draw.between(0.0, width - part_width);
            let top = draw.between(0.0, height - part_height);
            let across = left + part_width / 2.0 - width / 2.0;
            let down = top + part_height / 2.0 - height / 2.0;
            return Affine::part(part_width / width, part_height / height, across, down);
        }
    }
    Affine::part(1.0, 1.0, 0.0, 0.0)
}

/// Erases a rectangle of 2 % to 33 % of the area (Zhong et al. 2020, section 3.2).
fn erased([height, width]: [f32; 2], draw: &mut Draw<impl Rng>) -> Option<ColorChange> {
    (0..10).find_map(|_| {
        let [part_height, part_width] = draw.rectangle([0.02, 0.33], [0.3, 3.3], [height, width]);
        (part_height < height && part_width < width).then(|| {
            let top = draw.between(0.0, height - part_height) as usize;
            let left = draw.between(0.0, width - part_width) as usize;
            ColorChange::Erase {
                rows: top..top + part_height.max(1.0) as usize,
                columns: left..left + part_width.max(1.0) as usize,
            }
        })
    })
}

impl<R: Rng> Draw<R> {
    /// Height and width of a rectangle: of a share of the area, and of a ratio that is uniform by its logarithm.
    fn rectangle(
        &mut self,
        share: [f32; 2],
        ratio: [f32; 2],
        [height, width]: [f32; 2],
    ) -> [f32; 2] {
        let area = height * width * self.between(share[0], share[1]);
        // By f64: its last bit may differ between machines, and is rounded away.
        let [low, high] = ratio.map(|ratio| f64::from(ratio).ln());
        let ratio = (low + (high - low) * f64::from(self.unit())).exp() as f32;
        [(area / ratio).sqrt(), (area * ratio).sqrt()]
    }
}

impl FromStr for Change {
    type Err = UnknownAugmentation;

    fn from_str(text: &str) -> Result<Self, UnknownAugmentation> {
        let unknown = || UnknownAugmentation(text.to_string());
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let numbers = parts.map(str::parse::<f32>).collect::<Result<Vec<_>, _>>();
        let numbers = numbers.map_err(|_| unknown())?;
        let one = |default: f32, most: f32| match numbers[..] {
            [] => Ok(default),
            [number] if (0.0..=most).contains(&number) => Ok(number),
            _ => Err(unknown()),
        };
        let positive = |number: f32| match number > 0.0 {
            true => Ok(number),
            false => Err(unknown()),
        };
        let whole = |number: f32, most: usize| {
            let fits = number.fract() == 0.0 && (0.0..=most as f32).contains(&number);
            fits.then_some(number as usize).ok_or_else(unknown)
        };
        match name {
            "crop" => positive(one(0.35, 1.0)?).map(Self::Crop),
            "flip" if numbers.is_empty() => Ok(Self::Flip),
            "color" => Ok(Self::Color(one(0.4, 1.0)?)),
            "rotate" => Ok(Self::Rotate(one(15.0, 180.0)?)),
            "shift" => Ok(Self::Shift(one(0.1, 1.0)?)),
            "erase" => Ok(Self::Erase(one(0.25, 1.0)?)),
            "mixup" => positive(one(0.2, mix::MOST_ALPHA)?).map(Self::Mixup),
            "cutmix" => positive(one(1.0, mix::MOST_ALPHA)?).map(Self::Cutmix),
            "rand" => match numbers[..] {
                [] => Ok(Self::Rand(2, 9)),
                [count, magnitude] => Ok(Self::Rand(
                    whole(count, 14)?,
                    whole(magnitude, MAGNITUDES - 1)?,
                )),
                _ => Err(unknown()),
            },
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crop(smallest) => write!(f, "crop:{smallest}"),
            Self::Flip => f.write_str("flip"),
            Self::Color(by) => write!(f, "color:{by}"),
            Self::Rotate(degrees) => write!(f, "rotate:{degrees}"),
            Self::Shift(share) => write!(f, "shift:{share}"),
            Self::Erase(chance) => write!(f, "erase:{chance}"),
            Self::Rand(count, magnitude) => write!(f, "rand:{count}:{magnitude}"),
            Self::Mixup(alpha) => write!(f, "mixup:{alpha}"),
            Self::Cutmix(alpha) => write!(f, "cutmix:{alpha}"),
        }
    }
}

impl FromStr for ImageAugmentation {
    type Err = UnknownAugmentation;

    /// Changes, separated by commas; none of an empty text or `none`.
    fn from_str(text: &str) -> Result<Self, UnknownAugmentation> {
        let changes = match text.trim() {
            "" | "none" => Ok(Vec::new()),
            text => text
                .split(',')
                .map(|change| change.trim().parse())
                .collect(),
        };
        Ok(Self { changes: changes? })
    }
}

impl fmt::Display for ImageAugmentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changes: Vec<String> = self.changes.iter().map(Change::to_string).collect();
        match changes.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&changes.join(",")),
        }
    }
}

everburn_record::serde_as_text!(ImageAugmentation);

#[cfg(test)]
mod tests;

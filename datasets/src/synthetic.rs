//! Handwritten digits drawn by our own code: no file, no network.
//!
//! A digit is a few pen strokes ([`glyphs`]). Its control points are moved a little, the strokes
//! are bent, scaled, sheared, rotated and shifted and drawn with a pen of random thickness
//! ([`pen`]), then blurred and laid over clutter and noise ([`backdrop`]).
//!
//! # Determinism
//!
//! Sample `i` of a split depends on the seed, the split and `i` alone: not on how many samples
//! are drawn, nor on the number of threads. Random numbers are ChaCha8's, keyed by these three.
//! The drawing uses only IEEE 754 operations that every platform rounds alike (`+ - * /`, square
//! root, rounding), in a fixed order, and none of the platform's `sin`, `exp` or fused
//! multiply-add; so the pixels are the same everywhere, and a golden hash in the tests holds
//! them.

mod backdrop;
mod glyphs;
mod pen;
mod random;

use crate::error::wrong_count;
use crate::{DatasetError, IMAGE_PIXELS, ImageDataset};
use random::{Purpose, Stream};

/// A part of a data set.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{Split, SyntheticDigits};
///
/// let digits = SyntheticDigits::new(0);
/// let train = digits.generate(Split::Train, 10)?;
/// let test = digits.generate(Split::Test, 10)?;
/// assert_ne!(train.images(), test.images());
/// # Ok::<(), everburn_datasets::DatasetError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// Images to train on.
    Train,
    /// Images to evaluate on, drawn in the same way from other random numbers.
    Test,
}

/// The generator of synthetic digits.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{Split, SyntheticDigits};
///
/// let digits = SyntheticDigits::new(0);
/// let few = digits.generate(Split::Train, 100)?;
/// let more = digits.generate(Split::Train, 200)?;
/// assert_eq!(few.images(), more.first(100).images());
/// assert_eq!(few.labels().iter().filter(|&&label| label == 3).count(), 10);
/// # Ok::<(), everburn_datasets::DatasetError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntheticDigits {
    seed: u64,
}

/// The ten digits are dealt in blocks: each block of ten samples holds each digit once, in random
/// order. So any multiple of ten samples is balanced, and a sample's label needs no other block.
const BLOCK: usize = 10;

impl Split {
    pub(crate) fn in_prose(self) -> &'static str {
        match self {
            Self::Train => "training",
            Self::Test => "test",
        }
    }
}

impl SyntheticDigits {
    /// Training images by default, as many as MNIST has.
    pub const TRAIN_COUNT: usize = 60_000;

    /// Test images by default, as many as MNIST has.
    pub const TEST_COUNT: usize = 10_000;

    /// Most images that a split may have: they are held in memory.
    pub const MAX_COUNT: usize = 2_000_000;

    /// A generator; another seed gives other digits.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The first `count` samples of `split`, drawn on all processors.
    ///
    /// # Errors
    ///
    /// [`DatasetError::Request`] if `count` is 0 or more than [`MAX_COUNT`](Self::MAX_COUNT).
    pub fn generate(&self, split: Split, count: usize) -> Result<ImageDataset, DatasetError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        self.generate_on(threads, split, count)
    }

    /// Refuses a number of samples that no split has.
    pub(crate) fn check(split: Split, count: usize) -> Result<(), DatasetError> {
        match count {
            1..=Self::MAX_COUNT => Ok(()),
            _ => Err(wrong_count(split.in_prose(), count, Self::MAX_COUNT)),
        }
    }

    fn generate_on(
        &self,
        threads: usize,
        split: Split,
        count: usize,
    ) -> Result<ImageDataset, DatasetError> {
        Self::check(split, count)?;
        let labels: Vec<u8> = (0..count.div_ceil(BLOCK))
            .flat_map(|block| self.labels_of_block(split, block))
            .take(count)
            .collect();
        let mut images = vec![0; count * IMAGE_PIXELS]; // [count, 28, 28]
        let (pictures, _) = images.as_chunks_mut::<IMAGE_PIXELS>();
        let of_each_thread = count.div_ceil(threads);
        std::thread::scope(|scope| {
            for (part, pictures) in pictures.chunks_mut(of_each_thread).enumerate() {
                let labels = &labels;
                scope.spawn(move || {
                    for (offset, picture) in pictures.iter_mut().enumerate() {
                        let index = part * of_each_thread + offset;
                        *picture = self.draw(split, index, labels[index]);
                    }
                });
            }
        });
        ImageDataset::new(images, labels, 10)
    }

    fn labels_of_block(&self, split: Split, block: usize) -> [u8; BLOCK] {
        let mut random = Stream::new(self.seed, split, Purpose::Labels, block);
        let mut labels = std::array::from_fn(|digit| digit as u8);
        for last in (1..BLOCK).rev() {
            labels.swap(last, random.below(last + 1));
        }
        labels
    }

    fn draw(&self, split: Split, index: usize, digit: u8) -> [u8; IMAGE_PIXELS] {
        // Two streams, so that nothing behind the digit can depend on which digit it is, not
        // even by how many random numbers its strokes took.
        let mut hand = Stream::new(self.seed, split, Purpose::Digit, index);
        let mut behind = Stream::new(self.seed, split, Purpose::Backdrop, index);
        let ink = pen::write(digit, &mut hand);
        backdrop::develop(&ink, &mut behind)
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    const DIGITS: SyntheticDigits = SyntheticDigits { seed: 0 };

    fn sha256(split: Split, count: usize) -> String {
        let set = DIGITS.generate(split, count).unwrap();
        let bytes = [set.images(), set.labels()].concat();
        format!("{:x}", Sha256::digest(bytes))
    }

    #[test]
    fn the_first_samples_are_these_on_every_platform() {
        // Change them only together with CHANGELOG.md: published results depend on the pixels.
        assert_eq!(
            sha256(Split::Train, 64),
            "41e46c1a0d893e6f3d35ffd78de93558854fc18e4fc20bb4ed703c8bd313bce1"
        );
        assert_eq!(
            sha256(Split::Test, 64),
            "43fefa206e522d4d09a61765d08a40790cbc526a18c4aa4cfffc9e330340ae59"
        );
    }

    #[test]
    fn neither_the_number_of_threads_nor_of_samples_changes_a_sample() {
        let one = DIGITS.generate_on(1, Split::Train, 203).unwrap();
        for threads in [2, 3, 7, 500] {
            let many = DIGITS.generate_on(threads, Split::Train, 203).unwrap();
            assert!(
                one.images() == many.images() && one.labels() == many.labels(),
                "{threads}"
            );
        }
        for count in [1, 9, 10, 101] {
            let fewer = DIGITS.generate(Split::Train, count).unwrap();
            assert!(fewer.images() == one.first(count).images(), "{count}");
            assert_eq!(fewer.labels(), one.first(count).labels());
        }
    }

    #[test]
    fn seeds_and_splits_give_other_samples() {
        let sets = [
            DIGITS.generate(Split::Train, 100).unwrap(),
            DIGITS.generate(Split::Test, 100).unwrap(),
            SyntheticDigits::new(1).generate(Split::Train, 100).unwrap(),
            SyntheticDigits::new(1 << 40)
                .generate(Split::Train, 100)
                .unwrap(),
        ];
        let mut images: Vec<_> = sets
            .iter()
            .flat_map(|set| (0..100).map(|index| set.image(index)))
            .collect();
        images.sort_unstable();
        images.dedup();
        assert_eq!(images.len(), 400, "two samples are equal");
        assert!((1..4).all(|other| sets[0].labels() != sets[other].labels()));
    }

    #[test]
    fn digits_are_balanced_exactly_and_their_order_says_nothing() {
        let set = DIGITS.generate(Split::Train, 20_000).unwrap();
        let mut at_place = [[0; 10]; BLOCK];
        for (index, &label) in set.labels().iter().enumerate() {
            at_place[index % BLOCK][usize::from(label)] += 1;
        }
        for digit in 0..10 {
            assert_eq!(
                at_place.iter().map(|counts| counts[digit]).sum::<u32>(),
                2_000
            );
            // 200 expected at each place; 5 standard deviations are 67.
            for counts in &at_place {
                assert!((133..=267).contains(&counts[digit]), "{at_place:?}");
            }
        }
    }

    #[test]
    fn what_is_behind_a_digit_does_not_know_which_digit_it_is() {
        let mut compared = 0;
        for index in 0..200 {
            let inks = [0, 1].map(|digit| {
                pen::write(
                    digit,
                    &mut Stream::new(0, Split::Train, Purpose::Digit, index),
                )
            });
            let drawn = [0, 1].map(|digit| DIGITS.draw(Split::Train, index, digit));
            let blank = |row: usize, column: usize| {
                // Blur reaches one pixel.
                (row - 1..=row + 1).all(|row| {
                    let line = row * 28 + column - 1..row * 28 + column + 2;
                    inks.iter()
                        .all(|ink| ink[line.clone()].iter().all(|&ink| ink == 0.0))
                })
            };
            for (row, column) in (1..27).flat_map(|row| (1..27).map(move |column| (row, column))) {
                if blank(row, column) {
                    let pixel = row * 28 + column;
                    assert_eq!(drawn[0][pixel], drawn[1][pixel], "{index} {row} {column}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 50_000, "only {compared} pixels were compared");
    }

    #[test]
    fn every_sample_shows_ink_and_paper() {
        let set = DIGITS.generate(Split::Test, 5_000).unwrap();
        for index in 0..set.len() {
            let dark = set.image(index).iter().filter(|&&pixel| pixel < 64).count();
            let bright = set
                .image(index)
                .iter()
                .filter(|&&pixel| pixel > 100)
                .count();
            assert!(
                dark > 350 && bright >= 10,
                "{index}: {dark} dark, {bright} bright"
            );
        }
    }
}

//! Mixtures of two images: mixup (Zhang et al. 2018) and cutmix (Yun et al. 2019).

use rand_chacha::rand_core::Rng;

use super::{Change, ImageAugmentation};
use crate::RgbItem;
use crate::draw::Draw;

/// The largest parameter of the Beta distribution: above it, rejection takes long, and all weights are about a half.
pub(super) const MOST_ALPHA: f32 = 4.0;

/// How often a weight is drawn until one is accepted: with 4, one of 70 is, so that the last one is hardly ever reached.
const MOST_DRAWS: usize = 4_000;

impl ImageAugmentation {
    /// Whether images are mixed with others, by [`mix`](Self::mix).
    #[must_use]
    pub fn mixes(&self) -> bool {
        self.mixtures().next().is_some()
    }

    /// The image mixed with `partner`, by mixup or cutmix; of both, one is drawn. The class is that with the larger share,
    /// and [`RgbItem::mixed`] has the other one. Both images should have been changed by [`rgb`](Self::rgb).
    ///
    /// # Panics
    /// Panics if the images differ in size.
    #[must_use]
    pub fn mix(&self, item: RgbItem, partner: &RgbItem, rng: &mut impl Rng) -> RgbItem {
        let mut draw = Draw(rng);
        let count = self.mixtures().count();
        if count == 0 {
            return item;
        }
        assert_eq!(
            (item.size, item.pixels.len()),
            (partner.size, partner.pixels.len()),
            "images of different sizes cannot be mixed"
        );
        let which = draw.below(count);
        let (pixels, share) = match self.mixtures().nth(which) {
            Some(Change::Mixup(alpha)) => mixup(&item, partner, *alpha, &mut draw),
            Some(Change::Cutmix(alpha)) => cutmix(&item, partner, *alpha, &mut draw),
            _ => return item,
        };
        let (class, mixed) = match share > 0.5 {
            true => (partner.class, (item.class, 1.0 - share)),
            false => (item.class, (partner.class, share)),
        };
        RgbItem {
            pixels: pixels.into(),
            class,
            mixed: Some(mixed),
            ..item
        }
    }

    fn mixtures(&self) -> impl Iterator<Item = &Change> {
        let mixture = |change: &&Change| matches!(change, Change::Mixup(_) | Change::Cutmix(_));
        self.changes.iter().filter(mixture)
    }
}

/// The weighted mean, rounded, and the weight of the partner.
fn mixup(
    item: &RgbItem,
    partner: &RgbItem,
    alpha: f32,
    draw: &mut Draw<impl Rng>,
) -> (Vec<u8>, f32) {
    let share = beta(alpha, draw);
    let pairs = item.pixels.iter().zip(&partner.pixels[..]);
    let mean = |(own, other): (&u8, &u8)| {
        let mean = (1.0 - share) * f32::from(*own) + share * f32::from(*other);
        mean.round() as u8
    };
    (pairs.map(mean).collect(), share)
}

/// The image with a rectangle of the partner, and that one's share of the area.
fn cutmix(
    item: &RgbItem,
    partner: &RgbItem,
    alpha: f32,
    draw: &mut Draw<impl Rng>,
) -> (Vec<u8>, f32) {
    let [height, width] = item.size;
    let side = beta(alpha, draw).sqrt();
    // The centre is anywhere, and what is outside of the image is left away.
    let mut part = |length: usize| {
        let centre = draw.below(length);
        let half = (side * length as f32 / 2.0) as usize;
        centre.saturating_sub(half)..(centre + half).min(length)
    };
    let (rows, columns) = (part(height), part(width));
    let mut pixels = item.pixels.to_vec();
    for plane in (0..pixels.len()).step_by((height * width).max(1)) {
        for row in rows.clone() {
            let row = plane + row * width;
            let part = row + columns.start..row + columns.end;
            pixels[part.clone()].copy_from_slice(&partner.pixels[part]);
        }
    }
    let share = (rows.len() * columns.len()) as f32 / (height * width).max(1) as f32;
    (pixels, share)
}

/// A number by Beta(alpha, alpha), by Jöhnk's method: of two uniform numbers to the power of 1 / alpha, the first one's
/// share of their sum, if that is at most 1.
fn beta(alpha: f32, draw: &mut Draw<impl Rng>) -> f32 {
    // By f64, and by logarithms, for small parameters give powers below its range.
    let power = 1.0 / f64::from(alpha);
    for _ in 0..MOST_DRAWS {
        // Above zero: a half of the distance between two numbers is added.
        let mut log = || (f64::from(draw.unit()) + 0.5 / 16_777_216.0).ln() * power;
        let (one, other) = (log(), log());
        let most = one.max(other);
        let sum = most + ((one - most).exp() + (other - most).exp()).ln();
        if sum <= 0.0 {
            return (one - sum).exp() as f32;
        }
    }
    0.5
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    fn plain(shade: u8, class: usize) -> RgbItem {
        RgbItem {
            pixels: vec![shade; 3 * 8 * 10].into(),
            size: [8, 10],
            file: Path::new("a.png").into(),
            class,
            mixed: None,
        }
    }

    fn mixed(text: &str, seed: u64) -> RgbItem {
        let augmentation: ImageAugmentation = text.parse().unwrap();
        assert!(augmentation.mixes());
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        augmentation.mix(plain(0, 1), &plain(200, 2), &mut rng)
    }

    /// The share of the bright image.
    fn share(item: &RgbItem) -> f32 {
        let (other, share) = item.mixed.unwrap();
        assert!(share <= 0.5 && other != item.class);
        if other == 2 { share } else { 1.0 - share }
    }

    #[test]
    fn shares_of_the_classes_are_those_of_the_pixels() {
        for text in ["mixup", "cutmix", "mixup:1,cutmix:0.5"] {
            for seed in 0..200 {
                let item = mixed(text, seed);
                assert_eq!(item, mixed(text, seed));
                let sum: f32 = item.pixels.iter().map(|pixel| f32::from(*pixel)).sum();
                let mean = sum / item.pixels.len() as f32;
                assert!(
                    (mean - 200.0 * share(&item)).abs() <= 0.51,
                    "{text}: {mean}"
                );
            }
        }
    }

    #[test]
    fn weights_have_the_mean_and_the_variance_of_the_distribution() {
        for alpha in [0.05_f32, 0.2, 1.0, 2.0, 4.0] {
            let shares: Vec<f32> = (0..2000)
                .map(|seed| beta(alpha, &mut Draw(&mut ChaCha8Rng::seed_from_u64(seed))))
                .collect();
            let mean = shares.iter().sum::<f32>() / 2000.0;
            let variance = shares.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 2000.0;
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((mean - 0.5).abs() < 0.04, "{alpha}: mean {mean}");
            assert!(
                (variance - expected).abs() < 0.15 * expected,
                "{alpha}: variance {variance}, expected {expected}"
            );
        }
    }

    #[test]
    fn both_are_drawn_where_both_are_named() {
        // Of mixup, all pixels are alike; of cutmix, they are those of one image or the other.
        let cut = (0..100).filter(|seed| {
            let item = mixed("mixup:1,cutmix:1", *seed);
            item.pixels.iter().all(|pixel| [0, 200].contains(pixel))
        });
        assert!((30..70).contains(&cut.count()));
    }

    #[test]
    fn a_parameter_that_is_none_is_refused() {
        for text in ["mixup:0", "cutmix:-1", "mixup:5", "cutmix:NaN"] {
            let error = text.parse::<ImageAugmentation>().unwrap_err().to_string();
            assert!(error.contains("mixup:0.2, cutmix:1"), "{error}");
        }
        let written: ImageAugmentation = "flip,mixup:0.2,cutmix:1".parse().unwrap();
        assert_eq!(written.to_string(), "flip,mixup:0.2,cutmix:1");
    }
}

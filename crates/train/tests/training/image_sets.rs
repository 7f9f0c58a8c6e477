//! Folders of images, read by any number of ranks.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::path::Path;
use std::sync::Arc;

use burn::data::dataset::Dataset;
use burn::prelude::*;
use everburn_datasets::{ImageAugmentation, ImageFolder, MixBatcher, RgbBatcher, RgbItem};
use everburn_distributed::{
    Augment, DistributedLoader, DistributedSampler, Prefetch, SamplerConfig, Tail,
};
use image::{Rgb, RgbImage};

/// 10,000 images of 8 x 8 pixels, in four classes.
fn draw(folder: &Path) {
    for class in 0..4 {
        let below = folder.join(class.to_string());
        std::fs::create_dir(&below).unwrap();
        for number in 0..2500_u32 {
            let shade = |x: u32, y: u32| (number * 31 + x * 7 + y * 13 + class * 5) as u8;
            let picture =
                RgbImage::from_fn(8, 8, |x, y| Rgb([shade(x, y), shade(y, x), number as u8]));
            picture.save(below.join(format!("{number}.png"))).unwrap();
        }
    }
}

#[test]
fn ten_thousand_images_have_the_same_pixels_in_the_same_order_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let augmentation: ImageAugmentation = "crop:0.5,flip,color,mixup,cutmix".parse().unwrap();
    let set = Arc::new(ImageFolder::open(folder.path(), [8, 8]).unwrap());
    assert_eq!(set.len(), 10_000);
    let hash = |world_size: usize, workers: usize| {
        let batches_of = |rank| {
            let config = SamplerConfig {
                num_samples: set.len(),
                batch_size: 96,
                shuffle: Some(5),
                tail: Tail::Keep,
            };
            let sampler = DistributedSampler::new(config, rank, world_size).unwrap();
            let batcher = Arc::new(MixBatcher(RgbBatcher::imagenet()));
            let (change, mix) = (augmentation.clone(), augmentation.clone());
            let augment = Augment::new(move |image: RgbItem, rng| change.rgb(image, rng));
            let augment = augment.mixed_by(move |image, other, rng| mix.mix(image, &other, rng));
            let loader = DistributedLoader::new(set.clone(), batcher, sampler, Device::flex());
            let prefetch = Prefetch {
                workers,
                ..Prefetch::default()
            };
            let loader = loader.prefetching(prefetch).augmenting(3, augment);
            let batches = loader.epoch(2).map(|share| share.unwrap().micro_batches);
            let bytes = batches.map(|parts| {
                let parts = parts.into_iter().flat_map(|part| {
                    let (images, (classes, mixed)) = part.batch;
                    let (others, shares) = mixed.unwrap();
                    let rows = images.dims()[0];
                    let images = images.into_data().try_to_vec::<f32>().unwrap();
                    let images = images.chunks(images.len() / rows);
                    let classes = classes.into_data().iter::<i64>().collect::<Vec<_>>();
                    let others = others.into_data().iter::<i64>().collect::<Vec<_>>();
                    let shares = shares.into_data().try_to_vec::<f32>().unwrap();
                    let labels = classes.into_iter().zip(others).zip(shares);
                    let rows = images.zip(labels).map(|(image, ((class, other), share))| {
                        let image = image.iter().flat_map(|value| value.to_le_bytes());
                        let labels = [class, other].into_iter().flat_map(i64::to_le_bytes);
                        image
                            .chain(labels)
                            .chain(share.to_le_bytes())
                            .collect::<Vec<u8>>()
                    });
                    rows.collect::<Vec<_>>()
                });
                parts.flatten().collect::<Vec<u8>>()
            });
            bytes.collect::<Vec<_>>()
        };
        let ranks: Vec<_> = (0..world_size).map(batches_of).collect();
        let mut hash = DefaultHasher::new();
        for batch in 0..ranks[0].len() {
            ranks.iter().for_each(|rank| hash.write(&rank[batch]));
        }
        (ranks[0].len(), hash.finish())
    };
    let alone = hash(1, 0);
    assert_eq!(alone.0, 105);
    assert_eq!(hash(2, 0), alone);
    assert_eq!(hash(3, 2), alone);
}

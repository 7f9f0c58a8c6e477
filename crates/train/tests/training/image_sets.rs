//! Folders of images and tar shards, read by any number of ranks.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::prelude::*;
use everburn_datasets::{
    ImageAugmentation, ImageFolder, MixBatcher, RgbBatcher, RgbItem, TarSample, TarShards,
};
use everburn_distributed::{
    Augment, DistributedLoader, DistributedSampler, Prefetch, SamplerConfig, Tail,
};
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_train::{Classifier, LabeledBatch, Trainer, TrainingConfig, TrainingData};
use image::{Rgb, RgbImage};

use crate::harness::ranks::on_ranks;

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

/// Shards of this many samples, each with a number as its text.
fn write_shards(folder: &Path, counts: &[usize]) -> Vec<PathBuf> {
    let mut number = 0;
    let shards = counts.iter().enumerate().map(|(shard, count)| {
        let mut bytes = Vec::new();
        for _ in 0..*count {
            let content = number.to_string();
            let mut block = vec![0; 512];
            let name = format!("{number:06}.txt");
            block[..name.len()].copy_from_slice(name.as_bytes());
            block[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
            block[156] = b'0';
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            block.extend(content.as_bytes());
            block.resize(1024, 0);
            bytes.extend(block);
            number += 1;
        }
        let path = folder.join(format!("{shard:03}.tar"));
        std::fs::write(&path, bytes).unwrap();
        path
    });
    shards.collect()
}

/// Shards whose samples are written down as they are read.
struct Recorded {
    shards: TarShards,
    read: Arc<Mutex<Vec<String>>>,
}

impl Dataset<TarSample> for Recorded {
    fn get(&self, index: usize) -> Result<TarSample, DatasetError> {
        let sample = Dataset::get(&self.shards, index)?;
        self.read.lock().unwrap().push(sample.key.clone());
        Ok(sample)
    }

    fn len(&self) -> usize {
        self.shards.len()
    }
}

/// Images of four pixels, by the number of a sample.
struct Numbers;

impl Batcher<TarSample, LabeledBatch<4>> for Numbers {
    fn batch(&self, samples: Vec<TarSample>, device: &Device) -> LabeledBatch<4> {
        let number = |sample: &TarSample| -> i64 {
            let text = String::from_utf8(sample.files["txt"].clone()).unwrap();
            text.parse().unwrap()
        };
        let numbers: Vec<i64> = samples.iter().map(number).collect();
        let count = numbers.len();
        let pixels: Vec<f32> = numbers
            .iter()
            .flat_map(|number| [(number % 7) as f32; 4])
            .collect();
        let classes: Vec<i64> = numbers.iter().map(|number| number % 2).collect();
        (
            Tensor::from_data(TensorData::new(pixels, [count, 1, 2, 2]), device),
            Tensor::from_data(TensorData::new(classes, [count]), device),
        )
    }
}

#[test]
fn shards_stopped_at_step_137_on_4_ranks_and_resumed_on_3_are_read_exactly_once() {
    let folder = tempfile::tempdir().unwrap();
    let files = write_shards(folder.path(), &[500, 1, 700, 404]);
    let read = Arc::new(Mutex::new(Vec::new()));
    let data = || {
        let open = || TarShards::open(&files).unwrap();
        let train = Recorded {
            shards: open(),
            read: Arc::clone(&read),
        };
        let few = TarShards::open(&files[1..2]).unwrap();
        let validation = TarShards::open(&files[1..2]).unwrap();
        TrainingData::new("shards", train, few, Numbers).with_validation(validation)
    };
    let model: Mlp = MlpConfig::new()
        .with_inputs(4)
        .with_hidden(vec![3])
        .with_classes(2)
        .init(&Device::flex());
    let config = TrainingConfig {
        epochs: 1,
        batch_size: 8,
        steps: Some(137),
        ..TrainingConfig::default()
    };
    let run = folder.path().join("run");
    let train = |ranks: usize, config: &TrainingConfig, resume: bool| {
        let reports = on_ranks(ranks, config, Some(&run), |trainer| {
            let trainer = Trainer { resume, ..trainer };
            let model = Classifier::<_, 4>::new(model.clone(), Mlp::forward);
            trainer.fit(model, &data()).unwrap().1.steps
        });
        reports[0]
    };
    assert_eq!(train(4, &config, false), 137);
    assert_eq!(read.lock().unwrap().len(), 137 * 8);
    let rest = TrainingConfig {
        steps: None,
        ..config
    };
    assert_eq!(train(3, &rest, true), 201);
    // As many as there are, and none twice.
    let read = read.lock().unwrap();
    let different: BTreeSet<&String> = read.iter().collect();
    assert_eq!((read.len(), different.len()), (1605, 1605));
}

//! A loss that is NaN or rises in an elastic job.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use everburn_datasets::ImageBatcher;
use everburn_train::LabeledBatch;

use super::*;

#[test]
fn a_training_that_diverges_is_noted_once_for_all_ranks() {
    let folder = folder();
    let mut config = config();
    config.optimizer.learning_rate = 1e4;
    let job = Job::new(&folder, (3, 3), config);
    for result in job.three_ranks(0, usize::MAX) {
        result.unwrap();
    }
    let events = std::fs::read_to_string(folder.path().join("events.jsonl")).unwrap();
    let warnings = events.matches("the training loss has risen from").count();
    assert_eq!(warnings, 1, "{events}");
}

/// An image that is all ink has pixels that are NaN.
struct InkIsNan;

impl Batcher<ImageItem, LabeledBatch<4>> for InkIsNan {
    fn batch(&self, items: Vec<ImageItem>, device: &Device) -> LabeledBatch<4> {
        let factors = items.iter().map(|item| {
            let is_ink = item.pixels.iter().all(|pixel| *pixel == u8::MAX);
            if is_ink { f32::NAN } else { 1.0 }
        });
        let factors = TensorData::new(factors.collect::<Vec<_>>(), [items.len(), 1, 1, 1]);
        let (images, labels) = ImageBatcher::unit().batch(items, device);
        (images * Tensor::<4>::from_data(factors, device), labels)
    }
}

#[test]
fn a_sample_of_the_test_is_named_whose_loss_is_nan() {
    let folder = folder();
    let job = Job::new(&folder, (2, 2), config());
    let data = || {
        let data = sound();
        let test = (0..data.test.len()).map(|number| data.test.get(number).unwrap());
        let mut test = test.collect::<Vec<_>>();
        test[7].pixels.fill(u8::MAX);
        TrainingData {
            test: Arc::new(InMemDataset::new(test)),
            batcher: Arc::new(InkIsNan),
            ..data
        }
    };
    let errors = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|slot| {
            let (job, data) = (&job, data());
            scope.spawn(move || failed(&job.rank(slot, &data)))
        });
        ranks.map(|rank| rank.join().unwrap())
    });
    for error in &errors {
        let start = "the test loss is NaN after step 9";
        assert!(error.starts_with(start), "{error}");
    }
    // The rank that ends first may have the finding alone.
    let named = "the input of sample 7 of the test, which rank";
    assert!(
        errors.iter().any(|error| error.contains(named)),
        "{errors:?}"
    );
}

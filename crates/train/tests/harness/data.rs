//! Small data sets.

use everburn_datasets::{
    DataChoice, ImageBatcher, ImageItem, Split, Surroundings, SyntheticDigits, TextBatcher,
    TextDataset, TextItem, TextRequest, load_text_in,
};
use everburn_train::{LabeledBatch, TextBatch, TrainingData};

pub type Images = TrainingData<ImageItem, LabeledBatch<4>>;
pub type Texts = TrainingData<TextItem, TextBatch>;

/// This many digits to train on and this many to test on, of pixels from 0 to 1.
pub fn digits(seed: u64, train: usize, test: usize) -> Images {
    let digits = SyntheticDigits::new(seed);
    let train = digits.generate(Split::Train, train).unwrap();
    let test = digits.generate(Split::Test, test).unwrap();
    let fingerprint = train.fingerprint();
    TrainingData::new("digits", train, test, ImageBatcher::unit()).with_fingerprint(fingerprint)
}

/// The embedded text in windows of `context` tokens, and how many tokens there are.
pub fn texts(context: usize) -> (Texts, usize) {
    let request = TextRequest {
        choice: DataChoice::Embedded,
        context,
        ..TextRequest::default()
    };
    let text = load_text_in(&request, &Surroundings::default()).unwrap();
    (windows(text.train, text.test), text.vocabulary)
}

pub fn windows(train: TextDataset, test: TextDataset) -> Texts {
    let fingerprint = train.fingerprint();
    TrainingData::new("text", train, test, TextBatcher).with_fingerprint(fingerprint)
}

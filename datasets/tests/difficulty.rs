//! The synthetic digits must not be too easy: a linear classifier is held under 92 %.
//!
//! That they are not too hard either (97 % for the convolutional model `mnist` in three epochs)
//! is proved where that model is trained.

#![allow(
    clippy::print_stderr,
    reason = "a test says what it measured or why it was skipped"
)]

use everburn_datasets::{IMAGE_PIXELS, ImageDataset, Split, SyntheticDigits};

const CLASSES: usize = 10;

/// Multinomial logistic regression, trained by plain stochastic gradient descent.
struct Linear {
    weights: Vec<[f32; CLASSES]>, // [784, 10]
    bias: [f32; CLASSES],
}

impl Linear {
    fn scores(&self, image: &[u8; IMAGE_PIXELS]) -> [f32; CLASSES] {
        let mut scores = self.bias;
        for (weights, &pixel) in self.weights.iter().zip(image) {
            let pixel = f32::from(pixel) / 255.0;
            for (score, weight) in scores.iter_mut().zip(weights) {
                *score += weight * pixel;
            }
        }
        scores
    }

    /// One step on one sample.
    fn learn(&mut self, image: &[u8; IMAGE_PIXELS], label: u8, rate: f32) {
        let mut slope = self.scores(image);
        let most = slope.iter().copied().fold(f32::MIN, f32::max);
        slope = slope.map(|score| (score - most).exp());
        let sum: f32 = slope.iter().sum();
        slope = slope.map(|weight| -rate * weight / sum);
        slope[usize::from(label)] += rate;
        for (weights, &pixel) in self.weights.iter_mut().zip(image) {
            let pixel = f32::from(pixel) / 255.0;
            for (weight, slope) in weights.iter_mut().zip(slope) {
                *weight += slope * pixel;
            }
        }
        for (bias, slope) in self.bias.iter_mut().zip(slope) {
            *bias += slope;
        }
    }

    fn train(set: &ImageDataset, passes: usize) -> Self {
        let mut model = Self {
            weights: vec![[0.0; CLASSES]; IMAGE_PIXELS],
            bias: [0.0; CLASSES],
        };
        let steps = passes * set.len();
        for step in 0..steps {
            // A stride that shares no factor with the set's length visits every sample once a
            // pass; the order of the labels is random as it is.
            let index = (step * 7919) % set.len();
            // Falling to zero, so that the end is a minimum and not a random walk around it.
            let rate = 0.01 * (1.0 - step as f32 / steps as f32);
            model.learn(set.image(index), set.label(index), rate);
        }
        model
    }

    fn accuracy(&self, set: &ImageDataset) -> f64 {
        let right = (0..set.len()).filter(|&index| {
            let scores = self.scores(set.image(index));
            let best = (0..CLASSES).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
            best == Some(usize::from(set.label(index)))
        });
        right.count() as f64 / set.len() as f64
    }
}

#[test]
fn a_linear_classifier_stays_under_92_percent() {
    let digits = SyntheticDigits::new(0);
    let train = digits.generate(Split::Train, 20_000).unwrap();
    let test = digits.generate(Split::Test, 10_000).unwrap();
    let model = Linear::train(&train, 15);
    let (seen, unseen) = (model.accuracy(&train), model.accuracy(&test));
    eprintln!("linear classifier: {seen:.4} on its training set, {unseen:.4} on the test set");
    assert!(unseen < 0.92, "too easy: {unseen}");
    // That the bound means something: the classifier did learn what it can, and a set that it
    // cannot learn at all would not be digits.
    assert!(
        seen > unseen && unseen > 0.7,
        "did not converge: {seen} seen, {unseen} unseen"
    );
}

#[test]
fn that_classifier_does_learn_what_is_linear() {
    // The same pictures with a bright bar whose row is the label: were the digits linear, the
    // test above would see it.
    let marked = |split, count| {
        let set = SyntheticDigits::new(0).generate(split, count).unwrap();
        let (mut images, labels) = (set.images().to_vec(), set.labels().to_vec());
        for (image, &label) in images.chunks_mut(IMAGE_PIXELS).zip(&labels) {
            let row = 2 * usize::from(label) * 28;
            image[row..row + 28].fill(200);
        }
        ImageDataset::new(images, labels, CLASSES).unwrap()
    };
    let model = Linear::train(&marked(Split::Train, 5_000), 5);
    let accuracy = model.accuracy(&marked(Split::Test, 2_000));
    assert!(accuracy > 0.97, "{accuracy}");
}

//! Trains a small net on what a larger one makes of the digits (Hinton, Vinyals and Dean 2015):
//!
//! ```sh
//! cargo run --release --example distil
//! ```
//!
//! The teacher is `mnist-bn`, the student a perceptron of a quarter of its size. The student is trained three
//! times: on the labels alone, on both, and on what the teacher says alone, which has seen the labels in its
//! place. An objective of your own is all that this takes.

#![allow(clippy::print_stdout)] // what an example is for

use std::error::Error;

use everburn::burn::data::dataloader::batcher::Batcher;
use everburn::burn::data::dataset::{Dataset, DatasetError};
use everburn::burn::module::Module;
use everburn::burn::prelude::*;
use everburn::burn::tensor::activation::{log_softmax, softmax};
use everburn::burn::tensor::{Int, TensorData};
use everburn::prelude::*;
use everburn::train::{Classification, Loss, LrSchedule, Objective, OptimizerConfig};
use everburn_datasets::{DataRequest, ImageBatcher, ImageDataset, ImageItem, LoadedData, load};
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};

/// How far the teacher's scores are levelled: at 4 it tells which wrong classes it finds likely, too. A student as small as
/// this one has no room for that, and ends two points of accuracy lower.
const TEMPERATURE: f64 = 1.0;

fn main() -> Result<(), Box<dyn Error>> {
    let data = load(&DataRequest::default())?;
    println!("data: {}", data.description);
    let found = distil(&data, 2, 10)?;
    println!("teacher, mnist-bn:            {}", found.teacher);
    println!("student, by labels:           {}", found.by_labels);
    println!("student, by both:             {}", found.by_both);
    println!("student, by the teacher only: {}", found.by_teacher);
    Ok(())
}

/// How large a model is, and how good.
#[derive(Debug, Clone, Copy)]
struct ModelScore {
    parameters: usize,
    /// The share of test images whose class it finds.
    accuracy: f64,
}

impl std::fmt::Display for ModelScore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            parameters,
            accuracy,
        } = self;
        let bytes = 4 * parameters;
        write!(
            f,
            "{parameters:>5} parameters, {bytes:>6} bytes, test accuracy {:.2} %",
            100.0 * accuracy
        )
    }
}

#[derive(Debug)]
struct Distilled {
    teacher: ModelScore,
    by_labels: ModelScore,
    by_both: ModelScore,
    by_teacher: ModelScore,
}

/// Images, and for each its class and the teacher's scores.
type Lesson = (Tensor<4>, (Tensor<1, Int>, Tensor<2>));

/// What a student is to learn: `OF_TEACHER` hundredths of its loss are how far it is from the teacher, the
/// rest how far from the labels.
#[derive(Debug, Clone, Copy)]
struct Distillation<const OF_TEACHER: usize>;

impl<const OF_TEACHER: usize> Objective for Distillation<OF_TEACHER> {
    type Input = Tensor<4>;
    type Output = Tensor<2>;
    type Targets = (Tensor<1, Int>, Tensor<2>);

    fn loss(logits: Tensor<2>, (classes, scores): (Tensor<1, Int>, Tensor<2>)) -> Loss {
        let by_labels = Classification::<4>::loss(logits.clone(), classes);
        let wanted = softmax(scores / TEMPERATURE, 1);
        let found = log_softmax(logits / TEMPERATURE, 1);
        // Levelled scores have gradients smaller by the square of the temperature.
        let by_teacher = -(wanted * found).sum_dim(1).mean() * TEMPERATURE.powi(2);
        let share = OF_TEACHER as f64 / 100.0;
        Loss {
            mean: by_teacher * share + by_labels.mean * (1.0 - share),
            ..by_labels
        }
    }
}

/// An image, and the teacher's scores of its classes.
#[derive(Debug, Clone)]
struct Shown {
    image: ImageItem,
    scores: Vec<f32>,
}

/// Images about which the teacher was asked, once: it need not be there when students learn.
struct Taught {
    images: ImageDataset,
    scores: Vec<f32>,
}

impl Taught {
    fn by(teacher: &MnistBn, images: &ImageDataset) -> Result<Self, Box<dyn Error>> {
        let mut scores = Vec::with_capacity(images.len() * images.classes());
        let mut items = images.iter();
        loop {
            let batch = items.by_ref().take(256);
            let batch = batch.collect::<Result<Vec<ImageItem>, _>>()?;
            if batch.is_empty() {
                break;
            }
            let (shown, _) = ImageBatcher::bytes().batch(batch, &Device::flex());
            scores.extend(teacher.forward(shown).into_data().try_to_vec::<f32>()?);
        }
        Ok(Self {
            images: images.clone(),
            scores,
        })
    }
}

impl Dataset<Shown> for Taught {
    fn get(&self, index: usize) -> Result<Shown, DatasetError> {
        let classes = self.images.classes();
        let image = self.images.get(index)?;
        let scores = self.scores[index * classes..][..classes].to_vec();
        Ok(Shown { image, scores })
    }

    fn len(&self) -> usize {
        Dataset::len(&self.images)
    }
}

struct Lessons;

impl Batcher<Shown, Lesson> for Lessons {
    fn batch(&self, items: Vec<Shown>, device: &Device) -> Lesson {
        let classes = items.first().map_or(0, |item| item.scores.len());
        let scores: Vec<f32> = items.iter().flat_map(|item| item.scores.clone()).collect();
        let scores = TensorData::new(scores, [items.len(), classes]);
        let images = items.into_iter().map(|item| item.image).collect();
        let (images, labels) = ImageBatcher::unit().batch(images, device);
        (images, (labels, Tensor::from_data(scores, device)))
    }
}

/// A teacher of `epochs` epochs, and three students of `students` epochs.
fn distil(data: &LoadedData, epochs: usize, students: usize) -> Result<Distilled, Box<dyn Error>> {
    let teacher = MnistBnConfig::new().with_momentum(0.1);
    let trainer = trainer(epochs);
    trainer.seed();
    let model = Classifier::new(teacher.init(&trainer.device), MnistBn::forward);
    let (train, test) = (data.train.clone(), data.test.clone());
    let lessons = training_data(data, train, test, ImageBatcher::bytes());
    let (model, report) = trainer.fit(model, &lessons)?;
    let teacher = model.valid().model().clone();
    let train = Taught::by(&teacher, &data.train)?;
    let test = Taught::by(&teacher, &data.test)?;
    let lessons = training_data(data, train, test, Lessons);
    Ok(Distilled {
        teacher: measured(&teacher, &report)?,
        by_labels: student::<0>(&lessons, students)?,
        by_both: student::<70>(&lessons, students)?,
        by_teacher: student::<100>(&lessons, students)?,
    })
}

/// A student from the same first weights each time.
fn student<const OF_TEACHER: usize>(
    lessons: &TrainingData<Shown, Lesson>,
    epochs: usize,
) -> Result<ModelScore, Box<dyn Error>> {
    let trainer = trainer(epochs);
    trainer.seed();
    let student = MlpConfig::new().with_hidden(vec![16]);
    let student = student.init(&trainer.device);
    let model = Supervised::<_, Distillation<OF_TEACHER>>::new(student, Mlp::forward);
    let (model, report) = trainer.fit(model, lessons)?;
    measured(&model, &report)
}

fn trainer(epochs: usize) -> Trainer {
    let config = TrainingConfig {
        epochs,
        optimizer: OptimizerConfig {
            learning_rate: 3e-3,
            ..OptimizerConfig::default()
        },
        // At the end of a teacher's training its batch norms' running statistics have caught up.
        schedule: LrSchedule::Cosine,
        ..TrainingConfig::default()
    };
    Trainer::new(config, ProcessGroup::alone(GroupOptions::default()))
}

fn training_data<I: 'static, B: 'static>(
    data: &LoadedData,
    train: impl Dataset<I> + 'static,
    test: impl Dataset<I> + 'static,
    batcher: impl Batcher<I, B> + 'static,
) -> TrainingData<I, B> {
    TrainingData::new(&data.description.name, train, test, batcher)
        .with_origin(&data.description.origin)
}

fn measured<M: Module>(model: &M, report: &TrainingReport) -> Result<ModelScore, Box<dyn Error>> {
    Ok(ModelScore {
        parameters: model.num_params(),
        accuracy: report.test_accuracy.ok_or("the training was stopped")?,
    })
}

#[cfg(test)]
mod tests {
    use everburn_datasets::DataChoice;

    use super::*;

    #[test]
    fn a_student_learns_from_the_teacher_what_it_would_from_labels() {
        let data = load(&DataRequest {
            choice: DataChoice::Synthetic,
            limits: Some((6_000, 2_000)),
            ..DataRequest::default()
        });
        let found = distil(&data.unwrap(), 4, 4).unwrap();
        assert!(
            4 * found.by_teacher.parameters <= 5 * found.teacher.parameters / 4,
            "{found:?}"
        );
        assert!(found.teacher.accuracy > 0.9, "{found:?}");
        assert!(found.by_labels.accuracy > 0.6, "{found:?}");
        for distilled in [found.by_both, found.by_teacher] {
            // It imitates all that the teacher says, in as few steps; on real digits it does better.
            assert!(
                distilled.accuracy > found.by_labels.accuracy - 0.1,
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_student_that_agrees_with_its_teacher_has_nothing_to_learn() {
        let device = Device::flex().autodiff();
        let gradient = |student: [f32; 3]| {
            let scores = Tensor::<2>::from_floats([[1.0, -2.0, 0.5]], &device);
            let logits = Tensor::<2>::from_floats([student], &device).require_grad();
            let classes = Tensor::<1, Int>::from_ints([2], &device);
            let loss = Distillation::<100>::loss(logits.clone(), (classes, scores));
            let gradient = logits.grad(&loss.mean.backward()).unwrap();
            gradient.abs().max().into_scalar::<f64>()
        };
        // Scores that differ by a constant are the same.
        assert!(gradient([3.0, 0.0, 2.5]) < 1e-5);
        assert!(gradient([-1.0, 2.0, 0.5]) > 0.1);
    }
}

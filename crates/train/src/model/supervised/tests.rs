//! Tests of `supervised`.

use burn::nn::{Linear, LinearConfig};
use everburn_nn::Blocks;
use everburn_record::task_method;

use super::*;

/// A loss that the model does not influence.
#[derive(Debug, Clone)]
struct Detached;

impl Objective for Detached {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    type Targets = ();

    fn loss(output: Tensor<2>, (): ()) -> Loss {
        let [samples, _] = output.dims();
        Loss::new(output.detach().mean(), samples)
    }
}

#[test]
#[should_panic(
    expected = "the loss depends on no parameter of the model: is there a `detach` between them"
)]
fn a_loss_without_a_way_to_a_parameter_is_refused() {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(4, 3).init(&device);
    let model = Supervised::<_, Detached>::new(model, Linear::forward);
    TrainStep::step(&model, (Tensor::ones([2, 4], &device), ()));
}

#[derive(Module, Debug)]
struct OneBlock {
    linear: Linear,
}

impl InBlocks for OneBlock {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn blocks(&self) -> Blocks<Self, Tensor<2>, Tensor<2>> {
        Blocks::first("linear", ["linear"], |model: &Self, x| {
            assert_eq!(task_method::present(), Some(BLOCKS));
            model.linear.forward(x)
        })
    }
}

#[test]
fn a_panic_in_a_block_finds_the_method_that_it_is_in() {
    let device = Device::flex();
    let linear = LinearConfig::new(4, 3).init(&device);
    let model = Classifier::<_, 2>::of_blocks(OneBlock { linear });
    model.forward(Tensor::ones([2, 4], &device));
    assert_eq!(task_method::present(), None);
}

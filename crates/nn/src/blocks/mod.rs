//! A model as a row of blocks, which can be cut between any two.

mod activation;
mod any_activation;
mod coverage;

use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::TensorData;

pub use activation::{Activation, ActivationError};
pub use any_activation::AnyActivation;
pub(crate) use coverage::lies_under;
pub use coverage::{BlockError, ParameterPath, parameter_identities, parameter_paths};

/// A model that offers its layers as blocks in order, so that it can be cut between any two of
/// them: over devices, or over the stages of a pipeline.
///
/// The model keeps its fields and parameter paths. Its `forward` is best written as
/// [`Blocks::forward`], so that there is one definition:
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use burn::tensor::activation::relu;
/// use everburn::nn::{Blocks, InBlocks};
///
/// #[derive(Module, Debug)]
/// struct Mlp {
///     input: Linear,
///     hidden: Vec<Linear>,
///     output: Linear,
/// }
///
/// impl InBlocks for Mlp {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///
///     fn blocks(&self) -> Blocks<Self, Tensor<2>, Tensor<2>> {
///         Blocks::first("input", ["input"], |mlp: &Self, x| relu(mlp.input.forward(x)))
///             .each("hidden", self.hidden.len(), |mlp, i, x| relu(mlp.hidden[i].forward(x)))
///             .then("output", ["output"], |mlp, x| mlp.output.forward(x))
///     }
/// }
///
/// let device = Device::flex();
/// let linear = || LinearConfig::new(3, 3).init(&device);
/// let mlp = Mlp { input: linear(), hidden: vec![linear(), linear()], output: linear() };
/// let blocks = mlp.blocks();
/// assert_eq!(blocks.names(), ["input", "hidden.0", "hidden.1", "output"]);
/// blocks.check(&mlp).unwrap();
/// let x = Tensor::<2>::ones([1, 3], &device);
/// let cut = blocks.run(&mlp, 0..2, Box::new(x.clone()));
/// let output = blocks.run(&mlp, 2..4, cut).into_any().downcast::<Tensor<2>>().unwrap();
/// output.into_data().assert_eq(&blocks.forward(&mlp, x).into_data(), true);
/// ```
///
/// That blocks fit together is checked by the compiler:
///
/// ```compile_fail
/// # use burn::prelude::*;
/// # use everburn_nn::Blocks;
/// # struct Model;
/// // The first block yields a tensor of two dimensions, the second takes one of four.
/// let blocks = Blocks::first("flatten", [""; 0], |_: &Model, x: Tensor<4>| x.flatten::<2>(1, 3))
///     .then("convolve", [""; 0], |_, x: Tensor<4>| x);
/// ```
pub trait InBlocks: Module {
    /// What the first block takes.
    type Input: Activation;
    /// What the last block yields.
    type Output: Activation;

    /// The blocks, in the order in which they are run.
    fn blocks(&self) -> Blocks<Self, Self::Input, Self::Output>
    where
        Self: Sized;
}

pub(crate) type Run<M> =
    Arc<dyn Fn(&M, Box<dyn AnyActivation>) -> Box<dyn AnyActivation> + Send + Sync>;
type Decode = fn(Vec<TensorData>, &Device) -> Result<Box<dyn AnyActivation>, ActivationError>;

struct Block<M> {
    name: String,
    /// Paths of the modules and parameters that it uses.
    paths: Vec<String>,
    run: Run<M>,
    decode: Decode,
}

impl<M> Block<M> {
    fn new<A: Activation, B: Activation>(
        name: String,
        paths: Vec<String>,
        forward: impl Fn(&M, A) -> B + Send + Sync + 'static,
    ) -> Self {
        Self {
            name,
            paths,
            run: Arc::new(move |model, input| Box::new(forward(model, typed(input)))),
            decode: |values, device| {
                let activation = A::from_values(values, device)?;
                Ok(Box::new(activation))
            },
        }
    }
}

/// Takes back the type of what passes between two blocks.
pub(crate) fn typed<A: Activation>(activation: Box<dyn AnyActivation>) -> A {
    let shapes = activation.shapes();
    let any: Box<dyn Any> = activation.into_any();
    match any.downcast::<A>() {
        Ok(activation) => *activation,
        Err(_) => panic!(
            "tensors of shapes {shapes:?} were put into a block that takes {}",
            std::any::type_name::<A>()
        ),
    }
}

/// The blocks of a model `M` that together turn an `I` into an `O`: see [`InBlocks`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use everburn::nn::Blocks;
///
/// let linear = LinearConfig::new(3, 2).init(&Device::flex());
/// let blocks = Blocks::first("flatten", [""; 0], |_: &Linear, x: Tensor<3>| x.flatten::<2>(1, 2))
///     .then("linear", ["weight", "bias"], |layer, x| layer.forward(x));
/// assert_eq!(blocks.names(), ["flatten", "linear"]);
/// assert_eq!(blocks.forward(&linear, Tensor::ones([4, 1, 3], &Device::flex())).dims(), [4, 2]);
/// ```
pub struct Blocks<M, I, O> {
    blocks: Vec<Block<M>>,
    types: PhantomData<fn(I) -> O>,
}

impl<M, I: Activation, O: Activation> Blocks<M, I, O> {
    /// The first block. `paths` are the parameters that it uses, or the modules that have them:
    /// `"conv1"` stands for `conv1.weight` and `conv1.bias`. A path that several blocks name belongs
    /// to all of them: tied weights.
    pub fn first<P: Into<String>>(
        name: impl Into<String>,
        paths: impl IntoIterator<Item = P>,
        forward: impl Fn(&M, I) -> O + Send + Sync + 'static,
    ) -> Self {
        Self {
            blocks: vec![Block::new(name.into(), owned(paths), forward)],
            types: PhantomData,
        }
    }

    /// The next block, which takes what the one before it yields.
    #[must_use]
    pub fn then<P: Into<String>, N: Activation>(
        mut self,
        name: impl Into<String>,
        paths: impl IntoIterator<Item = P>,
        forward: impl Fn(&M, O) -> N + Send + Sync + 'static,
    ) -> Blocks<M, I, N> {
        let block = Block::new(name.into(), owned(paths), forward);
        self.blocks.push(block);
        Blocks {
            blocks: self.blocks,
            types: PhantomData,
        }
    }

    /// `count` blocks of one kind, each of which yields what it takes. Block `i` is called `<name>.<i>`
    /// and uses the parameters under that path: the elements of a `Vec` in field `name`.
    #[must_use]
    pub fn each(
        mut self,
        name: &str,
        count: usize,
        forward: impl Fn(&M, usize, O) -> O + Send + Sync + 'static,
    ) -> Self {
        let forward = Arc::new(forward);
        for index in 0..count {
            let forward = Arc::clone(&forward);
            let name = format!("{name}.{index}");
            let run = move |model: &M, input: O| forward(model, index, input);
            self.blocks.push(Block::new(name.clone(), vec![name], run));
        }
        self
    }

    /// Runs all blocks.
    pub fn forward(&self, model: &M, input: I) -> O {
        typed(self.run(model, 0..self.len(), Box::new(input)))
    }
}

impl<M, I, O> Blocks<M, I, O> {
    /// How many there are.
    #[allow(clippy::len_without_is_empty)] // there is always one
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Their names.
    pub fn names(&self) -> Vec<&str> {
        self.blocks
            .iter()
            .map(|block| block.name.as_str())
            .collect()
    }

    /// The paths that block `index` uses, as the model gave them.
    ///
    /// # Panics
    /// Panics if there is no such block.
    pub fn paths(&self, index: usize) -> &[String] {
        &self.blocks[index].paths
    }

    /// Runs the blocks of `range`, one after the other.
    ///
    /// # Panics
    /// Panics if there are no such blocks, or `input` is not what the first of them takes.
    pub fn run(
        &self,
        model: &M,
        range: Range<usize>,
        input: Box<dyn AnyActivation>,
    ) -> Box<dyn AnyActivation> {
        let blocks = &self.blocks[range];
        let step = |activation, block: &Block<M>| (block.run)(model, activation);
        blocks.iter().fold(input, step)
    }

    /// What the blocks of `range` do, to be kept.
    ///
    /// # Panics
    /// Panics if there are no such blocks.
    pub(crate) fn runs(&self, range: Range<usize>) -> Vec<Run<M>> {
        let blocks = self.blocks[range].iter();
        blocks.map(|block| Arc::clone(&block.run)).collect()
    }

    /// What block `index` takes, from numbers that came from elsewhere; a leaf, whose gradients can be
    /// asked for.
    ///
    /// # Errors
    /// [`ActivationError`] if the numbers are not what the block takes.
    ///
    /// # Panics
    /// Panics if there is no such block.
    pub fn input_of(
        &self,
        index: usize,
        values: Vec<TensorData>,
        device: &Device,
    ) -> Result<Box<dyn AnyActivation>, ActivationError> {
        (self.blocks[index].decode)(values, device)
    }
}

impl<M, I, O> std::fmt::Debug for Blocks<M, I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

fn owned<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> Vec<String> {
    paths.into_iter().map(Into::into).collect()
}

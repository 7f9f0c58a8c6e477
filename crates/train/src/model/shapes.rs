//! The shapes of a batch and of a model's layers, for the report of a panic in a forward pass: Burn's own message has the sizes
//! that do not fit, and neither the layer's name nor the model's.

use std::any::{Any, type_name};

use burn::module::{Module, ModuleVisitor};
use burn::prelude::*;
use burn::tensor::Int;

use crate::model::batch_tensors::{BatchVisitor, visit_tensors};

/// How many of the first and of the last layers are listed: a model may have hundreds, and the last one has an output per class.
const LISTED: usize = 20;

/// `input [8, 3, 32, 32], classes [8]`; the type of a batch of inputs and targets whose tensors are not known.
pub(crate) fn shapes_of_batch<I: Any, T: Any>(batch: &(I, T)) -> String {
    let mut shapes = BatchShapes::default();
    match visit_tensors(batch, &mut shapes) {
        true => shapes.0.join(", "),
        false => format!("a batch of the type `{}`", type_name::<I>()),
    }
}

#[derive(Default)]
struct BatchShapes(Vec<String>);

impl BatchVisitor for BatchShapes {
    fn float<const D: usize>(&mut self, name: &'static str, tensor: &Tensor<D>) {
        self.0.push(format!("{name} {:?}", tensor.dims()));
    }

    fn int<const D: usize>(&mut self, name: &'static str, tensor: &Tensor<D, Int>) {
        self.0.push(format!("{name} {:?}", tensor.dims()));
    }
}

/// The layers of `model` with the shapes of their parameters, a line each. No parameter is drawn.
pub(crate) fn layers_in_words<M: Module>(model: &M) -> String {
    let mut layers = Layers::default();
    model.visit(&mut layers);
    let found = layers.found.iter();
    let mut lines: Vec<String> = found
        .map(|(layer, parameters)| format!("  {layer}: {}", parameters.join(", ")))
        .collect();
    let left_out = lines.len().saturating_sub(2 * LISTED);
    if left_out > 1 {
        lines.drain(LISTED..LISTED + left_out);
        lines.insert(LISTED, format!("  ({left_out} more)"));
    }
    lines.join("\n")
}

#[derive(Default)]
struct Layers {
    /// Names with the types of what they are in.
    path: Vec<(String, String)>,
    /// Each layer, as `fc1 Linear`, with its parameters.
    found: Vec<(String, Vec<String>)>,
}

impl Layers {
    fn push(&mut self, shape: &[usize]) {
        let Some(((name, layer), above)) = self.path.split_last() else {
            return;
        };
        let path: Vec<&str> = above.iter().map(|(name, _)| name.as_str()).collect();
        let layer = format!("{} {layer}", path.join("."));
        let layer = layer.trim_start();
        let parameter = format!("{name} {shape:?}");
        match self.found.last_mut() {
            Some((last, parameters)) if *last == layer => parameters.push(parameter),
            _ => self.found.push((layer.to_owned(), vec![parameter])),
        }
    }
}

impl ModuleVisitor for Layers {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        // `Struct:Linear`.
        let layer = container_type.rsplit(':').next().unwrap_or_default();
        self.path.push((name.to_owned(), layer.to_owned()));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    everburn_nn::walking! { visit each self, param => self.push(&param.lazy_shape().to_vec()) }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};

    use super::*;

    #[derive(Module, Debug)]
    struct Net {
        blocks: Vec<Linear>,
        head: Linear,
    }

    fn net(blocks: usize) -> Net {
        let device = Device::flex();
        let block = LinearConfig::new(4, 4).with_bias(false);
        Net {
            blocks: (0..blocks).map(|_| block.init(&device)).collect(),
            head: LinearConfig::new(4, 3).init(&device),
        }
    }

    #[test]
    fn each_layer_has_its_path_its_type_and_its_shapes() {
        let model = net(1);
        let lines = "  blocks.0 Linear: weight [4, 4]\n  head Linear: weight [4, 3], bias [3]";
        assert_eq!(layers_in_words(&model), lines);
        assert!(!model.head.weight.is_initialized());
        let alone = "  Linear: weight [4, 3], bias [3]";
        assert_eq!(layers_in_words(&model.head), alone);
    }

    #[test]
    fn of_many_layers_the_first_and_the_last_are_listed() {
        let words = layers_in_words(&net(100));
        assert_eq!(words.lines().count(), 2 * LISTED + 1, "{words}");
        assert!(words.contains("blocks.19 Linear: weight [4, 4]\n  (61 more)\n"));
        assert!(words.ends_with("head Linear: weight [4, 3], bias [3]"));
        let all = layers_in_words(&net(2 * LISTED));
        assert_eq!(all.lines().count(), 2 * LISTED + 1, "{all}");
        assert!(!all.contains("more"), "{all}");
    }

    #[test]
    fn a_batch_is_its_tensors_or_its_type() {
        let device = Device::flex();
        let images = Tensor::<4>::zeros([2, 3, 8, 8], &device);
        let classes = Tensor::<1, Int>::zeros([2], &device);
        let shapes = "input [2, 3, 8, 8], classes [2]";
        assert_eq!(shapes_of_batch(&(images.clone(), classes.clone())), shapes);
        let mixed = (
            images.clone(),
            (classes.clone(), None::<(Tensor<1, Int>, Tensor<1>)>),
        );
        assert_eq!(shapes_of_batch(&(mixed, ())), shapes);
        assert_eq!(shapes_of_batch(&((images, classes), ())), shapes);
        let own = shapes_of_batch(&(String::new(), ()));
        assert!(own.contains("`alloc::string::String`"), "{own}");
    }
}

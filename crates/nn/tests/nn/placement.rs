//! Models over several devices: what is moved, and what is refused.
//!
//! The build has one device, flex, so that all parts are on it; what is moved where is seen from
//! activations that note it, and from the moves that are planned.

mod noted;

use std::sync::{Arc, Mutex};

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use everburn_nn::{
    BlockError, Blocks, DeviceSplit, InBlocks, Moved, Placement, PlacementError, parameter_counts,
};

use self::noted::Noted;

/// The first weight is used by the last block again.
#[derive(Module, Debug)]
struct Tied {
    input: Linear,
    layers: Vec<Linear>,
    output: Linear,
}

impl InBlocks for Tied {
    type Input = Noted;
    type Output = Noted;

    fn blocks(&self) -> Blocks<Self, Noted, Noted> {
        Blocks::first("input", ["input"], |tied: &Self, x: Noted| {
            x.through("input", &tied.input)
        })
        .each("layers", self.layers.len(), |tied, i, x: Noted| {
            x.through(&format!("layers.{i}"), &tied.layers[i])
        })
        .then("output", ["output", "input.weight"], |tied, x: Noted| {
            let x = x.through("output", &tied.output);
            let again = tied.input.weight.val();
            Noted {
                tensor: x.tensor.matmul(again.transpose()),
                ..x
            }
        })
    }
}

fn tied(device: &Device) -> Tied {
    let linear = || LinearConfig::new(3, 3).init(device);
    Tied {
        input: linear(),
        layers: (0..3).map(|_| linear()).collect(),
        output: linear(),
    }
}

fn even(model: &Tied, devices: &[Device]) -> DeviceSplit {
    let placement = Placement::even(model, devices).unwrap();
    placement.split(model).unwrap()
}

fn input(device: &Device) -> (Noted, Arc<Mutex<Vec<String>>>) {
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let tensor = Tensor::from_floats([[0.5, -1.0, 2.0], [0.1, 0.7, -0.3]], device);
    let noted = Noted {
        tensor,
        log: Arc::clone(&log),
    };
    (noted, log)
}

/// Loss and gradients of all weights.
fn pass(model: &Tied, output: Noted) -> Vec<Vec<f32>> {
    let loss = output.tensor.powi_scalar(2).mean();
    let mut numbers = vec![loss.clone().into_data().try_into_vec().unwrap()];
    let gradients = loss.backward();
    let linears = std::iter::once(&model.input).chain(&model.layers);
    for linear in linears.chain([&model.output]) {
        let gradient = linear.weight.grad(&gradients).expect("a gradient");
        numbers.push(gradient.into_data().try_into_vec().unwrap());
    }
    numbers
}

#[test]
fn activations_are_moved_where_a_part_begins_and_nowhere_else() {
    let device = Device::flex().autodiff();
    let model = tied(&device);
    let placement = Placement::new()
        .put("input", &device)
        .put("layers.1", &device)
        .put("output", &device);
    let split = placement.split(&model).unwrap();
    let names = split.parts().iter().map(|part| part.names.clone());
    assert_eq!(
        names.collect::<Vec<_>>(),
        [
            vec!["input", "layers.0"],
            vec!["layers.1", "layers.2"],
            vec!["output"]
        ]
    );
    let model = split.place(model);
    let (x, log) = input(&device);
    drop(split.forward(&model, x));
    assert_eq!(
        *log.lock().unwrap(),
        [
            "move", "input", "layers.0", "move", "layers.1", "layers.2", "move", "output"
        ]
    );
    let moves = split.moves();
    let moves = moves.iter().map(|m| (m.before.as_str(), m.what.clone()));
    let weight = Moved::Parameter("input.weight".to_string());
    assert_eq!(
        moves.collect::<Vec<_>>(),
        [
            ("layers.1", Moved::Activation),
            ("output", weight),
            ("output", Moved::Activation)
        ]
    );
}

#[test]
fn a_tied_parameter_gets_the_gradients_of_all_its_users() {
    let device = Device::flex().autodiff();
    let whole = tied(&device);
    let expected = pass(&whole, whole.blocks().forward(&whole, input(&device).0));
    for devices in 1..=5 {
        let devices = vec![device.clone(); devices];
        let split = even(&whole, &devices);
        let model = split.place(whole.clone());
        assert_eq!(model.input.weight.id, whole.input.weight.id);
        let output = split.forward(&model, input(&device).0);
        assert_eq!(pass(&model, output), expected, "{} devices", devices.len());
    }
}

/// One weight in two fields.
#[derive(Module, Debug)]
struct Shared {
    first: Linear,
    again: Linear,
}

impl InBlocks for Shared {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn blocks(&self) -> Blocks<Self, Tensor<2>, Tensor<2>> {
        Blocks::first("first", ["first"], |shared: &Self, x| {
            shared.first.forward(x).tanh()
        })
        .then("again", ["again"], |shared, x| shared.again.forward(x))
    }
}

#[test]
fn a_parameter_that_is_held_twice_stays_one() {
    let device = Device::flex().autodiff();
    let first: Linear = LinearConfig::new(3, 3).init(&device);
    let _ = first.weight.val();
    let again = first.clone();
    let whole = Shared { first, again };
    let x = input(&device).0.tensor;
    let gradient = |model: &Shared, output: Tensor<2>| {
        let gradients = output.powi_scalar(2).mean().backward();
        let gradient = model.first.weight.grad(&gradients).expect("a gradient");
        gradient.into_data().try_into_vec::<f32>().unwrap()
    };
    let expected = gradient(&whole, whole.blocks().forward(&whole, x.clone()));
    let placement = Placement::new().put("first", &device).put("again", &device);
    let split = placement.split(&whole).unwrap();
    assert_eq!(split.parts()[1].borrowed, ["again.weight", "again.bias"]);
    let placed = split.place(whole);
    assert_eq!(gradient(&placed, split.forward(&placed, x)), expected);
}

#[test]
fn placing_keeps_ids_what_is_trained_and_what_has_no_value_yet() {
    let device = Device::flex();
    let mut model = tied(&device);
    model.output.weight = model.output.weight.set_require_grad(false);
    let devices = [device.clone(), device.clone()];
    let split = even(&model, &devices);
    let ids = [model.input.weight.id, model.output.weight.id];
    let placed = split.place(model);
    assert_eq!([placed.input.weight.id, placed.output.weight.id], ids);
    let lazy = |param: &Param<Tensor<2>>| !param.is_initialized();
    assert!(lazy(&placed.input.weight) && lazy(&placed.output.weight));
    let trained = split.place(placed.train());
    assert!(trained.input.weight.is_require_grad());
    assert!(!trained.output.weight.is_require_grad());
    assert!(trained.input.weight.val().device().is_autodiff());
}

#[test]
fn a_name_stands_for_all_that_lies_under_it_and_a_later_one_wins() {
    let device = Device::flex();
    let model = tied(&device);
    let sizes = |placement: Placement| {
        let split = placement.split(&model).unwrap();
        let sizes = split.parts().iter().map(|part| part.blocks.len());
        sizes.collect::<Vec<_>>()
    };
    let start = || Placement::new().put("input", &device);
    assert_eq!(sizes(start()), [5]);
    assert_eq!(sizes(start().put("layers", &device)), [1, 4]);
    let later = start().put("layers", &device).put("layers.1", &device);
    assert_eq!(sizes(later), [1, 1, 1, 2], "layers.2 is under layers");
    // A parameter's path stands for the blocks that use it.
    let path = Placement::new().put("output.weight", &device);
    let inside = path.put("input", &device).split(&model).unwrap_err();
    assert!(
        matches!(inside, PlacementError::InsideBlock { .. }),
        "{inside}"
    );
}

#[test]
fn what_does_not_fit_the_model_is_refused_by_name() {
    let device = Device::flex();
    let model = tied(&device);
    let refusal = |placement: Placement| placement.split(&model).unwrap_err().to_string();

    let unknown = refusal(Placement::new().put("input", &device).put("layer", &device));
    assert!(
        unknown.contains("names layer, and the model has no such"),
        "{unknown}"
    );
    assert!(unknown.contains("input, layers.0, layers.1"), "{unknown}");

    let inside = refusal(Placement::new().put("layers.1.weight", &device));
    assert!(
        inside.contains("layers.1.weight, a part of the block layers.1"),
        "{inside}"
    );

    let without = refusal(Placement::new().put("layers.1", &device));
    assert!(
        without.contains("no device to the block input"),
        "{without}"
    );

    assert_eq!(refusal(Placement::new()), "the placement names no device");

    let many = Placement::even(&model, &vec![device.clone(); 6]).unwrap_err();
    let text = "a model of 5 blocks cannot be shared by 6 devices";
    assert!(many.to_string().contains(text), "{many}");

    let costs = Placement::balanced(&model.blocks(), &[1.0], std::slice::from_ref(&device));
    let (costs_given, blocks) = (1, 5);
    let expected = PlacementError::CostCount {
        costs: costs_given,
        blocks,
    };
    assert_eq!(costs.unwrap_err(), expected);

    let negative = [1.0, 1.0, -1.0, 1.0, 1.0];
    let negative = Placement::balanced(&model.blocks(), &negative, &[device.clone(), device]);
    let text = negative.unwrap_err().to_string();
    assert!(text.contains("the block layers.1 is -1"), "{text}");
}

#[test]
fn a_model_whose_blocks_leave_a_parameter_out_is_refused() {
    #[derive(Module, Debug)]
    struct Forgetful {
        used: Linear,
        forgotten: Linear,
    }
    impl InBlocks for Forgetful {
        type Input = Tensor<2>;
        type Output = Tensor<2>;
        fn blocks(&self) -> Blocks<Self, Tensor<2>, Tensor<2>> {
            Blocks::first("used", ["used"], |model: &Self, x| model.used.forward(x))
        }
    }
    let device = Device::flex();
    let linear = || LinearConfig::new(2, 2).init(&device);
    let model = Forgetful {
        used: linear(),
        forgotten: linear(),
    };
    let path = "forgotten.weight".to_string();
    let expected = PlacementError::Blocks(BlockError::Unnamed { path });
    let error = Placement::new().put("used", &device).split(&model);
    assert_eq!(error.unwrap_err(), expected);
}

#[test]
fn shares_are_even_by_parameters() {
    let device = Device::flex();
    let model = tied(&device);
    // Weights of 9 and biases of 3; the tied weight counts for its first user.
    assert_eq!(parameter_counts(&model), [12.0; 5]);
    let devices = vec![device; 3];
    let split = even(&model, &devices);
    let sizes = split.parts().iter().map(|part| part.blocks.len());
    assert_eq!(sizes.max(), Some(2));
    let places = split.parts().iter().map(|part| &part.device);
    assert!(places.eq(&devices));
}

#[test]
fn each_block_is_timed() {
    let device = Device::flex();
    let model = tied(&device);
    let devices = [device.clone(), device.clone()];
    let split = even(&model, &devices);
    let model = split.place(model);
    let (x, log) = input(&device);
    let costs = split.forward_costs(&model, x, 2).unwrap();
    assert_eq!(costs.len(), 5);
    assert!(
        costs.iter().all(|cost| cost.is_finite() && *cost > 0.0),
        "{costs:?}"
    );
    let log = log.lock().unwrap();
    for block in ["input", "layers.0", "layers.1", "layers.2", "output"] {
        let runs = log.iter().filter(|run| run.as_str() == block).count();
        assert_eq!(runs, 3, "{block} runs once before it is timed twice");
    }
}

//! Tensor and data parallelism together: a mesh of 2 x 2.

use std::sync::Arc;

use burn::module::Module;
use burn::optim::{GradientsParams, SgdConfig};
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{Ddp, DdpConfig, ModuleRanks};
use everburn_models::gpt::{Gpt, Positions};
use everburn_nn::{TensorGroup, TensorParallel};

use super::model::{StepResult, assert_equal, device, gathered, gpt, loss_of, tokens};
use crate::parameters::parameters;
use crate::ranks::{on_ranks, separate};

const STEPS: usize = 5;
const TEXTS: usize = 4;

fn alone(mut model: Gpt) -> StepResult {
    let mut optimizer = SgdConfig::new().init();
    for step in 0..STEPS {
        let loss = loss_of(model.forward(tokens(TEXTS, step, &device())));
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.1, model, gradients);
    }
    let loss = loss_of(model.forward(tokens(TEXTS, STEPS, &device())));
    StepResult::new(&loss, parameters(&model), &model)
}

/// The rank's place: rows of the mesh share samples, columns share parts of layers.
fn subgroups(world: &ProcessGroup) -> (ProcessGroup, ProcessGroup) {
    let mine = |lists: [[usize; 2]; 2]| {
        let own = lists.map(|ranks| world.subgroup(&ranks).unwrap());
        own.into_iter().flatten().next().unwrap()
    };
    (mine([[0, 1], [2, 3]]), mine([[0, 2], [1, 3]]))
}

#[test]
fn a_mesh_of_data_and_tensor_trains_like_one_device() {
    let whole = gpt(Positions::Learned);
    let expected = alone(separate(&whole));
    let ranks = on_ranks(4, |world| {
        let (tensor, data) = subgroups(&world);
        let (place, replica) = (data.rank(), tensor.rank());
        let ranks: Arc<dyn TensorGroup> = Arc::new(ModuleRanks::within(&tensor, &world).unwrap());
        let rules = whole.tensor_rules();
        let model = everburn_nn::tensor_parallel(separate(&whole), &rules, &ranks).unwrap();
        let (ddp, mut model) = Ddp::new(model, data, DdpConfig::default()).unwrap();
        let mut optimizer = SgdConfig::new().init();
        let half = TEXTS / 2;
        for step in 0..STEPS {
            let sync = ddp.begin(half).unwrap();
            let watched = sync.with_hooks(&model, half);
            let share = place * half..(place + 1) * half;
            let mine = tokens(TEXTS, step, &device()).slice([share]);
            drop(loss_of(watched.forward(mine)).backward());
            let synced = sync.finish(&model).unwrap();
            model = optimizer.step(0.1, model, synced.gradients);
            ddp.verify_replicas(&model).unwrap();
        }
        let loss = loss_of(model.forward(tokens(TEXTS, STEPS, &device())));
        let found = StepResult::new(&loss, parameters(&model.valid()), &model);
        world.barrier().wait().unwrap();
        (place, replica, found)
    });
    for place in 0..2 {
        let mut row = Vec::new();
        for (own, replica, found) in &ranks {
            if *own == place {
                assert_eq!(*replica, row.len());
                row.push(StepResult {
                    loss: found.loss,
                    named: found.named.clone(),
                    shards: found.shards.clone(),
                });
            }
        }
        assert_equal(&gathered(&row), &expected.named, 1e-5);
        assert!((row[0].loss - expected.loss).abs() <= 1e-5 * expected.loss);
    }
}

//! What an exchange of gradients costs of a step where nobody else has any: the launches, the rows that gradients
//! are gathered in, and the waits of streams.

use std::sync::Arc;
use std::time::Instant;

use everburn::burn::module::Module;
use everburn::burn::optim::{GradientsParams, ModuleOptimizer};
use everburn::burn::prelude::*;
use everburn::devices::{DeviceError, DeviceName};
use everburn::distributed::{
    Abilities, Connector, DeviceCommunicator, GradientBackend, HostCommunicator,
};
#[cfg(feature = "cuda")]
use everburn::distributed::{CubeMemory, NcclWait};
use everburn::nccl::{Library, gpus};
use everburn::prelude::*;
use everburn::train::{NextToken, Objective, OptimizerConfig};
use everburn_models::gpt::Gpt;
use everburn_record::statistics::median;

use super::throughput::{gpt2, gpt2_optimizer, texts};
use crate::failure::Failure;
use crate::gpu_check::order::{CommunicationCost, SEED};

/// How many samples per step has.
const BATCH: usize = 8;

/// How often each way is measured, by turns, so that what the machine does meanwhile falls on both.
const TURNS: usize = 9;

/// How long a turn is, in seconds, on a device that is fast.
const TURN_SECONDS: f64 = 0.5;

/// The model on one rank, with its optimizer.
struct Side {
    ddp: Ddp,
    /// Handed over to the optimizer and back: parameters that nobody else has are updated in place.
    model: Option<Supervised<Gpt, NextToken>>,
    optimizer: ModuleOptimizer,
}

/// Measures steps of gpt2-124m on `device`, which is called `name`, with NCCL and without; on the processor, where
/// there is no NCCL, with an exchange through host memory.
pub(super) fn run(device: &Device, name: &str, quick: bool) -> Result<CommunicationCost, Failure> {
    device.seed(SEED);
    let config = gpt2(quick);
    let device = device.clone().autodiff();
    let batch = texts(&config, BATCH, &device);
    let model = Supervised::<_, NextToken>::of_blocks(config.init(&device).train());
    let settings = gpt2_optimizer();
    let side = |communicator: Option<Arc<dyn DeviceCommunicator>>| -> Result<Side, Failure> {
        let group = ProcessGroup::alone(GroupOptions::default());
        let model = model.clone().fork(&device);
        let (ddp, model) = match communicator {
            None => Ddp::new(model, group, DdpConfig::default())?,
            Some(communicator) => {
                Ddp::with_communicator(model, group, DdpConfig::default(), communicator)?
            }
        };
        Ok(Side {
            ddp,
            optimizer: settings.init(&model)?,
            model: Some(model),
        })
    };
    let mut sides = [side(None)?, side(Some(communicator(name)?))?];
    // Compiles, tunes, makes the optimizers' states, and packs the buckets in the order of the gradients.
    for side in &mut sides {
        side.steps(3, &batch, &settings, &device)?;
    }
    let each = sides[0].steps(2, &batch, &settings, &device)? / 2.0;
    let steps = match quick {
        true => 1,
        false => ((TURN_SECONDS / each) as usize).clamp(2, 200),
    };
    let [mut shares, mut times] = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        let without = sides[0].steps(steps, &batch, &settings, &device)?;
        let with = sides[1].steps(steps, &batch, &settings, &device)?;
        shares.push(with / without - 1.0);
        times.push(without / steps as f64 * 1e3);
    }
    for side in &sides {
        side.ddp.settle()?;
    }
    Ok(CommunicationCost {
        share: median(&shares).unwrap_or(f64::NAN),
        step_ms: median(&times).unwrap_or(f64::NAN),
        steps,
    })
}

/// The way that gradients of the device called `name` go where NCCL is asked for.
fn communicator(name: &str) -> Result<Arc<dyn DeviceCommunicator>, Failure> {
    let group = ProcessGroup::alone(GroupOptions::default());
    let DeviceName::Cuda(number) = name.parse().map_err(DeviceError::from)? else {
        return Ok(Arc::new(HostCommunicator::start(group)?));
    };
    let library = Arc::new(Library::load()?);
    let abilities = Abilities {
        device: name.to_string(),
        gpu: gpus()?.gpus.get(number).map(|gpu| gpu.uuid.clone()),
        nccl: Ok(library.version().to_string()),
        keeps_to_host: None,
    };
    let connector = Connector::new(GradientBackend::Nccl, abilities);
    #[cfg(feature = "cuda")]
    let connector = connector.with_nccl(
        move || library.on_gpu(number),
        Arc::new(CubeMemory),
        NcclWait::Device,
    );
    let communicator = connector.connect(&group)?;
    communicator.ok_or_else(|| Failure::new("NCCL was asked for and not chosen"))
}

impl Side {
    /// Takes this many steps, and waits for the device; how long it took, in seconds.
    fn steps(
        &mut self,
        count: usize,
        (inputs, targets): &(Tensor<2, Int>, Tensor<2, Int>),
        settings: &OptimizerConfig,
        device: &Device,
    ) -> Result<f64, Failure> {
        let start = Instant::now();
        for _ in 0..count {
            let model = self.model.take().expect("each step puts it back");
            let loss = |model: &Supervised<Gpt, NextToken>| {
                let output = model.forward(inputs.clone());
                NextToken::loss(output, targets.clone()).mean.backward()
            };
            let synced = if self.ddp.synchronizes_gradients() {
                let step = self.ddp.begin(BATCH)?;
                drop(loss(&step.with_hooks(&model, BATCH)));
                step.finish(&model)?
            } else {
                let gradients = GradientsParams::from_grads(loss(&model), &model);
                self.ddp.sync_gradients(&model, gradients, BATCH)?
            };
            let rate = settings.learning_rate;
            let model = self.optimizer.step(rate, model, synced.gradients);
            self.model = Some(self.ddp.tie(model));
        }
        let done = device.sync();
        done.map_err(|error| Failure::usage(format!("the device has failed: {error}")))?;
        Ok(start.elapsed().as_secs_f64())
    }
}

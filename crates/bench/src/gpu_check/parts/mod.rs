//! What a process of a check does: one part or more, each with a line of JSON as its result.

mod losses;
mod models;
mod nccl_cost;
mod numbers;
mod replay;
mod throughput;

use everburn::burn::prelude::Device;
use everburn::devices;
use serde_json::{Value, json};

use self::losses::{Losses, batch_size};
use self::numbers::Compare;
use super::order::{Answer, Order, Part, Plant, rounding};
use crate::failure::Failure;

/// Does the parts of `order`, and prints after each what it yields.
pub(crate) fn run(order: &Order) -> Result<(), Failure> {
    match order.plant {
        Some(Plant::Crash) => panic!("planted: this part crashes"),
        Some(Plant::Hang) => loop {
            std::thread::park();
        },
        _ => {}
    }
    let names = std::slice::from_ref(&order.device);
    devices::check(names, 1)?;
    let device = devices::of_rank(names, 0)?;
    for part in &order.parts {
        let found = result_of(*part, order, &device)?;
        say!("{}", json!(Answer { found }));
    }
    Ok(())
}

/// What a part of `order` yields.
fn result_of(part: Part, order: &Order, device: &Device) -> Result<Value, Failure> {
    let (name, quick) = (&order.device, order.quick);
    Ok(match part {
        Part::Numbers(model) => {
            // The shapes of a training have the same kernels.
            let samples = batch_size(model);
            let compare = Compare {
                device: device.clone(),
                samples,
                rounding: rounding(name),
                plant: order.plant,
            };
            json!(model.visit(samples, compare)?)
        }
        Part::Losses {
            model,
            steps,
            rounding,
        } => {
            if order.plant == Some(Plant::CrashInTraining) {
                panic!("planted: this training crashes");
            }
            let visitor = Losses {
                model,
                device: device.clone(),
                steps,
                rounding,
            };
            let mut losses = model.visit(steps * batch_size(model), visitor)?;
            if let (Some(Plant::Losses), Some(last)) = (order.plant, losses.last_mut()) {
                *last *= 1.01;
            }
            json!(losses)
        }
        Part::NcclCost => json!(nccl_cost::run(device, name, quick)?),
        Part::Replay => json!(replay::run(device)?),
        Part::Throughput { what, batch } => json!(throughput::run(what, device, batch, quick)?),
    })
}

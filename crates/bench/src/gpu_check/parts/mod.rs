//! What a process of a check does: one part, whose result is a line of JSON.

mod losses;
mod models;
mod nccl_cost;
mod numbers;
mod replay;
mod throughput;

use everburn::devices;
use serde_json::json;

use self::losses::{Losses, batch_size};
use self::numbers::Compare;
use super::order::{Order, Part, Plant, PrintedLosses, rounding};
use crate::failure::Failure;

/// Does a part, and prints what it yields.
pub(crate) fn run(order: &Order) -> Result<(), Failure> {
    match order.plant {
        Some(Plant::Crash) => panic!("planted: this part crashes"),
        Some(Plant::Hang) => loop {
            std::thread::park();
        },
        _ => {}
    }
    let (name, quick) = (&order.device, order.quick);
    let names = std::slice::from_ref(name);
    devices::check(names, 1)?;
    let device = devices::of_rank(names, 0)?;
    let json = match order.part {
        Part::Numbers(model) => {
            // The shapes of a training have the same kernels.
            let samples = batch_size(model);
            let compare = Compare {
                device,
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
            let visitor = Losses {
                model,
                device,
                steps,
                rounding,
            };
            let mut losses = model.visit(steps * batch_size(model), visitor)?;
            if let (Some(Plant::Losses), Some(last)) = (order.plant, losses.last_mut()) {
                *last *= 1.01;
            }
            json!(PrintedLosses { losses })
        }
        Part::NcclCost => json!(nccl_cost::run(&device, name, quick)?),
        Part::Replay => json!(replay::run(&device)?),
        Part::Throughput { what, batch } => json!(throughput::run(what, &device, batch, quick)?),
    };
    say!("{json}");
    Ok(())
}

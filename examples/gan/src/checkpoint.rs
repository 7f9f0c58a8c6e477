//! Checkpoints by Burn's records: a folder for each, `step-40`, with two files for each model.

use std::error::Error;
use std::fs;
use std::path::Path;

use everburn::burn::module::Module;
use everburn::burn::optim::{ModuleOptimizer, OptimizerRecord};
use everburn::burn::store::ModuleRecord;

use crate::net::Net;

/// The step of the newest checkpoint in `folder`; 0 where there is none.
pub fn newest(folder: &Path) -> Result<usize, Box<dyn Error>> {
    Ok(steps(folder)?.into_iter().max().unwrap_or(0))
}

fn steps(folder: &Path) -> Result<Vec<usize>, Box<dyn Error>> {
    let mut steps = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let name = entry?.file_name();
        steps.extend(name.to_string_lossy().strip_prefix("step-").and_then(|step| step.parse::<usize>().ok()));
    }
    Ok(steps)
}

/// Writes what has been learnt until `step`, and removes older checkpoints.
pub fn save(folder: &Path, step: usize, learners: [(&str, &Net, &ModuleOptimizer); 2]) -> Result<(), Box<dyn Error>> {
    let older = steps(folder)?;
    // It gets its name when it is whole: who is killed here leaves the checkpoint before it.
    let unfinished = folder.join("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    fs::create_dir_all(&unfinished)?;
    for (name, net, optimizer) in learners {
        net.clone().into_record().save(unfinished.join(format!("{name}.bpk")))?;
        optimizer.to_record().save(unfinished.join(format!("{name}-optimizer.bpk")))?;
    }
    fs::rename(unfinished, folder.join(format!("step-{step}")))?;
    for step in older {
        fs::remove_dir_all(folder.join(format!("step-{step}")))?;
    }
    Ok(())
}

/// Gives a model and its optimizer what they had learnt until `step`.
pub fn load(
    folder: &Path,
    step: usize,
    name: &str,
    net: Net,
    optimizer: ModuleOptimizer,
) -> Result<(Net, ModuleOptimizer), Box<dyn Error>> {
    let folder = folder.join(format!("step-{step}"));
    // The record also brings the identities of parameters, by which the optimizer finds its state of each.
    let net = net.try_load_record(ModuleRecord::load(folder.join(format!("{name}.bpk")))?)?;
    let state = OptimizerRecord::load(folder.join(format!("{name}-optimizer.bpk")))?;
    Ok((net, optimizer.load_record(state)))
}

//! A GAN in a loop of its own: two models, each with a `Ddp` and an optimizer, learn to make points of a ring.
//!
//! `gan [RANKS [STEPS [FOLDER]]]`, started again with the same folder, continues after the newest checkpoint there.

mod checkpoint;
mod data;
mod net;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use everburn::burn::optim::AdamConfig;
use everburn::burn::prelude::*;
use everburn::burn::tensor::activation::softplus;
use everburn::prelude::*;

use crate::net::Net;

/// How many points all ranks together see in a step.
const BATCH: usize = 64;
/// The learning rate of both models.
const RATE: f64 = 1e-3;
/// How many steps are between two checkpoints.
const CHECKPOINT_EVERY: usize = 20;

// This runs in each process: in the one that the user starts, which only launches, and in each rank.
fn main() -> ExitCode {
    let word = |number, default: &str| std::env::args().nth(number).unwrap_or(default.to_string());
    let (Ok(ranks), Ok(steps)) = (word(1, "2").parse(), word(2, "2000").parse()) else {
        eprintln!("usage: gan [RANKS [STEPS [FOLDER]]]");
        return ExitCode::from(2);
    };
    let folder = PathBuf::from(word(3, "gan-run"));
    // Starts this program once per rank, waits for all, and names the one that fails first.
    everburn::launch::run(ranks, |rank| train(rank, steps, &folder))
}

/// What each rank does.
fn train(rank: &Rank, steps: usize, folder: &Path) -> Result<(), Box<dyn Error>> {
    println!("rank {} of {} is process {}", rank.rank(), rank.world_size(), std::process::id());
    let device = Device::flex().autodiff();
    device.seed(0);
    let mut generator = Net::new(data::NOISE, 2, &device);
    let mut discriminator = Net::new(2, 1, &device);
    let adam = AdamConfig::new().with_beta_1(0.5);
    let (mut generator_optimizer, mut discriminator_optimizer) = (adam.init(), adam.init());
    // Every rank reads the newest checkpoint, if there is one. None is written before all have met, below.
    let done = checkpoint::newest(folder)?;
    if done > 0 {
        let load = |name, net, optimizer| checkpoint::load(folder, done, name, net, optimizer);
        (generator, generator_optimizer) = load("generator", generator, generator_optimizer)?;
        (discriminator, discriminator_optimizer) = load("discriminator", discriminator, discriminator_optimizer)?;
        println!("continues after step {done}");
    }
    // All ranks meet here. Each model has a `Ddp` of its own, which gives all ranks the weights of rank 0.
    let group = rank.group()?;
    let (generator_ddp, mut generator) = Ddp::new(generator, group.clone(), DdpConfig::default())?;
    let (discriminator_ddp, mut discriminator) = Ddp::new(discriminator, group.clone(), DdpConfig::default())?;
    // Deals the points of each batch to the ranks. The next epoch begins where one ends, in another order.
    let config = SamplerConfig { num_samples: data::POINTS, batch_size: BATCH, shuffle: Some(0), tail: Tail::Drop };
    let sampler = DistributedSampler::new(config, rank.rank(), rank.world_size())?;
    let shares = (1..).flat_map(|epoch| sampler.batches(epoch));
    let mut samples = 0;
    for (step, (share, _)) in (1..=steps).zip(shares).skip(done) {
        let count = share.len();
        // Errors name the step. Each rank draws noise of its own, the same in this step whenever it is made.
        group.set_step(step as u64);
        device.seed((step * rank.world_size() + rank.rank()) as u64);

        // The discriminator learns to tell points of the ring from those of the generator, which learns nothing here.
        let sync = discriminator_ddp.begin(count)?;
        let watched = sync.with_hooks(&discriminator, count);
        let real = watched.forward(data::points(&share, &device));
        let fake = watched.forward(generator.forward(data::noise(count, &device)).detach());
        let discriminator_loss = softplus(-real, 1.0).mean() + softplus(fake, 1.0).mean();
        // Gradients travel while this runs, and `finish` waits for the mean over the samples of all ranks.
        drop(discriminator_loss.backward());
        let synced = sync.finish(&discriminator)?;
        samples += synced.samples;
        let stepped = discriminator_optimizer.step(RATE, discriminator, synced.gradients);
        discriminator = discriminator_ddp.tie(stepped);

        // The generator learns to make points that the discriminator, which learns nothing here, takes for real.
        let sync = generator_ddp.begin(count)?;
        let fake = sync.with_hooks(&generator, count).forward(data::noise(count, &device));
        let generator_loss = softplus(-discriminator.forward(fake), 1.0).mean();
        drop(generator_loss.backward());
        let synced = sync.finish(&generator)?;
        generator = generator_ddp.tie(generator_optimizer.step(RATE, generator, synced.gradients));

        if step % CHECKPOINT_EVERY == 0 || step == steps {
            // What a rank sees is the loss of its own samples; every rank takes part in the mean.
            let losses = [discriminator_loss, generator_loss].map(|loss| loss.into_scalar::<f32>());
            let losses = group.all_reduce(losses.to_vec(), ReduceOp::Mean).wait()?;
            // All ranks hold the same weights, so one of them writes.
            if rank.rank() == 0 {
                let learners = [
                    ("generator", &generator, &generator_optimizer),
                    ("discriminator", &discriminator, &discriminator_optimizer),
                ];
                checkpoint::save(folder, step, learners)?;
                println!("step {step}: discriminator {}, generator {}", losses[0], losses[1]);
            }
        }
    }
    if rank.rank() == 0 {
        // What the generator has learnt to make.
        device.seed(0);
        data::write(&folder.join("points.csv"), generator.forward(data::noise(data::POINTS, &device)))?;
        println!("{samples} samples seen");
    }
    Ok(())
}

//! `--backend`: by which way gradients travel.

use std::collections::HashSet;
use std::sync::Arc;

use crate::devices::{DeviceError, DeviceName};
#[cfg(any(feature = "cuda", feature = "rocm"))]
use everburn_distributed::CubeMemory;
use everburn_distributed::{
    Abilities, CommunicationHookConfig, Connector, GradientBackend, NcclWait,
};
use everburn_nccl::{Library, Vendor, gpu_uuid};
use everburn_record::units::counted;
use everburn_train::Balance;

use crate::arguments::Strategy;
use crate::config::RunConfig;
use crate::error::CliError;

/// What a run asks for that is done with gradients in host memory, if anything: the end of a sentence.
fn keeps_to_host(config: &RunConfig) -> Option<String> {
    let training = &config.training;
    if training.virtual_ranks.is_some() {
        return Some("--virtual-ranks adds gradients up in an order of its own".to_string());
    }
    if training.balance == Balance::Auto {
        return Some("--balance auto measures there how long a rank computes".to_string());
    }
    if training.ddp.communication != CommunicationHookConfig::None {
        let hook = training.ddp.communication;
        return Some(format!(
            "--communication-hook {hook} changes what travels through host memory"
        ));
    }
    let shard = training.ddp.shard;
    if let Some(stage) = shard.filter(|stage| stage.shards_parameters()) {
        return Some(format!(
            "--shard {stage} adds them up there, for the rank that keeps them"
        ));
    }
    if config.ranks.strategy == Strategy::ModelParallel {
        return Some("a rank's model is on several devices".to_string());
    }
    None
}

/// Refuses what can never be, before any rank is started: the ranks find out the rest together.
pub(crate) fn check(config: &RunConfig) -> Result<(), CliError> {
    let (ranks, wanted) = (&config.ranks, config.ranks.backend);
    if wanted != GradientBackend::Nccl {
        return Ok(());
    }
    let refuse = |what: String, help: &str| {
        let message = format!("--backend {wanted} cannot be used: {what}");
        Err(CliError::usage_with_help(message, help))
    };
    if let Some(reason) = keeps_to_host(config) {
        return refuse(reason, "leave one of the two out");
    }
    let mut own = HashSet::new();
    let mut vendor = None;
    for name in &ranks.devices {
        let device = name.parse::<DeviceName>().map_err(DeviceError::from)?;
        let Some((found, _)) = collectives_of(device) else {
            let what = format!("it is between NVIDIA's or AMD's GPUs, and --devices names {name}");
            let help =
                "give each rank one, as --gpus N does where there are any, or use --backend auto";
            return refuse(what, help);
        };
        if *vendor.get_or_insert(found) != found {
            let what = format!(
                "NCCL and RCCL do not connect, and --devices names {name} beside another vendor's GPU"
            );
            return refuse(
                what,
                "give all ranks GPUs of one vendor, or use --backend auto",
            );
        }
        own.insert(device);
    }
    let own = own.len();
    if own < ranks.ranks {
        let what = format!(
            "{} share {}",
            counted(ranks.ranks, "rank"),
            counted(own, "GPU")
        );
        return refuse(
            what,
            "give each rank a GPU of its own, or use --backend auto",
        );
    }
    match Library::load_of(vendor.unwrap_or(Vendor::Nvidia)) {
        Ok(_) => Ok(()),
        Err(error) => refuse(error.to_string(), "--backend host does without"),
    }
}

/// How the rank on the device `name` is connected with the others: all ranks choose together, those on processors too.
pub(crate) fn connector(config: &RunConfig, name: &str) -> Result<Connector, CliError> {
    let abilities = Abilities {
        device: name.to_string(),
        keeps_to_host: keeps_to_host(config),
        ..Abilities::default()
    };
    let device = name.parse::<DeviceName>().map_err(DeviceError::from)?;
    let Some((vendor, number)) = collectives_of(device) else {
        return Ok(Connector::new(config.ranks.backend, abilities));
    };
    let library = Library::load_of(vendor).map(Arc::new);
    let nccl = match &library {
        Ok(library) => Ok(library.version().to_string()),
        Err(error) => Err(error.to_string()),
    };
    let abilities = Abilities {
        gpu: gpu_uuid(vendor, number).ok(),
        nccl,
        ..abilities
    };
    let connector = Connector::new(config.ranks.backend, abilities);
    Ok(match &library {
        Ok(library) => with_nccl(connector, library, number, waits(config)),
        Err(_) => connector,
    })
}

/// Where a rank may be lost, the others continue from the newest whole step: a step must not count before its
/// gradients have arrived.
fn waits(config: &RunConfig) -> NcclWait {
    match config.ranks.elastic {
        Some(_) => NcclWait::Host,
        None => NcclWait::Device,
    }
}

#[cfg(any(feature = "cuda", feature = "rocm"))]
fn with_nccl(
    connector: Connector,
    library: &Arc<Library>,
    device: usize,
    waits: NcclWait,
) -> Connector {
    let library = library.clone();
    connector.with_nccl(move || library.on_gpu(device), Arc::new(CubeMemory), waits)
}

#[cfg(not(any(feature = "cuda", feature = "rocm")))]
fn with_nccl(connector: Connector, _: &Arc<Library>, _: usize, _: NcclWait) -> Connector {
    connector
}

/// Whose library connects GPUs like `device`, and its number among them; `None` for others.
fn collectives_of(device: DeviceName) -> Option<(Vendor, usize)> {
    match device {
        DeviceName::Cuda(number) => Some((Vendor::Nvidia, number)),
        DeviceName::Rocm(number) => Some((Vendor::Amd, number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use everburn_distributed::ShardStage;
    use everburn_tests::AssertContains;

    use super::*;
    use crate::config::RanksConfig;

    fn config(devices: &[&str], backend: GradientBackend) -> RunConfig {
        RunConfig {
            ranks: RanksConfig {
                ranks: devices.len(),
                devices: devices.iter().map(ToString::to_string).collect(),
                backend,
                ..RanksConfig::default()
            },
            ..RunConfig::default()
        }
    }

    fn refused(config: &RunConfig) -> String {
        check(config).unwrap_err().to_string()
    }

    #[test]
    fn what_can_never_be_is_refused_before_a_rank_is_started() {
        use GradientBackend::{Auto, Host, Nccl};
        check(&config(&["flex", "flex"], Auto)).unwrap();
        check(&config(&["cuda:0", "cuda:0"], Host)).unwrap();
        let text = refused(&config(&["cuda:0", "flex"], Nccl));
        assert!(text.contains("--devices names flex"), "{text}");
        let text = refused(&config(&["vulkan:0", "vulkan:1"], Nccl));
        assert!(text.contains("--devices names vulkan:0"), "{text}");
        let text = refused(&config(&["cuda:0", "rocm:0"], Nccl));
        text.assert_contains(["names rocm:0 beside another vendor's"]);
        let text = refused(&config(&["rocm:0", "rocm:0"], Nccl));
        assert!(text.contains("2 ranks share 1 GPU"), "{text}");
        let text = refused(&config(&["cuda:0", "cuda:0"], Nccl));
        assert!(text.contains("2 ranks share 1 GPU"), "{text}");
        let mut hooked = config(&["cuda:0", "cuda:1"], Nccl);
        hooked.training.ddp.communication = CommunicationHookConfig::Fp16;
        let text = refused(&hooked);
        text.assert_contains([
            "--communication-hook fp16 changes what travels through host memory",
        ]);
        let mut sharded = config(&["cuda:0", "cuda:1"], Nccl);
        sharded.training.ddp.shard = Some(ShardStage::Parameters);
        assert!(refused(&sharded).contains("--shard parameters adds them up there"));
        let mut exact = config(&["cuda:0", "cuda:1"], Nccl);
        exact.training.virtual_ranks = Some(4);
        assert!(refused(&exact).contains("--virtual-ranks"));
        let mut balanced = config(&["cuda:0", "cuda:1"], Nccl);
        balanced.training.balance = Balance::Auto;
        assert!(refused(&balanced).contains("--balance auto measures"));
    }

    #[test]
    fn ranks_on_a_processor_and_on_another_makers_gpu_agree_on_host_memory() {
        use everburn_collectives::group::{GroupOptions, ProcessGroup};

        let names = ["flex", "vulkan:0"];
        let config = config(&names, GradientBackend::Auto);
        let ranks = ProcessGroup::over_threads(2, GroupOptions::default());
        let ranks = ranks.into_iter().zip(names).map(|(group, name)| {
            let connector = connector(&config, name).unwrap();
            std::thread::spawn(move || {
                assert!(connector.connect(&group).unwrap().is_none());
                connector.choice().unwrap().to_string()
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            assert_eq!(rank.join().unwrap(), "host (rank 0 is on flex)");
        }
    }
}

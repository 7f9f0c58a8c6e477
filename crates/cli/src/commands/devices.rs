//! `everburn devices`: what `--devices` can name on this machine.

use std::process::ExitCode;

use super::ToolError;
use clap::Args;
use everburn_nccl::{Gpu, Inventory, LibraryError, gpus};
use everburn_record::{proc, table, units};
use serde_json::{Value, json};

/// Whether this program has kernels for GPUs.
const BUILT_FOR_GPUS: bool = cfg!(feature = "cuda");

/// How they are listed.
#[derive(Debug, Args)]
pub(crate) struct DevicesArguments {
    /// Print them as JSON.
    #[arg(long)]
    json: bool,
}

/// Lists the devices. That there is no GPU is no failure.
pub(crate) fn run(arguments: &DevicesArguments) -> Result<ExitCode, ToolError> {
    let found = Found::here();
    match arguments.json {
        true => say!("{}", found.to_json()),
        false => say!("{}", found.to_text()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The processor and the GPUs.
struct Found {
    cpu: String,
    cores: usize,
    memory_bytes: Option<u64>,
    free_bytes: Option<u64>,
    gpus: Result<Inventory, LibraryError>,
}

impl Found {
    fn here() -> Self {
        Self {
            cpu: proc::cpu_name().unwrap_or_else(|| "CPU".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: proc::total_memory(),
            free_bytes: proc::available_memory(),
            gpus: gpus(),
        }
    }

    fn listed(&self) -> &[Gpu] {
        self.gpus.as_ref().map_or(&[], |found| &found.gpus)
    }

    /// Why no rank can be given a GPU; `None` where one can.
    fn obstacle(&self) -> Option<String> {
        match &self.gpus {
            Err(missing) => Some(missing.to_string()),
            Ok(_) if !BUILT_FOR_GPUS => {
                Some("this program was built without the feature `cuda`".to_owned())
            }
            Ok(_) => None,
        }
    }

    fn to_text(&self) -> String {
        let memory = |bytes: Option<u64>| bytes.map_or("-".to_owned(), units::bytes);
        let cores = if self.cores == 1 { "core" } else { "cores" };
        let mut rows = vec![vec![
            "flex".to_owned(),
            format!("{}, {} {cores}", self.cpu, self.cores),
            memory(self.memory_bytes),
            memory(self.free_bytes),
        ]];
        rows.extend(self.listed().iter().map(|gpu| {
            vec![
                format!("cuda:{}", gpu.index),
                gpu.name.clone(),
                memory(Some(gpu.memory_bytes)),
                memory(gpu.free_bytes),
            ]
        }));
        let listed = table::aligned(&["device", "name", "memory", "free"], &rows, &[1]);
        match (self.obstacle(), &self.gpus) {
            (Some(obstacle), _) => format!("{listed}\n\nno GPU can be used: {obstacle}"),
            (None, Ok(found)) => format!("{listed}\n\n{found}"),
            (None, Err(_)) => listed,
        }
    }

    fn to_json(&self) -> Value {
        let cpu = json!({
            "device": "flex",
            "name": self.cpu,
            "cores": self.cores,
            "memory_bytes": self.memory_bytes,
            "free_bytes": self.free_bytes,
            "usable": true,
        });
        let gpus = self.listed().iter().map(|gpu| {
            json!({
                "device": format!("cuda:{}", gpu.index),
                "name": gpu.name,
                "memory_bytes": gpu.memory_bytes,
                "free_bytes": gpu.free_bytes,
                "compute_capability": [gpu.compute_capability.0, gpu.compute_capability.1],
                "usable": BUILT_FOR_GPUS,
            })
        });
        let devices: Vec<Value> = std::iter::once(cpu).chain(gpus).collect();
        json!({ "devices": devices, "no_gpu_because": self.obstacle() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(gpus: Result<Inventory, LibraryError>) -> Found {
        Found {
            cpu: "a CPU".into(),
            cores: 2,
            memory_bytes: Some(8 << 30),
            free_bytes: None,
            gpus,
        }
    }

    #[test]
    fn the_processor_is_a_device_and_a_missing_driver_is_told() {
        let found = with(Err(LibraryError::NoDriver {
            reason: "no library".into(),
        }));
        let text = found.to_text();
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["flex", "a", "CPU,", "2", "cores", "8", "GiB", "-"]);
        assert!(
            text.contains("no GPU can be used: no driver: no library"),
            "{text}"
        );
        let json = found.to_json();
        assert_eq!(json["devices"].as_array().unwrap().len(), 1);
        assert_eq!(json["devices"][0]["cores"], 2);
    }

    #[test]
    fn gpus_have_the_names_that_flags_take() {
        let gpu = Gpu {
            index: 1,
            name: "NVIDIA L4".into(),
            memory_bytes: 24 << 30,
            free_bytes: Some(20 << 30),
            compute_capability: (8, 9),
            uuid: "GPU-1".into(),
        };
        let found = with(Ok(Inventory {
            driver: None,
            cuda: everburn_nccl::CudaVersion::from_code(12040),
            nccl: Err(LibraryError::NoNccl { tried: Vec::new() }),
            gpus: vec![gpu],
        }));
        assert!(found.to_text().contains("cuda:1"), "{}", found.to_text());
        let json = found.to_json();
        assert_eq!(json["devices"][1]["device"], "cuda:1");
        assert_eq!(json["devices"][1]["usable"], BUILT_FOR_GPUS);
        assert_eq!(json["no_gpu_because"].is_null(), BUILT_FOR_GPUS);
    }
}

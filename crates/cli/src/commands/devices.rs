//! `everburn devices`: what `--devices` can name on this machine.

use std::process::ExitCode;

use super::ToolError;
use crate::devices::{DeviceName, built_for};
use clap::Args;
use everburn_distributed::{GpuDescription, describe_gpu, gpu_names};
use everburn_nccl::{Gpu, Inventory, LibraryError, gpus};
use everburn_record::{proc, table, units};
use serde_json::{Value, json};

/// Whether this program has kernels for NVIDIA's GPUs.
const BUILT_FOR_CUDA: bool = cfg!(feature = "cuda");

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
    /// NVIDIA's.
    gpus: Result<Inventory, LibraryError>,
    /// All others, which this program has opened.
    others: Vec<(DeviceName, GpuDescription)>,
}

impl Found {
    fn here() -> Self {
        Self {
            cpu: proc::cpu_name().unwrap_or_else(|| "CPU".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: proc::total_memory(),
            free_bytes: proc::available_memory(),
            gpus: gpus(),
            others: others(),
        }
    }

    fn listed(&self) -> &[Gpu] {
        self.gpus.as_ref().map_or(&[], |found| &found.gpus)
    }

    /// Why no rank can be given a GPU; `None` where one can.
    fn obstacle(&self) -> Option<String> {
        let is_gpu = |(name, _): &(DeviceName, _)| *name != DeviceName::WebGpuCpu;
        if self.others.iter().any(is_gpu) {
            return None;
        }
        match &self.gpus {
            Err(missing) => Some(missing.to_string()),
            Ok(_) if !BUILT_FOR_CUDA => {
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
        rows.extend(self.others.iter().map(|(name, gpu)| {
            let described = format!("{}, {}", gpu.name, gpu.runtime);
            vec![
                name.to_string(),
                described,
                memory(gpu.memory_bytes),
                memory(None),
            ]
        }));
        let listed = table::aligned(&["device", "name", "memory", "free"], &rows, &[1]);
        let built = match built_for().as_slice() {
            [] => "this program was built for no GPUs (--features cuda, rocm, metal, vulkan or webgpu)".to_owned(),
            built => format!("this program was built for {}", built.join(", ")),
        };
        match (self.obstacle(), &self.gpus) {
            (Some(obstacle), _) => format!("{listed}\n\nno GPU can be used: {obstacle}; {built}"),
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
                "usable": BUILT_FOR_CUDA,
            })
        });
        let others = self.others.iter().map(|(name, gpu)| {
            json!({
                "device": name.to_string(),
                "name": gpu.name,
                "memory_bytes": gpu.memory_bytes,
                "runtime": gpu.runtime,
                "usable": true,
            })
        });
        let devices: Vec<Value> = std::iter::once(cpu).chain(gpus).chain(others).collect();
        json!({ "devices": devices, "built_for": built_for(), "no_gpu_because": self.obstacle() })
    }
}

/// What this program can use beside NVIDIA's GPUs.
fn others() -> Vec<(DeviceName, GpuDescription)> {
    let names = gpu_names().into_iter();
    let names = names.filter(|name| !matches!(name, DeviceName::Cuda(_)));
    names
        .filter_map(|name| Some((name, describe_gpu(&name.open().ok()?)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use everburn_nccl::Vendor;

    use super::*;

    fn with(gpus: Result<Inventory, LibraryError>) -> Found {
        Found {
            cpu: "a CPU".into(),
            cores: 2,
            memory_bytes: Some(8 << 30),
            free_bytes: None,
            gpus,
            others: Vec::new(),
        }
    }

    #[test]
    fn a_gpu_of_another_maker_is_listed_and_used() {
        let gpu = GpuDescription {
            name: "AMD Radeon RX 7900 XTX".into(),
            memory_bytes: Some(24 << 30),
            runtime: "wgpu<spirv>",
            fingerprint: "spirv_4098_29772".into(),
        };
        let found = Found {
            others: vec![(DeviceName::Vulkan(0), gpu)],
            ..with(Err(LibraryError::NoDriver {
                vendor: Vendor::Nvidia,
                reason: "no library".into(),
            }))
        };
        let text = found.to_text();
        assert!(
            text.contains("vulkan:0  AMD Radeon RX 7900 XTX, wgpu<spirv>  24 GiB"),
            "{text}"
        );
        assert!(!text.contains("no GPU can be used"), "{text}");
        let json = found.to_json();
        assert_eq!(json["devices"][1]["device"], "vulkan:0");
        assert_eq!(json["no_gpu_because"], Value::Null);
    }

    #[test]
    fn the_processor_is_a_device_and_a_missing_driver_is_told() {
        let found = with(Err(LibraryError::NoDriver {
            vendor: Vendor::Nvidia,
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
            nccl: Err(LibraryError::NoNccl {
                vendor: Vendor::Nvidia,
                tried: Vec::new(),
            }),
            gpus: vec![gpu],
        }));
        assert!(found.to_text().contains("cuda:1"), "{}", found.to_text());
        let json = found.to_json();
        assert_eq!(json["devices"][1]["device"], "cuda:1");
        assert_eq!(json["devices"][1]["usable"], BUILT_FOR_CUDA);
        assert_eq!(json["no_gpu_because"].is_null(), BUILT_FOR_CUDA);
    }
}

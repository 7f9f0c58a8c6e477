//! `everburn devices`: what `--devices` can name on this machine.

use std::process::ExitCode;

use super::ToolError;
use crate::devices::{DeviceName, built_for};
use clap::Args;
use everburn_distributed::{GpuDescription, describe_gpu, gpu_names};
use everburn_nccl::{ApiDriver, Gpu, Inventory, LibraryError, drivers, gpus};
use everburn_record::units::counted;
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
    let found = MachineDevices::here();
    match arguments.json {
        true => say!("{}", found.to_json()),
        false => say!("{}", found.to_text()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The processor and the GPUs.
struct MachineDevices {
    cpu: String,
    cores: usize,
    memory_bytes: Option<u64>,
    free_bytes: Option<u64>,
    /// NVIDIA's.
    gpus: Result<Inventory, LibraryError>,
    /// All others, which this program has opened.
    others: Vec<(DeviceName, GpuDescription)>,
    /// What the machine has for them.
    drivers: [ApiDriver; 3],
}

impl MachineDevices {
    fn here() -> Self {
        Self {
            cpu: proc::cpu_name().unwrap_or_else(|| "CPU".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: proc::total_memory(),
            free_bytes: proc::available_memory(),
            gpus: gpus(),
            others: others(),
            drivers: drivers(),
        }
    }

    fn listed(&self) -> &[Gpu] {
        self.gpus.as_ref().map_or(&[], |found| &found.gpus)
    }

    /// What the machine has for each API, or what it lacks; and where all is there, whether this program does.
    fn apis(&self) -> Vec<(&'static str, Result<String, String>)> {
        let nvidia = match &self.gpus {
            Ok(found) => Ok(found.to_string()),
            Err(missing) => Err(missing.to_string()),
        };
        let others = self.drivers.iter().map(|driver| {
            let here = driver.here.clone();
            let here = here.map_err(|missing| match missing.has_gpu {
                true => format!("{}; {}", missing.what, missing.advice),
                false => missing.what,
            });
            (driver.name, driver.api, here)
        });
        let all = std::iter::once(("CUDA", "cuda", nvidia)).chain(others);
        all.map(|(name, api, here)| {
            let used = here.and_then(|found| match is_built_for(api) {
                true => Ok(found),
                false => Err(format!(
                    "{found}; this program was built without the feature `{api}`"
                )),
            });
            (name, used)
        })
        .collect()
    }

    /// Whether a rank can be given a GPU.
    fn has_gpu(&self) -> bool {
        let is_gpu = |(name, _): &(DeviceName, _)| *name != DeviceName::WebGpuCpu;
        let nvidias = BUILT_FOR_CUDA && self.gpus.is_ok();
        nvidias || self.others.iter().any(is_gpu)
    }

    fn to_text(&self) -> String {
        let memory = |bytes: Option<u64>| bytes.map_or("-".to_owned(), units::bytes);
        let mut rows = vec![vec![
            "flex".to_owned(),
            format!("{}, {}", self.cpu, counted(self.cores, "core")),
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
        let apis = self.apis().into_iter();
        let apis = apis.map(|(name, here)| format!("{name:<7} {}", here.unwrap_or_else(|why| why)));
        let apis = apis.collect::<Vec<_>>().join("\n");
        let none = match self.has_gpu() {
            true => "",
            false => "no GPU can be used; ",
        };
        format!("{listed}\n\n{apis}\n\n{none}{built}")
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
        let apis = self.apis().into_iter().map(|(name, here)| match here {
            Ok(found) => json!({ "api": name, "found": found, "missing": null }),
            Err(missing) => json!({ "api": name, "found": null, "missing": missing }),
        });
        json!({
            "devices": devices,
            "apis": apis.collect::<Vec<Value>>(),
            "built_for": built_for(),
        })
    }
}

/// Whether this program has kernels for GPUs that an API reaches.
fn is_built_for(api: &str) -> bool {
    let built = built_for();
    let by_webgpu = ["metal", "vulkan"].contains(&api) && built.contains(&"webgpu");
    by_webgpu || built.contains(&api)
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
    use everburn_nccl::{MissingDriver, Vendor};
    use everburn_tests::AssertContains;

    use super::*;

    fn lacking(api: &'static str, name: &'static str, has_gpu: bool) -> ApiDriver {
        let missing = MissingDriver {
            what: format!("{name} is not there"),
            advice: "install it",
            has_gpu,
        };
        ApiDriver {
            api,
            name,
            here: Err(missing),
        }
    }

    fn with(gpus: Result<Inventory, LibraryError>) -> MachineDevices {
        MachineDevices {
            cpu: "a CPU".into(),
            cores: 2,
            memory_bytes: Some(8 << 30),
            free_bytes: None,
            gpus,
            others: Vec::new(),
            drivers: [
                lacking("rocm", "ROCm", true),
                lacking("metal", "Metal", false),
                ApiDriver {
                    api: "vulkan",
                    name: "Vulkan",
                    here: Ok("drivers: radeon".into()),
                },
            ],
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
        let found = MachineDevices {
            others: vec![(DeviceName::Vulkan(0), gpu)],
            ..with(Err(LibraryError::NoDriver {
                vendor: Vendor::Nvidia,
                reason: "no library".into(),
            }))
        };
        let text = found.to_text();
        text.assert_contains(["vulkan:0  AMD Radeon RX 7900 XTX, wgpu<spirv>  24 GiB"]);
        assert!(!text.contains("no GPU can be used"), "{text}");
        let json = found.to_json();
        assert_eq!(json["devices"][1]["device"], "vulkan:0");
    }

    #[test]
    fn the_processor_is_a_device_and_what_each_api_lacks_is_listed() {
        let found = with(Err(LibraryError::NoDriver {
            vendor: Vendor::Nvidia,
            reason: "no library".into(),
        }));
        let text = found.to_text();
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["flex", "a", "CPU,", "2", "cores", "8", "GiB", "-"]);
        let vulkan = match is_built_for("vulkan") {
            true => "Vulkan  drivers: radeon",
            false => "Vulkan  drivers: radeon; this program was built without the feature `vulkan`",
        };
        for line in [
            "ROCm    ROCm is not there; install it",
            "Metal   Metal is not there",
            vulkan,
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
        assert!(text.contains("\nCUDA    no driver: no library"), "{text}");
        assert!(text.contains("\n\nno GPU can be used; "), "{text}");
        let json = found.to_json();
        assert_eq!(json["devices"].as_array().unwrap().len(), 1);
        assert_eq!(json["devices"][0]["cores"], 2);
        assert_eq!(json["apis"][2]["api"], "Metal");
        assert_eq!(json["apis"][2]["missing"], "Metal is not there");
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
        assert_eq!(json["apis"][0]["missing"].is_null(), BUILT_FOR_CUDA);
    }
}

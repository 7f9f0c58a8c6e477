//! Builds the `everburn` binary with the features that the arguments need, and becomes it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use everburn_record::invocation;
use miette::{IntoDiagnostic, WrapErr, miette};

use crate::cargo::{cargo, remove_traces_of_cargo_run, root};
use crate::gpu;

/// How a person calls this program.
const CALLED_AS: &str = "cargo xtask";

/// The exit code for a command line that cannot work here, as `clap` has it.
const BAD_COMMAND_LINE: u8 = 2;

/// Replaces this process by `everburn <command> <arguments>`, so that the terminal, the working
/// folder, signals and the exit code are the binary's own. Returns only when that fails.
pub fn become_everburn(command: &str, arguments: &[OsString]) -> miette::Result<ExitCode> {
    let asked = gpus_to_build_for(arguments);
    let features = match &asked {
        None => None,
        Some(asked) => match features_for(asked, gpu::api_here()) {
            Some(features) => Some(with_said(&features)?),
            None => {
                // Before a build of many minutes that could only end in the same words.
                eprintln!(
                    "{}",
                    gpu::no_driver_message(command, arguments, asked.count)
                );
                return Ok(ExitCode::from(BAD_COMMAND_LINE));
            }
        },
    };
    let program = build("everburn", features.as_deref())?;
    become_built_program(program, front_door(command, arguments))
}

/// As [`become_everburn`], but the program is the one that `EVERBURN_BIN` names, if that is set.
pub fn become_built(command: &str, arguments: &[OsString]) -> miette::Result<ExitCode> {
    become_built_program(built_or_named()?, front_door(command, arguments))
}

/// What makes a program `program <command> <arguments>`, that knows how its user calls it.
fn front_door(command: &str, arguments: &[OsString]) -> impl FnOnce(&mut Command) {
    move |program: &mut Command| {
        program
            .arg(command)
            .args(arguments)
            .env(invocation::VARIABLE, CALLED_AS);
    }
}

/// Replaces this process by `everburn-report <command> <arguments>`, which reads what runs have left: without Burn, too.
pub fn become_report(command: &str, arguments: &[OsString]) -> miette::Result<ExitCode> {
    let program = build("everburn-report", None)?;
    become_built_program(program, front_door(command, arguments))
}

/// Whether `soak` is to simulate ranks in place of starting them.
pub fn asks_for_simulation(arguments: &[OsString]) -> bool {
    let asks = |word: &OsString| {
        let word = word.to_string_lossy();
        word == "--simulate" || word.starts_with("--simulate=")
    };
    arguments.iter().any(asks)
}

/// Replaces this process by `everburn-simulate <arguments>`: without Burn, too.
pub fn become_simulation(arguments: &[OsString]) -> miette::Result<ExitCode> {
    become_built_program(build("everburn-simulate", None)?, |simulate| {
        simulate.args(arguments);
    })
}

/// Replaces this process by a program that was built, with what `add` adds to its command line.
fn become_built_program(
    program: Option<PathBuf>,
    add: impl FnOnce(&mut Command),
) -> miette::Result<ExitCode> {
    let Some(program) = program else {
        // Cargo has said why.
        return Ok(ExitCode::FAILURE);
    };
    let mut command = Command::new(program);
    remove_traces_of_cargo_run(&mut command);
    add(&mut command);
    become_program(command)
}

/// Replaces this process by `command`.
pub fn become_program(mut command: Command) -> miette::Result<ExitCode> {
    let error = command.exec();
    Err(error)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot run {}", command.get_program().display()))
}

/// A built binary that `verify` and `soak` run in place of building one.
const BUILT_BINARY: &str = "EVERBURN_BIN";

/// The binary that `verify` and `soak` run: the one that `EVERBURN_BIN` names, else a fresh build;
/// `None` when it does not build, which Cargo has explained.
pub fn built_or_named() -> miette::Result<Option<PathBuf>> {
    match std::env::var_os(BUILT_BINARY).filter(|path| !path.is_empty()) {
        None => build("everburn", None),
        // Children run elsewhere.
        Some(path) => match std::path::absolute(&path).into_diagnostic()? {
            path if path.is_file() => Ok(Some(path)),
            path => Err(miette!(
                "{BUILT_BINARY} names {}, which is no file",
                path.display()
            )),
        },
    }
}

/// Replaces this process by `everburn-bench bench <arguments>`, as [`become_everburn`] does by `everburn`.
pub fn become_bench(arguments: &[OsString]) -> miette::Result<ExitCode> {
    become_built_program(build("everburn-bench", None)?, |bench| {
        bench.arg("bench").args(arguments);
    })
}

/// `everburn` for machines with NVIDIA's GPUs, freshly built; `None` when it does not build.
pub fn for_gpus() -> miette::Result<Option<PathBuf>> {
    build("everburn", Some(&with_said("cuda")?))
}

/// `everburn-bench` for machines with the GPUs of `features`, freshly built; `None` when it does not build.
pub fn bench_for_gpus(features: &str) -> miette::Result<Option<PathBuf>> {
    build("everburn-bench", Some(&with_said(features)?))
}

/// What a Vulkan device is checked with that is made of the CPU, for Cargo: one build for its tests and for `gpu-check`. Its
/// kernels are compiled by the driver, whatever the profile.
pub const FOR_SOFTWARE_GPU: &str =
    "build --profile quick --package everburn --package everburn-bench --features webgpu";

/// `everburn-bench` of that build, freshly built; `None` when it does not build.
pub fn bench_for_software_gpu() -> miette::Result<Option<PathBuf>> {
    build_by(
        "everburn-bench",
        &FOR_SOFTWARE_GPU.split(' ').collect::<Vec<_>>(),
    )
}

/// Asking for help needs no GPU.
fn gpus_to_build_for(arguments: &[OsString]) -> Option<gpu::Asked> {
    gpu::gpus_asked_for(arguments).filter(|_| !asks_for_help(arguments))
}

/// Whether a command is to say what its flags are, and nothing else.
pub fn asks_for_help(arguments: &[OsString]) -> bool {
    let mut words = arguments.iter();
    words.any(|word| word == "--help" || word == "-h")
}

/// The features for the GPUs that were asked for, on a machine that has GPUs of the API `here`.
fn features_for(asked: &gpu::Asked, here: Option<&'static str>) -> Option<String> {
    match asked.apis.as_slice() {
        [] => here.map(str::to_string),
        // NVIDIA's driver is looked for here, since that build takes the longest.
        ["cuda"] if here != Some("cuda") => None,
        named => Some(named.join(",")),
    }
}

/// `features` with [`CUDA_FEATURE`]'s way to NVIDIA's GPUs.
fn with_said(features: &str) -> miette::Result<String> {
    let said = std::env::var(CUDA_FEATURE).ok();
    let cuda = cuda_feature(said.as_deref())?;
    let each = features.split(',').map(|feature| match feature {
        "cuda" => cuda,
        other => other,
    });
    Ok(each.collect::<Vec<_>>().join(","))
}

/// By which feature NVIDIA's GPUs are built for: `cuda-cpp` sends kernels through CUDA C++ and NVRTC.
const CUDA_FEATURE: &str = "EVERBURN_CUDA_FEATURE";

/// What [`CUDA_FEATURE`] says, which is `cuda` unless it says otherwise.
fn cuda_feature(said: Option<&str>) -> miette::Result<&'static str> {
    match said {
        None | Some("" | "cuda") => Ok("cuda"),
        Some("cuda-cpp") => Ok("cuda-cpp"),
        Some(other) => Err(miette!(
            "{CUDA_FEATURE} is `{other}`; it may be `cuda` or `cuda-cpp`"
        )),
    }
}

/// The command line that builds the program `name`, for GPUs with the features for them.
fn build_arguments<'a>(name: &'a str, features: Option<&'a str>) -> Vec<&'a str> {
    let mut arguments = vec!["build", "--release", "--workspace", "--bin", name];
    if let Some(features) = features {
        arguments.extend(["--features", features]);
    }
    arguments
}

/// Builds the program `name` and returns its path; `None` when it does not build.
fn build(name: &'static str, features: Option<&str>) -> miette::Result<Option<PathBuf>> {
    build_by(name, &build_arguments(name, features))
}

/// The same by these arguments of Cargo.
fn build_by(name: &'static str, arguments: &[&str]) -> miette::Result<Option<PathBuf>> {
    let mut command = cargo();
    command
        .args(arguments)
        .arg("--manifest-path")
        .arg(root().join("Cargo.toml"))
        // Artifacts on standard output, errors of the compiler readable on standard error.
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if std::io::stderr().is_terminal() && std::env::var_os("CARGO_TERM_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = command
        .spawn()
        .into_diagnostic()
        .wrap_err("cannot start cargo")?;
    let progress = child
        .stderr
        .take()
        .map(|stderr| thread::spawn(move || show_progress(name, stderr)));
    let program = child
        .stdout
        .take()
        .and_then(|stdout| find_executable(name, BufReader::new(stdout)));
    let status = child
        .wait()
        .into_diagnostic()
        .wrap_err("cannot wait for cargo")?;
    if let Some(progress) = progress {
        let _ = progress.join();
    }
    match program {
        _ if !status.success() => Ok(None),
        Some(program) => Ok(Some(program)),
        None => Err(miette!("cargo has built {name} and does not name its path")),
    }
}

/// Shows what Cargo says unless it only says that there was nothing to do.
fn show_progress(name: &str, stderr: impl Read) {
    let mut announced = false;
    for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if !announced && line.contains("Compiling ") {
            announced = true;
            match name {
                "everburn" | "everburn-bench" => {
                    eprintln!("building {name} (the first build of Burn takes several minutes)");
                }
                _ => eprintln!("building {name}"),
            }
        }
        if announced || !line.contains("Finished ") {
            eprintln!("{line}");
        }
    }
}

/// The path of the program `name` among Cargo's messages, one JSON value a line.
fn find_executable(name: &str, messages: impl BufRead) -> Option<PathBuf> {
    let mut found = None;
    // Read to the end, or Cargo would meet a closed pipe.
    for line in messages.lines().map_while(Result::ok) {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(&line) else {
            continue;
        };
        let is_ours = message["target"]["name"] == name;
        if let (true, Some(path)) = (is_ours, message["executable"].as_str()) {
            found = Some(PathBuf::from(path));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_for_gpus_are_built_only_where_they_are_asked_for() {
        let features = |line: &str| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            let asked = gpus_to_build_for(&words);
            let features = asked.and_then(|asked| features_for(&asked, Some("vulkan")));
            build_arguments("everburn", features.as_deref()).join(" ")
        };
        assert!(features("mnist --gpus 1").ends_with("--features vulkan"));
        let devices = "mnist --devices vulkan:0,cuda:0,flex";
        assert!(features(devices).ends_with("--features cuda,vulkan"));
        // There is no driver for it.
        assert!(!features("mnist --devices cuda:0").contains("--features"));
        assert!(!features("mnist --ranks 4").contains("--features"));
        assert!(!features("--help --gpus 1").contains("--features"));
    }

    #[test]
    fn a_soak_that_simulates_needs_no_burn() {
        let asks = |line: &str| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            asks_for_simulation(&words)
        };
        assert!(asks("--simulate 1024 --faults 50") && asks("--seed 1 --simulate=64"));
        assert!(!asks("--runs 50"));
    }

    #[test]
    fn the_feature_for_nvidias_gpus_is_one_of_two() {
        assert_eq!(cuda_feature(None).unwrap(), "cuda");
        assert_eq!(cuda_feature(Some("cuda-cpp")).unwrap(), "cuda-cpp");
        let error = cuda_feature(Some("rocm")).unwrap_err().to_string();
        assert!(error.contains("EVERBURN_CUDA_FEATURE is `rocm`"), "{error}");
    }

    #[test]
    fn the_binary_is_found_among_cargos_messages() {
        let messages = concat!(
            "not json\n",
            r#"{"reason":"compiler-artifact","target":{"name":"everburn"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"everburn"},"executable":"/t/e"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
            "\n"
        );
        assert_eq!(
            find_executable("everburn", messages.as_bytes()),
            Some("/t/e".into())
        );
        assert_eq!(find_executable("everburn", "".as_bytes()), None);
    }
}

//! Builds the `everburn` binary with the features that the arguments need, and becomes it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use miette::{IntoDiagnostic, WrapErr, miette};

use crate::cargo::{cargo, remove_traces_of_cargo_run, root};
use crate::gpu;

/// The exit code for a command line that cannot work here, as `clap` has it.
const BAD_COMMAND_LINE: u8 = 2;

/// Replaces this process by `everburn <command> <arguments>`, so that the terminal, the working
/// folder, signals and the exit code are the binary's own. Returns only when that fails.
pub fn become_everburn(command: &str, arguments: &[OsString]) -> miette::Result<ExitCode> {
    let gpus = gpus_to_build_for(arguments);
    if let Some(gpus) = gpus
        && gpu::nvidia_driver().is_none()
    {
        // Before a build of many minutes that could only end in the same words.
        eprintln!("{}", gpu::no_driver_message(command, arguments, gpus));
        return Ok(ExitCode::from(BAD_COMMAND_LINE));
    }
    let Some(program) = build(gpus.is_some())? else {
        // Cargo has said why.
        return Ok(ExitCode::FAILURE);
    };
    let mut everburn = Command::new(&program);
    remove_traces_of_cargo_run(&mut everburn);
    let error = everburn.arg(command).args(arguments).exec();
    Err(error)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot run {}", program.display()))
}

/// Asking for help needs no GPU.
fn gpus_to_build_for(arguments: &[OsString]) -> Option<usize> {
    let help = arguments
        .iter()
        .any(|word| word == "--help" || word == "-h");
    gpu::gpus_asked_for(arguments).filter(|_| !help)
}

/// The command line that builds the binary.
fn build_arguments(cuda: bool) -> Vec<&'static str> {
    let mut arguments = vec!["build", "--release", "--workspace", "--bin", "everburn"];
    if cuda {
        arguments.extend(["--features", "cuda"]);
    }
    arguments
}

/// Builds the binary and returns its path; `None` when it does not build.
fn build(cuda: bool) -> miette::Result<Option<PathBuf>> {
    let mut command = cargo();
    command
        .args(build_arguments(cuda))
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
        .map(|stderr| thread::spawn(move || show_progress(stderr)));
    let program = child
        .stdout
        .take()
        .and_then(|stdout| find_executable(BufReader::new(stdout)));
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
        None => Err(miette!(
            "cargo has built everburn and does not say where it is"
        )),
    }
}

/// Shows what Cargo says unless it only says that there was nothing to do.
fn show_progress(stderr: impl Read) {
    let mut announced = false;
    for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if !announced && line.contains("Compiling ") {
            announced = true;
            eprintln!("building everburn (the first build of Burn takes several minutes)");
        }
        if announced || !line.contains("Finished ") {
            eprintln!("{line}");
        }
    }
}

/// The path of the binary among Cargo's messages, one JSON value a line.
fn find_executable(messages: impl BufRead) -> Option<PathBuf> {
    let mut found = None;
    // Read to the end, or Cargo would meet a closed pipe.
    for line in messages.lines().map_while(Result::ok) {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(&line) else {
            continue;
        };
        let is_ours = message["target"]["name"] == "everburn";
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
    fn cuda_is_built_only_where_it_is_asked_for() {
        let features = |line: &str| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            build_arguments(gpus_to_build_for(&words).is_some()).join(" ")
        };
        assert!(features("mnist --gpus 1").ends_with("--features cuda"));
        assert!(!features("mnist --ranks 4").contains("--features"));
        assert!(!features("--help --gpus 1").contains("--features"));
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
        assert_eq!(find_executable(messages.as_bytes()), Some("/t/e".into()));
        assert_eq!(find_executable("".as_bytes()), None);
    }
}

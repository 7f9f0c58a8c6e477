//! An examination between machines, which here are network namespaces joined by a link.

use std::process::Command;

use everburn_tests::{TOKEN, Talker};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_everburn");

/// Two namespaces that are gone with their value.
struct Machines([String; 2]);

impl Machines {
    /// `None` where this user or system makes no namespaces, with the reason.
    fn new() -> Result<Self, String> {
        let name = |index: usize| format!("everburn-{}-{index}", std::process::id());
        let machines = Self([0, 1].map(name));
        let [first, second] = &machines.0;
        for machine in &machines.0 {
            ip(&["netns", "add", machine])?;
        }
        ip(&[
            "link", "add", "link0", "netns", first, "type", "veth", "peer", "name", "link0",
            "netns", second,
        ])?;
        for (index, machine) in machines.0.iter().enumerate() {
            let address = format!("{}/24", address(index));
            ip(&["-n", machine, "address", "add", &address, "dev", "link0"])?;
            ip(&["-n", machine, "link", "set", "link0", "up"])?;
            ip(&["-n", machine, "link", "set", "lo", "up"])?;
        }
        Ok(machines)
    }

    /// Starts a rank on machine `index`; rank 0 serves the store there.
    fn start(&self, index: usize) -> Talker {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.0[index], PROGRAM, "doctor-rank"])
            .args(["--bytes", "100000"])
            .env("RANK", index.to_string())
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", address(0))
            // The namespaces are this test's alone: no other program has the port.
            .env("MASTER_PORT", "29500")
            .env("EVERBURN_JOB_TOKEN", TOKEN)
            .env_remove("TORCHELASTIC_USE_AGENT_STORE")
            .env_remove("EVERBURN_LAUNCHER_PID");
        Talker::start(&mut command)
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for machine in &self.0 {
            // One that was never made cannot be deleted.
            let _ = ip(&["netns", "delete", machine]);
        }
    }
}

fn address(index: usize) -> String {
    format!("10.77.0.{}", index + 1)
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("ip {}: {why}", arguments.join(" ")))
}

#[test]
fn machines_are_told_apart_and_share_no_memory() {
    let machines = match Machines::new() {
        Ok(machines) => machines,
        Err(why) => {
            everburn_tests::skip("machines in namespaces", &why.to_string());
            return;
        }
    };
    let mut ranks = [machines.start(1), machines.start(0)];
    let [second, first] = ranks.each_mut().map(Talker::answer);
    assert_eq!(first["found"], second["found"], "{first} {second}");
    let found = first["found"].as_array().unwrap();
    assert_ne!(found[0]["about"]["host"], found[1]["about"]["host"]);
    for (index, of) in found.iter().enumerate() {
        assert_eq!(of["about"]["address"], address(index));
        assert!(of["reach"][0]["error"].is_null(), "{of}");
        let pairs = of["pairs"].as_array().unwrap();
        assert_eq!(pairs.len(), 1, "TCP and nothing else: {of}");
        assert_eq!(pairs[0]["way"], "tcp");
        assert_eq!(
            (&pairs[0]["wrong"], &pairs[0]["error"]),
            (&Value::from(0), &Value::Null)
        );
    }
}

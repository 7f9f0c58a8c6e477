//! Launchers whose job has its store in etcd: each of them may be lost.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use everburn_collectives::store::{EtcdAddress, EtcdStore, StoreAccess, StoreOptions};
use everburn_launch::{ElasticLaunch, LaunchConfig, Launcher};
use everburn_tests::Etcd;
use rustix::process::Signal;
use serde_json::json;

use crate::elastic::{signal, wait_for_round};
use crate::process::{LauncherProcess, job, number_in, runs, wait_until};

/// Two launchers, each with a folder and a rank of its own, and both ranks in one group.
struct Machines {
    _folder: tempfile::TempDir,
    folders: [PathBuf; 2],
    launchers: [LauncherProcess; 2],
}

impl Machines {
    fn start(etcd: &Etcd) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let folders = ["0", "1"].map(|name| folder.path().join(name));
        for folder in &folders {
            fs::create_dir(folder).unwrap();
        }
        let endpoints = etcd.endpoints();
        let launchers =
            [0, 1].map(|node| LauncherProcess::start_at_etcd(&folders[node], &endpoints, node));
        let this = Self {
            _folder: folder,
            folders,
            launchers,
        };
        wait_for_round(this.folder(0), "round.0.1", "0 1");
        wait_for_round(this.folder(1), "round.1.1", "0 1");
        this
    }

    fn folder(&self, machine: usize) -> &Path {
        &self.folders[machine]
    }

    /// Both ranks finish, and so both launchers succeed; no key of the job is left.
    fn end_well(mut self, etcd: &Etcd) {
        for folder in &self.folders {
            fs::write(folder.join("done"), "").unwrap();
        }
        for (launcher, folder) in self.launchers.iter_mut().zip(&self.folders) {
            let status = launcher.wait();
            let outcome = fs::read_to_string(folder.join("outcome")).unwrap();
            assert!(status.success(), "{outcome}");
        }
        let base64 = |text: &str| data_encoding::BASE64.encode(text.as_bytes());
        let all = json!({
            "key": base64("everburn/"),
            "range_end": base64("everburn0"),
            "count_only": true,
        });
        wait_until("the end of the job's keys", || {
            etcd.post("/v3/kv/range", &all)["count"].is_null()
        });
    }
}

#[test]
fn the_launcher_of_machine_0_is_lost_like_any_other_and_takes_its_place_again() {
    let Some(etcd) = Etcd::start_or_skip("the loss of machine 0") else {
        return;
    };
    let mut machines = Machines::start(&etcd);
    let lost = number_in(machines.folder(0), "pid.0.1");
    machines.launchers[0].signal(Signal::KILL);
    wait_until("the end of its rank", || !runs(lost));
    // A group would notice that a connection broke.
    fs::write(machines.folder(1).join("leave"), "").unwrap();
    wait_for_round(machines.folder(1), "round.1.1", "1");
    machines.launchers[0] =
        LauncherProcess::start_at_etcd(machines.folder(0), &etcd.endpoints(), 0);
    wait_for_round(machines.folder(0), "round.0.2", "0 1");
    wait_for_round(machines.folder(1), "round.1.1", "0 1");
    machines.end_well(&etcd);
}

#[test]
fn a_member_of_etcd_dies_while_a_rank_is_let_in() {
    let Some(mut etcd) = Etcd::start_or_skip("the loss of a member of etcd") else {
        return;
    };
    let machines = Machines::start(&etcd);
    let leader = etcd.leader();
    signal(number_in(machines.folder(0), "pid.0.1"), Signal::KILL);
    number_in(machines.folder(0), "pid.0.2");
    etcd.kill(leader);
    wait_for_round(machines.folder(0), "round.0.2", "0 1");
    wait_for_round(machines.folder(1), "round.1.1", "0 1");
    machines.end_well(&etcd);
}

#[test]
fn a_store_in_etcd_that_is_not_reached_is_an_event_of_the_launcher() {
    // Connections are taken, and no request is answered.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let launcher = LauncherProcess::start_at_etcd(folder.path(), &address, 0);
    let told = || fs::read_to_string(folder.path().join("told")).unwrap_or_default();
    wait_until("the line of the launcher", || told().ends_with('\n'));
    let begin = format!("None the store at etcd://{address} is not reached yet (");
    assert!(told().starts_with(&begin), "{}", told());
    drop(launcher);
}

#[test]
fn a_launcher_with_another_secret_starts_no_rank() {
    let Some(etcd) = Etcd::start_or_skip("launchers with another secret") else {
        return;
    };
    let address: EtcdAddress = format!("etcd://{}/taken", etcd.endpoints())
        .parse()
        .unwrap();
    let theirs = StoreAccess::Token("the secret of this job".parse().unwrap());
    let holder = EtcdStore::connect(&address, &StoreOptions::new(theirs)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = LaunchConfig {
        elastic: Some(ElasticLaunch::new(1, 1)),
        store: Some(address),
        job_token: Some("a secret of strangers".parse().unwrap()),
        ..job(folder.path(), 1, "echo started; finished")
    };
    let error = Launcher::new(config).run().unwrap_err().to_string();
    assert!(error.contains("whose secret is another"), "{error}");
    let log = fs::read_to_string(folder.path().join("logs/rank-0.log")).unwrap();
    assert_eq!(log, "");
    drop(holder);
}

//! Machines of an elastic job are lost and come back.

use std::collections::BTreeSet;

use everburn_tests::{Etcd, Job, Run, TOKEN, json_lines, on_a_free_port};
use rustix::process::Signal;
use serde_json::Value;

use super::{hashes, train};

/// A training with more steps than it makes before it is stopped, on two machines with one rank each.
const ENDLESS: &str = "--lr-schedule constant --epochs 100000 --steps 100000";

/// Waits until the ranks of machine 0 say that those of `ranks` have made a step together.
fn wait_for_step_of(job: &mut Job, run: &Run, ranks: &str) {
    let (log, said) = (run.clone(), format!("ranks {ranks} have made step"));
    job.wait_for(&said.clone(), move || {
        log.text_if_there("logs/rank-0.log").contains(&said)
    });
}

#[test]
fn a_machine_that_goes_away_is_outlived_and_let_in_when_it_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let machine = |node: &str, port: u16| {
        train(folder.path(), "run", &[])
            .words(ENDLESS)
            .words(format!(
                "--ranks 1 --nodes 2 --node-rank {node} --elastic 1:2"
            ))
            .args(["--rendezvous", &format!("127.0.0.1:{port}")])
            .env("EVERBURN_JOB_TOKEN", TOKEN)
            .start()
    };
    let run = Run::new(folder.path().join("run"));
    let ended = on_a_free_port(|port| {
        let mut first = machine("0", port);
        let second = machine("1", port);
        let recorded = run.clone();
        let began = first.holds_before_its_end("five steps", move || recorded.hashes().len() >= 5);
        if !began {
            let ended = first.wait();
            assert!(ended.lost_the_port(), "{ended}");
            return None;
        }
        second.signal(Signal::KILL);
        second.wait();
        wait_for_step_of(&mut first, &run, "[0]");
        let again = machine("1", port);
        wait_for_step_of(&mut first, &run, "[0, 1]");
        first.signal(Signal::INT);
        let ended = [first.wait(), again.wait()];
        Some(ended)
    });
    assert_eq!(ended[0].code(), 130, "{}", ended[0]);
    let warning = "the loss of machine 0 would end the job";
    assert!(ended[0].stderr.contains(warning), "{}", ended[0]);
    let hashes = hashes(folder.path(), "run");
    let steps = hashes.len().to_string();
    train(folder.path(), "undisturbed", &[])
        .words(ENDLESS)
        .args(["--steps", &steps])
        .succeed();
    let undisturbed = Run::new(folder.path().join("undisturbed"));
    assert_eq!(undisturbed.hashes(), hashes);
}

#[test]
fn with_etcd_machine_0_may_be_lost_too_and_a_member_of_etcd_and_the_same_is_learnt() {
    let Some(mut etcd) = Etcd::start_or_skip("a training whose store is in etcd") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = format!("etcd://{}", etcd.endpoints());
    let machine = |node: &str, name: &str| {
        train(folder.path(), name, &[])
            .words(ENDLESS)
            .args(["--ranks", "1", "--nodes", "2", "--node-rank", node])
            .args(["--elastic", "1:2", "--store", &store])
            // A member of etcd that dies does so while one is written.
            .args(["--checkpoint-every", "1steps", "--heartbeat-timeout", "6"])
            .env("EVERBURN_JOB_TOKEN", TOKEN)
            .start()
    };
    let lines = |name: &str| hashes(folder.path(), name);
    let [mut first, mut second] = ["0", "1"].map(|node| machine(node, "run"));
    first.wait_for("five steps", || lines("run").len() >= 5);
    let leader = etcd.leader();
    etcd.kill(leader);
    let now = lines("run").len();
    first.wait_for("ten steps more", || lines("run").len() >= now + 10);
    first.signal(Signal::KILL);
    first.wait();
    let other = Run::new(folder.path().join("run-node-1"));
    second.wait_for("a step without machine 0", || {
        let log = other.text_if_there("logs/rank-1.log");
        log.contains("ranks [1] have made step")
    });
    // What started it again keeps what it had recorded.
    let mut again = machine("0", "again");
    again.wait_for("five steps of both", || lines("again").len() >= 5);
    second.signal(Signal::INT);
    again.signal(Signal::INT);
    for job in [second, again] {
        let ended = job.wait();
        assert_eq!(ended.code(), 130, "{ended}");
    }
    // The chain of a machine begins with the first line that it has written.
    let without_chain = |mut line: Value| {
        line["chain"].take();
        line.to_string()
    };
    let states = |name: &str| {
        let lines = json_lines(&lines(name).join("\n")).into_iter();
        lines.map(without_chain).collect::<Vec<_>>()
    };
    let learnt: Vec<_> = ["run", "run-node-1", "again"].map(states).concat();
    let step = |line: &String| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["step"].as_u64().unwrap()
    };
    let steps = learnt.iter().map(step).max().unwrap().to_string();
    train(folder.path(), "undisturbed", &[])
        .words(ENDLESS)
        .args(["--steps", &steps])
        .succeed();
    let expected: BTreeSet<_> = states("undisturbed").into_iter().collect();
    let differs = learnt.iter().find(|line| !expected.contains(*line));
    assert!(differs.is_none(), "{differs:?}");
}

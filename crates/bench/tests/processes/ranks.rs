//! The processes that `bench collectives` times: a store and ranks that take orders.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use everburn_tests::{DEADLINE, Everburn, TOKEN, holds_within};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_everburn-bench");

/// A process that is ended with its value.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    /// Its lines.
    output: Receiver<String>,
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (tell, output) = channel();
        thread::spawn(move || {
            let mut lines = lines.map_while(Result::ok);
            lines.try_for_each(|line| tell.send(line))
        });
        Self {
            child,
            input,
            output,
        }
    }

    fn tell(&mut self, order: &Value) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{order}").unwrap();
    }

    fn answer(&mut self) -> Value {
        let line = self.output.recv_timeout(DEADLINE).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: `{line}`"))
    }

    /// Ends the input; the process has to end by itself.
    fn finish(mut self) {
        drop(self.input.take());
        let mut ended = None;
        holds_within(DEADLINE, || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing is left to end where the test has passed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn store() -> (Process, Value) {
    let mut command = Command::new(PROGRAM);
    command
        .env("EVERBURN_JOB_TOKEN", TOKEN)
        .args(["side", "store", "--listen", "127.0.0.1:0"]);
    let mut store = Process::start(&mut command);
    let address = store.answer();
    (store, address)
}

fn ranks(count: usize, address: &Value, arguments: &[&str]) -> Vec<Process> {
    let rank = |rank: usize| {
        let mut command = Command::new(PROGRAM);
        command
            .args(["side", "collectives"])
            .args(arguments)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", count.to_string())
            .env("MASTER_ADDR", address["host"].as_str().unwrap())
            .env("MASTER_PORT", address["port"].to_string())
            .env("TORCHELASTIC_USE_AGENT_STORE", "True")
            .env_remove("EVERBURN_LAUNCHER_PID")
            .env("EVERBURN_JOB_TOKEN", TOKEN);
        Process::start(&mut command)
    };
    (0..count).map(rank).collect()
}

fn ask(ranks: &mut [Process], order: &Value) -> Vec<Value> {
    for rank in ranks.iter_mut() {
        rank.tell(order);
    }
    ranks.iter_mut().map(Process::answer).collect()
}

#[test]
fn ranks_answer_every_order_and_end_with_their_input() {
    for transport in ["auto", "tcp"] {
        let (store, address) = store();
        let mut ranks = ranks(3, &address, &["--transport", transport]);
        for operation in ["all_reduce", "all_gather"] {
            let order = json!({ "order": "collective", "operation": operation, "bytes": 40_000,
                                "warm_up": 1, "repeats": 7 });
            let answers = ask(&mut ranks, &order);
            assert_eq!(answers[0]["times_us"].as_array().unwrap().len(), 7);
            assert_eq!(answers[1..], [json!({}), json!({})]);
        }
        let copies = json!({ "order": "memcpy", "bytes": 1 << 20, "everyone": true });
        let stream = json!({ "order": "stream", "bytes": 1 << 20, "everyone": true });
        for order in [copies, stream] {
            for answer in ask(&mut ranks, &order) {
                assert!(
                    answer["bytes_per_second"].as_f64().unwrap() > 0.0,
                    "{order}"
                );
            }
        }
        for rank in ranks.iter_mut() {
            // All at once: who leaves waits for the others.
            drop(rank.input.take());
        }
        ranks.into_iter().for_each(Process::finish);
        store.finish();
    }
}

#[test]
fn names_that_are_none_are_refused_with_those_that_are() {
    let folder = tempfile::tempdir().unwrap();
    for (flag, known) in [("--transport", "shm"), ("--algorithm", "ring")] {
        let side = ["side", "collectives", flag, "pigeon"];
        let ended = Everburn::bench(folder.path(), side).run();
        ended.failed_with(2, &["pigeon", known]);
    }
}

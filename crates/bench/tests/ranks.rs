//! The processes that `bench collectives` times: a store and ranks that take orders.

use std::process::Command;

use everburn_tests::Talker;
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_everburn-bench");
const TOKEN: &str = "a token of the tests";

fn store() -> (Talker, Value) {
    let mut command = Command::new(PROGRAM);
    command
        .env("EVERBURN_JOB_TOKEN", TOKEN)
        .args(["side", "store", "--listen", "127.0.0.1:0"]);
    let mut store = Talker::start(&mut command);
    let address = store.answer();
    (store, address)
}

fn ranks(count: usize, address: &Value, arguments: &[&str]) -> Vec<Talker> {
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
        Talker::start(&mut command)
    };
    (0..count).map(rank).collect()
}

fn ask(ranks: &mut [Talker], order: &Value) -> Vec<Value> {
    for rank in ranks.iter_mut() {
        rank.tell(order);
    }
    ranks.iter_mut().map(Talker::answer).collect()
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
        ranks.into_iter().for_each(Talker::finish);
        store.finish();
    }
}

#[test]
fn names_that_are_none_are_refused_with_those_that_are() {
    for (flag, known) in [("--transport", "shm"), ("--algorithm", "ring")] {
        let mut command = Command::new(PROGRAM);
        let output = command
            .args(["side", "collectives", flag, "pigeon"])
            .output()
            .unwrap();
        assert!(!output.status.success());
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(words.contains("pigeon") && words.contains(known), "{words}");
    }
}

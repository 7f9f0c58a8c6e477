//! The processes that `bench collectives` times: a store and ranks that take orders.

use std::process::Command;

use everburn::launch::{Children, WorkerPool};
use everburn_tests::{DEADLINE, Everburn, TOKEN};
use serde_json::{Value, json};

const OPERATIONS: [&str; 6] = [
    "all_reduce",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
];

fn side(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everburn-bench"));
    command
        .arg("side")
        .args(words)
        .env_remove("EVERBURN_LAUNCHER_PID")
        .env("EVERBURN_JOB_TOKEN", TOKEN);
    command
}

fn ranks(count: usize, address: &Value, transport: &str) -> Vec<Command> {
    let rank = |rank: usize| {
        let mut command = side(&["collectives", "--transport", transport]);
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", count.to_string())
            .env("MASTER_ADDR", address["host"].as_str().unwrap())
            .env("MASTER_PORT", address["port"].to_string())
            .env("TORCHELASTIC_USE_AGENT_STORE", "True");
        command
    };
    (0..count).map(rank).collect()
}

#[test]
fn ranks_answer_every_order_and_end_with_their_input() {
    let (children, folder) = (Children::listen().unwrap(), tempfile::tempdir().unwrap());
    let start = |name: &str, commands: Vec<Command>| {
        WorkerPool::start(&children, name, commands, folder.path()).unwrap()
    };
    for transport in ["auto", "tcp"] {
        let store = side(&["store", "--listen", "127.0.0.1:0"]);
        let mut store = start("the store", vec![store]);
        let address = store.answers(DEADLINE).unwrap().swap_remove(0);
        let mut ranks = start("the ranks", ranks(3, &address, transport));
        for operation in OPERATIONS {
            let order = json!({ "order": "collective", "operation": operation, "bytes": 40_000,
                                "warm_up": 1, "repeats": 7 });
            let answers = ranks.ask(&order, DEADLINE).unwrap();
            assert_eq!(answers[0]["times_us"].as_array().unwrap().len(), 7);
            assert_eq!(answers[1..], [json!({}), json!({})]);
        }
        // Rank 0 copies, and rank 1 receives, where not all do.
        for (order, alone) in [("memcpy", 0), ("stream", 1)] {
            for everyone in [true, false] {
                let order = json!({ "order": order, "bytes": 1 << 20, "everyone": everyone });
                let answers = ranks.ask(&order, DEADLINE).unwrap();
                for (rank, answer) in answers.iter().enumerate() {
                    let has_rate = answer["bytes_per_second"].as_f64() > Some(0.0);
                    assert_eq!(has_rate, everyone || rank == alone, "{order}: {answer}");
                }
            }
        }
        ranks.finish(DEADLINE).unwrap();
        store.finish(DEADLINE).unwrap();
    }
}

#[test]
fn names_that_are_none_are_refused_with_those_that_are() {
    let folder = tempfile::tempdir().unwrap();
    for (flag, known) in [("--transport", "shm"), ("--algorithm", "ring")] {
        let side = ["side", "collectives", flag, "pigeon"];
        Everburn::bench(folder.path(), side).refused(&["pigeon", known]);
    }
}

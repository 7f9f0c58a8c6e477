//! A peer's side: the same models, trained by a script of `crates/bench/peers`.

use std::path::Path;
use std::process::Command;

use everburn::launch::keep_freed_memory;
use serde_json::Value;

use super::options::Case;
use crate::failure::Failure;
use crate::kernels::networks::Network;
use crate::peers::{FoundPeer, Peer};

/// Models that the scripts have; each is the same net as ours.
const MODELS: [&str; 3] = ["mnist", "mnist-bn", "gpt-nano"];

/// Steps that the peer makes before its clock starts. Ours counts its first steps, so any unfairness
/// is to our loss.
const WARM_UP_STEPS: usize = 5;

/// Whether the scripts have this model.
pub(super) fn trains(model: &str) -> bool {
    MODELS.contains(&model)
}

/// The script that trains as `peer`.
fn script_of(peer: Peer) -> &'static str {
    match peer {
        Peer::Jax => "jax_train.py",
        _ => "pytorch_train.py",
    }
}

/// The command line that trains `case` for `steps` measured steps, on the data at `path` or on
/// random ones.
pub(super) fn command(
    found: &FoundPeer,
    case: &Case,
    steps: usize,
    path: Option<&Path>,
) -> Command {
    let mut command = found.call(script_of(found.peer));
    // As ours.
    keep_freed_memory(&mut command);
    command.args(["--model", &case.model]);
    for (flag, number) in [
        ("--ranks", case.ranks),
        ("--threads", case.threads),
        ("--batch-size", case.batch),
        ("--steps", steps),
        ("--warm-up-steps", WARM_UP_STEPS),
    ] {
        command.arg(flag).arg(number.to_string());
    }
    if let Some(network) = Network::named(&case.model) {
        command.args(["--layers", &network.description()]);
    }
    if let Some(path) = path {
        command.arg("--data").arg(path);
    }
    command
}

/// The samples/s of `who`, a peer's run of a case, by the last line of its output; a run that did something else is no
/// measurement.
pub(super) fn samples_per_second(
    who: &str,
    output: &str,
    case: &Case,
    steps: usize,
    data: &str,
) -> Result<f64, Failure> {
    let broken = |what: &str| Failure::new(format!("the result of {who}: {what}"));
    let line = output.lines().rev().find(|line| line.starts_with('{'));
    let line = line.ok_or_else(|| broken("it has printed none"))?;
    let result: Value = serde_json::from_str(line).map_err(|error| broken(&error.to_string()))?;
    let as_asked = result["steps"].as_u64() == Some(steps as u64)
        && result["ranks"].as_u64() == Some(case.ranks as u64)
        && result["threads"].as_u64() == Some(case.threads as u64)
        && result["batch_size"].as_u64() == Some(case.batch as u64)
        && result["data"] == data;
    if !as_asked {
        return Err(broken(&format!("it has measured something else: {line}")));
    }
    if !is_net_of(&case.model, &result) {
        return Err(broken(&format!(
            "its net has other `parameters` than ours: {line}"
        )));
    }
    // A net that computes nothing sensible may be fast.
    if result["loss"].as_f64().is_none_or(|loss| !loss.is_finite()) {
        return Err(broken(&format!("its loss is NaN: {line}")));
    }
    result["samples_per_second"]
        .as_f64()
        .filter(|rate| *rate > 0.0)
        .ok_or_else(|| broken("no positive `samples_per_second`"))
}

/// Whether a net with these `outputs` and `parameters` may be `model`.
fn is_net_of(model: &str, result: &Value) -> bool {
    let number = |name: &str| result[name].as_u64().and_then(|n| usize::try_from(n).ok());
    let expected =
        number("outputs").and_then(|outputs| Some(Network::named(model)?.parameters(outputs)));
    expected.is_some() && expected == number("parameters")
}

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

    use super::*;
    use crate::peers::script;
    use crate::train::options::tests::case;

    const LINE: &str = r#"{"samples_per_second": 7000.5, "steps": 50, "ranks": 2, "threads": 1,
        "batch_size": 64, "loss": 0.4, "data": "random", "outputs": 10, "parameters": 21840}"#;

    fn parse(line: &str, steps: usize) -> Result<f64, String> {
        let output = format!("a warning\n{}\n", line.replace('\n', " "));
        samples_per_second("pytorch's mnist", &output, &case(), steps, "random")
            .map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_peers_line_is_read() {
        assert_eq!(parse(LINE, 50), Ok(7000.5));
    }

    #[test]
    fn what_was_not_asked_for_is_no_result() {
        assert!(parse(LINE, 51).unwrap_err().contains("something else"));
        let one_thread_too_many = LINE.replace(r#""threads": 1"#, r#""threads": 2"#);
        assert!(parse(&one_thread_too_many, 50).is_err());
        let other_data = LINE.replace("random", "real");
        assert!(
            parse(&other_data, 50)
                .unwrap_err()
                .contains("something else")
        );
        for other_net in [
            LINE.replace("21840", "21841"),
            LINE.replace(r#""outputs": 10, "#, ""),
        ] {
            assert!(parse(&other_net, 50).unwrap_err().contains("`parameters`"));
        }
        assert!(parse(&LINE.replace("0.4", "NaN"), 50).is_err());
        assert!(
            parse(&LINE.replace("0.4", "null"), 50)
                .unwrap_err()
                .contains("loss")
        );
        assert!(parse("nothing", 50).unwrap_err().contains("printed none"));
    }

    #[test]
    fn the_scripts_are_there_and_have_the_models() {
        for peer in [Peer::Pytorch, Peer::Jax] {
            let text = std::fs::read_to_string(script(script_of(peer))).unwrap();
            text.assert_contains(["MODELS[options.model]"]);
        }
        let text = std::fs::read_to_string(script("training.py")).unwrap();
        for model in MODELS {
            assert!(text.contains(&format!("\"{model}\":")), "{model}");
        }
    }

    #[test]
    fn a_peer_keeps_what_it_frees_as_we_do() {
        let found = FoundPeer::of_tests(Peer::Pytorch, "2");
        let theirs = command(&found, &case(), 50, None);
        let set: Vec<_> = theirs.get_envs().collect();
        let mut ours = Command::new("p");
        keep_freed_memory(&mut ours);
        assert!(ours.get_envs().all(|variable| set.contains(&variable)));
    }

    #[test]
    fn peers_make_their_nets_from_our_layers() {
        let read = |file: &str| std::fs::read_to_string(script(file)).unwrap();
        let scripts = ["pytorch_models.py", "jax_models.py"].map(read);
        let found = FoundPeer::of_tests(Peer::Jax, "1");
        for model in MODELS {
            let case = Case {
                model: model.into(),
                ..case()
            };
            let command = command(&found, &case, 50, None);
            let words: Vec<_> = command
                .get_args()
                .filter_map(|word| word.to_str())
                .collect();
            let at = words.iter().position(|word| *word == "--layers").unwrap();
            let layers: Vec<Value> = serde_json::from_str(words[at + 1]).unwrap();
            let (loss, row) = layers.split_last().unwrap();
            assert_eq!(loss["layer"]["kind"], "cross-entropy", "{model}");
            // A decoder takes its sizes from some of its layers, images pass through each of them.
            for used in row.iter().filter(|_| case.tokens().is_none()) {
                assert_eq!(used["count"], 1, "{used}");
                let kind = used["layer"]["kind"].to_string();
                for text in &scripts {
                    assert!(text.contains(&kind), "{kind}");
                }
            }
        }
        let sizes = ["embedding", "attention", "gelu"].map(|kind| format!("kinds[\"{kind}\"]"));
        read("training.py").assert_contains(sizes);
    }
}

use super::super::layer::Layer;
use super::*;
use crate::peers::Peer;

fn row(batch: usize, pass: Pass, count: usize) -> Row {
    Row {
        model: "mnist",
        batch: Some(batch),
        layer: Layer::Relu { shape: vec![50] },
        pass,
        count,
    }
}

fn found(peer: Peer) -> FoundPeer {
    FoundPeer::of_tests(peer, "2")
}

fn results(peers: &[Peer]) -> KernelResults {
    let rows = vec![
        row(8, Pass::Forward, 2),
        row(8, Pass::Backward, 2),
        row(64, Pass::Forward, 2),
        row(64, Pass::Backward, 0),
    ];
    let peers: Vec<_> = peers.iter().copied().map(found).collect();
    let mut results = KernelResults::new(rows, vec![1, 2], &peers);
    for (index, measured) in results.rows.iter_mut().enumerate() {
        let time = 100.0 * (index + 1) as f64;
        for (threads, series) in measured.series.iter_mut().enumerate() {
            series.ours = vec![time, time];
            for (peer, times) in series.peers.iter_mut().enumerate() {
                // Half as fast as we with one thread, twice as fast with two; the second is faster.
                let ratio = [2.0, 0.5][threads] / (peer + 1) as f64;
                *times = vec![time * ratio, 1.1 * time * ratio];
            }
        }
    }
    results
}

fn lines(text: &str) -> Vec<String> {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().map(words).collect()
}

#[test]
fn both_sides_stand_beside_each_other_for_each_number_of_threads() {
    let mut results = results(&[Peer::Pytorch]);
    results.rows[0].series[0].ours[1] = 90.0;
    results.rows[1].series[1].ours[1] = 300.0;
    let tables = results.tables();
    let lines = lines(&tables);
    assert_eq!(
        lines[..4],
        [
            "mnist, batch 8",
            "microseconds of a call count 1 thread pytorch ratio 2 threads pytorch ratio",
            "relu on 50, forward 2 95.0 210 2.22x 100 52.5 0.53x",
            "relu on 50, forward + backward 2 200 420 2.10x 250 105 0.43x unsteady",
        ],
        "{tables}"
    );
    assert!(
        lines.contains(&"relu on 50, forward + backward part 400 840 2.10x 400 210 0.53x".into())
    );
}

#[test]
fn a_model_ends_in_its_geometric_mean_and_the_time_of_a_step() {
    let mut results = results(&[Peer::Pytorch]);
    results.rows[0].series[0].peers[0] = vec![800.0, 800.0];
    let summary = lines(&results.summary());
    // Of 8 and 2.1: 4.10. A step has the second row twice: 2 * 0.2 ms.
    let expected = "mnist 8 1 2 0.4 0.8 2.10x 4.10x 0 2.10x relu on 50, forward + backward";
    assert_eq!(summary[1], expected);
    // What counts for nothing leaves no step.
    let expected = "mnist 64 1 2 - - - 2.10x 0 2.10x relu on 50, forward";
    assert_eq!(summary[2], expected);
    assert!(
        summary[3].starts_with("mnist - 1 4 - - - 2.93x 0 2.10x"),
        "{summary:?}"
    );
    assert_eq!(summary.len(), 7);
    assert!(summary[4].contains("0.53x 2 0.53x"), "{summary:?}");
}

#[test]
fn of_several_peers_the_fastest_has_a_ratio_of_its_own() {
    let results = results(&[Peer::Pytorch, Peer::Compile]);
    let tables = lines(&results.tables());
    let header = "1 thread pytorch ratio compile ratio to fastest 2 threads pytorch ratio";
    assert!(tables[1].contains(header), "{}", tables[1]);
    let row = "relu on 50, forward 2 100 210 2.10x 105 1.05x 1.05x 100 52.5 0.53x";
    assert!(tables[2].starts_with(row), "{}", tables[2]);
    let summary = lines(&results.summary());
    let expected = "mnist 8 1 2 0.4 0.8 2.10x 2.10x 0.4 1.05x 1.05x 1.05x 0 1.05x";
    assert!(summary[1].starts_with(expected), "{}", summary[1]);
    let json = results.to_json(&Value::Null);
    assert_eq!(
        json["rows"][0]["ratio"],
        json["rows"][0]["peers"][1]["ratio"]
    );
    assert_eq!(json["models"][0]["peers"][1]["name"], "compile");
    let step = json["models"][0]["peers"][1]["step_ms"].as_f64().unwrap();
    assert!((step - 0.42).abs() < 1e-9, "{step}");
}

#[test]
fn without_a_peer_there_is_no_ratio() {
    let results = results(&[]);
    let tables = results.tables();
    assert!(
        !tables.contains("ratio") && !tables.contains('x'),
        "{tables}"
    );
    let json = results.to_json(&Value::Null);
    assert_eq!(json["rows"].as_array().map(Vec::len), Some(8));
    assert_eq!(json["rows"][0]["ratio"], Value::Null);
    assert_eq!(json["rows"][2]["microseconds"]["median"], 200.0);
    assert_eq!(json["models"][0]["geometric_mean"], Value::Null);
    assert_eq!(json["models"][0]["step_ms"], 0.4);
}

#[test]
fn a_row_of_json_has_both_sides() {
    let json = results(&[Peer::Pytorch]).to_json(&json!({ "cores": 2 }));
    assert_eq!(json["machine"]["cores"], 2);
    let row = &json["rows"][3];
    assert_eq!(row["threads"], 2);
    assert_eq!(row["pass"], "backward");
    assert_eq!(row["peers"][0]["microseconds"]["min"], 100.0);
    assert_eq!(json["peers"], json!(["pytorch 2"]));
    assert_eq!(row["ratio"], 0.525);
    assert_eq!(row["steady"], true);
    assert_eq!(json["models"][0]["lowest_row"], "relu on 50, forward");
}

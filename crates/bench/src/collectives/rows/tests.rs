use super::*;
use crate::collectives::rank::Operation;
use crate::quantity::Bytes;

pub(in crate::collectives) fn measured(
    transport: &str,
    ours: &[&[f64]],
    peers: &[(Peer, &[&[f64]])],
    ground: Ground,
) -> CollectiveMeasurement {
    let times = |rounds: &[&[f64]]| Times(rounds.iter().map(|round| round.to_vec()).collect());
    CollectiveMeasurement {
        way: Way {
            ranks: 2,
            transport: transport.into(),
            algorithm: None,
        },
        task: Task {
            operation: Operation::AllReduce,
            bytes: Bytes(1_000_000),
        },
        ours: times(ours),
        peers: peers
            .iter()
            .map(|(peer, rounds)| PeerTimes {
                peer: *peer,
                times: times(rounds),
            })
            .collect(),
        ground,
    }
}

fn on_memory() -> Ground {
    Ground {
        memcpy_alone: Some(12e9),
        memcpy_each: Some(10e9),
        ..Ground::default()
    }
}

fn two() -> Vec<CollectiveMeasurement> {
    let gloo: &[&[f64]] = &[&[1000.0, 1100.0, 1050.0], &[1200.0; 3]];
    vec![
        measured(
            "shm",
            &[&[250.0; 3], &[200.0, 300.0, 220.0]],
            &[(Peer::Gloo, gloo)],
            on_memory(),
        ),
        measured(
            "tcp",
            &[&[500.0; 3], &[900.0; 3]],
            &[(Peer::Gloo, &[])],
            on_memory(),
        ),
    ]
}

#[test]
fn the_table_has_a_line_for_each_case() {
    let expected = "\
operation   ranks  transport  algorithm    bytes  p50 us  (p10-p90)   GB/s  gloo us    (p10-p90)   GB/s  ours/gloo  bound us  reached
all_reduce      2        shm       auto  1000000     235  (210-275)  4.255     1125  (1025-1200)  0.889      4.83x       100     43 %
all_reduce      2        tcp       auto  1000000     700  (500-900)  1.429     none                              -       100     14 %  unsteady";
    assert_eq!(table(&two()), expected);
}

#[test]
fn of_several_peers_the_fastest_has_a_ratio_of_its_own() {
    let mut both = two();
    for (measured, rounds) in both.iter_mut().zip([[50.0, 57.2], [1000.0, 1800.0]]) {
        measured.peers.push(PeerTimes {
            peer: Peer::Mpi,
            times: Times(rounds.map(|time| vec![time; 3]).to_vec()),
        });
    }
    let text = table(&both);
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let titles = ["mpi", "us", "(p10-p90)", "GB/s", "ours/mpi", "ours/fastest"];
    assert!(
        lines[0].windows(titles.len()).any(|words| words == titles),
        "{text}"
    );
    // Of 0.2 and 0.26.
    let shm = [
        "4.83x",
        "53.6",
        "(50.0-57.2)",
        "18.657",
        "0.23x",
        "0.23x",
        "100",
        "43",
        "%",
    ];
    assert!(lines[1].ends_with(&shm), "{text}");
    assert!(
        lines[2].windows(2).any(|words| words == ["2.00x", "2.00x"]),
        "{text}"
    );
    let rows = to_json(&both, None, &json!({}));
    assert_eq!(rows[0]["mpi_p50_us"], 53.6);
    assert_eq!(rows[0]["ratio"], rows[0]["mpi_ratio"]);
    assert_eq!(rows[1]["gloo_ratio"], Value::Null);
    assert_eq!(rows[1]["ratio"], 2.0);
}

#[test]
fn links_bound_what_crosses_them() {
    let ground = Ground {
        link: Some(125e6),
        stream_alone: Some(120e6),
        stream_each: Some(118.75e6),
        ..on_memory()
    };
    let all = [measured("tcp", &[&[10_000.0]], &[], ground)];
    let row = &rows(&all)[0];
    assert_eq!(row.bound_us, Some(8000.0));
    assert_eq!(row.share_of_bound(), Some(0.8));
    let share = row.share_of_stream().map(|share| percent(share, 0));
    assert_eq!(share.as_deref(), Some("84 %"));
    let table = table(&all);
    assert!(
        table.lines().next().unwrap().ends_with("of stream"),
        "{table}"
    );
}

#[test]
fn a_row_of_json_has_what_was_asked_for() {
    let rows = to_json(&two(), None, &json!({ "cores": 2 }));
    let row = &rows[0];
    assert_eq!(row["ranks"], 2);
    assert_eq!(row["bytes"], 1_000_000);
    assert_eq!(row["transport"], "shm");
    assert_eq!(row["p50_us"], 235.0);
    assert_eq!(row["gloo_p50_us"], 1125.0);
    assert_eq!(row["mean_us"], 245.0);
    assert_eq!(row["rounds"], 2);
    assert_eq!(row["repeats"], 3);
    assert_eq!(row["memcpy_each_gbps"], 10.0);
    assert_eq!(row["steady"], true);
    assert_eq!(row["machine"]["cores"], 2);
    let ratio = row["ratio"].as_f64().unwrap();
    assert!(
        (ratio - (1050.0 / 250.0 + 1200.0 / 220.0) / 2.0).abs() < 1e-9,
        "{ratio}"
    );
    assert_eq!(rows[1]["gloo_p50_us"], Value::Null);
    assert_eq!(rows[1]["gloo_mean_us"], Value::Null);
    assert_eq!(rows[1]["steady"], false);
}

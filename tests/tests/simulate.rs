//! `simulate`: schedules without a model.

use everburn_tests::{Ended, Everburn};

fn simulate(folder: &std::path::Path, flags: &str) -> Ended {
    Everburn::line(folder, "simulate").words(flags).run()
}

#[test]
fn a_schedule_is_drawn_with_its_idle_share_beside_theory() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--schedule 1f1b --pipeline 4 --micro-batches 8 --svg a.svg";
    let drawn = simulate(folder.path(), flags).succeeded();
    let text = &drawn.stdout;
    assert!(
        text.starts_with("1f1b: 4 ranks, 8 micro-batches, 33 s, idle 27.3 %\n"),
        "{drawn}"
    );
    drawn.prints([
        "\nrank 3  ",
        "most live micro-batches, from rank 0 on: 4, 3, 2, 1",
        "\nidle in theory: 27.3 %\n",
    ]);
    let svg = std::fs::read_to_string(folder.path().join("a.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("1f1b"), "{svg}");
}

#[test]
fn without_a_name_all_schedules_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let compared = simulate(folder.path(), "--pipeline 4 --micro-batches 8").succeeded();
    let lines = compared.stdout.lines().collect::<Vec<_>>();
    let [heads, gpipe, one, interleaved, zero_bubble] = lines[..] else {
        panic!("{compared}")
    };
    assert!(heads.starts_with("schedule"), "{compared}");
    let has_cells =
        |line: &str, cells: &str| assert!(line.split_whitespace().eq(cells.split(' ')), "{line}");
    has_cells(gpipe, "gpipe 33 s 27.3 % 27.3 % 8 48");
    has_cells(one, "1f1b 33 s 27.3 % 27.3 % 4 48");
    assert!(
        interleaved.contains("28.5 s  15.8 %     15.8 %"),
        "{compared}"
    );
    assert!(zero_bubble.contains("11.1 %     11.1 %"), "{compared}");
}

#[test]
fn a_schedule_of_ones_own_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let text = "actions = ['F0 F1 B0 W0 B1 W1', 'F0 B0 F1 B1 W0 W1']\n";
    std::fs::write(folder.path().join("own.toml"), text).unwrap();
    let drawn = simulate(folder.path(), "--from own.toml").succeeded();
    assert!(
        drawn.stdout.starts_with("custom: 2 ranks, 2 micro-batches"),
        "{drawn}"
    );
    drawn.prints(["backward for weights"]);
}

#[test]
fn a_deadlock_is_told_with_its_circle() {
    let folder = tempfile::tempdir().unwrap();
    // Rank 0 wants a gradient before rank 1 has had what it needs for it.
    let lists = r#"{"actions": ["F0 B0 F1 B1", "F1 F0 B0 B1"]}"#;
    std::fs::write(folder.path().join("own.json"), lists).unwrap();
    let messages = [
        "the schedule never ends",
        "rank 0 waits for the gradient of micro-batch 0 from stage 1 to stage 0, from rank 1",
        "rank 1 waits for the activation of micro-batch 1 from stage 0 to stage 1, from rank 0",
    ];
    simulate(folder.path(), "--from own.json").failed_with(1, &messages);

    let flags = "--schedule 1f1b --blocking-sends";
    let messages = [
        "the schedule never ends",
        "sends that do not block would resolve it",
    ];
    simulate(folder.path(), flags).failed_with(1, &messages);
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, message) in [
        ("--pipeline 0", "at least one rank"),
        ("--schedule gpipe --chunks 2", "gpipe has one chunk"),
        (
            "--schedule 1f1b --micro-batches 9999999999",
            "use fewer micro-batches",
        ),
        (
            "--schedule 1f1b --forward -1",
            "`forward` of stage 0 is -1 s",
        ),
        ("--schedule 2f2b", "gpipe, 1f1b"),
        ("--svg a.svg", "--svg draws one schedule"),
        ("--from none.toml", "none.toml is no schedule"),
    ] {
        let ended = simulate(folder.path(), flags);
        ended.failed_with(2, &[message]);
        assert!(!ended.stderr.contains("panicked"), "{ended}");
    }
}

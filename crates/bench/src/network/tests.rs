use std::fs;

use super::*;

/// Skips `test` where it cannot make any.
fn may_make_namespaces(test: &str) -> bool {
    let able = rustix::process::geteuid().is_root()
        && Netns::add(format!("everburn-probe-{}", std::process::id())).is_ok();
    if !able {
        everburn_tests::skip(test, "network namespaces need root and iproute2");
    }
    able
}

fn names() -> Vec<String> {
    let entries = fs::read_dir(commands::FOLDER)
        .map(|entries| entries.flatten().collect())
        .unwrap_or_else(|_| Vec::new());
    let names = entries
        .iter()
        .filter_map(|entry| entry.file_name().into_string().ok());
    names.collect()
}

fn ours(ranks: &[Netns]) -> Vec<String> {
    ranks.iter().map(|netns| netns.name().to_owned()).collect()
}

#[test]
fn a_burst_is_short_but_never_less_than_some_frames() {
    assert_eq!(burst("1gbit".parse().unwrap()), 125_000);
    assert_eq!(burst("1mbit".parse().unwrap()), LEAST_BURST);
}

/// One test, so that no two of them make the names of this process at a time.
#[test]
fn namespaces_are_joined_and_go_with_their_network() {
    if !may_make_namespaces("a network of namespaces") {
        return;
    }
    let killed = Netns::add("everburn-bench-4294967295-1-0".into()).unwrap();
    let left_by_the_killed = killed.name().to_owned();
    // Killed runs clean nothing up.
    std::mem::forget(killed);

    let rate = "100mbit".parse().unwrap();
    let network = Network::create(2, rate, Some(Duration::from_millis(1))).unwrap();
    let mut made = ours(&network.ranks);
    made.push(network.switch.name().to_owned());
    assert!(made.iter().all(|name| names().contains(name)));
    assert!(!names().contains(&left_by_the_killed));
    let described = network.describe();
    assert!(
        described.starts_with("link:    100mbit each way"),
        "{described}"
    );
    assert_ne!(network.delay().is_some(), described.contains("NO DELAY"));

    // Rank 0 reaches rank 1 with nothing but what every machine has.
    let mut listing = network.command(0, Path::new("ip"));
    let listing = listing
        .args(["-o", "addr", "show", "dev", INTERFACE])
        .output()
        .unwrap();
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    assert!(listing.contains("10.77.0.1/24"), "{listing}");

    // Also where the benchmark panics.
    let panicked = std::panic::catch_unwind(move || {
        let _network = network;
        std::panic::resume_unwind(Box::new("as a failing benchmark does"));
    });
    assert!(panicked.is_err());
    assert!(
        made.iter().all(|name| !names().contains(name)),
        "{:?}",
        names()
    );
}

#[test]
fn a_janitor_deletes_what_nobody_else_has() {
    if !may_make_namespaces("the janitor of namespaces") {
        return;
    }
    // Names that no other test looks for.
    let prefix = format!("everburn-guard-{}-", std::process::id());
    let guard = CleanupGuard::start(&prefix).unwrap();
    let netns = Netns::add(format!("{prefix}0")).unwrap();
    let name = netns.name().to_owned();
    std::mem::forget(netns);
    assert!(names().contains(&name));
    drop(guard);
    assert!(!names().contains(&name));
}

use everburn_tests::{DEADLINE, holds_within};

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
    commands::names(Path::new(commands::FOLDER))
}

/// What `ip` prints on machine 0.
fn on_machine_0(network: &Network, arguments: &str) -> String {
    let mut command = network.command(0, Path::new("ip"));
    let output = command.args(arguments.split(' ')).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_burst_is_short_but_never_less_than_some_frames() {
    assert_eq!(burst("1gbit".parse().unwrap()), 125_000);
    assert_eq!(burst("1mbit".parse().unwrap()), LEAST_BURST);
}

#[test]
fn more_machines_than_addresses_are_refused() {
    let text = NetworkError::TooMany(65).to_string();
    assert_eq!(text, "at most 64 machines can be joined, not 65");
    assert!(Network::address(MOST_MACHINES - 1) < SWITCH);
}

/// One test, so that no two of them make the names of this process at a time.
#[test]
fn namespaces_are_joined_and_go_with_their_network() {
    if !may_make_namespaces("a network of namespaces") {
        return;
    }
    let killed = Netns::add("everburn-process-4294967295-1-0".into()).unwrap();
    let left_by_the_killed = killed.name().to_owned();
    // Killed runs clean nothing up.
    std::mem::forget(killed);

    let network = Network::create(2).unwrap();
    assert_eq!(Network::namespaces().unwrap().len(), 3);
    assert!(!names().contains(&left_by_the_killed));

    // Machine 0 reaches the switch with nothing but what every machine has.
    let address = on_machine_0(&network, "-o addr show dev link0");
    assert!(address.contains("10.77.0.1/24"), "{address}");
    let route = on_machine_0(&network, "route get 10.77.0.254");
    assert!(route.contains("dev link0 src 10.77.0.1"), "{route}");

    let has_carrier = || !on_machine_0(&network, "-o link show dev link0").contains("NO-CARRIER");
    // The kernel looks after links in a thread of its own.
    let soon = |wanted: bool| holds_within(DEADLINE, || has_carrier() == wanted);
    assert!(soon(true));
    network.cut(0).unwrap();
    assert!(soon(false), "the link is there");
    network.restore(0).unwrap();
    assert!(soon(true), "the link does not come back");

    let is_limited = || on_machine_0(&network, "-o link show dev link0").contains("qdisc tbf");
    network.limit(0, "1mbit".parse().unwrap()).unwrap();
    assert!(is_limited());
    network.lift_limit(0).unwrap();
    assert!(!is_limited());

    // Also where the program panics.
    let panicked = std::panic::catch_unwind(move || {
        let _network = network;
        std::panic::resume_unwind(Box::new("as a failing benchmark does"));
    });
    assert!(panicked.is_err());
    assert!(Network::namespaces().unwrap().is_empty(), "{:?}", names());
}

#[test]
fn a_guard_ends_and_deletes_what_nobody_else_has() {
    if !may_make_namespaces("the guard of namespaces") {
        return;
    }
    // Names that no other test looks for.
    let prefix = format!("everburn-guard-{}-", std::process::id());
    let guard = CleanupGuard::start(&prefix).unwrap();
    let netns = Netns::add(format!("{prefix}0")).unwrap();
    let name = netns.name().to_owned();
    let mut inside = netns
        .command(Path::new("sleep"))
        .arg("600")
        .spawn()
        .unwrap();
    // It is inside once `ip` has become it.
    let is_inside = || {
        let line = everburn_record::proc::command_lines().into_iter();
        line.filter(|(process, _)| *process == inside.id())
            .any(|(_, line)| line.starts_with("sleep"))
    };
    assert!(holds_within(DEADLINE, is_inside));
    std::mem::forget(netns);
    assert!(names().contains(&name));
    drop(guard);
    assert!(!names().contains(&name));
    let ended = inside.wait().unwrap();
    assert!(!ended.success(), "{ended}");
}

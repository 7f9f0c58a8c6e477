//! Rules about manifests: one table of versions, and who may depend on what.

use super::TextFile;

pub(super) fn check(file: &TextFile) -> Vec<String> {
    // The root is the table itself; the examples are workspaces of their own.
    if !file.is_manifest() || file.path == "Cargo.toml" || file.path.starts_with("examples/") {
        return Vec::new();
    }
    let mut section = String::new();
    let mut complaints = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).to_owned();
        }
        let Some(name) = dependency(&section, line) else {
            continue;
        };
        let mut complain = |what: &str| complaints.push(file.complain(index, what));
        let is_burn = name == "burn" || name.starts_with("burn-");
        if is_burn && !from_the_table(line) {
            complain("write `workspace = true`: Burn's version is in one table");
        }
        if is_burn && file.is_under(&["crates/collectives/", "crates/nccl/", "tests/nccl-fake/"]) {
            complain("`collectives`, `nccl` and its stand-in do without Burn");
        }
        let is_fake = name.starts_with("everburn") && name.ends_with("-fake");
        if is_fake && !section.starts_with("dev-dependencies") && !file.path.starts_with("tests/") {
            complain("stand-ins are for tests: name it under `[dev-dependencies]`");
        }
        let ours = matches!(
            name,
            "everburn-distributed" | "everburn-collectives" | "everburn"
        );
        if ours && file.path.starts_with("models/") {
            complain("models have one device: they depend on Burn and `everburn-nn`");
        }
        let below_nn = ["everburn-kernels", "everburn-schedules"];
        let of_ours = name.starts_with("everburn") && !below_nn.contains(&name);
        if of_ours && file.path.starts_with("crates/nn/") {
            complain("`nn` depends on Burn, `everburn-kernels` and `everburn-schedules` alone");
        }
        // The harness of the tests is nobody's ground; `record` is everybody's.
        let shared = ["everburn-record", "everburn-tests"];
        let ours = name.starts_with("everburn") && !shared.contains(&name);
        if (is_burn || ours) && file.path.starts_with("crates/record/") {
            complain("`record` depends on no crate of this workspace, nor on Burn");
        }
        if (is_burn || ours) && file.path.starts_with("crates/schedules/") {
            complain("`schedules` depends on `everburn-record` alone, and not on Burn");
        }
        if (is_burn || ours) && file.path.starts_with("crates/report/") {
            complain("`report` depends on `everburn-record` alone, and not on Burn");
        }
        let of_monitor = ours && name != "everburn-auth";
        if (is_burn || of_monitor) && file.path.starts_with("crates/monitor/") {
            complain(
                "`monitor` depends on `everburn-record` and `everburn-auth` alone, and not on Burn",
            );
        }
        if (is_burn || ours) && file.path.starts_with("crates/profile/") {
            complain("`profile` depends on `everburn-record` alone, and not on Burn");
        }
        if (is_burn || ours) && file.path.starts_with("crates/pytorch-weights/") {
            complain("`pytorch-weights` depends on no crate of this workspace, nor on Burn");
        }
        if (is_burn || ours) && file.path.starts_with("crates/tensorboard/") {
            complain("`tensorboard` depends on no crate of this workspace, nor on Burn");
        }
        let commands = name == "everburn-cli" && !file.is_under(&["crates/everburn/"]);
        if commands || name == "everburn-bench" {
            complain("only the façade depends on `everburn-cli`, and nothing on `everburn-bench`");
        }
        let may_train = ["crates/train/", "crates/everburn/"];
        if name == "burn-train" && !file.is_under(&may_train) {
            complain("only `crates/train` and the façade use burn-train");
        }
    }
    complaints
}

/// The dependency that a line declares: `name = ..`, `name.workspace = ..` or its own section.
fn dependency<'a>(section: &'a str, line: &'a str) -> Option<&'a str> {
    if let Some((kind, name)) = section.rsplit_once('.')
        && kind.ends_with("dependencies")
    {
        // `[dependencies.name]`: judged once, by the line that says where it is from.
        let says_where = ["workspace", "version", "path", "git"];
        let key = line.split('=').next().unwrap_or_default().trim();
        return says_where.contains(&key).then_some(name);
    }
    if !section.ends_with("dependencies") || line.starts_with('[') {
        return None;
    }
    let key = line.split('=').next()?.trim();
    let name = key.split('.').next()?.trim_matches('"');
    (!name.is_empty() && line.contains('=')).then_some(name)
}

fn from_the_table(line: &str) -> bool {
    let compact: String = line.chars().filter(|c| !c.is_whitespace()).collect();
    compact.contains("workspace=true")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> String {
        check(&TextFile::sample(path, text)).join("\n")
    }

    #[test]
    fn burns_version_comes_from_the_table() {
        let crate_a = |text| complaints("crates/a/Cargo.toml", text);
        assert!(crate_a("[dependencies]\nburn = \"0.22\"").contains(":2: write `workspace"));
        assert!(!crate_a("[dev-dependencies]\nburn = { version = \"0.22\" }").is_empty());
        assert!(!crate_a("[dependencies.burn]\nversion = \"0.22\"").is_empty());
        assert_eq!(crate_a("[dependencies]\nburn.workspace = true"), "");
        assert_eq!(
            crate_a("[dependencies]\nburn = { workspace = true, features = [] }"),
            ""
        );
        assert_eq!(
            crate_a("[dependencies.burn]\nworkspace = true\nfeatures = []"),
            ""
        );
        assert_eq!(crate_a("[features]\nburn = [\"burn/flex\"]"), "");
        assert_eq!(
            complaints("examples/reuse/Cargo.toml", "[dependencies]\nburn = \"1\""),
            ""
        );
    }

    #[test]
    fn stand_ins_are_for_tests() {
        let of = |section: &str| format!("[{section}]\neverburn-nccl-fake.workspace = true");
        let nccl = |section| complaints("crates/nccl/Cargo.toml", &of(section));
        assert!(nccl("dependencies").contains("under `[dev-dependencies]`"));
        assert_eq!(nccl("dev-dependencies"), "");
        let fake = of("dependencies");
        assert_eq!(complaints("tests/distributed-fake/Cargo.toml", &fake), "");
    }

    #[test]
    fn each_depends_only_on_its_neighbours() {
        let burn = "[dependencies]\nburn.workspace = true";
        assert!(complaints("crates/collectives/Cargo.toml", burn).contains("without Burn"));
        assert!(complaints("crates/nccl/Cargo.toml", burn).contains("without Burn"));
        assert!(complaints("tests/nccl-fake/Cargo.toml", burn).contains("without Burn"));
        let ddp = "[dependencies]\neverburn-distributed.workspace = true";
        assert!(complaints("models/Cargo.toml", ddp).contains("one device"));
        assert!(complaints("crates/nn/Cargo.toml", ddp).contains("on Burn, `everburn-kernels`"));
        for dependency in [burn, ddp] {
            for path in [
                "crates/schedules/Cargo.toml",
                "crates/report/Cargo.toml",
                "crates/profile/Cargo.toml",
            ] {
                assert!(complaints(path, dependency).contains("`everburn-record` alone"));
            }
            assert!(
                complaints("crates/record/Cargo.toml", dependency).contains("no crate of this")
            );
        }
        for dependency in [burn, ddp] {
            let refused = |path| !complaints(path, dependency).is_empty();
            assert!(
                refused("crates/monitor/Cargo.toml") && refused("crates/tensorboard/Cargo.toml")
            );
        }
        let record = "[dependencies]\neverburn-record.workspace = true";
        assert_eq!(complaints("crates/profile/Cargo.toml", record), "");
        assert_eq!(complaints("crates/monitor/Cargo.toml", record), "");
        let nn = "[dependencies]\neverburn-nn.workspace = true";
        assert_eq!(complaints("models/Cargo.toml", nn), "");
        assert_eq!(complaints("crates/train/Cargo.toml", ddp), "");
        let cli = "[dependencies]\neverburn-cli.workspace = true";
        assert!(complaints("xtask/Cargo.toml", cli).contains("only the façade"));
        assert!(complaints("crates/bench/Cargo.toml", cli).contains("only the façade"));
        assert_eq!(complaints("crates/everburn/Cargo.toml", cli), "");
        let train = "[dependencies]\nburn-train.workspace = true";
        assert!(complaints("crates/cli/Cargo.toml", train).contains("burn-train"));
        assert_eq!(complaints("crates/train/Cargo.toml", train), "");
    }
}

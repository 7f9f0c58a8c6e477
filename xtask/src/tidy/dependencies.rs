//! Rules about manifests: one table of versions, and who may depend on what.

use super::TextFile;

/// A folder and the crates of this workspace that the one in it may depend on, without `everburn-`.
type Row = (&'static str, &'static [&'static str]);

/// The crates that do without Burn.
const WITHOUT_BURN: [Row; 15] = [
    ("crates/auth", &[]),
    ("crates/collectives", &["auth", "record"]),
    ("crates/kernels", &[]),
    ("crates/launch", &["auth", "collectives", "record"]),
    ("crates/monitor", &["auth", "record"]),
    ("crates/nccl", &["collectives", "record"]),
    ("crates/profile", &["record"]),
    ("crates/pytorch-weights", &[]),
    ("crates/record", &[]),
    ("crates/report", &["record"]),
    ("crates/schedules", &["record"]),
    ("crates/simulate", &["auth", "collectives", "launch"]),
    ("crates/tensorboard", &[]),
    ("tests", &["record"]),
    ("tests/nccl-fake", &["collectives", "nccl", "record"]),
];

/// The others, up to the façade and the benchmarks, which may depend on all.
const WITH_BURN: [Row; 7] = [
    (
        "crates/cli",
        &[
            "auth",
            "collectives",
            "datasets",
            "distributed",
            "launch",
            "monitor",
            "nccl",
            "nn",
            "pipeline",
            "profile",
            "record",
            "report",
            "schedules",
            "train",
        ],
    ),
    (
        "crates/distributed",
        &["collectives", "nccl", "nn", "profile", "record"],
    ),
    ("crates/nn", &["kernels", "schedules"]),
    (
        "crates/pipeline",
        &["collectives", "distributed", "nn", "schedules"],
    ),
    (
        "crates/train",
        &[
            "auth",
            "collectives",
            "distributed",
            "monitor",
            "nn",
            "pipeline",
            "profile",
            "pytorch-weights",
            "record",
            "schedules",
            "tensorboard",
        ],
    ),
    ("datasets", &["record"]),
    ("models", &["nn"]),
];

pub(super) fn check(file: &TextFile) -> Vec<String> {
    // The root is the table itself; the examples are workspaces of their own.
    if !file.is_manifest() || file.path == "Cargo.toml" || file.path.starts_with("examples/") {
        return Vec::new();
    }
    let folder = file.path.strip_suffix("/Cargo.toml").unwrap_or_default();
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
        if is_burn(name) && !from_the_table(line) {
            complain("write `workspace = true`: Burn's version is in one table");
        }
        let is_fake = name.starts_with("everburn") && name.ends_with("-fake");
        if is_fake && !section.starts_with("dev-dependencies") && !file.path.starts_with("tests/") {
            complain("stand-ins are for tests: name it under `[dev-dependencies]`");
        }
        if let Some(what) = beyond_its_row(folder, &section, name) {
            complain(&what);
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

/// What is wrong with a dependency that is not in the row of its crate.
fn beyond_its_row(folder: &str, section: &str, name: &str) -> Option<String> {
    let (crates, burn) = row(folder)?;
    let in_tests = section.contains("dev-dependencies");
    let is_allowed = match name.strip_prefix("everburn") {
        Some(rest) => {
            let short = rest.trim_start_matches('-');
            // The façade is `everburn` itself.
            let trained = burn && ["", "datasets", "models"].contains(&short);
            // The other stand-ins have Burn.
            let is_fake = short == "nccl-fake" || burn && short.ends_with("-fake");
            crates.contains(&short) || in_tests && (trained || short == "tests" || is_fake)
        }
        None => burn || !is_burn(name),
    };
    if is_allowed {
        return None;
    }
    let named: Vec<String> = crates.iter().map(|it| format!("`everburn-{it}`")).collect();
    let ours = match named.is_empty() {
        true => "no crate of this workspace".to_owned(),
        false => format!("{} and no other crate of this workspace", named.join(", ")),
    };
    let burns = if burn { "" } else { ", nor on Burn" };
    Some(format!("`{folder}` depends on {ours}{burns}"))
}

/// What the crate in a folder may depend on, and whether on Burn; `None`: on all.
fn row(folder: &str) -> Option<(&'static [&'static str], bool)> {
    let find = |rows: &[Row]| rows.iter().find(|row| row.0 == folder).map(|row| row.1);
    let without = find(&WITHOUT_BURN).map(|crates| (crates, false));
    without.or_else(|| find(&WITH_BURN).map(|crates| (crates, true)))
}

fn is_burn(name: &str) -> bool {
    name == "burn" || name.starts_with("burn-")
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
    use super::super::{relative, root};
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
        let burns = "[dev-dependencies]\neverburn-distributed-fake.workspace = true";
        assert!(complaints("crates/nccl/Cargo.toml", burns).contains("nor on Burn"));
        assert_eq!(complaints("crates/train/Cargo.toml", burns), "");
        let fake = of("dependencies");
        assert_eq!(complaints("tests/distributed-fake/Cargo.toml", &fake), "");
    }

    #[test]
    fn each_depends_only_on_its_neighbours() {
        let of = |folder: &str, section: &str, name: &str| {
            let text = format!("[{section}]\n{name}.workspace = true");
            complaints(&format!("{folder}/Cargo.toml"), &text)
        };
        for (folder, _) in WITHOUT_BURN {
            let text = of(folder, "dependencies", "burn");
            assert!(text.contains("nor on Burn"), "{folder}: {text}");
        }
        for (folder, crates) in WITHOUT_BURN.into_iter().chain(WITH_BURN) {
            for name in ["everburn", "everburn-models"] {
                let text = of(folder, "dependencies", name);
                assert!(text.contains("of this workspace"), "{folder}: {text}");
            }
            for name in crates {
                let name = format!("everburn-{name}");
                assert_eq!(of(folder, "dependencies", &name), "");
            }
            assert_eq!(of(folder, "dev-dependencies", "everburn-tests"), "");
        }
        let monitor = of("crates/monitor", "dependencies", "everburn-train");
        let expected =
            "`everburn-auth`, `everburn-record` and no other crate of this workspace, nor on Burn";
        assert!(monitor.contains(expected), "{monitor}");
        // Tests train models; those of crates without Burn build none of it.
        for section in ["dev-dependencies", "target.x.dev-dependencies"] {
            assert_eq!(of("crates/train", section, "everburn-models"), "");
            assert_ne!(of("crates/report", section, "everburn-models"), "");
        }
        let cli = "[dependencies]\neverburn-cli.workspace = true";
        assert!(complaints("xtask/Cargo.toml", cli).contains("only the façade"));
        assert!(complaints("crates/bench/Cargo.toml", cli).contains("only the façade"));
        assert_eq!(complaints("crates/everburn/Cargo.toml", cli), "");
        let train = "[dependencies]\nburn-train.workspace = true";
        assert!(complaints("crates/cli/Cargo.toml", train).contains("burn-train"));
        assert_eq!(complaints("crates/train/Cargo.toml", train), "");
    }

    #[test]
    fn every_crate_has_a_row() {
        let entries = std::fs::read_dir(root().join("crates")).unwrap();
        let folders = entries.map(|entry| entry.unwrap().path());
        let folders = folders.filter(|path| path.join("Cargo.toml").exists());
        let mut all: Vec<String> = folders.map(|path| relative(&root(), &path)).collect();
        all.sort();
        all.retain(|folder| row(folder).is_none());
        assert_eq!(all, ["crates/bench", "crates/everburn"]);
    }
}

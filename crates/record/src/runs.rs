//! The runs in a folder.

use std::path::{Path, PathBuf};

use crate::plain::word;
use crate::{Live, Place, Settings, ranges};

/// The folder of all runs, where no other is named.
pub const RUNS: &str = "runs";

/// The folders of the runs in `folder`, the one that was written to last first. A folder that cannot be read has none.
pub fn runs_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let runs = entries.filter_map(|entry| {
        let path = entry.path();
        let written = |name: &str| path.join(name).metadata().ok()?.modified().ok();
        let config = written(Settings::FILE)?;
        Some((
            written(Live::FILE).map_or(config, |live| live.max(config)),
            path,
        ))
    });
    let mut runs: Vec<_> = runs.collect();
    runs.sort();
    runs.into_iter().rev().map(|(_, path)| path).collect()
}

/// Whether `folder` holds a run that can be opened: one with its configuration.
///
/// ```
/// let run = tempfile::tempdir()?;
/// assert!(!everburn_record::is_run(run.path()));
/// std::fs::write(run.path().join("config.toml"), "model = 'mnist'")?;
/// assert!(everburn_record::is_run(run.path()));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn is_run(folder: &Path) -> bool {
    folder.join(Settings::FILE).is_file()
}

/// What the run in `folder` is called: as its folder, also where a link leads there.
///
/// ```
/// use std::path::Path;
///
/// assert_eq!(everburn_record::name_of_run(Path::new("runs/mnist-1")), "mnist-1");
/// assert_eq!(everburn_record::name_of_run(Path::new("/")), "run");
/// ```
pub fn name_of_run(folder: &Path) -> String {
    let canonical = folder.canonicalize();
    let name = canonical.as_deref().unwrap_or(folder).file_name();
    name.map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned())
}

/// Where machine `machine` has its files of the run that machine 0 has in `path`: machine 0 there, others in a folder beside
/// it.
///
/// ```
/// use std::path::Path;
///
/// use everburn_record::folder_of_machine;
///
/// assert_eq!(folder_of_machine(Path::new("runs/a"), 0), Path::new("runs/a"));
/// assert_eq!(folder_of_machine(Path::new("runs/a"), 1), Path::new("runs/a-node-1"));
/// ```
pub fn folder_of_machine(path: &Path, machine: usize) -> PathBuf {
    if machine == 0 {
        return path.to_owned();
    }
    let mut name = path.file_name().unwrap_or(path.as_os_str()).to_os_string();
    name.push(format!("-node-{machine}"));
    path.with_file_name(name)
}

/// Which machine has made the folder of a run, and where machine 0 has that run; `None` for machine 0 itself, and where the
/// folder's settings say that there are fewer machines.
pub fn folder_of_first_machine(run: &Path) -> Option<(usize, PathBuf)> {
    let (first, machine) = run.file_name()?.to_str()?.rsplit_once("-node-")?;
    let machine = machine.parse().ok()?;
    // Only machine 0 has rank 0.
    let is_first = run.join("logs/rank-0.log").exists();
    let is_other = (1..machines_of(run)).contains(&machine) && !is_first;
    is_other.then(|| (machine, run.with_file_name(first)))
}

/// Whether the run in `folder` has a checkpoint from which it can be continued, by its name.
pub fn has_checkpoint(folder: &Path) -> bool {
    Place::newest_of(folder).is_some()
}

/// What is to be said of newer checkpoints than those of the run in `folder`: where its settings say that the job was
/// elastic on several machines, another one writes them while machine 0 is away, in its own folder of the run. Machine 0
/// continues from its own. `None` where no step was made, as far as this disk shows.
pub fn checkpoints_elsewhere(folder: &Path) -> Option<String> {
    let settings = Settings::of_run(folder)?;
    let machines = machines_of(folder);
    settings.get("ranks.elastic").filter(|_| machines > 1)?;
    let (own, first) = folder_of_first_machine(folder).unwrap_or_else(|| (0, folder.to_owned()));
    let on_disk = |machine: usize| folder_of_machine(&first, machine);
    let newest = |machine: usize| Some((Place::newest_of(&on_disk(machine))?, machine));
    let then = "start the command of each machine as before, with --resume";
    let place = newest(own).map(|(place, _)| place);
    let newer = (0..machines).filter_map(newest).max();
    let into = word(first.join("checkpoints"));
    match newer.filter(|(newer, _)| Some(*newer) > place) {
        Some((_, 0)) => {
            return Some(format!(
                "machine 0 of this elastic job has a newer one, in {into}: {then}"
            ));
        }
        Some((place, machine)) => {
            let path = word(place.found_in(&on_disk(machine).join("checkpoints")));
            return Some(format!(
                "another machine of this elastic job has a newer one, which is on this disk: copy {path} into {into}; then \
                 {then}"
            ));
        }
        None => {}
    }
    let made_a_step = |machine: usize| {
        let live = Live::read(&on_disk(machine));
        newest(machine).is_some() || live.is_some_and(|live| live.step > 0)
    };
    if first.is_dir() && !(0..machines).any(made_a_step) {
        return None;
    }
    let name = first.file_name()?.to_str()?;
    let others: Vec<usize> = (1..machines).filter(|machine| *machine != own).collect();
    let of_first = (own > 0).then(|| format!("{name}/checkpoints on machine 0"));
    let of_others = match others.as_slice() {
        [] => None,
        [one] => Some(format!("{name}-node-{one}/checkpoints on machine {one}")),
        many => Some(format!(
            "{name}-node-K/checkpoints on each machine K of {}",
            ranges(many)
        )),
    };
    let places: Vec<String> = of_first.into_iter().chain(of_others).collect();
    Some(format!(
        "another machine of this elastic job may have written newer ones, in {}: look there first and copy the newest one into \
         {into}{}; then {then}",
        places.join(" and "),
        if own > 0 { " on machine 0" } else { "" },
    ))
}

/// On how many machines the run in `folder` is, as its `config.toml` says.
pub fn machines_of(folder: &Path) -> usize {
    Settings::of_run(folder).map_or(1, |settings| settings.machines())
}

/// How the run in `folder` starts again, which has no checkpoint there. The folder of another machine than the first never
/// has those of a job that is not elastic.
///
/// ```
/// use everburn_record::starts_again;
///
/// let runs = tempfile::tempdir()?;
/// assert_eq!(starts_again(runs.path()), "the same command starts again");
/// let run = runs.path().join("a-node-1");
/// std::fs::create_dir(&run)?;
/// std::fs::write(run.join("config.toml"), "[ranks]\nnodes = 2\n")?;
/// let text = starts_again(&run);
/// assert!(text.ends_with("/a on machine 0; start every machine with --resume if there is one, else without"), "{text}");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn starts_again(folder: &Path) -> String {
    if let Some((_, first)) = folder_of_first_machine(folder) {
        return format!(
            "those of the run are in {} on machine 0; start every machine with --resume if there is one, else without",
            first.display()
        );
    }
    match machines_of(folder) {
        0 | 1 => "the same command starts again",
        _ => "the command of each machine, as before, starts again",
    }
    .to_owned()
}

/// How the run in `folder` is continued, in the words of who only reads it.
pub(crate) fn continued(folder: &Path) -> String {
    match (has_checkpoint(folder), checkpoints_elsewhere(folder)) {
        (true, None) => "--resume continues from the newest checkpoint".to_owned(),
        (true, Some(elsewhere)) => {
            format!("--resume continues from the newest checkpoint here, but {elsewhere}")
        }
        (false, None) => {
            format!(
                "it has no checkpoint to continue from: {}",
                starts_again(folder)
            )
        }
        (false, Some(elsewhere)) => format!("it has no checkpoint here, but {elsewhere}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn the_run_that_was_written_to_last_is_first() {
        let runs = tempfile::tempdir().unwrap();
        let write = |run: &str, name: &str, seconds: u64| {
            let run = runs.path().join(run);
            std::fs::create_dir_all(&run).unwrap();
            let file = File::create(run.join(name)).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds))
                .unwrap();
        };
        write("begun-first", "config.toml", 1);
        write("between", "config.toml", 2);
        write("begun-last", "config.toml", 3);
        write("begun-first", Live::FILE, 4);
        write("none", Live::FILE, 5);
        let names = runs_in(runs.path()).into_iter();
        let names = names.map(|path| path.strip_prefix(runs.path()).unwrap().to_owned());
        let names = names.collect::<Vec<_>>();
        assert_eq!(
            names,
            ["begun-first", "begun-last", "between"].map(PathBuf::from)
        );
    }

    #[test]
    fn an_elastic_job_on_several_machines_may_have_newer_checkpoints_on_another() {
        let runs = tempfile::tempdir().unwrap();
        let run = runs.path().join("a");
        let add = |folder: &str| std::fs::create_dir_all(runs.path().join(folder)).unwrap();
        let write = |ranks: &str| {
            let text = format!("model = 'mlp'\n\n[ranks]\n{ranks}\n[training]\nsteps = 9\n");
            std::fs::write(run.join("config.toml"), text).unwrap();
        };
        add("a/checkpoints");
        add("a-node-1/checkpoints/epoch-0000-batch-002440");
        add("a-node-1/checkpoints/epoch-0000-batch-000300");
        for (alone, again) in [
            ("nodes = 1\nelastic = \"1:2\"\n", "the same command"),
            ("nodes = 2\n", "the command of each machine, as before,"),
        ] {
            write(alone);
            assert_eq!(checkpoints_elsewhere(&run), None, "{alone}");
            let text = continued(&run);
            assert!(text.ends_with(&format!("{again} starts again")), "{text}");
        }
        write("ranks = 2\nnodes = 2\nelastic = \"1:4\"\n");
        let newest = "a-node-1/checkpoints/epoch-0000-batch-002440 into ";
        let text = continued(&run);
        assert!(text.contains(newest) && text.contains("--resume"), "{text}");
        assert!(!text.contains("starts again"), "{text}");
        add("a/checkpoints/epoch-0000-batch-000300");
        assert!(continued(&run).contains(newest), "{}", continued(&run));
        add("a/checkpoints/epoch-0001");
        let text = continued(&run);
        let elsewhere = "may have written newer ones, in a-node-1/checkpoints on machine 1: ";
        assert!(text.contains(elsewhere) && !text.contains(newest), "{text}");
    }

    #[test]
    fn another_machine_of_an_elastic_job_names_the_folders_of_the_others_once_a_step_was_made() {
        let runs = tempfile::tempdir().unwrap();
        let at = |name: &str| runs.path().join(name);
        let add = |name: &str, nodes: usize| {
            std::fs::create_dir_all(at(name)).unwrap();
            let text = format!("[ranks]\nnodes = {nodes}\nelastic = \"1:8\"\n");
            std::fs::write(at(name).join("config.toml"), text).unwrap();
        };
        let said = |name: &str| checkpoints_elsewhere(&at(name)).unwrap_or_default();
        let names = |name: &str, folders: &str| {
            let text = said(name);
            assert!(text.contains(&format!("in {folders}: look")), "{text}");
        };
        // Where machine 0 has its files is not known on this disk.
        add("e-node-1", 2);
        names("e-node-1", "e/checkpoints on machine 0");
        add("e", 2);
        assert_eq!(
            [said("e"), said("e-node-1")],
            ["", ""],
            "no rank met another"
        );
        let live = Live {
            step: 1,
            ..Live::default()
        };
        live.write(&at("e").join(Live::FILE)).unwrap();
        names("e", "e-node-1/checkpoints on machine 1");
        names("e-node-1", "e/checkpoints on machine 0");
        add("e", 4);
        add("e-node-2", 4);
        let all = "e/checkpoints on machine 0 and e-node-K/checkpoints on each machine K of 1, 3";
        names("e-node-2", all);
        std::fs::create_dir_all(at("e/checkpoints/epoch-0001")).unwrap();
        let text = said("e-node-2");
        assert!(
            text.starts_with("machine 0 of this elastic job has a newer one, in "),
            "{text}"
        );
        // A run of this name on machine 0.
        std::fs::create_dir_all(at("e-node-2/logs")).unwrap();
        std::fs::write(at("e-node-2/logs/rank-0.log"), "").unwrap();
        assert_eq!(folder_of_first_machine(&at("e-node-2")), None);
    }
}

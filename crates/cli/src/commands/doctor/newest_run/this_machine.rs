//! What is seen in the folder of a run of this machine's ranks: the state of all ranks may be on another machine.

use std::path::Path;

use everburn_launch::variables;
use everburn_record::{Environment, Finding, Live, folder_of_first_machine, plain, proc};

/// What is seen of a run that continues in the folder of another machine than the first: the state of all ranks is not there.
pub(super) fn finding(run: &Path) -> Option<Finding> {
    let (machine, first) = folder_of_first_machine(run)?;
    if !Live::has_owner(run) || run.join(Live::FILE).exists() {
        return None;
    }
    let stopped = stopped(run);
    let found = plain::line(
        &format!(
            "{} is the folder of machine {machine}, and the state of all ranks is in {} on machine 0; here {}",
            run.display(),
            first.display(),
            stopped
                .as_deref()
                .unwrap_or("no rank of this machine is stopped"),
        ),
        1500,
    );
    Some(match stopped {
        None => Finding::ok("newest run", found),
        Some(_) => Finding::warn(
            "newest run",
            found,
            "continue what is stopped; `doctor` and `monitor` on machine 0 show who waits",
        ),
    })
}

/// Which of the processes that a launcher of this machine has started for the run in `run` are stopped, and how they continue.
pub(super) fn stopped(run: &Path) -> Option<String> {
    let logs = run.join("logs").canonicalize().ok()?;
    let rank_of = |(process, file): (u32, String)| {
        let (folder, name) = file.rsplit_once('/')?;
        let rank = name.strip_prefix("rank-")?.strip_suffix(".error.json")?;
        let is_here = Path::new(folder).canonicalize().ok()? == logs;
        Some((rank.parse().ok()?, process)).filter(|_| is_here)
    };
    let ranks = proc::with_variable(variables::ERROR_FILE).into_iter();
    let ranks = ranks.filter_map(rank_of);
    let mut stopped: Vec<(usize, u32)> = ranks.filter(|it| proc::is_stopped(it.1)).collect();
    stopped.sort_unstable();
    let said = stopped.iter().map(|(rank, process)| {
        format!("rank {rank} (process {process}) is stopped (SIGSTOP): kill -CONT {process}")
    });
    let said = said.collect::<Vec<_>>().join("; ");
    (!said.is_empty()).then_some(said)
}

/// That the launcher of this machine, which is not the first, has ended without a word, and its ranks with it: none of them
/// has reported its end.
pub(super) fn cut_off(run: &Path) -> Option<String> {
    let (machine, first) = folder_of_first_machine(run)?;
    let environment = Environment::of_run(run)?;
    let is_here = environment.host.is_some() && environment.host == proc::host_name();
    if !is_here || Live::has_owner(run) || run.join(Live::FILE).exists() {
        return None;
    }
    let logs = std::fs::read_dir(run.join("logs")).ok()?.flatten();
    let names: Vec<_> = logs
        .map(|it| it.file_name().to_string_lossy().into_owned())
        .collect();
    let has = |end: &str| names.iter().any(|name| name.ends_with(end));
    (has(".log") && !has(".finished.json")).then(|| {
        format!(
            "the launcher of machine {machine} has ended without a word, and its ranks with it: check whether somebody has sent \
             SIGKILL to it, and whether the machine was out of memory or restarted; the state of all ranks is in {} on \
             machine 0",
            first.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use everburn_tests::Run;

    use super::*;

    #[test]
    fn a_launcher_of_another_machine_that_was_killed_is_found_in_its_folder() {
        let runs = tempfile::tempdir().unwrap();
        let own = Run::begin(runs.path().join("a-node-1"));
        let write = |name: &str, text: &str| std::fs::write(own.path.join(name), text).unwrap();
        write("config.toml", "[ranks]\nnodes = 2\n");
        std::fs::create_dir(own.path.join("logs")).unwrap();
        write("logs/rank-1.log", "");
        let of_host = |host: &str| {
            let environment = serde_json::json!({ "host": host });
            write("environment.json", &environment.to_string());
        };
        of_host(&proc::host_name().unwrap());
        let owner = own.hold();
        assert_eq!(cut_off(&own.path), None, "it continues");
        drop(owner);
        let text = cut_off(&own.path).unwrap();
        let begin = "the launcher of machine 1 has ended without a word";
        assert!(text.starts_with(begin), "{text}");
        write("logs/rank-1.finished.json", "");
        assert_eq!(cut_off(&own.path), None);
        std::fs::remove_file(own.path.join("logs/rank-1.finished.json")).unwrap();
        of_host("elsewhere");
        assert_eq!(cut_off(&own.path), None, "its processes are not seen here");
    }
}

//! What a process says that trains alone, though a scheduler has others.

use everburn_launch::variables;

/// The note of a process that no launcher has made a rank, by the variables of the environment; `None` where there is
/// nothing to say, or a launcher is named.
pub(super) fn note(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    if variable(variables::LAUNCHER).is_some() {
        return None;
    }
    if let Some(index) = variable("JOB_COMPLETION_INDEX") {
        return Some(format!(
            "JOB_COMPLETION_INDEX is {index}, but WORLD_SIZE is not set: this pod trains alone; for one training of all pods set \
             WORLD_SIZE and MASTER_ADDR in the manifest; EVERBURN_LAUNCHER=none leaves this warning out"
        ));
    }
    let tasks = variable("SLURM_NTASKS")?.parse::<usize>().ok();
    let tasks = tasks.filter(|tasks| *tasks > 1)?;
    Some(format!(
        "SLURM_NTASKS is {tasks}, but srun has not started this process: it trains alone; start it by srun for {tasks} ranks, \
         or give --ranks; EVERBURN_LAUNCHER=none leaves this warning out"
    ))
}

#[cfg(test)]
mod tests {
    use everburn_tests::lookup;

    use super::*;

    #[test]
    fn a_process_that_trains_alone_says_so_where_others_may_be_expected() {
        let of = |set: &[(&str, &str)]| note(&lookup(set));
        let pod = of(&[("JOB_COMPLETION_INDEX", "3")]).unwrap();
        let expected =
            "JOB_COMPLETION_INDEX is 3, but WORLD_SIZE is not set: this pod trains alone";
        assert!(pod.starts_with(expected), "{pod}");
        let tasks = of(&[("SLURM_NTASKS", "4")]).unwrap();
        assert!(tasks.starts_with("SLURM_NTASKS is 4"), "{tasks}");
        let named = ("EVERBURN_LAUNCHER", "none");
        for silent in [
            &[][..],
            &[("SLURM_NTASKS", "1")],
            &[("SLURM_NTASKS", "4"), named],
            &[("JOB_COMPLETION_INDEX", "3"), named],
        ] {
            assert_eq!(of(silent), None);
        }
    }
}

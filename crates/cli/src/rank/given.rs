//! What a process was given about ranks that others may have started.

use everburn_collectives::rendezvous::variable;
use everburn_launch::{RankEnvironment, StartedBy};
use everburn_record::units::counted;

use crate::arguments::keys::Sections;
use crate::arguments::{Command, Given, RankFlags};
use crate::error::CliError;

/// The flags of a command that is the launcher of one of several machines, as far as its command line says.
pub(crate) fn flags_of_machine(command: &Command) -> Option<&RankFlags> {
    let given = AboutRanks::of(command)?;
    (given.flags.node_rank.is_some() && !given.elastic).then_some(given.flags)
}

/// What a command that runs on several ranks was given about them.
pub(super) struct AboutRanks<'a> {
    pub(super) flags: &'a RankFlags,
    nodes: bool,
    ranks: bool,
    elastic: bool,
}

impl<'a> AboutRanks<'a> {
    fn new<S: Sections>(flags: &'a RankFlags, keys: &Given<S>) -> Self {
        Self {
            flags,
            nodes: keys.has("ranks.nodes"),
            ranks: keys.has("ranks.ranks"),
            elastic: keys.has("ranks.elastic"),
        }
    }

    /// The flags that start ranks, as given.
    fn named(&self) -> Vec<&'static str> {
        let flags = [
            ("--ranks", self.ranks),
            ("--gpus", self.flags.gpus.is_some()),
            ("--nodes", self.nodes),
            ("--node-rank", self.flags.node_rank.is_some()),
            ("--rendezvous", self.flags.rendezvous.is_some()),
            ("--store", self.flags.store.is_some()),
        ];
        let named = flags.into_iter();
        named
            .filter_map(|(flag, is_given)| is_given.then_some(flag))
            .collect()
    }

    pub(super) fn launch_ranks(&self) -> bool {
        self.ranks || self.flags.gpus.is_some()
    }

    /// Whether this process is the launcher of one of several machines.
    pub(super) fn is_launcher(&self) -> bool {
        let RankFlags {
            node_rank,
            rendezvous,
            store,
            ..
        } = self.flags;
        self.nodes || node_rank.is_some() || rendezvous.is_some() || store.is_some()
    }

    /// `None` for commands that take no notice of `srun` and its like.
    pub(super) fn of(command: &'a Command) -> Option<Self> {
        match command {
            Command::Train(train) if !train.list && !train.plan => {
                Some(Self::new(&train.ranks, &train.keys))
            }
            Command::Eval(eval) => Some(Self::new(&eval.trained.ranks, &eval.trained.keys)),
            Command::Predict(predict) => {
                Some(Self::new(&predict.trained.ranks, &predict.trained.keys))
            }
            _ => None,
        }
    }
}

/// Says that the only task of `srun` and its like starts the ranks of a run that it resumes, which had `ranks` on each of `nodes`
/// machines.
pub(crate) fn say_who_starts_ranks(ranks: usize, nodes: usize) {
    let started_by = RankEnvironment::only_task(variable);
    if let Some(started_by) = started_by.filter(|_| ranks.saturating_mul(nodes) > 1) {
        say_error!("{}", who_starts_ranks(ranks, nodes, started_by));
    }
}

fn who_starts_ranks(ranks: usize, nodes: usize, started_by: StartedBy) -> String {
    let this = match started_by {
        StartedBy::Variables => "the only one by WORLD_SIZE=1".to_owned(),
        launcher => format!("the only task of {launcher}"),
    };
    match nodes {
        1 => format!(
            "the run has {ranks} ranks, which this process starts, {this}; --ranks 1 continues it on one"
        ),
        _ => {
            let all = ranks.saturating_mul(nodes);
            format!(
                "the run had {all} ranks ({nodes} nodes x {ranks}); this process, {this}, starts {ranks}; --ranks {all} \
                 starts as many as it had"
            )
        }
    }
}

/// Says that a run of `ranks` ranks continues on as many as another launcher has started.
pub(crate) fn say_who_has_started(environment: &RankEnvironment, ranks: usize) {
    let world_size = environment.world_size;
    if environment.rank == 0 && world_size != ranks {
        let why = match environment.origin.started_by {
            StartedBy::Variables => "as WORLD_SIZE says".to_owned(),
            launcher => format!("as many as {launcher} has started"),
        };
        let had = counted(ranks, "rank");
        say_error!("the run has {had}, and continues on {world_size}, {why}");
    }
}

/// What to do about variables of a rank where ranks are to be started.
pub(super) const LEFT_OVER: &str = "unset RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT if they are left over from another job; else leave \
                         --ranks, --gpus and the flags of several machines out";

/// What to do about flags that start ranks in a rank of torchrun.
pub(super) const IN_TORCHRUN: &str = "leave --ranks and the flags of machines out, for torchrun has started the ranks (EVERBURN_OPEN_STORE=1 torchrun ... \
     --no-python everburn ...); or start everburn without torchrun";

pub(super) fn launches_in_a_rank(environment: &RankEnvironment, given: &AboutRanks) -> CliError {
    let named = given.named();
    let verb = if named.len() == 1 { "is" } else { "are" };
    let named = named.join(", ");
    CliError::usage_with_help(
        format!(
            "{named} {verb} given, but this is a rank already: {}",
            environment.announcement()
        ),
        match environment.origin.started_by {
            StartedBy::Variables => LEFT_OVER.to_owned(),
            StartedBy::Torchrun => IN_TORCHRUN.to_owned(),
            _ => format!(
                "leave {named} out; or start one process per machine, with --nodes, --node-rank and --rendezvous; or set \
                 EVERBURN_LAUNCHER=none"
            ),
        },
    )
}

/// Whether this process is a rank that another launcher or a person has started: what continues it is no command of its own.
pub(crate) fn is_of_another_launcher() -> bool {
    let rank = RankEnvironment::detect(variable).ok().flatten();
    rank.is_some_and(|rank| rank.origin.started_by != StartedBy::Everburn)
}

/// What to do about `--nodes` without `--node-rank` in a rank of `srun` and its like, by the variables of the environment.
pub(crate) fn help_with_nodes(lookup: impl Fn(&str) -> Option<String>) -> Option<String> {
    let environment = RankEnvironment::detect(lookup).ok().flatten()?;
    let started_by = environment.origin.started_by;
    let number = match started_by {
        StartedBy::Slurm => "$SLURM_NODEID",
        _ => "I",
    };
    started_by.is_foreign().then(|| {
        format!(
            "{started_by} has started {} ranks: leave --nodes out; or have it start one task per node, with --node-rank {number} \
             --rendezvous HOST:PORT",
            environment.world_size
        )
    })
}

#[cfg(test)]
mod tests {
    use everburn_tests::lookup;

    use super::*;

    #[test]
    fn the_only_task_says_how_many_ranks_a_run_of_several_nodes_had() {
        let text = |nodes| who_starts_ranks(2, nodes, StartedBy::Slurm);
        assert!(text(1).starts_with("the run has 2 ranks, which this process starts, the only"));
        let several = "the run had 4 ranks (2 nodes x 2); this process, the only task of srun (Slurm), starts 2; --ranks 4";
        assert!(text(2).starts_with(several), "{}", text(2));
    }

    #[test]
    fn a_task_of_srun_is_helped_with_nodes_by_its_number_of_ranks() {
        let task = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NODEID", "0"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
            ("SLURM_STEP_NODELIST", "n[1-2]"),
            ("EVERBURN_OPEN_STORE", "1"),
        ];
        let help = help_with_nodes(lookup(&task)).unwrap();
        let begin = "srun (Slurm) has started 4 ranks: leave --nodes out; or have it start one task per node";
        assert!(help.starts_with(begin), "{help}");
        let flags = "--node-rank $SLURM_NODEID --rendezvous";
        assert!(help.contains(flags), "{help}");
        assert_eq!(help_with_nodes(lookup(&[])), None);
    }
}

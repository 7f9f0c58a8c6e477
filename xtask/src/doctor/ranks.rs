//! Starts the ranks of an examination and collects what they say.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use miette::miette;
use serde_json::Value;

use super::Options;
use super::report::{Problem, Report};
use crate::bench::job::random_token;
use crate::bench::process::{Children, Failure, forget_ranks};
use crate::bench::team::Team;
use crate::bench::temporary_folder;
use crate::binary;

/// How long the store may take to say where it is.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// How long ranks may take to end once they have answered.
const ENDING: Duration = Duration::from_secs(15);

/// What the ranks of this machine said.
pub(super) struct Examined {
    pub(super) table: String,
    pub(super) problems: Vec<Problem>,
}

/// Examines the ways between the ranks of all machines; `None` where the ranks do not build.
pub(super) fn examine(options: &Options) -> miette::Result<Option<Examined>> {
    if options.node_rank >= options.nodes {
        return Err(miette!(
            help = "machines are numbered from 0",
            "--node-rank {} of --nodes {}",
            options.node_rank,
            options.nodes
        ));
    }
    let Some(program) = binary::measure()? else {
        return Ok(None);
    };
    let answers = answers(options, &program).map_err(|failure| miette!("{failure}"))?;
    Ok(Some(read(&answers)))
}

fn answers(options: &Options, program: &Path) -> Result<Vec<Value>, Failure> {
    let children = Children::listen()?;
    let folder = temporary_folder()?;
    let meeting = Meeting::of(options, &children, program, folder.path())?;
    let ranks = (0..options.ranks_here()).map(|local_rank| {
        let mut command = command(program);
        let rank = usize::from(options.node_rank) * options.ranks_here() + local_rank;
        for (name, value) in [
            ("RANK", rank),
            ("WORLD_SIZE", options.world_size()),
            ("LOCAL_RANK", local_rank),
        ] {
            command.env(name, value.to_string());
        }
        command
            .args(["doctor", "--timeout", &options.timeout.to_string()])
            .env("MASTER_ADDR", &meeting.host)
            .env("MASTER_PORT", &meeting.port)
            .env("EVERBURN_LAUNCHER_PID", std::process::id().to_string());
        if meeting.store.is_some() {
            command.env("TORCHELASTIC_USE_AGENT_STORE", "True");
        }
        if let Some(token) = &meeting.token {
            command.env("EVERBURN_JOB_TOKEN", token);
        }
        command
    });
    let mut team = Team::start(&children, "doctor", ranks.collect(), folder.path())?;
    let answers = team.answers(patience(options))?;
    team.finish(ENDING)?;
    if let Some(store) = meeting.store {
        store.finish(ENDING)?;
    }
    Ok(answers)
}

/// A rank finds by its own deadlines who is missing; this is for one that does not find anything.
/// Every pair has two turns, and each turn may take the whole timeout.
fn patience(options: &Options) -> Duration {
    let ranks = u32::try_from(options.world_size()).unwrap_or(u32::MAX);
    let turns = ranks.saturating_mul(ranks).saturating_add(6);
    Duration::from_secs(options.timeout.into()).saturating_mul(turns)
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    forget_ranks(&mut command);
    command.env_remove("TORCHELASTIC_USE_AGENT_STORE");
    command.env_remove("TORCHELASTIC_RESTART_COUNT");
    command
}

/// Where the ranks meet.
struct Meeting<'a> {
    host: String,
    port: String,
    token: Option<String>,
    /// On one machine; rank 0 serves it for several.
    store: Option<Team<'a>>,
}

impl<'a> Meeting<'a> {
    fn of(
        options: &Options,
        children: &'a Children,
        program: &Path,
        folder: &Path,
    ) -> Result<Self, Failure> {
        if let Some(given) = &options.rendezvous {
            let Some((host, port)) = given.rsplit_once(':') else {
                let what = format!("--rendezvous {given}: HOST:PORT is wanted");
                return Err(Failure::Usage(what));
            };
            let token = std::env::var("EVERBURN_JOB_TOKEN").ok();
            return Ok(Self {
                host: host.trim_matches(['[', ']']).to_owned(),
                port: port.to_owned(),
                token: token.filter(|token| !token.is_empty()),
                store: None,
            });
        }
        let token = random_token()?;
        let mut serve = command(program);
        serve
            .args(["store", "--until-input-ends", "--listen", "127.0.0.1:0"])
            .env("EVERBURN_JOB_TOKEN", &token);
        let mut store = Team::start(children, "the store", vec![serve], folder)?;
        let address = store.answers(STORE_PATIENCE)?.swap_remove(0);
        Ok(Self {
            host: address["host"].as_str().unwrap_or("127.0.0.1").to_owned(),
            port: address["port"].to_string(),
            token: Some(token),
            store: Some(store),
        })
    }
}

/// What the answers of this machine's ranks say together.
fn read(answers: &[Value]) -> Examined {
    let failed = answers.iter().filter_map(|answer| {
        let what = answer["error"].as_str()?.to_owned();
        let advice = "start the same command on every machine, each with its own --node-rank; see \
                      that machine 0's port can be reached, and that EVERBURN_JOB_TOKEN is the same";
        let advice = advice.to_owned();
        Some(Problem { what, advice })
    });
    let mut problems: Vec<Problem> = failed.collect();
    // The ranks of a machine mostly fail alike.
    problems.dedup();
    let mut table = String::new();
    if let Some(report) = answers.iter().find_map(Report::of) {
        table = report.table();
        problems.extend(report.problems());
    }
    Examined { table, problems }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_one_rank_could_not_find_out_does_not_hide_what_another_found() {
        let about = json!({ "rank": 0, "host": "a", "name": "n", "address": "127.0.0.1" });
        let found = json!([{ "about": about, "reach": [], "clock": null, "pairs": [] }]);
        let gone = json!({ "rank": 1, "error": "rank 1 waited for rank 0" });
        let examined = read(&[gone.clone(), gone, json!({ "rank": 0, "found": found })]);
        assert!(
            examined.table.starts_with("rank 0 on n"),
            "{}",
            examined.table
        );
        assert_eq!(examined.problems.len(), 1, "said twice");
        assert_eq!(examined.problems[0].what, "rank 1 waited for rank 0");
    }
}

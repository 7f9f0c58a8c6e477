//! Starts the ranks of an examination and collects what they say.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use everburn_auth::JobToken;
use everburn_collectives::store::{StoreAccess, StoreOptions, TcpStoreServer};
use everburn_launch::{Children, WorkerPool, forget_ranks, variables};
use everburn_record::Finding;

use super::super::{ToolError, failed, this_program};
use super::DoctorArguments;
use super::rank::Answer;
use super::report::{RANKS, Report};

/// How long ranks may take to end once they have answered.
const ENDING: Duration = Duration::from_secs(15);

/// What the ranks of this machine said.
pub(super) struct Examined {
    pub(super) table: String,
    pub(super) problems: Vec<Finding>,
}

/// Examines the ways between the ranks of all machines.
pub(super) fn examine(options: &DoctorArguments) -> Result<Examined, ToolError> {
    if options.node_rank >= options.nodes {
        return Err(ToolError::Usage(format!(
            "--node-rank {} of --nodes {}: machines are numbered from 0",
            options.node_rank, options.nodes
        )));
    }
    Ok(read(&answers(options, &this_program()?)?))
}

fn answers(options: &DoctorArguments, program: &Path) -> Result<Vec<Answer>, ToolError> {
    let children = Children::listen()?;
    let folder = tempfile::tempdir().map_err(failed)?;
    let meeting = Meeting::of(options)?;
    let ranks = (0..options.ranks_here()).map(|local_rank| {
        let mut command = command(program);
        let rank = usize::from(options.node_rank) * options.ranks_here() + local_rank;
        for (name, value) in [
            (variables::RANK, rank),
            (variables::WORLD_SIZE, options.world_size()),
            (variables::LOCAL_RANK, local_rank),
            (variables::LOCAL_WORLD_SIZE, options.ranks_here()),
        ] {
            command.env(name, value.to_string());
        }
        command
            .args(["doctor-rank", "--timeout", &options.timeout.to_string()])
            .env(variables::MASTER_ADDR, &meeting.host)
            .env(variables::MASTER_PORT, &meeting.port)
            .env(variables::LAUNCHER_PID, std::process::id().to_string());
        if meeting.store.is_some() {
            command.env(variables::AGENT_STORE, "True");
        }
        if let Some(token) = &meeting.token {
            command.env(variables::JOB_TOKEN, token);
        }
        command
    });
    let mut team = WorkerPool::start(&children, "doctor", ranks.collect(), folder.path())?;
    let answers = team.answers(patience(options))?;
    team.finish(ENDING)?;
    let answers = answers.into_iter().map(serde_json::from_value);
    answers.collect::<Result<_, _>>().map_err(failed)
}

/// A rank finds by its own deadlines who is missing; this is for one that does not find anything.
/// Every pair has two turns, and each turn may take the whole timeout.
fn patience(options: &DoctorArguments) -> Duration {
    let ranks = u32::try_from(options.world_size()).unwrap_or(u32::MAX);
    let turns = ranks.saturating_mul(ranks).saturating_add(6);
    Duration::from_secs(options.timeout.into()).saturating_mul(turns)
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    forget_ranks(&mut command);
    command.env_remove(variables::AGENT_STORE);
    command.env_remove("TORCHELASTIC_RESTART_COUNT");
    command
}

/// Where the ranks meet.
struct Meeting {
    host: String,
    port: String,
    token: Option<String>,
    /// On one machine; rank 0 serves it for several.
    store: Option<TcpStoreServer>,
}

impl Meeting {
    fn of(options: &DoctorArguments) -> Result<Self, ToolError> {
        if let Some(given) = &options.rendezvous {
            let Some((host, port)) = given.rsplit_once(':') else {
                let what = format!("--rendezvous {given}: HOST:PORT is wanted");
                return Err(ToolError::Usage(what));
            };
            let token = std::env::var(variables::JOB_TOKEN).ok();
            return Ok(Self {
                host: host.trim_matches(['[', ']']).to_owned(),
                port: port.to_owned(),
                token: token.filter(|token| !token.is_empty()),
                store: None,
            });
        }
        let token = JobToken::random().map_err(failed)?;
        let access = StoreOptions::new(StoreAccess::Token(token.clone()));
        let store =
            TcpStoreServer::bind((Ipv4Addr::LOCALHOST, 0).into(), access).map_err(failed)?;
        let address = store.local_addr();
        Ok(Self {
            host: address.ip().to_string(),
            port: address.port().to_string(),
            token: Some(token.reveal().to_owned()),
            store: Some(store),
        })
    }
}

/// What the answers of this machine's ranks say together.
fn read(answers: &[Answer]) -> Examined {
    let failed = answers.iter().filter_map(|answer| {
        let what = answer.error.clone()?;
        let advice = "start the same command on every machine, each with its own --node-rank; see \
                      that machine 0's port can be reached, and that EVERBURN_JOB_TOKEN is the same";
        Some(Finding::fail(RANKS, what, advice))
    });
    let mut problems: Vec<Finding> = failed.collect();
    // The ranks of a machine mostly fail alike.
    problems.dedup();
    let mut table = String::new();
    if let Some(found) = answers.iter().find_map(|answer| answer.found.as_ref()) {
        let report = Report(found);
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
        let answers = [
            json!({ "rank": 1, "error": "rank 1 waited for rank 0" }),
            json!({ "rank": 2, "error": "rank 1 waited for rank 0" }),
            json!({ "rank": 0, "found": [{
                "about": { "rank": 0, "host": "a", "name": "n", "address": "127.0.0.1", "listener": "" },
                "reach": [], "clock": null, "pairs": [] }] }),
        ];
        let examined = read(&answers.map(|answer| serde_json::from_value(answer).unwrap()));
        assert!(
            examined.table.starts_with("rank 0 on n"),
            "{}",
            examined.table
        );
        assert_eq!(examined.problems.len(), 1, "said twice");
        assert_eq!(examined.problems[0].found, "rank 1 waited for rank 0");
    }
}

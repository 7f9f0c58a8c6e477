//! The command line, and monitoring without a terminal.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use everburn_auth::{GivenToken, JobToken};
use everburn_record::plain::is_unruly;
use everburn_record::{Live, Phase, RUNS, unix_time_ms};

use crate::error::MonitorError;
use crate::source::{Source, Target};
use crate::update::Update;

/// How often a run is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// How often a run that nobody has any more is looked at again, until its ranks have ended with their launcher.
const LOOKS_AFTER_END: usize = 10;

/// Monitor a run, live or finished: curves, ranks, events. Any number of monitors can attach to a run; none can
/// change it.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct MonitorCommand {
    /// The folder of the run, or HOST:PORT where it is served [default: the newest run in runs/]
    #[arg(value_name = "RUN|HOST:PORT")]
    pub run: Option<String>,

    /// Print updates as lines of JSON until the run is over; the default without a terminal
    #[arg(long)]
    pub json: bool,

    /// Serve the run to monitors on other machines; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "json")]
    pub listen: Option<String>,

    /// Print the credential of Prometheus for a run that is served with `train --prometheus`, for its `credentials_file`. It
    /// is derived from the job's token, and gives access to the figures only
    #[arg(long, conflicts_with_all = ["run", "json", "listen"])]
    pub prometheus_token: bool,

    /// The job's token, with --listen or HOST:PORT [default with --listen: a new one, which is printed]. Prefer the
    /// environment variable: other users can read command lines
    #[arg(
        long,
        env = "EVERBURN_JOB_TOKEN",
        hide_env_values = true,
        value_name = "SECRET"
    )]
    pub job_token: Option<GivenToken>,
}

impl MonitorCommand {
    /// The job's token, if one was given.
    ///
    /// # Errors
    /// [`MonitorError::Token`] if it is too short or too long.
    pub fn token(&self) -> Result<Option<JobToken>, MonitorError> {
        let given = self.job_token.as_ref().map(GivenToken::token);
        Ok(given.transpose()?.flatten())
    }

    /// Which run is meant.
    ///
    /// # Errors
    /// [`MonitorError::NoRuns`] if none was named and there is none.
    pub fn target(&self) -> Result<Target, MonitorError> {
        match &self.run {
            Some(run) => Ok(run.parse().unwrap_or_else(|never| match never {})),
            None => Target::newest_in(Path::new(RUNS)),
        }
    }
}

/// Prints what is learnt of a run, a line of JSON each, until the run is over or nobody reads any more. While a rank is stopped
/// or gives no word, `live.json` comes about every second, [as it is then](Live::as_of).
pub fn print_json(mut source: Source, output: &mut dyn Write) {
    let (mut running, mut newest) = (true, None::<Heard>);
    let mut looks_left = LOOKS_AFTER_END;
    loop {
        for update in source.poll() {
            let mut again = None;
            match &update {
                Update::Running(now) => {
                    running = *now;
                    again = newest.as_ref().and_then(Heard::held).filter(|_| running);
                }
                Update::Live(live) => {
                    let heard = newest.insert(Heard::new(live.clone(), newest.as_ref()));
                    again = heard.held();
                }
                Update::CutOff(_) => looks_left = 0,
                Update::Reset => {
                    newest = None;
                    continue;
                }
                _ => {}
            }
            let first = match (&update, &again) {
                (Update::Live(_), Some(_)) => None,
                _ => Some(update),
            };
            let lines = first.iter().chain(&again).filter_map(json_line);
            for text in lines {
                if writeln!(output, "{text}")
                    .and_then(|()| output.flush())
                    .is_err()
                {
                    return;
                }
            }
        }
        if source.has_more() {
            continue;
        }
        let ended = newest.as_ref().map(|it| it.live.phase == Phase::Ended);
        // Who holds the run may have ended without a word; who has said so may still be at its report.
        match running {
            true => looks_left = LOOKS_AFTER_END,
            false if ended == Some(false) && looks_left > 0 => looks_left -= 1,
            false => {
                tracing::debug!("the run is over; it had reported: {ended:?}");
                return;
            }
        }
        std::thread::sleep(LOOK);
    }
}

/// The newest `live.json`, and when it came by this machine's clock, in milliseconds since 1970.
struct Heard {
    live: Live,
    at_ms: u64,
}

impl Heard {
    fn new(live: Live, before: Option<&Self>) -> Self {
        let now_ms = unix_time_ms();
        let at_ms = match before {
            // What was there before anybody looked is as old as it says: by clocks of one machine, mostly.
            None => live.unix_time_ms.min(now_ms),
            Some(before) if before.live.unix_time_ms == live.unix_time_ms => before.at_ms,
            Some(_) => now_ms,
        };
        Self { live, at_ms }
    }

    /// The file as it is now, while something holds the run up.
    fn held(&self) -> Option<Update> {
        let age_ms = unix_time_ms().saturating_sub(self.at_ms);
        let now_ms = self.live.unix_time_ms.saturating_add(age_ms);
        self.live.held_up(now_ms)?;
        Some(Update::Live(self.live.as_of(now_ms)))
    }
}

/// An update as a line of JSON. What would command a terminal is escaped, beyond what JSON asks for: outside of
/// strings there are no such characters.
pub(crate) fn json_line(update: &Update) -> Option<String> {
    let text = serde_json::to_string(update).ok()?;
    if !text.chars().any(is_unruly) {
        return Some(text);
    }
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        match is_unruly(character) {
            // All of them are in the basic plane: four digits are enough.
            true => line.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => line.push(character),
        }
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_commands_no_terminal_and_says_the_same() {
        use everburn_record::{Event, EventKind};
        let text = "a\u{1b}[2J\u{9b}2J\u{202e}\u{7f}\n\u{2028}b\"\\ü";
        let update = Update::Event(Event::new(EventKind::Warning, text));
        let line = json_line(&update).unwrap();
        assert!(!line.chars().any(is_unruly), "{line}");
        assert_eq!(serde_json::from_str::<Update>(&line).unwrap(), update);
    }

    /// Takes lines until one of them has this text, or for 30 s.
    struct Until(&'static str, Vec<u8>, std::time::Instant);

    impl Write for Until {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.1.extend_from_slice(bytes);
            let text = String::from_utf8_lossy(&self.1);
            let has_come = text.lines().any(|line| line.contains(self.0));
            match has_come || self.2.elapsed() > Duration::from_secs(30) {
                true => Err(std::io::ErrorKind::BrokenPipe.into()),
                false => Ok(bytes.len()),
            }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_rank_0_that_is_stopped_is_not_alive_and_as_silent_as_its_file_is_old() {
        use everburn_record::{LiveRank, proc};
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let run = everburn_tests::Run::begin(folder.path());
        // The run has begun before its state was written.
        let begun = std::time::SystemTime::now() - Duration::from_secs(60);
        let config = std::fs::File::options().write(true).open(at("config.toml"));
        config.unwrap().set_modified(begun).unwrap();
        let _owner = run.hold();
        let mut sleep = std::process::Command::new("sleep");
        let child = everburn_tests::StoppedProcess::start(sleep.arg("60"));
        let rank = |rank, pid| LiveRank {
            rank,
            alive: true,
            pid: Some(pid),
            host: proc::host_name(),
            ..LiveRank::default()
        };
        let live = Live {
            unix_time_ms: unix_time_ms() - 3_000,
            phase: Phase::Training,
            ranks: vec![rank(0, child.id()), rank(1, std::process::id())],
            ..Live::default()
        };
        live.write(&at(Live::FILE)).unwrap();
        let source = Target::Folder(folder.path().into()).open(None).unwrap();
        let begun = std::time::Instant::now();
        let mut lines = Until(r#""stopped":true"#, Vec::new(), begun);
        print_json(source, &mut lines);
        let text = String::from_utf8(lines.1).unwrap();
        let Update::Live(live) = serde_json::from_str(text.lines().last().unwrap()).unwrap() else {
            panic!("{text}")
        };
        let [first, second] = live.ranks.as_slice() else {
            panic!("{text}")
        };
        assert!(
            first.stopped && !first.alive && first.silent_seconds >= Some(3.0),
            "{text}"
        );
        assert!(
            !second.stopped && second.alive && second.silent_seconds.is_none(),
            "{text}"
        );
    }

    #[test]
    fn a_token_is_not_shown_and_an_empty_one_is_none() {
        let mut command = MonitorCommand {
            run: None,
            json: false,
            listen: None,
            prometheus_token: false,
            job_token: "0123456789abcdef".parse().ok(),
        };
        let shown = format!("{command:?} {:?}", command.token().unwrap());
        assert!(!shown.contains("0123"), "{shown}");
        command.job_token = "short".parse().ok();
        let error = command.token().unwrap_err().to_string();
        assert!(
            error.contains("5 bytes") && !error.contains("short"),
            "{error}"
        );
        command.job_token = Some(GivenToken::default());
        assert_eq!(command.token(), Ok(None));
    }
}

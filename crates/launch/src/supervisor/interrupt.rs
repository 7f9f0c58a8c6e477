//! A request to stop the job: a signal to the launcher.

use std::time::Instant;

use everburn_record::ranks;
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT};

use super::writing::Longer;
use super::{Plan, Supervisor};
use crate::early_stop::name_of;
use crate::event::LaunchEvent;
use crate::outcome::EndedRank;
use crate::ranks::RunningRank;
use crate::stop::asks_again;

impl Supervisor<'_> {
    /// Whether a signal has asked the launcher to stop the job.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.interrupted.is_some()
    }

    /// The signal that has asked the launcher to stop the job.
    pub(super) fn interrupted_by(&self) -> Option<i32> {
        self.interrupted.map(|(signal, _)| signal)
    }

    /// Whether a rank's end is no failure. A request to stop is obeyed by ending with 0.
    pub(super) fn ends_well(&self, ended: &EndedRank) -> bool {
        let obeys = self.was_interrupted() && ended.exit.is_success();
        ended.has_finished() || ended.was_stopped() || obeys
    }

    /// A first signal asks the ranks to stop after their step, a second one ends them; SIGQUIT does at once.
    pub(super) fn interrupt(&mut self, signal: i32) {
        let name = name_of(signal);
        if signal == SIGQUIT {
            self.interrupted.get_or_insert((signal, Instant::now()));
            self.say_stopping(name, format!("{name}: all ranks are ended at once"));
            self.kill_all();
            return;
        }
        if let Some((SIGQUIT, first)) = self.interrupted
            && signal == SIGINT
        {
            // `RankEnvironment::kill_job` sends both at once, and they may be seen in the other order.
            self.interrupted = Some((SIGINT, first));
            return;
        }
        if let Some((_, first)) = self.interrupted {
            // A terminal that is closed may say so twice, by itself and by its shell: nobody has asked again.
            if signal != SIGHUP && asks_again(first, Instant::now()) {
                self.say_stopping(name, format!("{name} again: all ranks are ended at once"));
                self.kill_all();
            }
            return;
        }
        let by = format!("{name} at machine {}", self.config.node_rank);
        match &self.elastic {
            Some(elastic) => elastic.request_stop(by),
            None => self.leave_word_of_stop(&by),
        }
        self.stop(signal, name);
    }

    /// Asks the ranks to stop after their step, because of `signal`, `by` which the user knows it.
    pub(super) fn stop(&mut self, signal: i32, by: &str) {
        self.interrupted = Some((signal, Instant::now()));
        self.cancel_restarts();
        let patience = self.config.stop_patience.as_secs_f64();
        let idle = match self.config.step_limit {
            Some(_) => "neither compute nor save",
            None => "save nothing",
        };
        let text = format!(
            "stopping on {by}, after the current step; once more ends all ranks at once. Ranks that still run after \
             {patience:.0} s, and {idle}, are ended"
        );
        self.say_stopping(by, text);
        let now = Instant::now();
        self.writing.begin(now, &self.processes());
        self.signal_all(Signal::TERM);
        self.plan = match self.plan {
            Plan::Train => Plan::Stopping(now + self.config.stop_patience),
            Plan::Grace(_) => Plan::Terminating(now + self.config.kill_after),
            already_ending => already_ending,
        };
        self.give_up_if_stopped_while_waiting();
    }

    pub(super) fn say_stopping(&self, by: &str, text: String) {
        if !self.dashboard {
            // It would be written across the dashboard, which ends after the step.
            tracing::info!("{text}");
        }
        let by = by.to_owned();
        (self.tell)(&LaunchEvent::Stopping { by, text });
    }

    /// Gives the ranks longer to stop while one computes, or saves, as a checkpoint; else kills them.
    pub(super) fn wait_for_those_that_work(&mut self) {
        let now = Instant::now();
        let is_first = self.writing.late(now).0.is_zero();
        let longer = match self.writing.extend(now, &self.processes()) {
            Some(Longer::Saves(longer)) => longer,
            Some(Longer::Computes(longer, most)) => {
                if let Some(signal) = self.interrupted_by().filter(|_| is_first) {
                    let text = format!(
                        "still within a step after {:.0} s: {}; as long as one computes they are waited for, {:.0} s more \
                         at most; once more ends all ranks at once",
                        self.config.stop_patience.as_secs_f64(),
                        ranks(&self.left()),
                        most.as_secs_f64()
                    );
                    self.say_stopping(name_of(signal), text);
                }
                longer
            }
            None => return self.kill_those_not_stopped(now),
        };
        self.plan = Plan::Stopping(now + longer);
    }

    /// The ranks that run.
    pub(super) fn left(&self) -> Vec<usize> {
        let left = self.running.iter().flatten().map(|rank| rank.rank);
        left.collect()
    }

    /// The processes of the ranks that run.
    pub(super) fn processes(&self) -> Vec<u32> {
        let running = self.running.iter().flatten();
        running.map(RunningRank::process_id).collect()
    }

    /// Kills the ranks that still run though they had long enough to stop.
    fn kill_those_not_stopped(&mut self, now: Instant) {
        let left = self.left();
        let (late, saved) = self.writing.late(now);
        let within = self.config.stop_patience + late;
        let cause = match saved {
            true => {
                "A rank still saved: check how fast the disk of the run directory is, and how busy the cores are"
            }
            false => "A rank that hangs keeps the others from the end of the step",
        };
        let text = format!(
            "not stopped within {:.0} s: {}; all are ended, and steps since the newest checkpoint are lost. {cause}",
            within.as_secs_f64(),
            ranks(&left)
        );
        tracing::warn!("{text}");
        (self.tell)(&LaunchEvent::NotStopped { ranks: left, text });
        self.kill_all();
    }
}

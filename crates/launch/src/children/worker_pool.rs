//! A pool of worker processes, one per rank: an order goes to all, and each answers.
//!
//! The processes live as long as their pool, so that two pools can be measured in turn without
//! starting either again. An idle process waits for a line and costs nothing.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::running::{LOOK, Running};
use super::{ChildError, Children, last_lines, text_of};

/// How long processes may take to end once they are asked to, or one of them has failed.
const ENDING: Duration = Duration::from_secs(10);

/// Processes that answer in lines of JSON, in rank order. Those which are left when the pool is dropped get SIGTERM, and after
/// 10 seconds SIGKILL.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use std::process::Command;
/// use std::time::Duration;
/// use everburn::launch::{Children, WorkerPool};
///
/// let children = Children::listen()?;
/// let folder = tempfile::tempdir()?;
/// // `cat` answers each order with the order itself.
/// let commands = vec![Command::new("cat"), Command::new("cat")];
/// let mut pool = WorkerPool::start(&children, "cats", commands, folder.path())?;
/// let order = serde_json::json!({ "number": 7 });
/// let answers = pool.ask(&order, Duration::from_secs(60))?;
/// assert_eq!(answers, [order.clone(), order]);
/// pool.finish(Duration::from_secs(60))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct WorkerPool<'a> {
    name: String,
    children: &'a Children,
    workers: Vec<PoolWorker>,
    events: Receiver<(usize, Event)>,
}

#[derive(Debug)]
struct PoolWorker {
    running: Running,
    stdin: Option<ChildStdin>,
    stderr: PathBuf,
    answers: VecDeque<Value>,
    ended: bool,
}

#[derive(Debug)]
enum Event {
    Answer(Value),
    End,
}

impl<'a> WorkerPool<'a> {
    /// Starts one process per command. Their standard error goes to files in `folder`.
    ///
    /// # Errors
    /// [`ChildError`] if one cannot be started, or a signal has come.
    pub fn start(
        children: &'a Children,
        name: impl Into<String>,
        commands: Vec<Command>,
        folder: &Path,
    ) -> Result<Self, ChildError> {
        let (sender, events) = mpsc::channel();
        let mut pool = Self {
            name: name.into(),
            children,
            workers: Vec::new(),
            events,
        };
        for (rank, command) in commands.into_iter().enumerate() {
            children.check_interrupted()?;
            let started = PoolWorker::start(rank, command, folder, sender.clone());
            let worker = started.map_err(|error| {
                ChildError::new(format!(
                    "rank {rank} of {} cannot be started: {error}",
                    pool.name
                ))
            })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Stops all processes until [`WorkerPool::resume`]: threads that spin for their next work, as PyTorch's do for up
    /// to a quarter of a second, would take cores from another pool that is being measured.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets all processes continue.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        for worker in &self.workers {
            worker.running.signal(signal);
        }
    }

    /// Gives `order` to all and returns the answer of each.
    ///
    /// # Errors
    /// [`ChildError`] if a process fails or does not answer within `timeout`, or a signal comes.
    pub fn ask(&mut self, order: &Value, timeout: Duration) -> Result<Vec<Value>, ChildError> {
        let line = format!("{order}\n");
        for rank in 0..self.workers.len() {
            let written = match &mut self.workers[rank].stdin {
                Some(stdin) => stdin.write_all(line.as_bytes()),
                None => Err(std::io::ErrorKind::BrokenPipe.into()),
            };
            if written.is_err() {
                return Err(self.failure_of(rank));
            }
        }
        self.answers(timeout)
    }

    /// The next answer of each.
    ///
    /// # Errors
    /// [`ChildError`] if a process fails or does not answer within `timeout`, or a signal comes.
    pub fn answers(&mut self, timeout: Duration) -> Result<Vec<Value>, ChildError> {
        let deadline = Instant::now() + timeout;
        while let Some(rank) = self.silent() {
            if self.workers[rank].ended {
                return Err(self.failure_of(rank));
            }
            self.next_event(deadline, timeout)?;
        }
        let first = |worker: &mut PoolWorker| worker.answers.pop_front();
        Ok(self.workers.iter_mut().filter_map(first).collect())
    }

    /// Lets the processes end by themselves, and returns what rank 0 has still said.
    ///
    /// # Errors
    /// [`ChildError`] if a process fails or does not end within `timeout`, or a signal comes.
    pub fn finish(mut self, timeout: Duration) -> Result<Vec<Value>, ChildError> {
        for worker in &mut self.workers {
            worker.stdin = None;
        }
        let deadline = Instant::now() + timeout;
        while self.workers.iter().any(|worker| !worker.ended) {
            self.next_event(deadline, timeout)?;
        }
        for rank in 0..self.workers.len() {
            let status = self.workers[rank].running.finish(ENDING);
            if !status.is_ok_and(|status| status.success()) {
                return Err(self.failure_of(rank));
            }
        }
        let said = self.workers.first_mut().map(|first| &mut first.answers);
        Ok(said
            .map(|answers| answers.drain(..).collect())
            .unwrap_or_default())
    }

    /// The first rank that owes an answer; one that has ended comes first, because it is why.
    fn silent(&self) -> Option<usize> {
        let silent = |worker: &&PoolWorker| worker.answers.is_empty();
        let ended = self
            .workers
            .iter()
            .position(|worker| silent(&worker) && worker.ended);
        ended.or_else(|| self.workers.iter().position(|worker| silent(&worker)))
    }

    fn next_event(&mut self, deadline: Instant, timeout: Duration) -> Result<(), ChildError> {
        loop {
            self.children.check_interrupted()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let silent = self.silent().unwrap_or_default();
                return Err(ChildError::Silent {
                    name: self.name.clone(),
                    rank: silent,
                    timeout,
                    last_words: self.last_words(silent),
                });
            }
            match self.events.recv_timeout(left.min(LOOK)) {
                Ok((rank, Event::Answer(answer))) => {
                    self.workers[rank].answers.push_back(answer);
                    return Ok(());
                }
                Ok((rank, Event::End)) => {
                    self.workers[rank].ended = true;
                    return Ok(());
                }
                // Every reader says `End` before it lets go of its sender.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    fn failure_of(&mut self, rank: usize) -> ChildError {
        // The end of a rank may be our own Ctrl-C's doing.
        if let Err(interrupted) = self.children.check_interrupted() {
            return interrupted;
        }
        let status = match self.workers[rank].running.finish(ENDING) {
            Ok(status) => status.to_string(),
            Err(error) => format!("its status is not known: {error}"),
        };
        ChildError::new(format!(
            "rank {rank} of {} has failed ({status}); its last words:\n{}",
            self.name,
            self.last_words(rank)
        ))
    }

    fn last_words(&self, rank: usize) -> String {
        last_lines(&text_of(&self.workers[rank].stderr))
    }
}

impl Drop for WorkerPool<'_> {
    /// Gently: `mpirun` ends its ranks, and removes the files of their shared memory.
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        // Processes that are paused get the signal when they continue.
        self.resume();
        let start = Instant::now();
        let left = |worker: &PoolWorker| !worker.running.has_ended();
        while self.workers.iter().any(left) && start.elapsed() < ENDING {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl PoolWorker {
    fn start(
        rank: usize,
        mut command: Command,
        folder: &Path,
        events: Sender<(usize, Event)>,
    ) -> std::io::Result<Self> {
        let (file, stderr) = tempfile::Builder::new()
            .prefix(&format!("rank-{rank}-"))
            .tempfile_in(folder)?
            .keep()
            .map_err(|error| error.error)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            // A group of its own: a Ctrl-C of the terminal reaches only us, and we reach all of it.
            .process_group(0);
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let running = Running::new(child);
        if let Some(stdout) = stdout {
            thread::Builder::new()
                .name(format!("answers of rank {rank}"))
                .spawn(move || read_answers(rank, stdout, &events))?;
        }
        Ok(Self {
            running,
            stdin,
            stderr,
            answers: VecDeque::new(),
            ended: false,
        })
    }
}

/// Lines that are no objects of JSON are somebody's chatter.
fn read_answers(rank: usize, stdout: ChildStdout, events: &Sender<(usize, Event)>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if let Ok(answer @ Value::Object(_)) = serde_json::from_str(&line)
            && events.send((rank, Event::Answer(answer))).is_err()
        {
            // The pool is gone.
            return;
        }
    }
    // Ignores that the pool may be gone.
    let _ = events.send((rank, Event::End));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use everburn_tests::AssertContains;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shells(scripts: &[&str]) -> Vec<Command> {
        let shell = |script: &&str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        scripts.iter().map(shell).collect()
    }

    fn with_pool<R>(scripts: &[&str], test: impl FnOnce(WorkerPool) -> R) -> R {
        let folder = tempfile::tempdir().unwrap();
        let children = Children::unheard();
        test(WorkerPool::start(&children, "shells", shells(scripts), folder.path()).unwrap())
    }

    #[test]
    fn an_order_goes_to_all_and_each_answers() {
        let echo = r#"echo chatter; while read line; do echo "$line"; done; echo '{"last": 1}'"#;
        with_pool(&[echo, echo], |mut pool| {
            for number in 0..3 {
                let order = json!({ "number": number });
                let answers = pool.ask(&order, LONG);
                assert_eq!(answers, Ok(vec![order.clone(), order]));
            }
            assert_eq!(pool.finish(LONG), Ok(vec![json!({ "last": 1 })]));
        });
    }

    #[test]
    fn a_paused_team_does_nothing_until_it_is_resumed() {
        let echo = r#"while read line; do echo "$line"; done"#;
        with_pool(&[echo], |mut pool| {
            let order = json!({ "number": 1 });
            pool.pause();
            let failure = pool.ask(&order, Duration::from_millis(200)).unwrap_err();
            failure.to_string().assert_contains(["has not answered"]);
            pool.resume();
            assert_eq!(pool.answers(LONG), Ok(vec![order]));
            assert_eq!(pool.finish(LONG), Ok(vec![]));
        });
    }

    #[test]
    fn a_pool_that_is_dropped_lets_its_processes_clean_up_also_where_they_are_paused() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("cleaned up");
        let cleans_up = format!(
            "trap 'echo > \"{}\"; exit' TERM; echo '{{}}'; sleep 600 & wait",
            mark.display()
        );
        with_pool(&[cleans_up.as_str()], |mut pool| {
            pool.answers(LONG).unwrap();
            pool.pause();
            drop(pool);
        });
        assert!(mark.exists());
    }

    #[test]
    fn the_rank_that_fails_is_named_with_its_last_words() {
        let waits = "while read line; do :; done";
        let fails = "echo why >&2; exit 3";
        with_pool(&[waits, fails], |mut pool| {
            let failure = pool.answers(LONG).unwrap_err().to_string();
            assert!(
                failure.starts_with("rank 1 of shells has failed"),
                "{failure}"
            );
            assert!(failure.ends_with("why"), "{failure}");
        });
        with_pool(&[fails], |pool| {
            let failure = pool.finish(LONG).unwrap_err().to_string();
            assert!(failure.contains("exit status: 3"), "{failure}");
        });
    }

    #[test]
    fn a_rank_that_does_not_answer_is_named_at_the_deadline() {
        let answers = "echo '{}'; read line";
        with_pool(&[answers, "echo busy >&2; read line"], |mut pool| {
            // Time enough for rank 0 to answer.
            let failure = pool.answers(Duration::from_secs(3)).unwrap_err();
            let failure = failure.to_string();
            assert!(failure.contains("rank 1 has not answered"), "{failure}");
        });
    }
}

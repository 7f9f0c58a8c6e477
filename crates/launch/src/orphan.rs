//! Ties a rank's life to its launcher's.

use std::io::IsTerminal;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, getppid, kill_process};

use crate::error::RankEnvironmentError;
use crate::terminal::SavedTerminal;

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Makes this process end once `launcher` is no longer its parent.
pub(crate) fn guard(launcher: u32, rank: usize) -> Result<(), RankEnvironmentError> {
    if std::io::stdout().is_terminal() || !cfg!(target_os = "linux") {
        // Killed by the kernel, a dashboard would leave its terminal in raw mode.
        watch_from_a_thread(launcher, rank)?;
    } else {
        ask_the_kernel(rank)?;
    }
    // The launcher may have ended before the lines above took effect; no signal would come then.
    if is_parent(launcher) {
        Ok(())
    } else {
        Err(RankEnvironmentError::LauncherGone { launcher, rank })
    }
}

fn is_parent(launcher: u32) -> bool {
    i32::try_from(launcher).is_ok_and(|launcher| Pid::as_raw(getppid()) == launcher)
}

#[cfg(target_os = "linux")]
fn ask_the_kernel(rank: usize) -> Result<(), RankEnvironmentError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| {
        RankEnvironmentError::Guard {
            rank,
            source: error.into(),
        }
    })
}

#[cfg(not(target_os = "linux"))]
fn ask_the_kernel(_rank: usize) -> Result<(), RankEnvironmentError> {
    Ok(())
}

fn watch_from_a_thread(launcher: u32, rank: usize) -> Result<(), RankEnvironmentError> {
    let terminal = SavedTerminal::of_stdin();
    let watch = move || {
        while is_parent(launcher) {
            thread::sleep(LOOK_EVERY);
        }
        if let Some(terminal) = &terminal {
            terminal.restore(true);
        }
        // Not `exit`: its handlers could wait for threads that wait for other ranks. There is
        // nothing to be done if the kill fails: a process may always kill itself.
        let _ = kill_process(getpid(), Signal::KILL);
    };
    thread::Builder::new()
        .name("launcher-watch".into())
        .spawn(watch)
        .map(drop)
        .map_err(|source| RankEnvironmentError::Guard { rank, source })
}

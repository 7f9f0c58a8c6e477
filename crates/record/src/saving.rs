//! A mark by which a launcher sees that a process saves its work.

use std::sync::mpsc::{RecvError, Sender, channel};
use std::thread::{Builder, JoinHandle};

use crate::proc;

/// The name of the thread that is the mark: as long as Linux lets one be.
const NAME: &str = "everburn-saving";

/// While one is held, this process saves what it has computed: it prepares a checkpoint, writes one, or waits for a rank
/// that does. A launcher that has asked the process to stop gives it longer for that. The mark is a thread that does nothing,
/// so it ends with the process, however that ends.
///
/// ```
/// use everburn_record::Saving;
///
/// let saving = Saving::begin();
/// assert_eq!(Saving::is_under_way_in(std::process::id()), cfg!(target_os = "linux"));
/// drop(saving);
/// ```
#[derive(Debug)]
pub struct Saving(Option<(Sender<()>, JoinHandle<()>)>);

impl Saving {
    /// Sets the mark, which the end of the value takes away. Where there can be no thread, there is no mark.
    pub fn begin() -> Self {
        let (begin, begun) = channel();
        let (end, ended) = channel();
        let wait = move || {
            drop(begin);
            let _: Result<(), RecvError> = ended.recv();
        };
        let thread = Builder::new().name(NAME.to_owned()).spawn(wait);
        // It has its name from here on.
        let _: Result<(), RecvError> = begun.recv();
        Self(thread.ok().map(|thread| (end, thread)))
    }

    /// Whether the process with this id saves.
    pub fn is_under_way_in(process: u32) -> bool {
        let mut threads = proc::thread_names_of(process).into_iter();
        threads.any(|(_, name)| name == NAME)
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// A thread is listed for a moment after it was joined.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_saves_while_a_mark_is_held() {
        let own = std::process::id();
        let (first, second) = (Saving::begin(), Saving::begin());
        assert!(Saving::is_under_way_in(own));
        drop(first);
        assert!(Saving::is_under_way_in(own));
        drop(second);
        let deadline = Instant::now() + Duration::from_secs(20);
        while Saving::is_under_way_in(own) {
            assert!(Instant::now() < deadline, "the mark stays");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!Saving::is_under_way_in(u32::MAX));
    }
}

//! What Linux tells in `/proc` of this machine and its processes: memory, CPUs, names, locks.
//!
//! A function returns `None` where the system does not tell, as on other systems than Linux. Memory is in bytes.

mod cpu_time;

use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::time::Duration;

pub use cpu_time::CpuTime;

/// The memory that is available without swapping (`MemAvailable`), in bytes.
pub fn available_memory() -> Option<u64> {
    bytes_in(&text("/proc/meminfo")?, "MemAvailable")
}

/// The machine's memory (`MemTotal`), in bytes.
pub fn total_memory() -> Option<u64> {
    bytes_in(&text("/proc/meminfo")?, "MemTotal")
}

/// The resident set of this process (`VmRSS`), in bytes. The kernel adds it up from counters of each thread, which may
/// be some hundred KiB after.
pub fn resident_memory() -> Option<u64> {
    bytes_in(&text("/proc/self/status")?, "VmRSS")
}

/// The resident set of this process, counted page by page (`smaps_rollup`), in bytes: exact and slow.
pub fn counted_resident_memory() -> Option<u64> {
    bytes_in(&text("/proc/self/smaps_rollup")?, "Rss")
}

/// How many bytes the pages of `memory` have that are resident or swapped out (`pagemap`): memory that nobody has written
/// since the system gave it has none.
pub fn resident_bytes_of(memory: &[MaybeUninit<u8>]) -> Option<usize> {
    /// The bits of a page that is in memory, or swapped out.
    const HELD: u64 = 0b11 << 62;
    let page = page_size()?;
    let addresses = memory.as_ptr_range();
    let first = addresses.start.addr() / page;
    let pages = addresses.end.addr().div_ceil(page) - first;
    let mut entries = vec![0; pages * size_of::<u64>()];
    let file = File::open("/proc/self/pagemap").ok()?;
    let place = (first * size_of::<u64>()) as u64;
    file.read_exact_at(&mut entries, place).ok()?;
    let (entries, _) = entries.as_chunks();
    let held = entries.iter();
    let held = held.filter(|entry| u64::from_ne_bytes(**entry) & HELD != 0);
    Some(held.count() * page)
}

/// The size of a page in bytes (`AT_PAGESZ`).
fn page_size() -> Option<usize> {
    at_start(6)
}

/// The number that the kernel gave this process at its start under `key` (`auxv`).
fn at_start(key: usize) -> Option<usize> {
    let words = fs::read("/proc/self/auxv").ok()?;
    let (words, _) = words.as_chunks();
    let words = words.iter().map(|word| usize::from_ne_bytes(*word));
    let words = words.collect::<Vec<_>>();
    let mut pairs = words.chunks_exact(2);
    pairs.find(|pair| pair[0] == key).map(|pair| pair[1])
}

/// The largest resident set that this process has had (`VmHWM`), in bytes.
pub fn peak_memory() -> Option<u64> {
    // Not by this process's id: `/proc` may be that of another namespace.
    bytes_in(&text("/proc/self/status")?, "VmHWM")
}

/// The largest resident set that the process with this id has had (`VmHWM`), in bytes; `None` when it has ended.
pub fn peak_memory_of(process: u32) -> Option<u64> {
    bytes_in(&text(&format!("/proc/{process}/status"))?, "VmHWM")
}

/// Makes [`peak_memory`] begin again at what it has now.
pub fn restart_peak_memory() {
    // A system that refuses leaves the peak since the start of the process: larger, not wrong.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// How many processes the kernel has killed because memory ran out, since the machine was started.
pub fn memory_kills() -> Option<u64> {
    let text = text("/proc/vmstat")?;
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "))?;
    count.trim().parse().ok()
}

/// The CPU's name, such as `Intel(R) Xeon(R) Platinum 8480C`.
pub fn cpu_name() -> Option<String> {
    Some(value_in(&text("/proc/cpuinfo")?, "model name")?.to_owned())
}

/// How many logical CPUs the machine has, whether or not this process may use them.
pub fn cpus() -> Option<usize> {
    let text = text("/proc/cpuinfo")?;
    let cpus = text.lines().filter(|line| line.starts_with("processor"));
    Some(cpus.count()).filter(|count| *count > 0)
}

/// The machine's name.
pub fn host_name() -> Option<String> {
    first_line("/proc/sys/kernel/hostname")
}

/// The kernel's version.
pub fn kernel_release() -> Option<String> {
    first_line("/proc/sys/kernel/osrelease")
}

/// A random number that tells one start of one machine from all others.
pub fn boot_id() -> Option<String> {
    first_line("/proc/sys/kernel/random/boot_id")
}

/// How long the calling thread has been ready to run without a CPU (`schedstat`).
pub fn time_without_cpu() -> Option<Duration> {
    let text = text("/proc/thread-self/schedstat")?;
    let nanoseconds = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// The ids and names of this process's threads.
pub fn thread_names() -> Vec<(u32, String)> {
    // Not by this process's id: `/proc` may be that of another namespace.
    thread_names_in("/proc/self/task")
}

/// How many threads the process with this id has (`Threads`); `None` when it has ended.
pub fn threads_of(process: u32) -> Option<usize> {
    let status = text(&format!("/proc/{process}/status"))?;
    value_in(&status, "Threads")?.parse().ok()
}

/// The ids and names of the threads of the process with this id.
pub fn thread_names_of(process: u32) -> Vec<(u32, String)> {
    thread_names_in(&format!("/proc/{process}/task"))
}

fn thread_names_in(tasks: &str) -> Vec<(u32, String)> {
    let named = numbered(tasks).into_iter().filter_map(|thread| {
        let name = first_line(&format!("{tasks}/{thread}/comm"))?;
        Some((thread, name))
    });
    named.collect()
}

/// The ids of all processes with their command lines, words separated by spaces. A process that has ended and is not
/// reaped has none.
pub fn command_lines() -> Vec<(u32, String)> {
    let processes = numbered("/proc").into_iter();
    let told = processes.filter_map(|process| {
        let line = fs::read(format!("/proc/{process}/cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        Some((process, line)).filter(|(_, line)| !line.is_empty())
    });
    told.collect()
}

/// The ids of the processes that were started with this environment variable, with its value, as far as this user may see it.
///
/// ```
/// let found = everburn_record::proc::with_variable("PATH");
/// assert!(found.iter().all(|(_, value)| !value.starts_with("PATH=")));
/// ```
pub fn with_variable(name: &str) -> Vec<(u32, String)> {
    let begin = format!("{name}=");
    let processes = numbered("/proc").into_iter();
    let found = processes.filter_map(|process| {
        let all = fs::read(format!("/proc/{process}/environ")).ok()?;
        let mut all = all.split(|byte| *byte == 0);
        let value = all.find_map(|one| one.strip_prefix(begin.as_bytes()))?;
        Some((process, String::from_utf8_lossy(value).into_owned()))
    });
    found.collect()
}

/// Whether the process with this id has ended, reaped or not.
pub fn has_ended(process: u32) -> bool {
    let stat = text(&format!("/proc/{process}/stat"));
    stat.is_none_or(|stat| matches!(stat_words(&stat).next(), None | Some("Z" | "X")))
}

/// Whether the process with this id is stopped, as by SIGSTOP. One that waits for a core, or that a debugger holds,
/// is not.
pub fn is_stopped(process: u32) -> bool {
    let stat = text(&format!("/proc/{process}/stat"));
    stat.is_some_and(|stat| stat_words(&stat).next() == Some("T"))
}

/// How many bytes the process with this id has written so far, to whatever file (`wchar`).
///
/// ```
/// let process = std::process::id();
/// let before = everburn_record::proc::written_bytes_of(process);
/// std::fs::write(tempfile::NamedTempFile::new()?.path(), [0; 4096])?;
/// let after = everburn_record::proc::written_bytes_of(process);
/// assert!(after.zip(before).is_none_or(|(after, before)| after >= before + 4096));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn written_bytes_of(process: u32) -> Option<u64> {
    value_in(&text(&format!("/proc/{process}/io"))?, "wchar")?
        .parse()
        .ok()
}

/// How long the threads of the process with this id have run, or waited for a core to run on (`schedstat`). `None` where the
/// system does not tell.
///
/// ```
/// use everburn_record::proc::busy_time_of;
///
/// let process = std::process::id();
/// let before = busy_time_of(process);
/// assert!(before.zip(busy_time_of(process)).is_none_or(|(before, after)| before <= after));
/// ```
pub fn busy_time_of(process: u32) -> Option<Duration> {
    let threads = format!("/proc/{process}/task");
    let of_thread = |thread| {
        let text = text(&format!("{threads}/{thread}/schedstat"))?;
        let times = text.split_whitespace().take(2);
        times
            .map(|word| word.parse::<u64>().ok())
            .sum::<Option<u64>>()
    };
    let times = numbered(&threads).into_iter().filter_map(of_thread);
    times
        .reduce(|sum, time| sum + time)
        .map(Duration::from_nanos)
}

/// Whether a thread of the process with this id waits in the kernel and cannot be interrupted, as for a disk.
pub fn waits_for_disk(process: u32) -> bool {
    let threads = format!("/proc/{process}/task");
    let mut stats = numbered(&threads).into_iter();
    stats.any(|thread| {
        let stat = text(&format!("{threads}/{thread}/stat"));
        stat.is_some_and(|stat| stat_words(&stat).next() == Some("D"))
    })
}

/// When the process with this id was started, in ticks of the kernel since the machine was. Ids come again; id and
/// start together do not.
pub fn start_of(process: u32) -> Option<u64> {
    // The twentieth word after the name.
    stat_words(&text(&format!("/proc/{process}/stat"))?)
        .nth(19)?
        .parse()
        .ok()
}

/// Whether some process holds an flock(2) lock of the file with this inode. No lock is taken to find out: to take it,
/// if only for a moment, could keep its owner out.
pub fn is_locked(inode: u64) -> bool {
    // The kernel gives the list in pieces, which may lack a lock where others are released meanwhile.
    (0..LOOKS).any(|_| {
        let locks = text("/proc/locks").unwrap_or_default();
        locks.lines().any(|line| is_lock_of(line, inode))
    })
}

/// How often a lock is looked for.
const LOOKS: usize = 3;

/// The process that holds an flock(2) lock of the file with this inode; `None` too of one that this process cannot see, as
/// where a container has its own numbers.
pub fn lock_holder(inode: u64) -> Option<u32> {
    holder_in(&text("/proc/locks")?, inode)
}

fn holder_in(locks: &str, inode: u64) -> Option<u32> {
    let line = locks.lines().find(|line| is_lock_of(line, inode))?;
    let process = line.split_whitespace().nth(4)?.parse().ok()?;
    (process > 0).then_some(process)
}

/// Whether a line of `/proc/locks` is a lock of the file `inode` that is held, not waited for ("->"). The device is not
/// compared: file systems like btrfs show another one there.
fn is_lock_of(line: &str, inode: u64) -> bool {
    let mut words = line.split_whitespace().skip(1);
    if words.next() != Some("FLOCK") {
        return false;
    }
    let place = words.nth(3);
    let of_place = place.and_then(|place| place.rsplit(':').next());
    of_place.and_then(|text| text.parse().ok()) == Some(inode)
}

/// The value of the first line `name: value` of a text.
///
/// ```
/// let text = "processor\t: 0\nmodel name\t: Xeon 9 @ 2.50GHz\n";
/// assert_eq!(everburn_record::proc::value_in(text, "model name"), Some("Xeon 9 @ 2.50GHz"));
/// ```
pub fn value_in<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    let value = pairs.find_map(|(key, value)| (key.trim() == name).then_some(value));
    value.map(str::trim)
}

/// The bytes of a line `name: 12 kB`.
fn bytes_in(text: &str, name: &str) -> Option<u64> {
    let kibibytes = value_in(text, name)?.strip_suffix("kB")?.trim_end();
    kibibytes.parse::<u64>().ok()?.checked_mul(1024)
}

/// The words of a `stat` after the process's name, which is in parentheses and may hold anything.
fn stat_words(stat: &str) -> impl Iterator<Item = &str> {
    let behind_name = stat.rsplit_once(')').map_or("", |(_, words)| words);
    behind_name.split_whitespace()
}

/// How long this machine has been up, the time in which it was suspended included.
///
/// ```
/// assert!(everburn_record::proc::uptime() <= everburn_record::proc::uptime());
/// ```
pub fn uptime() -> Option<Duration> {
    let text = text("/proc/uptime")?;
    let seconds = text.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn first_line(path: &str) -> Option<String> {
    let line = text(path)?.lines().next()?.trim().to_owned();
    (!line.is_empty()).then_some(line)
}

/// The entries of `folder` whose names are numbers.
fn numbered(folder: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.collect()
}

#[cfg(test)]
mod tests;

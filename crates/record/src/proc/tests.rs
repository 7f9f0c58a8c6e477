//! What `/proc` is read for, of this machine and of texts.

use super::*;

#[cfg(target_os = "linux")]
#[test]
fn memory_is_resident_once_it_is_written() {
    const SIZE: usize = 64 << 20;
    let mut memory = Vec::<u8>::with_capacity(SIZE);
    let resident = |memory: &mut Vec<u8>| resident_bytes_of(memory.spare_capacity_mut());
    // The allocator writes some of the first page.
    assert!(resident(&mut memory).unwrap() < 1 << 20);
    memory.resize(SIZE / 2, 1);
    memory.clear();
    let half = resident(&mut memory).unwrap();
    assert!((SIZE / 2..SIZE / 2 + (4 << 20)).contains(&half), "{half}");
}

#[test]
fn memory_is_found_among_other_lines() {
    let status = "VmPeak:\t  20 kB\nVmHWM:\t    12 kB\nVmRSS:\t   8 kB\n";
    assert_eq!(bytes_in(status, "VmHWM"), Some(12 * 1024));
    assert_eq!(bytes_in(status, "Vm"), None);
    assert_eq!(bytes_in("VmHWM:\t12 MB\n", "VmHWM"), None);
    assert_eq!(bytes_in("MemTotal: many kB", "MemTotal"), None);
    assert_eq!(bytes_in("", "VmHWM"), None);
}

#[cfg(target_os = "linux")]
#[test]
fn this_machine_and_process_are_known() {
    let process = std::process::id();
    assert!(available_memory().is_some() && available_memory() <= total_memory());
    assert!(peak_memory().is_some() && peak_memory_of(process).is_some());
    assert!(resident_memory().is_some() && counted_resident_memory().is_some());
    assert!(cpus().is_some() && host_name().is_some() && boot_id().is_some());
    assert!(kernel_release().is_some() && memory_kills().is_some());
    assert!(time_without_cpu().is_some() && CpuTime::now().is_some());
    assert!(!thread_names().is_empty() && threads_of(process) > Some(0));
    assert!(command_lines().iter().any(|(other, _)| *other == process));
    assert!(start_of(process).is_some() && !has_ended(process));
    // Larger than any process id.
    assert!(start_of(u32::MAX).is_none() && has_ended(u32::MAX));
    assert_eq!(threads_of(u32::MAX), None);
}

#[test]
fn the_holder_of_a_lock_is_found_by_its_inode() {
    let locks = "1: POSIX ADVISORY WRITE 12 fe:01:5 0 EOF\n2: FLOCK  ADVISORY  WRITE 13 fe:01:6 0 EOF\n\
                 2: -> FLOCK ADVISORY WRITE 14 fe:01:7 0 EOF\n3: FLOCK ADVISORY WRITE 0 fe:01:8 0 EOF\n\
                 4: FLOCK ADVISORY WRITE -1 fe:01:9 0 EOF\n";
    let holders = [5, 6, 7, 8, 9].map(|inode| holder_in(locks, inode));
    assert_eq!(holders, [None, Some(13), None, None, None]);
}

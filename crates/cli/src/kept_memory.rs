//! Settings of glibc's allocator, for processes without Everburn's launcher.

use std::os::unix::process::CommandExt;
use std::process::Command;

use everburn_launch::keep_freed_memory;

/// Has this process keep what a training step frees for the next one, as the launcher's ranks do. glibc reads that when a
/// process begins: so this process begins anew, once, with the same number, arguments and files. It asks whether it `trains`,
/// which reads the command line, only where nobody has set the allocator yet.
pub(crate) fn keep(trains: impl FnOnce() -> bool) {
    let Ok(program) = std::env::current_exe() else {
        // A training without it is slower and no worse.
        return;
    };
    let mut again = Command::new(program);
    keep_freed_memory(&mut again);
    if again.get_envs().len() == 0 || !trains() {
        return;
    }
    let mut arguments = std::env::args_os();
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    // Returns only where it fails; see above.
    let _ = again.args(arguments).exec();
}

//! The tasks of this program, by name.

use std::sync::OnceLock;

use everburn_train::AnyTask;

static TASKS: OnceLock<Vec<AnyTask>> = OnceLock::new();

/// Makes these the tasks of this program. The first call counts.
pub(crate) fn register(tasks: Vec<AnyTask>) {
    // A second call would come from a program with two front doors, whose tasks are those of the first.
    let _ = TASKS.set(tasks);
}

/// The tasks, in the order in which they are listed.
pub(crate) fn tasks() -> &'static [AnyTask] {
    #[cfg(test)]
    register(everburn::tasks::all());
    TASKS.get().map_or(&[], Vec::as_slice)
}

/// The task of this name.
pub(crate) fn find(name: &str) -> Option<&'static AnyTask> {
    tasks().iter().find(|task| task.name() == name)
}

/// The task that is meant where none is named: the only one.
pub(crate) fn only() -> Option<&'static AnyTask> {
    match tasks() {
        [task] => Some(task),
        _ => None,
    }
}

//! The tasks of this program, by name, and its hooks.

use std::sync::OnceLock;

use everburn_train::{AnyTask, Hooks};

static PROGRAM: OnceLock<(Vec<AnyTask>, Hooks)> = OnceLock::new();

/// Makes these the tasks and the hooks of this program. The first call counts.
pub(crate) fn register(tasks: Vec<AnyTask>, hooks: Hooks) {
    // A second call would come from a program with two front doors, whose tasks are those of the first.
    let _ = PROGRAM.set((tasks, hooks));
}

/// The tasks, in the order in which they are listed.
pub(crate) fn tasks() -> &'static [AnyTask] {
    #[cfg(test)]
    register(everburn::tasks::all(), Hooks::default());
    PROGRAM.get().map_or(&[], |(tasks, _)| tasks)
}

/// What every training calls.
pub(crate) fn hooks() -> Hooks {
    let hooks = PROGRAM.get().map(|(_, hooks)| hooks.clone());
    hooks.unwrap_or_default()
}

/// What tasks were called before, and are called now.
const OLD_NAMES: [(&str, &str); 1] = [("gpt2-124m", "gpt2")];

pub(crate) fn find(name: &str) -> Option<&'static AnyTask> {
    let new = OLD_NAMES.iter().find(|(old, _)| *old == name);
    let name = new.map_or(name, |(_, new)| new);
    tasks().iter().find(|task| task.name() == name)
}

/// The task that an example names: `usual`, if this program has it, else the first.
pub(crate) fn example(usual: &'static str) -> &'static str {
    match (find(usual), tasks()) {
        (None, [first, ..]) => first.name(),
        _ => usual,
    }
}

/// The task that is meant where none is named: the only one.
pub(crate) fn only() -> Option<&'static AnyTask> {
    match tasks() {
        [task] => Some(task),
        _ => None,
    }
}

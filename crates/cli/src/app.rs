//! The front door of a program.

use std::ffi::OsString;
use std::process::ExitCode;

use everburn_train::{AnyTask, Hook, Hooks, Task};

use crate::{kept_memory, tasks};

/// Keys of a configuration that are every run's own, and no task's.
pub(crate) const RESERVED: [&str; 7] = [
    "model",
    "init_from",
    "init_skip",
    "ranks",
    "training",
    "parallel",
    "optimizer",
];

/// A program with every command of Everburn, on tasks of its own.
///
/// ```no_run
/// # mod everburn { pub use everburn_cli::{App, devices, kernels}; }
/// # use std::sync::Arc;
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::prelude::*;
/// # use everburn_train::{Loss, Task, TaskData, TaskError};
/// # struct Flowers;
/// # impl Task for Flowers {
/// #     type Config = everburn_train::NoSettings;
/// #     type Model = Linear;
/// #     type Item = f32;
/// #     type Batch = Tensor<2>;
/// #     fn model(&self, _: &Self::Config, device: &Device) -> Result<Linear, TaskError> {
/// #         Ok(LinearConfig::new(1, 1).init(device))
/// #     }
/// #     fn data(&self, _: &mut Self::Config) -> Result<TaskData<f32, Tensor<2>>, TaskError> {
/// #         Err(TaskError::new("there are none"))
/// #     }
/// #     fn loss(&self, _: &Self::Config, model: &Linear, batch: Tensor<2>) -> Loss {
/// #         Loss::new(model.forward(batch).mean(), 1)
/// #     }
/// # }
/// use std::process::ExitCode;
///
/// use everburn::App;
///
/// fn main() -> ExitCode {
///     App::new().task("flowers", Flowers).main()
/// }
/// ```
///
/// The program starts itself once for each rank, with arguments of its own; so [`main`](Self::main) comes first, and
/// what a task needs is read by the task.
#[derive(Debug, Default)]
pub struct App {
    tasks: Vec<AnyTask>,
    hooks: Hooks,
}

impl App {
    /// A program without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a task, which users ask for by `name`: as in `train NAME`, and as the section `[NAME]` of a configuration. A
    /// program with one task needs no name on its command line.
    ///
    /// # Panics
    /// Panics if the name has other characters than lower-case letters, digits, `-` and `_`, is a key that every
    /// configuration has (`model`, `init_from`, `init_skip`, `ranks`, `training`, `parallel`, `optimizer`), or is another task's.
    #[must_use]
    pub fn task<T: Task>(mut self, name: &str, task: T) -> Self {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
        assert!(
            !name.is_empty() && name.chars().all(fits),
            "a task is named by lower-case letters, digits, - and _, not `{name}`"
        );
        assert!(
            !RESERVED.contains(&name),
            "`{name}` is a key of every configuration; name the task otherwise"
        );
        assert!(
            self.tasks.iter().all(|task| task.name() != name),
            "there are two tasks of the name `{name}`"
        );
        self.tasks.push(AnyTask::new(name, task));
        self
    }

    /// Adds a hook to every training: code that is called after steps, epochs, checkpoints and failures. Each rank makes
    /// its own by `make`; they are called in the order in which they were added.
    ///
    /// ```
    /// # mod everburn { pub use everburn_cli::{App, devices, kernels}; pub use everburn_train as train; }
    /// use everburn::App;
    /// use everburn::train::{EpochLines, Hook, HookError, Run};
    ///
    /// struct Tell;
    ///
    /// impl Hook for Tell {
    ///     fn after_epoch(&mut self, epoch: &EpochLines, run: &mut Run<'_>) -> Result<(), HookError> {
    ///         run.show(&format!("the epoch's loss was {}", epoch.train.loss));
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let app = App::new().hook(|| Tell);
    /// ```
    #[must_use]
    pub fn hook<H: Hook>(mut self, make: impl Fn() -> H + Send + Sync + 'static) -> Self {
        self.hooks = self.hooks.with(make);
        self
    }

    /// The tasks alone.
    pub fn into_tasks(self) -> Vec<AnyTask> {
        self.tasks
    }

    /// Does what this process's command line asks for, and yields the exit code. Before it computes anything, the
    /// process may begin anew once, so that its allocator keeps what a step frees for the next.
    pub fn main(self) -> ExitCode {
        let words = std::env::args_os().collect::<Vec<_>>();
        kept_memory::keep(|| crate::trains(&words));
        self.run(words)
    }

    /// Does what a command line asks for, whose first word is the program's name. The process stays the one it is: what
    /// it has done before is not done again.
    pub fn run(self, words: impl IntoIterator<Item = OsString>) -> ExitCode {
        tasks::register(self.tasks, self.hooks);
        crate::run(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_sections_are_refused() {
        for name in ["", "Flowers", "a.b", "training"] {
            let refused =
                std::panic::catch_unwind(|| App::new().task(name, everburn::tasks::mlp()));
            assert!(refused.is_err(), "{name}");
        }
        let twice = || {
            App::new()
                .task("a", everburn::tasks::mlp())
                .task("a", everburn::tasks::mlp())
        };
        assert!(std::panic::catch_unwind(twice).is_err());
    }
}

//! `everburn new`: a project with a task of its own.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use everburn_record::{file, invocation};

use super::{ToolError, failed};
use crate::app::RESERVED;

/// What a new project begins with: each is one of Everburn's examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Images of any size, in a folder for each class
    Images,
    /// Rows of a table, a CSV file
    Table,
    /// Lines of text, in a file for each class
    Text,
    /// A model, data and loss of any kind: here an autoencoder
    Custom,
}

/// Write a project with a task of its own: `everburn new flowers --kind images`
///
/// The project builds, has every command of Everburn, and a test that kills a training of two ranks and resumes it.
#[derive(Debug, Args)]
pub(crate) struct NewArguments {
    /// The folder, whose name is the project's and the task's: lower-case letters, digits, - and _.
    path: PathBuf,

    /// The kind of data.
    #[arg(long, value_enum, default_value_t = Kind::Custom)]
    kind: Kind,

    /// The folder of Everburn's sources, to build from [default: the folder where this program was built, if it exists;
    /// else the registry or the repository that the program came from].
    #[arg(long, value_name = "DIR")]
    everburn: Option<PathBuf>,
}

/// An example with which a project begins.
struct Template {
    package: &'static str,
    task: &'static str,
}

/// The files of each example, by the example's package and by path; `build.rs` writes the list.
const TEMPLATES: &[(&str, &[(&str, &str)])] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

impl Template {
    fn files(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let of_package = TEMPLATES
            .iter()
            .filter(|(package, _)| *package == self.package);
        of_package.flat_map(|(_, files)| files.iter().copied())
    }
}

impl Kind {
    fn template(self) -> Template {
        let (package, task) = match self {
            Self::Images => ("images", "images"),
            Self::Table => ("table", "houses"),
            Self::Text => ("text", "text"),
            Self::Custom => ("autoencoder", "circles"),
        };
        Template { package, task }
    }
}

/// Where a project takes Everburn from.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    Folder(PathBuf),
    Registry,
    Repository,
}

impl Source {
    /// The sources that this program was built from, or what it came from if they are not on this machine.
    fn of_this_program() -> Self {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        match (checked(&sources), env!("EVERBURN_FROM_REGISTRY")) {
            (Ok(sources), _) => Self::Folder(sources),
            (Err(_), "true") => Self::Registry,
            (Err(_), _) => Self::Repository,
        }
    }

    /// The dependency, with a comment where it may have to be another.
    fn in_manifest(&self) -> String {
        let (version, repository) = (env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_REPOSITORY"));
        let from_repository = format!("everburn = {{ git = {repository:?} }}");
        match self {
            Self::Folder(path) => format!(
                "# A folder of this machine. Elsewhere, name the checkout that is there, or: {from_repository}\n\
                 everburn = {{ path = {:?} }}",
                path.join("crates/everburn")
            ),
            Self::Registry => format!("everburn = \"{version}\""),
            Self::Repository => format!(
                "# Or the crates/everburn of a checkout: everburn = {{ path = \"...\" }}\n{from_repository}"
            ),
        }
    }

    /// The `Cargo.lock` with the versions that Everburn is tested with, where the sources are on this machine.
    fn versions(&self) -> Option<Vec<u8>> {
        match self {
            Self::Folder(path) => std::fs::read(path.join("Cargo.lock")).ok(),
            Self::Registry | Self::Repository => None,
        }
    }

    /// What the project needs to be built.
    fn in_words(&self) -> Option<String> {
        match self {
            Self::Folder(path) => Some(format!(
                "It is built from the sources in {}: on another machine, change `everburn` in its Cargo.toml.",
                path.display()
            )),
            Self::Registry => None,
            Self::Repository => Some(format!(
                "It is built from {}, because the sources of this program are not on this machine: `--everburn DIR` takes \
                 a checkout instead, and so does the line `everburn` in its Cargo.toml.",
                env!("CARGO_PKG_REPOSITORY")
            )),
        }
    }
}

/// What is below the manifest of an example, whose workspace has it.
const PROFILE: &str = "
[workspace]

# A change here builds Burn again, too.
[profile.release]
strip = \"debuginfo\"
";

/// Writes the project and says what can be done with it.
pub(crate) fn run(arguments: &NewArguments) -> Result<ExitCode, ToolError> {
    let path = &arguments.path;
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.filter(|name| is_name(name)).ok_or_else(|| {
        ToolError::Usage(format!(
            "`{}` cannot be a project name: use lower-case letters, digits, - and _, and begin with a letter",
            path.display()
        ))
    })?;
    if let Some(meaning) = taken_as(name) {
        return Err(ToolError::Usage(format!(
            "a project cannot be called {name}, which is {meaning}: name it {name}-task"
        )));
    }
    if path.exists() {
        let of_images = match arguments.kind {
            Kind::Images => "; images go into NAME/data later",
            Kind::Table | Kind::Text | Kind::Custom => "",
        };
        return Err(ToolError::Usage(format!(
            "{} is there already: choose another name{of_images}",
            path.display()
        )));
    }
    let template = arguments.kind.template();
    let everburn = match &arguments.everburn {
        Some(sources) => Source::Folder(checked(sources)?),
        None => Source::of_this_program(),
    };
    for (file, text) in files(&template, name, &everburn) {
        let file = path.join(file);
        let folder = file.parent().unwrap_or(path);
        std::fs::create_dir_all(folder)
            .map_err(|error| failed(format!("{}: {error}", folder.display())))?;
        file::write(&file, text.as_bytes()).map_err(failed)?;
    }
    if let Some(versions) = everburn.versions() {
        // Cargo adds the project, and takes out what it does not need.
        file::write(&path.join("Cargo.lock"), &versions).map_err(failed)?;
    }
    say!(
        "created the project {}. Its task is `{name}`, in src/main.rs.{}\n",
        path.display(),
        everburn
            .in_words()
            .map_or_else(String::new, |words| format!(" {words}"))
    );
    say!("  cd {}", path.display());
    if arguments.kind == Kind::Images {
        say!(
            "  # images as data/<class>/*.jpg, or data/train/<class>/*.jpg and data/test/<class>/*.jpg; or try it on drawn ones:"
        );
        say!("  cargo test --release");
    }
    say!("  cargo run --release -- train --ranks 2");
    say!(
        "  cargo run --release -- --help        # every command of {}",
        invocation::file_name()
    );
    Ok(ExitCode::SUCCESS)
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(fits)
}

/// Names that are folders of Cargo's build.
const OF_CARGO: [&str; 4] = ["build", "deps", "examples", "incremental"];

/// Sections of Everburn's own tasks, to which flags as `--data` belong.
const OF_TASKS: [&str; 1] = ["data"];

/// The crates of the standard library, and those that a project depends on.
const CRATES: [&str; 10] = [
    "alloc",
    "burn",
    "core",
    "everburn",
    "image",
    "proc-macro",
    "proc_macro",
    "serde",
    "std",
    "test",
];

/// Words of the language, in which no crate is named.
const KEYWORDS: [&str; 51] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate",
    "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl",
    "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref",
    "return", "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof",
    "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

/// The other meaning of a name that no project may have.
fn taken_as(name: &str) -> Option<&'static str> {
    let all: [(&[&str], _); 5] = [
        (&OF_CARGO, "a folder of Cargo's build"),
        (&RESERVED, "a key of every configuration"),
        (
            &OF_TASKS,
            "a section of Everburn's own tasks in a configuration",
        ),
        (&CRATES, "the name of a crate that the project uses"),
        (&KEYWORDS, "a keyword of Rust"),
    ];
    let mut all = all.into_iter();
    all.find_map(|(names, meaning)| names.contains(&name).then_some(meaning))
}

/// The files of the project, by path.
fn files(template: &Template, name: &str, everburn: &Source) -> Vec<(PathBuf, String)> {
    let renamed = |text: &str| {
        // The task first: `images` is both.
        let text = text.replace(&format!("\"{}\"", template.task), &format!("\"{name}\""));
        let text = text.replace(&format!("`[{}]`", template.task), &format!("`[{name}]`"));
        let text = rename_keys(&text, template.task, name);
        text.replace(
            &format!("CARGO_BIN_EXE_{}", template.package),
            &format!("CARGO_BIN_EXE_{name}"),
        )
    };
    let manifest = |text: &str| {
        // `cargo run` stays the task's program where src/bin has others.
        let name = format!("name = \"{name}\"\ndefault-run = \"{name}\"");
        let text = text.replace(&format!("name = \"{}\"", template.package), &name);
        let text = text.replace(
            "everburn = { path = \"../../crates/everburn\" }",
            &everburn.in_manifest(),
        );
        format!("{text}{PROFILE}")
    };
    let ignored = (
        PathBuf::from(".gitignore"),
        "/target\n/runs\n/data\n".to_owned(),
    );
    let copied = template.files().map(|(file, text)| {
        let text = match file {
            "Cargo.toml" => manifest(text),
            "src/main.rs" | "tests/ranks.rs" => renamed(text),
            _ => text.to_owned(),
        };
        (PathBuf::from(file), text)
    });
    copied.chain([ignored]).collect()
}

/// The same text with the keys `task.key` under another name: those that begin a text, and those of `set` and `--set`. Else the
/// word is a variable's, a file's, or the last of a sentence.
fn rename_keys(text: &str, task: &str, name: &str) -> String {
    let key = format!("{task}.");
    let mut parts = text.split(&key);
    let mut renamed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_key = ["\"", "set "]
            .iter()
            .any(|before| renamed.ends_with(before));
        renamed.push_str(if is_key { name } else { task });
        renamed.push('.');
        renamed.push_str(part);
    }
    renamed
}

/// A folder with Everburn's sources.
fn checked(sources: &Path) -> Result<PathBuf, ToolError> {
    let found = sources.canonicalize().ok();
    let found = found.filter(|sources| sources.join("crates/everburn/Cargo.toml").is_file());
    found.ok_or_else(|| {
        ToolError::Usage(format!(
            "{} does not hold Everburn's sources: crates/everburn is missing",
            sources.display()
        ))
    })
}

#[cfg(test)]
mod tests;

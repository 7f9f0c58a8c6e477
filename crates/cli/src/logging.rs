//! Where messages go: standard error, or a file while a dashboard has the terminal.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use everburn_record::file;
use everburn_record::sync::lock;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Layer, Registry};

use crate::arguments::keys::with_flags;

/// The messages' way out, which can be changed while the program runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogOutput(Arc<Mutex<Option<File>>>);

impl LogOutput {
    /// Starts logging to standard error. `EVERBURN_LOG` chooses the messages: `debug`, or
    /// `info,everburn_collectives=trace`.
    pub(crate) fn start() -> Self {
        let chosen = std::env::var("EVERBURN_LOG").ok();
        let parsed = chosen.as_deref().map(str::parse::<Targets>);
        let unreadable = matches!(parsed, Some(Err(_)));
        let targets = match parsed {
            Some(Ok(targets)) => targets,
            // OpenGL is looked for beside Vulkan, and its absence is no error.
            _ => "warn,everburn=info,wgpu_hal::gles=off"
                .parse()
                .unwrap_or_default(),
        };
        let output = Self::default();
        let lines = lines(output.clone()).with_filter(targets);
        tracing_subscriber::registry().with(lines).init();
        if unreadable {
            tracing::warn!("EVERBURN_LOG is not a list of targets and levels: ignored");
        }
        output
    }

    /// Sends all further messages to a file: on the terminal they would tear the dashboard.
    ///
    /// # Errors
    /// The system's error if the file cannot be made.
    pub(crate) fn redirect(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = file::append_to(path)?;
        *lock(&self.0) = Some(file);
        Ok(())
    }
}

/// Each message as a line with its time (UTC): the same from the only rank, from one of several, and from their launcher.
fn lines(output: LogOutput) -> impl Layer<Registry> {
    tracing_subscriber::fmt::layer()
        .with_writer(output)
        .with_ansi(false)
        .with_target(false)
}

/// One message on its way.
pub(crate) struct Message(LogOutput);

impl Write for Message {
    /// Takes a whole message, and writes flags in place of the settings that libraries name.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let message = with_flags(&String::from_utf8_lossy(bytes));
        match &mut *lock(&self.0.0) {
            Some(file) => file.write_all(message.as_bytes()),
            None => io::stderr().write_all(message.as_bytes()),
        }?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // neither a file nor standard error is buffered here
    }
}

impl<'a> MakeWriter<'a> for LogOutput {
    type Writer = Message;

    fn make_writer(&'a self) -> Message {
        Message(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_a_line_with_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-0.log");
        let output = LogOutput::default();
        output.redirect(&path).unwrap();
        let subscriber = tracing_subscriber::registry().with(lines(output));
        tracing::subscriber::with_default(subscriber, || tracing::warn!("no samples"));
        let log = std::fs::read_to_string(path).unwrap();
        let (time, text) = log.split_once(' ').unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{log}");
        assert_eq!(text, " WARN no samples\n");
    }
}

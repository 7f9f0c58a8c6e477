//! Where messages go: standard error, or a file while a dashboard has the terminal.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use everburn_record::file;
use everburn_record::sync::lock;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::prelude::*;

use crate::arguments::keys::with_flags;

/// The messages' way out, which can be changed while the program runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogOutput(Arc<Mutex<Option<File>>>);

impl LogOutput {
    /// Starts logging to standard error. `EVERBURN_LOG` chooses the messages: `debug`, or
    /// `info,everburn_collectives=trace`.
    pub(crate) fn start(with_time: bool) -> Self {
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
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(output.clone())
            .with_ansi(false)
            .with_target(false);
        let registry = tracing_subscriber::registry();
        if with_time {
            registry.with(lines.with_filter(targets)).init();
        } else {
            registry
                .with(lines.without_time().with_filter(targets))
                .init();
        }
        if unreadable {
            tracing::warn!("EVERBURN_LOG is not a list of targets and levels: ignored");
        }
        output
    }

    /// Sends all further messages to a file, each with its time, as the log of one of several ranks has it: on the terminal they
    /// would tear the dashboard.
    ///
    /// # Errors
    /// The system's error if the file cannot be made.
    pub(crate) fn redirect(&self, path: &Path) -> io::Result<()> {
        let file = file::append_to(path)?;
        *lock(&self.0) = Some(file);
        Ok(())
    }
}

/// One message on its way.
pub(crate) struct Message(LogOutput);

impl Write for Message {
    /// Takes a whole message, and writes flags in place of the settings that libraries name.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let message = with_flags(&String::from_utf8_lossy(bytes));
        match &mut *lock(&self.0.0) {
            Some(file) => {
                let mut time = String::new();
                let dated = SystemTime.format_time(&mut Writer::new(&mut time));
                dated.map_err(io::Error::other)?;
                file.write_all(format!("{time} {message}").as_bytes())
            }
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
    fn a_message_in_a_file_has_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-0.log");
        let output = LogOutput::default();
        output.redirect(&path).unwrap();
        output
            .make_writer()
            .write_all(b" WARN no samples\n")
            .unwrap();
        let log = std::fs::read_to_string(path).unwrap();
        let (time, text) = log.split_once(' ').unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{log}");
        assert_eq!(text, " WARN no samples\n");
    }
}

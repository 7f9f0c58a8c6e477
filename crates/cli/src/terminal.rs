//! The terminal on which lines are printed.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use everburn_record::filled;

/// The indent of the lines that continue a long one, beyond its own.
const CONTINUED: usize = 2;

/// How many columns the terminal has that `stream` is; lines of files and pipes have no end.
pub(crate) fn columns(stream: &(impl AsFd + IsTerminal)) -> usize {
    let size = rustix::termios::tcgetwinsize(stream).ok();
    let size = size.filter(|size| stream.is_terminal() && size.ws_col > 0);
    size.map_or(usize::MAX, |size| usize::from(size.ws_col))
}

/// `text` for standard error: where that is a terminal, longer lines than it has room for are broken at spaces.
pub(crate) fn for_stderr(text: &str) -> String {
    in_columns(text, columns(&std::io::stderr()))
}

fn in_columns(text: &str, columns: usize) -> String {
    let lines = text.split('\n').map(|line| {
        let indent = line.len() - line.trim_start_matches(' ').len();
        match line.chars().count() > columns {
            true => filled(line, indent + CONTINUED, columns),
            false => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_an_error_end_at_the_last_column_and_continue_indented() {
        let text = "error: the port of the store is in use: choose `--rendezvous HOST:PORT` anew\nshort\n  because: it \
                    is in use by another process of this machine";
        assert_eq!(in_columns(text, usize::MAX), text);
        let expected = [
            "error: the port of the store is in",
            "  use: choose `--rendezvous HOST:PORT`",
            "  anew",
            "short",
            "  because: it is in use by another",
            "    process of this machine",
        ];
        assert_eq!(in_columns(text, 40), expected.join("\n"));
    }
}

//! The files of a run.

pub(crate) mod kept_lines;
pub(crate) mod live_file;
pub(crate) mod outcome;
pub(crate) mod record_files;
pub(crate) mod run_directory;
pub(crate) mod run_lock;
pub(crate) mod tensor_board;

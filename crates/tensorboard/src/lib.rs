//! Writes scalars into event files, which TensorBoard reads. Without dependencies.
//!
//! An event file is a sequence of TFRecords: a length of 8 bytes, its checksum, the data, their checksum, all
//! little-endian. The data are an `Event` of TensorFlow's `event.proto`, of which a few fields are enough for scalars. The
//! checksum is CRC-32C, rotated and shifted ("masked"), because a CRC of data that contain CRCs is a poor one
//! (`tensorflow/core/lib/io/record_writer.h`, `tensorflow/core/util/event.proto`).
//!
//! The crates that write this format have not been maintained since 2024 (`tensorboard-rs` 0.5.9, `tboard` 0.1.1, each with
//! dependencies of that time); the part that is needed here is a page of code.
//!
//! ```
//! use everburn_tensorboard::EventFile;
//!
//! let folder = tempfile::tempdir()?;
//! let mut events = EventFile::create(folder.path(), "machine", 0, 1_700_000_000.25)?;
//! events.scalars(1, 1_700_000_001.0, &[("loss/train", 2.25), ("learning_rate", 0.001)])?;
//! assert!(events.path().starts_with(folder.path()));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # What is deliberately absent
//! Images, histograms, graphs, and reading.

mod checksum;
mod event_file;
mod protocol;

pub use event_file::EventFile;

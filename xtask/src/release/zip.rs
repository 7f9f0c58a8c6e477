//! Zip files as wheels need them: a few files, deflated, with Unix modes and without times, so that the same files make
//! the same archive. (PKWARE's APPNOTE 6.3.10; no file of 4 GiB.)

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use miette::{IntoDiagnostic, miette};

/// 1 January 1980, the first day that the format has.
const FIRST_DAY: u16 = (1 << 5) | 1;

/// Deflate is of version 2.0.
const VERSION_NEEDED: u16 = 20;

/// Made on Unix, where the upper half of the external attributes is the mode.
const MADE_BY_UNIX: u16 = 3 << 8 | VERSION_NEEDED;

const DEFLATED: u16 = 8;

/// Names are UTF-8.
const FLAGS: u16 = 1 << 11;

/// A zip file in the making.
#[derive(Default)]
pub(super) struct Zip {
    bytes: Vec<u8>,
    directory: Vec<u8>,
    files: u16,
}

impl Zip {
    pub(super) fn add(&mut self, name: &str, mode: u32, content: &[u8]) -> miette::Result<()> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content).into_diagnostic()?;
        let packed = encoder.finish().into_diagnostic()?;
        let too_large = || miette!("{name} is too large for a zip file");
        let size = |length: usize| u32::try_from(length).map_err(|_| too_large());
        let offset = size(self.bytes.len())?;
        // What the file's own header and the directory's entry have in common.
        let mut shared = Vec::new();
        for number in [VERSION_NEEDED, FLAGS, DEFLATED, 0, FIRST_DAY] {
            shared.extend(number.to_le_bytes());
        }
        for number in [
            crc32fast::hash(content),
            size(packed.len())?,
            size(content.len())?,
        ] {
            shared.extend(number.to_le_bytes());
        }
        let name_length = u16::try_from(name.len()).map_err(|_| too_large())?;
        shared.extend(name_length.to_le_bytes());
        // No extra field.
        shared.extend(0_u16.to_le_bytes());

        self.bytes.extend(b"PK\x03\x04");
        self.bytes.extend(&shared);
        self.bytes.extend(name.as_bytes());
        self.bytes.extend(packed);

        self.directory.extend(b"PK\x01\x02");
        self.directory.extend(MADE_BY_UNIX.to_le_bytes());
        self.directory.extend(&shared);
        // No comment, the first disk, no internal attributes.
        self.directory.extend([0; 6]);
        self.directory.extend((mode << 16).to_le_bytes());
        self.directory.extend(offset.to_le_bytes());
        self.directory.extend(name.as_bytes());
        self.files += 1;
        Ok(())
    }

    /// The whole file.
    pub(super) fn finish(mut self) -> miette::Result<Vec<u8>> {
        let too_large = |_| miette!("the zip file is too large");
        let offset = u32::try_from(self.bytes.len()).map_err(too_large)?;
        let length = u32::try_from(self.directory.len()).map_err(too_large)?;
        self.bytes.extend(&self.directory);
        self.bytes.extend(b"PK\x05\x06");
        // One disk.
        self.bytes.extend([0; 4]);
        for _ in 0..2 {
            self.bytes.extend(self.files.to_le_bytes());
        }
        self.bytes.extend(length.to_le_bytes());
        self.bytes.extend(offset.to_le_bytes());
        // No comment.
        self.bytes.extend([0; 2]);
        Ok(self.bytes)
    }
}

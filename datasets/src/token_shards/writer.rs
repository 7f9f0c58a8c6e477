//! Writing files of tokens.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::header::{Header, OURS_BYTES};
use super::{MadeBy, TokenFormat, TokenWidth};
use crate::DatasetError;
use crate::error::unwritable;

/// How many bytes are gathered before they are written.
const BUFFER: usize = 1 << 20;

/// What all files of a text have in common.
#[derive(Debug, Clone)]
pub(crate) struct ShardOptions {
    /// Each token is below it.
    pub(crate) vocabulary: usize,
    pub(crate) made_by: MadeBy,
    pub(crate) end_of_document: Option<u32>,
    /// How many tokens per file has at most.
    pub(crate) most: u64,
}

/// Writes tokens into files `name_000000.bin`, `name_000001.bin`, ... of a folder. A file has no header before it is whole,
/// so that one which is not is never read.
#[derive(Debug)]
pub(crate) struct ShardWriter {
    folder: PathBuf,
    name: &'static str,
    options: ShardOptions,
    open: Option<Open>,
    /// How many files are whole.
    pub(crate) files: usize,
    pub(crate) tokens: u64,
    pub(crate) documents: u64,
}

/// A file that is being written.
#[derive(Debug)]
struct Open {
    path: PathBuf,
    file: BufWriter<File>,
    hash: Sha256,
    tokens: u64,
    documents: u64,
}

impl ShardWriter {
    /// A writer that has written nothing yet, no file either.
    pub(crate) fn new(folder: &Path, name: &'static str, options: ShardOptions) -> Self {
        Self {
            folder: folder.to_owned(),
            name,
            options,
            open: None,
            files: 0,
            tokens: 0,
            documents: 0,
        }
    }

    /// Writes tokens of a document, which begins with them or has begun before.
    ///
    /// # Errors
    /// [`DatasetError::Write`], with the file.
    pub(crate) fn push(&mut self, tokens: &[u32], begins: bool) -> Result<(), DatasetError> {
        let (mut rest, mut begins) = (tokens, begins);
        while !rest.is_empty() {
            let most = self.options.most;
            let width = TokenWidth::of_vocabulary(self.options.vocabulary);
            let mut open = match self.open.take() {
                Some(open) => open,
                None => self.begin()?,
            };
            let room = usize::try_from(most - open.tokens).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(rest.len().min(room));
            let bytes = width.encode(now);
            open.hash.update(&bytes);
            open.file
                .write_all(&bytes)
                .map_err(|source| unwritable(&open.path, source))?;
            open.tokens += now.len() as u64;
            let documents = u64::from(begins);
            open.documents += documents;
            self.tokens += now.len() as u64;
            self.documents += documents;
            (rest, begins) = (later, false);
            match open.tokens == most {
                true => self.end(open)?,
                false => self.open = Some(open),
            }
        }
        Ok(())
    }

    /// Ends the last file.
    ///
    /// # Errors
    /// [`DatasetError::Write`], with the file.
    pub(crate) fn finish(&mut self) -> Result<(), DatasetError> {
        match self.open.take() {
            Some(open) => self.end(open),
            None => Ok(()),
        }
    }

    fn begin(&self) -> Result<Open, DatasetError> {
        let name = format!("{}_{:06}.bin", self.name, self.files);
        let path = self.folder.join(name);
        let file = everburn_record::file::create(&path);
        let file = file.map_err(|source| unwritable(&path, source))?;
        let mut file = BufWriter::with_capacity(BUFFER, file);
        file.write_all(&[0; OURS_BYTES])
            .map_err(|source| unwritable(&path, source))?;
        Ok(Open {
            path,
            file,
            hash: Sha256::new(),
            tokens: 0,
            documents: 0,
        })
    }

    fn end(&mut self, open: Open) -> Result<(), DatasetError> {
        let header = Header {
            format: TokenFormat::Ours,
            width: TokenWidth::of_vocabulary(self.options.vocabulary),
            tokens: open.tokens,
            vocabulary: Some(self.options.vocabulary as u64),
            documents: Some(open.documents),
            end_of_document: self.options.end_of_document,
            made_by: self.options.made_by.clone(),
            checksum: Some(open.hash.finalize().into()),
        };
        let path = open.path;
        let file = open.file.into_inner().map_err(io::Error::from);
        let written = file.and_then(|file| {
            file.write_all_at(&header.encode(), 0)?;
            file.sync_all()
        });
        written.map_err(|source| unwritable(&path, source))?;
        self.files += 1;
        Ok(())
    }
}

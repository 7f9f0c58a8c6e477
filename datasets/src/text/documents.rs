//! The documents of files that are larger than memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use flate2::read::MultiGzDecoder;

use crate::DatasetError;
use crate::error::{not_text, unreadable, wrong_at};
use crate::files::entries;

/// From how many bytes on a document is cut: enough for all threads, and little beside a model.
const PIECE: usize = 256 << 10;

/// How far a place is looked for at which a document can be cut, and the longest line of JSON.
const LONGEST: usize = 16 << 20;

/// How many bytes are read at a time.
const BLOCK: usize = 64 << 10;

/// Where documents end in a file.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::Documents;
///
/// let separated = Documents::Separated("<|endoftext|>".into());
/// assert_ne!(separated, Documents::Files);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Documents {
    /// Each file is a document.
    #[default]
    Files,
    /// This text is between two documents, and is a part of none.
    Separated(String),
    /// Each line is a JSON object, and this field of it the document.
    JsonLines(String),
}

/// A part of a document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) text: String,
    /// Whether the document begins with it.
    pub(super) begins: bool,
    /// Whether the document ends with it.
    pub(super) ends: bool,
}

/// Finds a place at which a text can be cut.
pub(super) type Cut<'a> = &'a dyn Fn(&str) -> Result<Option<usize>, DatasetError>;

/// Reads the documents of files, in parts of bounded length.
pub(super) struct DocumentReader<'a> {
    documents: &'a Documents,
    files: std::vec::IntoIter<PathBuf>,
    open: Option<Open>,
    /// With how many bytes of text a file is left, where not all of it is read.
    most: Option<usize>,
}

/// A file that is being read.
struct Open {
    path: PathBuf,
    from: Box<dyn Read + Send>,
    /// What was read and belongs to no part yet.
    buffer: Vec<u8>,
    /// How many bytes, or lines of JSON, are before the buffer.
    before: u64,
    /// What is left of the document of a line of JSON.
    line: Option<String>,
    /// Whether a document has begun, and not ended.
    begun: bool,
    /// Whether all is in the buffer.
    ended: bool,
    /// How many bytes of text it has given.
    given: usize,
}

/// The files that are named, and those in folders that are named, in the order of their names; hidden ones are left out.
pub(super) fn inputs(named: &[PathBuf]) -> Result<Vec<PathBuf>, DatasetError> {
    let mut inputs = Vec::new();
    for path in named {
        let unreadable = |source| unreadable(path, source);
        if !path.metadata().map_err(unreadable)?.is_dir() {
            inputs.push(path.clone());
            continue;
        }
        let mut files = entries(path)?;
        files.retain(|file| file.is_file());
        if files.is_empty() {
            return Err(unreadable(io::Error::other("it is a folder without files")));
        }
        inputs.extend(files);
    }
    match inputs.is_empty() {
        true => Err(DatasetError::Request("no file of text is named".to_owned())),
        false => Ok(inputs),
    }
}

impl<'a> DocumentReader<'a> {
    /// Reads these files one after the other; each is left once it has given `most` bytes.
    pub(super) fn new(documents: &'a Documents, files: Vec<PathBuf>, most: Option<usize>) -> Self {
        Self {
            documents,
            files: files.into_iter(),
            open: None,
            most,
        }
    }

    /// The next part, or `None` after the last. A document without anything but white space is none.
    pub(super) fn next(&mut self, cut: Cut<'_>) -> Result<Option<Part>, DatasetError> {
        loop {
            let most = self.most.unwrap_or(usize::MAX);
            let open = match self.open.take().filter(|open| open.given < most) {
                Some(open) => self.open.insert(open),
                None => match self.files.next() {
                    Some(path) => self.open.insert(Open::new(path)?),
                    None => return Ok(None),
                },
            };
            let part = match self.documents {
                Documents::JsonLines(field) => open.part_of_line(field, cut)?,
                Documents::Separated(separator) => open.part(separator, cut)?,
                Documents::Files => open.part("", cut)?,
            };
            match part {
                None => self.open = None,
                // Nothing, or what is after the last separator.
                Some(part) if part.begins && part.ends && part.text.trim().is_empty() => {}
                Some(part) => {
                    open.given += part.text.len();
                    return Ok(Some(part));
                }
            }
        }
    }
}

impl Open {
    fn new(path: PathBuf) -> Result<Self, DatasetError> {
        let file = File::open(&path).map_err(|source| unreadable(&path, source))?;
        let ending = path.extension();
        let is_packed = ending.is_some_and(|ending| ending.eq_ignore_ascii_case("gz"));
        let from: Box<dyn Read + Send> = match is_packed {
            true => Box::new(MultiGzDecoder::new(file)),
            false => Box::new(file),
        };
        Ok(Self {
            from,
            path,
            buffer: Vec::new(),
            before: 0,
            line: None,
            begun: false,
            ended: false,
            given: 0,
        })
    }

    /// Reads until there are `length` bytes, or no more.
    fn fill(&mut self, length: usize) -> Result<(), DatasetError> {
        while !self.ended && self.buffer.len() < length {
            let from = self.buffer.len();
            self.buffer.resize(from + BLOCK, 0);
            let read = loop {
                match self.from.read(&mut self.buffer[from..]) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => break read.map_err(|source| unreadable(&self.path, source))?,
                }
            };
            self.buffer.truncate(from + read);
            self.ended = read == 0;
        }
        Ok(())
    }

    /// The next part of a document that ends at `separator`, or at the end of the file where that is empty.
    fn part(&mut self, separator: &str, cut: Cut<'_>) -> Result<Option<Part>, DatasetError> {
        let mut length = PIECE;
        loop {
            self.fill(length)?;
            if let Some(at) = find(&self.buffer, separator.as_bytes()) {
                return self.take(at, separator.len(), true).map(Some);
            }
            if self.ended {
                return match self.buffer.is_empty() && !self.begun {
                    true => Ok(None),
                    false => self.take(self.buffer.len(), 0, true).map(Some),
                };
            }
            // The beginning of a separator may be the last that was read.
            let sure = self.buffer.len() - separator.len().saturating_sub(1);
            let text = match std::str::from_utf8(&self.buffer[..sure]) {
                Ok(text) => text,
                Err(error) if error.error_len().is_none() => {
                    let whole = &self.buffer[..error.valid_up_to()];
                    std::str::from_utf8(whole).map_err(|error| self.no_text(error.valid_up_to()))?
                }
                Err(error) => return Err(self.no_text(error.valid_up_to())),
            };
            if let Some(at) = cut(text)? {
                return self.take(at, 0, false).map(Some);
            }
            if length >= LONGEST {
                let problem = format!(
                    "the tokenizer allows no cut in {LONGEST} bytes from here, and documents are not read into memory as a \
                     whole; name the text between documents with --document-separator"
                );
                return Err(wrong_at(
                    &self.path,
                    &format!("byte {}", self.before),
                    problem,
                ));
            }
            length *= 2;
        }
    }

    /// Takes the first `length` bytes from the buffer, and leaves out as many as `separator` after them.
    fn take(&mut self, length: usize, separator: usize, ends: bool) -> Result<Part, DatasetError> {
        let text = match std::str::from_utf8(&self.buffer[..length]) {
            Ok(text) => text.to_owned(),
            Err(error) => return Err(self.no_text(error.valid_up_to())),
        };
        self.buffer.drain(..length + separator);
        self.before += (length + separator) as u64;
        let begins = !self.begun;
        self.begun = !ends;
        Ok(Part { text, begins, ends })
    }

    /// The next part of a document that is the field of a line of JSON.
    fn part_of_line(&mut self, field: &str, cut: Cut<'_>) -> Result<Option<Part>, DatasetError> {
        let mut rest = match self.line.take() {
            Some(rest) => rest,
            None => match self.next_line(field)? {
                Some(text) => text,
                None => return Ok(None),
            },
        };
        let begins = !self.begun;
        let mut length = PIECE;
        while rest.len() > length {
            let some = rest.floor_char_boundary(length);
            if let Some(at) = cut(&rest[..some])? {
                self.line = Some(rest.split_off(at));
                break;
            }
            length *= 2;
        }
        let (text, ends) = (rest, self.line.is_none());
        self.begun = !ends;
        Ok(Some(Part { text, begins, ends }))
    }

    /// The document of the next line that is not empty.
    fn next_line(&mut self, field: &str) -> Result<Option<String>, DatasetError> {
        loop {
            let mut length = BLOCK;
            let end = loop {
                self.fill(length)?;
                if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                    break end;
                }
                if self.ended {
                    break self.buffer.len();
                }
                if length >= LONGEST {
                    let problem = format!("it has more than {LONGEST} bytes");
                    return Err(self.wrong_line(self.before + 1, problem));
                }
                length *= 2;
            };
            if self.ended && self.buffer.is_empty() {
                return Ok(None);
            }
            let line = self.buffer.drain(..self.buffer.len().min(end + 1));
            let line = line.collect::<Vec<_>>();
            self.before += 1;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let wrong = |problem| self.wrong_line(self.before, problem);
            let object = serde_json::from_slice::<serde_json::Value>(&line);
            let mut object = object.map_err(|error| wrong(format!("it is no JSON: {error}")))?;
            return match object.get_mut(field).map(serde_json::Value::take) {
                Some(serde_json::Value::String(text)) => Ok(Some(text)),
                Some(_) => Err(wrong(format!("its `{field}` is no text"))),
                None => Err(wrong(format!("it has no field `{field}`"))),
            };
        }
    }

    fn no_text(&self, at: usize) -> DatasetError {
        let offset = usize::try_from(self.before).unwrap_or(usize::MAX) + at;
        // A compressed file has been unpacked here, and its first bytes are gone.
        not_text(&self.path, offset, &[])
    }

    fn wrong_line(&self, line: u64, problem: String) -> DatasetError {
        wrong_at(&self.path, &format!("line {line}"), problem)
    }
}

/// Where `part` begins in `bytes`, if it is there and not empty.
fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    let first = part.first()?;
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| byte == first) {
        if bytes[from + at..].starts_with(part) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

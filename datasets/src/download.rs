//! Fetching the files of a collection from its mirrors.
//!
//! Every wait has a deadline, and the first ones are short, so that a machine without a network
//! learns it in seconds. A file is stored only once it is whole and verified.

use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sha2::{Digest, Sha256};

use crate::collection::Collection;
use crate::idx;
use crate::{DatasetError, locate};

/// How long a server is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadlines {
    pub(crate) connect: Duration,
    pub(crate) each_read: Duration,
    pub(crate) whole: Duration,
}

impl Deadlines {
    pub(crate) const FILE: Self = Self {
        connect: Duration::from_secs(5),
        each_read: Duration::from_secs(15),
        whole: Duration::from_secs(600),
    };

    /// For archives, which are ten times as large.
    const ARCHIVE: Self = Self {
        whole: Duration::from_secs(3600),
        ..Self::FILE
    };
}

/// The most bytes of an archive that are fetched: those of CIFAR have 170 MB.
const MOST_ARCHIVE: u64 = 256 << 20;

/// Why a collection could not be fetched, in one line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("{0}")]
    NotTried(&'static str),
    #[error("cannot write to {folder}: {source}")]
    Store { folder: String, source: io::Error },
    #[error("{}", .0.join("; "))]
    Mirrors(Vec<String>),
    #[error(transparent)]
    Found(#[from] DatasetError),
}

/// Fetches what `folder` lacks of `collection`, and returns the mirrors that it came from. Every
/// mirror is tried for each file; the first file that none of them has ends it.
pub(crate) fn fetch(
    collection: &Collection,
    mirrors: &[String],
    folder: &Path,
) -> Result<Vec<String>, FetchError> {
    let unwritable = writable(folder)?;
    let agent = agent(&Deadlines::FILE);
    let mut used = Vec::new();
    for file in &collection.files {
        if locate::find(folder, file)?.is_some() {
            continue;
        }
        let name = file.compressed_name();
        let verify = |bytes: &[u8]| {
            let origin = Path::new("the answer");
            let parsed = file.parse(origin, bytes.to_vec())?;
            Ok(collection.check_published(file, &parsed)?)
        };
        let limit = idx::MAX_COMPRESSED;
        let (mirror, bytes) = fetch_verified(&agent, mirrors, &name, limit, verify)?;
        // A server may have decompressed it on the way.
        let name = if idx::is_gzip(&bytes) {
            file.compressed_name()
        } else {
            file.name.to_owned()
        };
        // Ranks that fetch the same file at once replace it by the same content.
        everburn_record::file::write(&folder.join(name), &bytes).map_err(unwritable)?;
        if !used.contains(mirror) {
            used.push(mirror.clone());
        }
    }
    Ok(used)
}

/// Makes `folder` and tries to write to it, before the first byte is fetched; returns what makes an error of a later failure.
fn writable(folder: &Path) -> Result<impl Fn(io::Error) -> FetchError + Copy, FetchError> {
    let unwritable = move |source| FetchError::Store {
        folder: folder.display().to_string(),
        source,
    };
    std::fs::create_dir_all(folder).map_err(unwritable)?;
    tempfile::tempfile_in(folder).map_err(unwritable)?;
    Ok(unwritable)
}

/// Fetches the archive with this name and SHA-256 into `folder`, and returns the mirror that it came from.
pub(crate) fn fetch_archive(
    name: &str,
    sha256: &str,
    mirrors: &[String],
    folder: &Path,
) -> Result<String, FetchError> {
    let unwritable = writable(folder)?;
    let verify = |bytes: &[u8]| {
        let found = format!("{:x}", Sha256::digest(bytes));
        match found == sha256 {
            true => Ok(()),
            false => Err(format!("its SHA-256 is {found}, expected {sha256}").into()),
        }
    };
    let agent = agent(&Deadlines::ARCHIVE);
    let (mirror, bytes) = fetch_verified(&agent, mirrors, name, MOST_ARCHIVE, verify)?;
    everburn_record::file::write(&folder.join(name), &bytes).map_err(unwritable)?;
    Ok(mirror.clone())
}

/// How requests are made, with these deadlines.
pub(crate) fn config(
    deadlines: &Deadlines,
) -> ureq::config::ConfigBuilder<ureq::typestate::AgentScope> {
    ureq::Agent::config_builder()
        .timeout_resolve(Some(deadlines.connect))
        .timeout_connect(Some(deadlines.connect))
        .timeout_recv_response(Some(deadlines.each_read))
        .timeout_per_read(Some(deadlines.each_read))
        .timeout_global(Some(deadlines.whole))
        .user_agent(concat!("everburn/", env!("CARGO_PKG_VERSION")))
}

fn agent(deadlines: &Deadlines) -> ureq::Agent {
    config(deadlines).build().new_agent()
}

type AnyError = Box<dyn std::error::Error>;

/// The first answer for a file that `verify` accepts, and the mirror that gave it.
fn fetch_verified<'a>(
    agent: &ureq::Agent,
    mirrors: &'a [String],
    name: &str,
    limit: u64,
    verify: impl Fn(&[u8]) -> Result<(), AnyError>,
) -> Result<(&'a String, Vec<u8>), FetchError> {
    let mut failures = Vec::new();
    for mirror in mirrors {
        let url = format!("{mirror}{name}");
        tracing::info!("fetching {url}");
        let answer = fetch_url(agent, &url, name, limit);
        match answer.and_then(|bytes| verify(&bytes).map(|()| bytes)) {
            Ok(bytes) => return Ok((mirror, bytes)),
            Err(error) => {
                tracing::warn!("{url}: {error}");
                failures.push(format!("{url}: {error}"));
            }
        }
    }
    Err(FetchError::Mirrors(failures))
}

/// The bytes at `url`, at most `limit`.
fn fetch_url(agent: &ureq::Agent, url: &str, name: &str, limit: u64) -> Result<Vec<u8>, AnyError> {
    let response = agent.get(url).call()?;
    let length = response.body().content_length();
    if length.is_some_and(|length| length > limit) {
        return Err(idx::too_large(limit).into());
    }
    let body = response
        .into_body()
        .into_with_config()
        .limit(limit)
        .reader();
    let bar = progress_bar(length, name);
    let mut bytes = Vec::new();
    bar.wrap_read(body).read_to_end(&mut bytes)?;
    bar.finish_and_clear();
    Ok(bytes)
}

/// It is drawn on a terminal only.
fn progress_bar(length: Option<u64>, name: &str) -> ProgressBar {
    let template = "{msg:24} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}";
    let style = ProgressStyle::with_template(template);
    ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(name.to_owned())
}

#[cfg(test)]
mod tests;

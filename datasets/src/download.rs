//! Fetching the files of a collection from its mirrors.
//!
//! Every wait has a deadline, and the first ones are short, so that a machine without a network
//! learns it in seconds. A file is stored only once it is whole and verified.

use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::collection::{Collection, IdxFile};
use crate::idx;
use crate::{DatasetError, locate};

const RESOLVE_OR_CONNECT: Duration = Duration::from_secs(5);
const EACH_READ: Duration = Duration::from_secs(15);
const WHOLE_FILE: Duration = Duration::from_secs(600);

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
    let unwritable = |source| FetchError::Store {
        folder: folder.display().to_string(),
        source,
    };
    // Before the first byte is fetched, not after the last.
    std::fs::create_dir_all(folder).map_err(unwritable)?;
    tempfile::tempfile_in(folder).map_err(unwritable)?;

    let agent = agent();
    let mut used = Vec::new();
    for file in &collection.files {
        if locate::find(folder, file)?.is_some() {
            continue;
        }
        let mut failures = Vec::new();
        let answer = mirrors.iter().find_map(|mirror| {
            let url = format!("{mirror}{}", file.compressed_name());
            tracing::info!("fetching {url}");
            fetch_verified(&agent, &url, collection, file)
                .map_err(|error| {
                    tracing::warn!("{url}: {error}");
                    failures.push(format!("{url}: {error}"));
                })
                .ok()
                .map(|bytes| (mirror, bytes))
        });
        let (mirror, bytes) = answer.ok_or(FetchError::Mirrors(failures))?;
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

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_resolve(Some(RESOLVE_OR_CONNECT))
        .timeout_connect(Some(RESOLVE_OR_CONNECT))
        .timeout_recv_response(Some(EACH_READ))
        .timeout_per_read(Some(EACH_READ))
        .timeout_global(Some(WHOLE_FILE))
        .user_agent(concat!("everburn/", env!("CARGO_PKG_VERSION")))
        .build()
        .new_agent()
}

/// The bytes at `url`, once they are known to be the published file.
fn fetch_verified(
    agent: &ureq::Agent,
    url: &str,
    collection: &Collection,
    file: &IdxFile,
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let response = agent.get(url).call()?;
    let length = response.body().content_length();
    if length.is_some_and(|length| length > idx::MAX_COMPRESSED) {
        return Err(idx::IdxProblem::TooLarge(idx::MAX_COMPRESSED).into());
    }
    let body = response
        .into_body()
        .into_with_config()
        .limit(idx::MAX_COMPRESSED)
        .reader();
    let bar = progress_bar(length, file.name);
    let mut bytes = Vec::new();
    bar.wrap_read(body).read_to_end(&mut bytes)?;
    bar.finish_and_clear();

    let origin = Path::new("the answer");
    collection.check_published(file, &file.parse(origin, bytes.clone())?)?;
    Ok(bytes)
}

/// Drawn on a terminal only: elsewhere it would fill a log.
fn progress_bar(length: Option<u64>, name: &str) -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let template = "{msg:24} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}";
    let style = ProgressStyle::with_template(template);
    ProgressBar::with_draw_target(length, target)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(name.to_owned())
}

#[cfg(test)]
mod tests;

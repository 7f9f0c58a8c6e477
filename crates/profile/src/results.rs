//! The files that say where a run's time went.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use everburn_record::file;
use serde_json::json;

use crate::analysis::Analysis;
use crate::error::ProfileError;
use crate::findings::Finding;
use crate::flame::{collapsed, flame_graph};
use crate::recording::{FOLDER, Recording};
use crate::trace::write_trace;

/// What was made of a run's recordings.
///
/// ```no_run
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::write_results;
///
/// let results = write_results("runs/lenet".as_ref(), &[])?;
/// for finding in &results.findings {
///     println!("{finding}");
/// }
/// println!("open {} in Perfetto", results.trace.display());
/// # Ok::<(), everburn_profile::ProfileError>(())
/// ```
#[derive(Debug)]
pub struct Results {
    /// Where the time went.
    pub analysis: Analysis,
    /// What is worth mending, the most first.
    pub findings: Vec<Finding>,
    /// The trace for Perfetto.
    pub trace: PathBuf,
    /// The flame graph, if the CPU was sampled.
    pub flame_graph: Option<PathBuf>,
    /// All numbers, as JSON.
    pub numbers: PathBuf,
}

/// Reads what the ranks of `run` have recorded, and writes `trace.json`, `flame.svg` with `flame.txt`, and
/// `bottleneck.json` into its folder. Recordings of `elsewhere` (folders of the same run on other machines) are
/// included.
///
/// # Errors
/// As [`Recording::read_all`] and [`Analysis::of`]; [`ProfileError::File`] if a file cannot be written.
pub fn write_results(run: &Path, elsewhere: &[PathBuf]) -> Result<Results, ProfileError> {
    let mut recordings = Recording::read_all(&run.join(FOLDER))?;
    for other in elsewhere {
        recordings.extend(Recording::read_all(&other.join(FOLDER))?);
    }
    recordings.sort_by_key(|recording| recording.facts.rank);
    let analysis = Analysis::of(&recordings)?;
    let findings = analysis.findings();
    let trace = run.join("trace.json");
    write(&trace, |file| write_trace(&recordings, file))?;
    let stacks = collapsed(&recordings);
    let flame = run.join("flame.svg");
    let flame = match stacks.is_empty() {
        true => None,
        false => {
            draw(run, &flame, &stacks)?;
            Some(flame)
        }
    };
    let numbers = run.join("bottleneck.json");
    let all = json!({"analysis": analysis, "findings": findings});
    write(&numbers, |file| {
        Ok(serde_json::to_writer_pretty(file, &all)?)
    })?;
    Ok(Results {
        analysis,
        findings,
        trace,
        flame_graph: flame,
        numbers,
    })
}

fn write(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> Result<(), ProfileError> {
    file::replace(path, fill).map_err(|error| ProfileError::file("writing", path, &error))
}

fn draw(run: &Path, picture: &Path, stacks: &BTreeMap<String, u64>) -> Result<(), ProfileError> {
    let name = run.file_name().unwrap_or(run.as_os_str()).to_string_lossy();
    let svg = flame_graph(stacks, &name);
    write(picture, |file| file.write_all(svg.as_bytes()))?;
    write(&run.join("flame.txt"), |file| {
        stacks
            .iter()
            .try_for_each(|(stack, count)| writeln!(file, "{stack} {count}"))
    })
}

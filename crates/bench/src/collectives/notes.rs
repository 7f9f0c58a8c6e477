//! The notes under the table of `bench collectives`.

use super::options::CollectivesBench;
use super::rows::CollectiveMeasurement;
use super::{CollectiveResults, WARM_UP};
use crate::peers::FoundPeer;

/// What one has to know to judge the table.
pub(super) fn notes(
    results: &CollectiveResults,
    options: &CollectivesBench,
    peers: &[FoundPeer],
) -> String {
    let mut notes = vec![format!(
        "method:  blocking calls in place, f32, by rank 0's clock; {WARM_UP} calls to warm up, a \
         barrier, then\n         5 to 2000 calls a round, {} rounds, all lines of a size in turn; \
         p50 is the median of the\n         rounds' medians, p10 and p90 are of all calls; \
         `unsteady`: the rounds differ by more than a quarter",
        options.rounds
    )];
    for found in peers {
        notes.push(format!(
            "peer:    {}, in the same rounds by the same rules; ours/{} is by speed",
            found.full_name(),
            found.peer.name()
        ));
    }
    if peers.len() > 1 {
        notes.push("         \"ours/fastest\": to the peer that is the fastest in a line".into());
    }
    notes.extend(results.network.clone());
    let giga = |rate: f64| format!("{:.3} GB/s", rate / 1e9);
    for CollectiveMeasurement {
        way, task, ground, ..
    } in largest_of_each_world(&results.measured)
    {
        let ranks = way.ranks;
        if let (Some(alone), Some(each)) = (ground.memcpy_alone, ground.memcpy_each) {
            notes.push(format!(
                "memory:  memcpy of {}: {} by one rank, {} by each of {ranks} at once, in the best \
                 round",
                task.bytes,
                giga(alone),
                giga(each)
            ));
        }
        if let (Some(alone), Some(each)) = (ground.stream_alone, ground.stream_each) {
            notes.push(format!(
                "         a plain TCP stream: {} alone, {} when each of {ranks} ranks sends to the \
                 next;\n         frames have headers, so of 1.000 of the link 0.957 are data",
                giga(alone),
                giga(each)
            ));
        }
    }
    notes.push(match options.over_links() {
        true => {
            "bound:   all_reduce: 2(n-1)/n x bytes / link, the least that any algorithm sends; \
                 `reached` is of\n         the link's nominal rate, `of stream` of what a plain \
                 stream reaches on it"
                .into()
        }
        false => {
            "bound:   a rank brings each byte that it receives from the other's memory into its own \
             once: for all_reduce\n         2(n-1)/n x bytes (flat: (n-1) x bytes), at the memcpy of \
             all ranks at once, of pieces as large\n         as the message"
                .into()
        }
    });
    notes.join("\n")
}

/// The line of the largest message, for each number of ranks.
fn largest_of_each_world(all: &[CollectiveMeasurement]) -> Vec<&CollectiveMeasurement> {
    let mut largest: Vec<&CollectiveMeasurement> = Vec::new();
    for line in all {
        let same = largest
            .iter_mut()
            .find(|other| other.way.ranks == line.way.ranks);
        match same {
            Some(other) if other.task.bytes >= line.task.bytes => {}
            Some(other) => *other = line,
            None => largest.push(line),
        }
    }
    largest
}

//! The plot of `bench collectives`.

use super::rows::{CollectiveMeasurement, gigabytes_per_second, rows};
use crate::chart::{Curve, Panel};
use crate::peers::FoundPeer;

/// A panel for each operation and number of ranks, a curve for each way and each peer.
pub(super) fn panels(all: &[CollectiveMeasurement], peers: &[FoundPeer]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for row in rows(all) {
        let CollectiveMeasurement { way, task, .. } = row.measured;
        let title = format!("{}, {} ranks", task.operation, way.ranks);
        let at = panels.iter().position(|panel| panel.title == title);
        let at = at.unwrap_or_else(|| {
            let curves = Vec::new();
            panels.push(Panel { title, curves });
            panels.len() - 1
        });
        let name = match &way.algorithm {
            Some(algorithm) => format!("{} {algorithm}", way.transport),
            None => way.transport.clone(),
        };
        let bytes = task.bytes.0;
        add_point(
            &mut panels[at],
            name,
            false,
            (bytes, row.algorithm_bandwidth()),
        );
        for (found, peer) in peers.iter().zip(&row.peers) {
            if let Some(summary) = peer {
                let rate = gigabytes_per_second(bytes, summary.p50);
                add_point(&mut panels[at], found.full_name(), true, (bytes, rate));
            }
        }
    }
    panels
}

/// A peer's point comes with every way; one is enough.
fn add_point(panel: &mut Panel, name: String, peer: bool, point: (u64, f64)) {
    let curve = panel.curves.iter_mut().find(|curve| curve.name == name);
    match curve {
        Some(curve) if curve.points.iter().any(|(bytes, _)| *bytes == point.0) => {}
        Some(curve) => curve.points.push(point),
        None => panel.curves.push(Curve {
            name,
            peer,
            points: vec![point],
        }),
    }
}

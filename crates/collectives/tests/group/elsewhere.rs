//! Ranks that are threads here, and say that they run elsewhere.

use std::sync::Arc;
use std::time::Instant;

use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_collectives::transport::{Frame, HostInfo, Inbox, ThreadMesh, Transport};

/// A transport between threads whose rank claims another host.
#[derive(Debug)]
struct Elsewhere {
    mesh: ThreadMesh,
    host_info: HostInfo,
}

impl Transport for Elsewhere {
    fn rank(&self) -> usize {
        self.mesh.rank()
    }

    fn world_size(&self) -> usize {
        self.mesh.world_size()
    }

    fn host_info(&self) -> HostInfo {
        self.host_info.clone()
    }

    fn key(&self) -> everburn_auth::Key {
        self.mesh.key()
    }

    fn inbox(&self) -> &Arc<Inbox> {
        self.mesh.inbox()
    }

    fn send(&self, to: usize, frame: Frame) {
        self.mesh.send(to, frame);
    }

    fn flush(&self, deadline: Instant) -> bool {
        self.mesh.flush(deadline)
    }

    fn sever(&self) {
        self.mesh.sever();
    }

    fn cut(&self, peer: usize) {
        self.mesh.cut(peer);
    }
}

/// The groups of ranks of which each runs where `place` says.
pub fn groups(
    size: usize,
    options: GroupOptions,
    place: impl Fn(usize) -> HostInfo,
) -> Vec<ProcessGroup> {
    let meshes = ThreadMesh::new(size).into_iter().enumerate();
    meshes
        .map(|(rank, mesh)| {
            let host_info = place(rank);
            let transport = Elsewhere { mesh, host_info };
            ProcessGroup::over(Arc::new(transport), rank, options)
        })
        .collect()
}

/// As if each rank `r` ran on machine `hosts[r]`.
pub fn on_hosts(hosts: &[usize], options: GroupOptions) -> Vec<ProcessGroup> {
    groups(hosts.len(), options, |rank| HostInfo {
        host: format!("machine {}", hosts[rank]),
        ..HostInfo::of_this_process()
    })
}

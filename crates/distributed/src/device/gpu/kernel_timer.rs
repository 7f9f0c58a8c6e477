//! How long each kernel runs, by CubeCL's own profiling.
//!
//! CubeCL records an event before and after each launched kernel and passes both on unread, so that kernels run as
//! usual; they are read after the step.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use cubecl::future::block_on;
use cubecl_runtime::config::{TypeNameFormatLevel, type_name_format};
use cubecl_runtime::logging::{
    LaunchObservation, LaunchObserver, ProfileDuration, TimingMethod, TimingRequest,
};
use everburn_profile::{KernelTimer, TimedKernel};

use everburn_collectives::sync::lock;

#[derive(Default)]
pub(crate) struct GpuKernelTimer {
    launches: Arc<Launches>,
    watching: Option<(LaunchObservation, Instant)>,
}

impl KernelTimer for GpuKernelTimer {
    fn begin(&mut self) {
        lock(&self.launches.kept).clear();
        let since = Instant::now();
        let observer: Arc<dyn LaunchObserver> = self.launches.clone();
        self.watching = Some((LaunchObservation::new(observer), since));
    }

    fn end(&mut self) -> Vec<TimedKernel> {
        let Some((watching, since)) = self.watching.take() else {
            return Vec::new();
        };
        drop(watching);
        let kept = std::mem::take(&mut *lock(&self.launches.kept));
        lock(&self.launches.asked).clear();
        kept.into_iter()
            .filter_map(|launch| launch.read(since))
            .collect()
    }
}

/// The launches during an observation.
#[derive(Default)]
struct Launches {
    /// When each thread requested the kernel that it is about to launch.
    asked: Mutex<HashMap<ThreadId, Instant>>,
    kept: Mutex<Vec<Launch>>,
}

struct Launch {
    kernel: &'static str,
    asked: Instant,
    time: KernelTime,
}

enum KernelTime {
    /// Two events on the device, not waited for yet.
    Unread(ProfileDuration),
    /// CubeCL's own kernel log is on and has read them.
    Read(Duration),
}

impl Launches {
    fn keep(&self, kernel: &'static str, time: KernelTime) {
        let asked = lock(&self.asked).remove(&thread::current().id());
        lock(&self.kept).push(Launch {
            kernel,
            asked: asked.unwrap_or_else(Instant::now),
            time,
        });
    }
}

impl LaunchObserver for Launches {
    fn launched(&self, _kernel: &'static str) {
        lock(&self.asked).insert(thread::current().id(), Instant::now());
    }

    fn timing(&self) -> TimingRequest {
        TimingRequest::Deferred
    }

    fn profiled(&self, kernel: &'static str, profile: ProfileDuration) {
        self.keep(kernel, KernelTime::Unread(profile));
    }

    fn timed(&self, kernel: &'static str, duration: Duration, _method: TimingMethod) {
        self.keep(kernel, KernelTime::Read(duration));
    }
}

impl Launch {
    /// The time measured by the device, which this waits for; `None` if there is none. `since` is before all launches.
    fn read(self, since: Instant) -> Option<TimedKernel> {
        let (began, took) = match self.time {
            KernelTime::Read(took) => (self.asked, took),
            KernelTime::Unread(profile) => {
                let ticks = block_on(profile.resolve())?;
                let began = since + ticks.start_duration_since(since);
                (began, ticks.duration())
            }
        };
        // CubeCL reports an unknown time as an hour.
        (took < Duration::from_secs(3600)).then(|| TimedKernel {
            name: type_name_format(self.kernel, TypeNameFormatLevel::Balanced),
            asked: self.asked,
            began,
            took,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_has_its_request_time_and_duration() {
        let launches = Launches::default();
        let since = Instant::now();
        launches.launched("some::path::Kernel");
        let began = Instant::now();
        let end = began + Duration::from_micros(7);
        launches.profiled(
            "some::path::Kernel",
            ProfileDuration::new_system_time(began, end),
        );
        launches.launched("read");
        launches.timed("read", Duration::from_micros(3), TimingMethod::System);
        launches.launched("broken");
        let hour = began + Duration::from_secs(3600);
        launches.profiled("broken", ProfileDuration::new_system_time(began, hour));
        let kept = std::mem::take(&mut *lock(&launches.kept));
        let read: Vec<TimedKernel> = kept.into_iter().filter_map(|l| l.read(since)).collect();
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].began, read[0].took), (began, end - began));
        assert!(since <= read[0].asked && read[0].asked <= began);
        assert_eq!(read[1].took, Duration::from_micros(3));
        assert!(lock(&launches.asked).is_empty());
    }
}

//! Kernels of a device that is made up.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use everburn_profile::{
    Analysis, Facts, FindingKind, KernelTimer, Pass, Phase, Recorder, Recording, Summary,
    TimedKernel, write_trace,
};

/// What a device is asked for, once somebody wants to know.
#[derive(Default)]
struct Device {
    is_timed: bool,
    kernels: Vec<TimedKernel>,
    /// How often somebody began to ask, and stopped.
    times: (usize, usize),
}

#[derive(Clone, Default)]
struct Timer(Arc<Mutex<Device>>);

impl Timer {
    /// The host asks for a kernel, which runs at once for `micros` microseconds.
    fn run(&self, name: &str, micros: u64) {
        let mut device = self.0.lock().unwrap();
        let (asked, took) = (Instant::now(), Duration::from_micros(micros));
        if device.is_timed {
            device.kernels.push(TimedKernel {
                name: name.to_owned(),
                asked,
                began: asked,
                took,
            });
        }
        // The host waits for it, as it does at the end of each phase.
        while asked.elapsed() < took {
            std::hint::spin_loop();
        }
    }
}

impl KernelTimer for Timer {
    fn begin(&mut self) {
        let mut device = self.0.lock().unwrap();
        device.is_timed = true;
        device.times.0 += 1;
    }

    fn end(&mut self) -> Vec<TimedKernel> {
        let mut device = self.0.lock().unwrap();
        device.is_timed = false;
        device.times.1 += 1;
        std::mem::take(&mut device.kernels)
    }
}

/// Fifteen steps, in each of which the passes run two kernels and the optimizer one.
fn recorded(host: Duration) -> (Recording, Timer) {
    let timer = Timer::default();
    let recorder = Recorder::new(Facts {
        device: "cuda:0".to_owned(),
        ..Facts::default()
    });
    recorder.name_parameters(["conv1.weight".to_owned(), "fc1.weight".to_owned()]);
    recorder.time_kernels(Box::new(timer.clone()));
    for step in 1..=15 {
        recorder.begin_step(step);
        std::thread::sleep(host);
        recorder.enter(Phase::Forward);
        recorder.mark(0, Pass::Forward);
        timer.run("convolve", 40);
        recorder.mark(1, Pass::Forward);
        timer.run("multiply", 20);
        recorder.enter(Phase::Backward);
        timer.run("multiply", 300);
        recorder.mark(1, Pass::Backward);
        recorder.mark(0, Pass::Backward);
        recorder.enter(Phase::Optimizer);
        timer.run("adam", 30);
    }
    (recorder.finish(), timer)
}

#[test]
fn one_step_of_ten_is_timed_and_counts_for_its_kernels_alone() {
    let (recording, timer) = recorded(Duration::ZERO);
    let timed = recording.steps.iter().filter(|step| step.kernels_timed);
    let timed: Vec<u32> = timed.map(|step| step.step).collect();
    assert_eq!(timed, [4, 14]);
    assert_eq!(timer.0.lock().unwrap().times, (2, 2));
    let analysis = Analysis::of(&[recording]).unwrap();
    assert_eq!(
        (analysis.steps, analysis.left_out, analysis.kernels_timed),
        (10, 3, 2)
    );
    let rank = &analysis.ranks[0];
    assert_eq!(rank.passes, 1.0);
    let device = rank.device.as_ref().unwrap();
    assert_eq!((device.steps, device.launches), (2, 4.0));
    assert!((device.busy - 390e-6).abs() < 1e-9, "{}", device.busy);
    let kernels: Vec<(&str, f64, &str)> = device
        .kernels
        .iter()
        .map(|kernel| {
            (
                kernel.name.as_str(),
                kernel.launches,
                kernel.asked_in.as_str(),
            )
        })
        .collect();
    let expected = [
        ("multiply", 2.0, "fc1 backward"),
        ("convolve", 1.0, "conv1 forward"),
        ("adam", 1.0, "optimizer"),
    ];
    assert_eq!(kernels, expected);
    assert!((device.kernels[0].seconds - 320e-6).abs() < 1e-9);
    let text = Summary(&analysis).to_string();
    assert!(text.contains("kernels of rank 0, 2 steps timed"), "{text}");
    assert!(text.contains("nor 2 in which kernels were timed"), "{text}");
}

#[test]
fn a_recording_with_kernels_is_read_as_it_was_written_and_drawn() {
    let (recording, _) = recorded(Duration::ZERO);
    let folder = tempfile::tempdir().unwrap();
    recording.write(folder.path()).unwrap();
    let read = Recording::read_all(folder.path()).unwrap();
    assert_eq!(read[0].kernels, recording.kernels);
    let mut trace = Vec::new();
    write_trace(&read, &mut trace).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let convolve: Vec<f64> = events
        .iter()
        .filter(|event| event["name"] == "convolve")
        .map(|event| event["dur"].as_f64().unwrap())
        .collect();
    assert_eq!(convolve.len(), 2);
    assert!(convolve.iter().all(|took| (took - 40.0).abs() < 1e-2));
    assert!(
        events
            .iter()
            .any(|event| event["args"]["name"] == "kernels on cuda:0")
    );
}

#[test]
fn a_device_that_waits_for_its_host_is_told_behind_all_faults() {
    let (recording, _) = recorded(Duration::from_millis(60));
    let found = Analysis::of(&[recording]).unwrap().findings();
    let place = found
        .iter()
        .position(|finding| finding.kind == FindingKind::DeviceIdle)
        .unwrap();
    let before = &found[..place];
    assert!(
        before
            .iter()
            .any(|finding| finding.kind == FindingKind::Data),
        "{found:?}"
    );
    assert_eq!(found[place].share, 0.0);
    let text = found[place].to_string();
    assert!(text.contains("in 4 kernels"), "{text}");
}

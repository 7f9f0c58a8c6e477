//! Jobs, panics and ends of a worker.

use super::*;

/// Longer than anything here takes.
const GENEROUS: Duration = Duration::from_secs(60);

fn worker(on_panic: impl FnOnce(&str) + Send + 'static) -> Worker<Vec<u32>> {
    Worker::start("test", Vec::new(), on_panic).unwrap()
}

#[test]
fn jobs_are_done_in_order_and_their_answers_come_back() {
    let worker = worker(|_| ());
    let answers: Vec<_> = (0..100)
        .map(|job| {
            worker.ask(move |done| {
                done.push(job);
                done.len()
            })
        })
        .collect();
    for (place, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.wait_within(GENEROUS), Ok(place + 1));
    }
    let all = worker.ask(|done| done.clone()).wait_within(GENEROUS);
    assert_eq!(all.unwrap(), (0..100).collect::<Vec<_>>());
}

#[test]
fn a_panic_fails_its_caller_and_all_after_it_with_its_message() {
    let (told, heard) = mpsc::channel();
    let (hold, held) = mpsc::channel::<()>();
    let worker = worker(move |message| told.send(message.to_owned()).unwrap());
    let fails = worker.ask::<()>(move |_| {
        held.recv_timeout(GENEROUS).unwrap();
        panic!("bucket {} is gone", 3);
    });
    let queued = worker.ask(|done| done.len());
    hold.send(()).unwrap();
    let panicked = WorkerError::Panicked("bucket 3 is gone".into());
    assert_eq!(fails.wait_within(GENEROUS), Err(panicked.clone()));
    // It came before anybody was answered.
    assert_eq!(heard.try_recv().unwrap(), "bucket 3 is gone");
    assert_eq!(queued.wait_within(GENEROUS), Err(panicked.clone()));
    let later = worker.ask(|done| done.len()).wait_within(GENEROUS);
    assert_eq!(later, Err(panicked));
    assert_eq!(worker.settle(GENEROUS), Ok(()));
}

#[test]
fn what_takes_an_answer_may_panic_too() {
    let worker = worker(|_| ());
    worker.submit(|_| (), |_| panic!("nobody there"));
    let next = worker.ask(|done| done.len()).wait_within(GENEROUS);
    assert_eq!(next, Err(WorkerError::Panicked("nobody there".into())));
}

#[test]
fn an_end_finishes_what_is_queued_and_a_thread_that_hangs_is_left() {
    let mut worker = worker(|_| ());
    let (release, held) = mpsc::channel::<()>();
    let stuck = worker.ask(move |_| held.recv().is_err());
    let queued = worker.ask(|_| 7);
    assert_eq!(worker.settle(Duration::from_millis(1)), Err(2));
    assert!(!worker.end_within(Duration::from_millis(1)));
    let refused = worker.ask(|_| 8).wait_within(GENEROUS);
    assert_eq!(refused, Err(WorkerError::Ended));
    drop(release);
    assert!(worker.end_within(GENEROUS));
    assert_eq!(stuck.wait_within(GENEROUS), Ok(true));
    assert_eq!(queued.wait_within(GENEROUS), Ok(7));
}

#[test]
fn a_queue_takes_no_more_than_it_says() {
    let worker = worker(|_| ());
    let (release, held) = mpsc::channel::<()>();
    let stuck = worker.ask(move |_| held.recv().is_err());
    for _ in 1..CAPACITY {
        worker.submit(|_| (), |_| ());
    }
    let more = worker.ask(|_| ()).wait_within(GENEROUS);
    assert_eq!(more, Err(WorkerError::Full));
    drop(release);
    assert_eq!(stuck.wait_within(GENEROUS), Ok(true));
}

#[test]
fn an_answer_that_does_not_come_in_time_is_late() {
    let worker = worker(|_| ());
    let (release, held) = mpsc::channel::<()>();
    let stuck = worker.ask(move |_| held.recv().is_err());
    let limit = Duration::from_millis(1);
    let Err(stuck) = stuck.poll() else {
        panic!("nothing has come of it yet")
    };
    assert_eq!(stuck.wait_within(limit), Err(WorkerError::Late(limit)));
    drop(release);
    assert_eq!(worker.ask(|_| 7).wait(), Ok(7));
}

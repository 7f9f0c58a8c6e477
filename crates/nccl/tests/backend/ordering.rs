//! Work of the GPU before and after an operation waits for it, the host does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::time::Duration;

use everburn_collectives::group::{CollectiveError, ReduceOp};
use everburn_nccl::Status;
use everburn_nccl_fake::{FakeCluster, Fault};

use crate::harness::{GENEROUS, Gate, error};

/// A kernel writes, the sum is made, a kernel reads: each on a stream of its own, and each asked for
/// before the first has run.
#[test]
fn what_the_device_was_given_before_is_waited_for_and_what_comes_behind_waits() {
    let cluster = FakeCluster::new(2);
    let results = cluster.on_all_ranks(|nccl, rank| {
        let (before, behind) = (cluster.compute_stream(rank), cluster.compute_stream(rank));
        let gradients = cluster.allocate(rank, &[0f32; 3]);
        let update = cluster.allocate(rank, &[-1f32; 3]);
        let mut gate = Gate::new();
        cluster.launch(rank, before, gate.kernel());
        cluster.launch(
            rank,
            before,
            cluster.writer(&gradients, &[1f32, 2.0, rank as f32]),
        );

        let work = nccl.all_reduce(&gradients, ReduceOp::Sum)?;
        work.hold_device()?;
        cluster.launch(rank, behind, cluster.copier(&gradients, &update));
        // All is asked for, and nothing has happened.
        assert!(!work.is_done());
        assert_eq!(cluster.read::<f32>(&update), [-1.0; 3]);
        gate.open();

        work.wait()?;
        let (over, ended) = channel();
        cluster.launch(rank, behind, move || over.send(()).unwrap());
        ended.recv_timeout(GENEROUS).unwrap();
        Ok::<_, CollectiveError>(cluster.read::<f32>(&update))
    });
    for update in results {
        assert_eq!(update.unwrap(), [2.0, 4.0, 1.0]);
    }
}

#[test]
fn with_a_driver_that_cannot_order_all_the_host_waits() {
    let cluster = FakeCluster::new(1);
    cluster.inject(0, Fault::OldDriver);
    let nccl = cluster.alone();
    assert!(!nccl.orders_device());
    let buffer = cluster.allocate(0, &[1f32]);
    let work = nccl.all_reduce(&buffer, ReduceOp::Sum).unwrap();
    let refused = error(work.hold_device());
    assert!(
        matches!(refused, CollectiveError::Invalid { .. }),
        "{refused}"
    );
    assert!(
        refused.to_string().contains("CUDA 12.5 and later can"),
        "{refused}"
    );
    work.wait().unwrap();
}

#[test]
fn operations_run_in_the_order_of_issue_without_being_waited_for() {
    let cluster = FakeCluster::new(2);
    let results = cluster.on_all_ranks(|nccl, rank| {
        let buffer = cluster.allocate(rank, &[1f32]);
        for _ in 0..10 {
            let _ = nccl.all_reduce(&buffer, ReduceOp::Sum)?;
        }
        nccl.synchronize()?;
        Ok::<_, CollectiveError>(cluster.read::<f32>(&buffer))
    });
    for buffer in results {
        assert_eq!(buffer.unwrap(), [1024.0]);
    }
}

#[test]
fn the_owner_of_a_buffer_is_let_go_when_the_gpu_has_finished_and_not_before() {
    let cluster = FakeCluster::new(1);
    let nccl = cluster.alone();
    let owner = Arc::new(());
    let compute = cluster.compute_stream(0);
    let mut gate = Gate::new();
    cluster.launch(0, compute, gate.kernel());
    let buffer = cluster.allocate_for(0, &[1f32], owner.clone());
    let work = nccl.all_reduce(&buffer, ReduceOp::Sum).unwrap();
    drop(buffer);
    assert_eq!(Arc::strong_count(&owner), 2);
    gate.open();
    work.wait().unwrap();
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn whoever_has_waited_finds_the_owner_let_go_though_another_thread_does_it() {
    /// Takes its time to go.
    struct Slow {
        begins: Sender<()>,
        gone: Arc<AtomicBool>,
    }
    impl Drop for Slow {
        fn drop(&mut self) {
            // Nobody listens if it is let go after the test has failed.
            let _ = self.begins.send(());
            // Were it not waited for, the assertion would come long before the end of this.
            std::thread::sleep(Duration::from_millis(300));
            self.gone.store(true, Ordering::Release);
        }
    }
    let cluster = FakeCluster::new(1);
    let nccl = cluster.alone();
    let (begins, begun) = channel();
    let gone = Arc::new(AtomicBool::new(false));
    let owner = Slow {
        begins,
        gone: gone.clone(),
    };
    let buffer = cluster.allocate_for(0, &[1f32], owner);
    let work = nccl.all_reduce(&buffer, ReduceOp::Sum).unwrap();
    drop(buffer);
    // The backend's own thread finds that the operation is over.
    begun.recv_timeout(GENEROUS).unwrap();
    work.wait().unwrap();
    assert!(gone.load(Ordering::Acquire));
}

/// Says when it is dropped.
struct Owner(Sender<()>);

impl Drop for Owner {
    fn drop(&mut self) {
        // A test that has ended asks no more.
        let _ = self.0.send(());
    }
}

#[test]
fn buffers_of_a_call_that_fails_after_it_was_queued_are_held_until_the_stream_is_past_it() {
    let cluster = FakeCluster::new(1);
    let nccl = cluster.alone();
    let (sender, gone) = channel();
    let buffer = cluster.allocate_for(0, &[1f32], Owner(sender));
    let before = cluster.compute_stream(0);
    let mut gate = Gate::new();
    cluster.launch(0, before, gate.kernel());
    cluster.inject(0, Fault::EnqueueFailsLate(Status::InternalError));
    let told = error(nccl.all_reduce(&buffer, ReduceOp::Sum));
    assert!(told.to_string().contains("ncclInternalError"), "{told}");
    drop(buffer);
    // The stream still waits for the kernel, and has the operation after it.
    assert_eq!(gone.try_recv(), Err(TryRecvError::Empty));
    gate.open();
    gone.recv_timeout(GENEROUS).unwrap();
}

#[test]
fn buffers_stay_where_the_end_of_an_operation_that_was_queued_cannot_be_seen() {
    let cluster = FakeCluster::new(1);
    let nccl = cluster.alone();
    let (sender, gone) = channel();
    let buffer = cluster.allocate_for(0, &[1f32], Owner(sender));
    cluster.inject(0, Fault::RecordFails);
    let told = error(nccl.all_reduce(&buffer, ReduceOp::Sum));
    assert!(told.to_string().contains("cuEventRecord"), "{told}");
    drop(buffer);
    assert_eq!(gone.try_recv(), Err(TryRecvError::Empty));
}

#[test]
fn buffers_of_a_call_that_never_reaches_the_stream_are_given_back_after_the_abort() {
    let cluster = FakeCluster::new(1);
    let nccl = cluster.alone();
    let (sender, gone) = channel();
    let buffer = cluster.allocate_for(0, &[1f32], Owner(sender));
    cluster.inject(0, Fault::EnqueueFails(Status::InvalidArgument));
    error(nccl.all_reduce(&buffer, ReduceOp::Sum));
    drop(buffer);
    gone.recv_timeout(GENEROUS).unwrap();
    drop(nccl);
}

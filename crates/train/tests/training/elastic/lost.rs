//! Ranks that are lost at the worst moments: each is told of before it comes.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use burn::module::{Module, ModuleMapper, Param};
use burn::prelude::*;
use everburn_collectives::group::ProcessGroup;
use everburn_models::mlp::Mlp;
use everburn_train::checkpoint::{CheckpointFolder, Place};
use everburn_train::{
    Classifier, ElasticGroup, OnCheckpointFailure, Regroup, TrainError, TrainingConfig,
    TrainingReport,
};

use super::{Job, LONG, config, failed, folder, hashes, images, model, sound, undisturbed};

/// Groups of which calls are told first, with how many they are.
struct Told<R, W> {
    groups: Arc<ElasticGroup>,
    regroups: AtomicUsize,
    before_regroup: R,
    looks: AtomicUsize,
    before_look: W,
}

impl<R, W> Regroup for Told<R, W>
where
    R: Fn(usize) -> Result<(), TrainError> + Send + Sync,
    W: Fn(usize, &ElasticGroup) -> Option<bool> + Send + Sync,
{
    fn group(&self) -> ProcessGroup {
        self.groups.group()
    }

    fn regroup(&self, step: usize, why: &TrainError) -> Result<ProcessGroup, TrainError> {
        let call = self.regroups.fetch_add(1, Ordering::Relaxed) + 1;
        (self.before_regroup)(call)?;
        self.groups.regroup(step, why)
    }

    fn somebody_waits(&self) -> bool {
        let call = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        let waits = (self.before_look)(call, &self.groups);
        waits.unwrap_or_else(|| self.groups.somebody_waits())
    }

    fn members(&self) -> Vec<usize> {
        self.groups.members()
    }
}

/// Calls a function whenever the first tensor is loaded from what another rank has given.
fn model_that_tells(loaded: Arc<dyn Fn() + Send + Sync>) -> Classifier<Mlp, 4> {
    struct First(Option<Arc<dyn Fn() + Send + Sync>>);
    impl ModuleMapper for First {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match self.0.take() {
                None => param,
                Some(loaded) => param.load_mapper(move |tensor| {
                    loaded();
                    tensor
                }),
            }
        }
    }
    model().map(&mut First(Some(loaded)))
}

#[test]
fn who_was_just_given_the_state_has_it_though_its_giver_is_lost_at_once() {
    let (expected, _) = undisturbed();
    let folder = folder();
    let job = Job::new(&folder, (1, 2), config());
    let store = job.store.clone();
    // Rank 0 is alone in the second step, in which it waits for the newcomer.
    let wait = move |read: usize| {
        if read == 36 {
            store
                .wait_within(&["everburn/elastic/3/joined/1"], LONG)
                .unwrap();
        }
    };
    let gone = || TrainError::NotMember("its machine is gone".to_string());
    let (first, newcomer) = std::thread::scope(|scope| {
        let job = &job;
        let first = scope.spawn(move || {
            job.rank_with(0, &images(usize::MAX, wait), model(), &|groups| {
                let store = job.store.clone();
                Arc::new(Told {
                    groups: Arc::new(groups),
                    regroups: AtomicUsize::new(0),
                    // Without the other rank, then with the newcomer, then lost.
                    before_regroup: move |call| if call < 3 { Ok(()) } else { Err(gone()) },
                    looks: AtomicUsize::new(0),
                    before_look: move |_, _: &ElasticGroup| {
                        Some(store.check(&["everburn/elastic/3/joined/1"]).unwrap())
                    },
                })
            })
        });
        let newcomer = scope.spawn(move || {
            assert!(failed(&job.rank(1, &images(1, |_| {}))).contains("the disk is broken"));
            job.store
                .wait_within(&["everburn/elastic/2/closed"], LONG)
                .unwrap();
            let groups: Arc<OnceLock<Arc<ElasticGroup>>> = Arc::default();
            let own = groups.clone();
            let loses_rank_0 = move || own.get().unwrap().group().break_connection(0);
            let model = model_that_tells(Arc::new(loses_rank_0));
            job.rank_with(1, &sound(), model, &|group| {
                let group = Arc::new(group);
                assert!(groups.set(group.clone()).is_ok());
                group
            })
        });
        (first.join().unwrap(), newcomer.join().unwrap())
    });
    assert!(failed(&first).contains("its machine is gone"));
    assert_eq!(newcomer.unwrap().world_size, 1);
    assert_eq!(hashes(folder.path()), expected);
}

/// Trains two ranks that lose each other in the first step of the second epoch, while the checkpoint of the
/// first cannot be written; where `mended`, the disk is well again before they meet anew.
fn lose_a_checkpoint(
    folder: &tempfile::TempDir,
    policy: OnCheckpointFailure,
    mended: bool,
) -> [Result<TrainingReport, TrainError>; 2] {
    let config = TrainingConfig {
        on_checkpoint_failure: policy,
        keep_checkpoints: 9,
        ..config()
    };
    let job = Job::new(folder, (2, 2), config);
    let checkpoints = job.folder.join("checkpoints");
    let events = job.folder.join("events.jsonl");
    std::thread::scope(|scope| {
        let (job, checkpoints, events) = (&job, &checkpoints, &events);
        let ranks = [0, 1].map(|slot| {
            scope.spawn(move || {
                job.rank_with(slot, &sound(), model(), &|groups| {
                    let (broken, repaired) = (checkpoints.clone(), checkpoints.clone());
                    let events = events.clone();
                    Arc::new(Told {
                        groups: Arc::new(groups),
                        regroups: AtomicUsize::new(0),
                        before_regroup: move |_| {
                            if mended && slot == 0 {
                                std::fs::remove_file(&repaired).unwrap();
                                std::fs::create_dir(&repaired).unwrap();
                            }
                            Ok(())
                        },
                        looks: AtomicUsize::new(0),
                        // Only rank 0 looks, once in each step.
                        before_look: move |step, groups: &ElasticGroup| {
                            match step {
                                1 => {
                                    std::fs::remove_dir(&broken).unwrap();
                                    std::fs::write(&broken, "a file in the way").unwrap();
                                }
                                4 => {
                                    // On a thread of its own, which may come late.
                                    wait_for_event(&events, "checkpoint-failed");
                                    groups.group().break_connection(1);
                                }
                                _ => {}
                            }
                            Some(false)
                        },
                    })
                })
            })
        });
        ranks.map(|rank| rank.join().unwrap())
    })
}

fn wait_for_event(events: &Path, kind: &str) {
    let kind = format!(r#""kind":"{kind}","#);
    let begun = Instant::now();
    while !std::fs::read_to_string(events).is_ok_and(|text| text.contains(&kind)) {
        assert!(begun.elapsed() < LONG, "no {kind}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_checkpoint_that_was_due_is_made_up_for_in_the_next_group() {
    let (expected, _) = undisturbed();
    let folder = folder();
    let results = lose_a_checkpoint(&folder, OnCheckpointFailure::Continue, true);
    for result in results {
        result.unwrap();
    }
    let places = CheckpointFolder::new(folder.path().join("checkpoints"), 9).places();
    assert_eq!(places.unwrap(), [1, 2, 3].map(Place::from));
    assert_eq!(hashes(folder.path()), expected);
    let events = std::fs::read_to_string(folder.path().join("events.jsonl")).unwrap();
    let failed_checkpoints = |line: &&str| line.contains(r#""kind":"checkpoint-failed","#);
    assert_eq!(
        events.lines().filter(failed_checkpoints).count(),
        1,
        "{events}"
    );
}

#[test]
fn a_checkpoint_that_failed_before_ranks_were_lost_stops_the_training_that_asks_for_it() {
    let folder = folder();
    let [first, second] = lose_a_checkpoint(&folder, OnCheckpointFailure::Stop, false);
    assert!(failed(&first).contains("a file is in the way"), "{first:?}");
    assert!(second.is_err());
    // Those of the first epoch: no step was made in the next group.
    assert_eq!(hashes(folder.path()).len(), 3);
}

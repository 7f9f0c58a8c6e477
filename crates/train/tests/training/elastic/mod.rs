//! A training that loses ranks, and is joined by others, learns what an undisturbed one learns.
//!
//! Ranks are threads here; with processes, which are killed and stopped, see `tests/tests/elastic.rs`.

mod balance;
mod devices;
mod lost;
mod not_finite;
mod rounds;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use burn::data::dataset::{Dataset, DatasetError};
use burn::prelude::*;
use everburn_collectives::elastic::{ElasticOptions, Membership, MembershipCoordinator};
use everburn_collectives::group::GroupOptions;
use everburn_collectives::heartbeat::HeartbeatOptions;
use everburn_collectives::store::{HashStore, SharedStore};
use everburn_datasets::ImageItem;
use everburn_distributed::Connector;
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_tests::AssertContains;
use everburn_train::{
    Classifier, ElasticGroup, Elasticity, Regroup, RunDirectory, TrainError, Trainer,
    TrainingConfig, TrainingData, TrainingReport,
};

use crate::alone;
use crate::harness::data::{Images, digits};
use crate::harness::parameters::drawn;
use crate::harness::run::run_directory;

/// No test waits as long as this.
const LONG: Duration = Duration::from_secs(120);

/// How long too few ranks wait for those who never come; the others come within this time on a busy machine.
const IN_VAIN: Duration = Duration::from_secs(4);

/// The slot of a rank that takes three times as long as others, by what it measures.
const SLOW: usize = 2;

/// Samples of which the reading number `fails_at` fails, counted over all that are read for training.
struct Failing {
    samples: Arc<dyn Dataset<ImageItem>>,
    reads: AtomicUsize,
    fails_at: usize,
    /// Called before each reading.
    before: Box<dyn Fn(usize) + Send + Sync>,
}

impl Dataset<ImageItem> for Failing {
    fn get(&self, index: usize) -> Result<ImageItem, DatasetError> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        (self.before)(read);
        if read == self.fails_at {
            return Err(DatasetError::new(std::io::Error::other(
                "the disk is broken",
            )));
        }
        self.samples.get(index)
    }

    fn len(&self) -> usize {
        self.samples.len()
    }
}

fn images(fails_at: usize, before: impl Fn(usize) + Send + Sync + 'static) -> Images {
    let data = digits(5, 63, 37);
    TrainingData {
        train: Arc::new(Failing {
            samples: data.train,
            reads: AtomicUsize::new(0),
            fails_at,
            before: Box::new(before),
        }),
        ..data
    }
}

fn sound() -> Images {
    images(usize::MAX, |_| {})
}

fn config() -> TrainingConfig {
    TrainingConfig {
        epochs: 3,
        batch_size: 20,
        virtual_ranks: Some(4),
        hash_every: Some(1),
        log_every: 1,
        validation_samples: Some(21),
        ..TrainingConfig::default()
    }
}

fn model() -> Classifier<Mlp, 4> {
    Classifier::of_blocks(drawn(MlpConfig::new().init(&Device::flex())))
}

fn hashes(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("hashes.jsonl")).unwrap();
    text.lines().map(ToString::to_string).collect()
}

fn metrics_without_times(folder: &Path) -> Vec<(String, u64, String)> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let kind = line["kind"].as_str().unwrap().to_string();
        (
            kind,
            line["step"].as_u64().unwrap(),
            line["loss"].to_string(),
        )
    });
    lines.collect()
}

/// What one rank learns when nothing happens.
fn undisturbed() -> (Vec<String>, Vec<(String, u64, String)>) {
    undisturbed_by(config())
}

fn undisturbed_by(config: TrainingConfig) -> (Vec<String>, Vec<(String, u64, String)>) {
    let folder = tempfile::tempdir().unwrap();
    let trainer = Trainer {
        run: Some(RunDirectory::create(folder.path()).unwrap()),
        ..alone(config)
    };
    trainer.fit(model(), &sound()).unwrap();
    (hashes(folder.path()), metrics_without_times(folder.path()))
}

/// The processes of a job, as a launcher sees them.
struct Job<'a> {
    store: SharedStore,
    folder: &'a Path,
    /// How many ranks must be there, and how many can.
    range: (usize, usize),
    config: TrainingConfig,
    /// How the rank of a slot is connected for its gradients, if not by its group.
    connect: Option<&'a (dyn Fn(usize) -> Arc<Connector> + Sync)>,
}

/// What a rank's groups are put into.
type Around<'a> = &'a dyn Fn(ElasticGroup) -> Arc<dyn Regroup>;

impl<'a> Job<'a> {
    fn new(folder: &'a tempfile::TempDir, range: (usize, usize), config: TrainingConfig) -> Self {
        Self {
            store: Arc::new(HashStore::new()),
            folder: folder.path(),
            range,
            config,
            connect: None,
        }
    }

    fn options(&self, slot: usize, incarnation: u64) -> ElasticOptions {
        let (min, max) = self.range;
        ElasticOptions {
            patience: LONG,
            // Where none may be missing, the loss of one is the end.
            wait_for_min: if min == max { IN_VAIN } else { LONG },
            ..ElasticOptions::new(self.range, slot, incarnation)
        }
    }

    /// A rank from its start to its end, which the launcher sees.
    fn rank(&self, slot: usize, data: &Images) -> Result<TrainingReport, TrainError> {
        self.rank_with(slot, data, model(), &|group| Arc::new(group))
    }

    /// Three ranks, of which `failing` cannot read its `fails_at`th sample.
    fn three_ranks(
        &self,
        failing: usize,
        fails_at: usize,
    ) -> [Result<TrainingReport, TrainError>; 3] {
        std::thread::scope(|scope| {
            let ranks = [0, 1, 2].map(|slot| {
                let fails_at = if slot == failing {
                    fails_at
                } else {
                    usize::MAX
                };
                scope.spawn(move || self.rank(slot, &images(fails_at, |_| {})))
            });
            ranks.map(|rank| rank.join().unwrap())
        })
    }

    fn rank_with(
        &self,
        slot: usize,
        data: &Images,
        model: Classifier<Mlp, 4>,
        around: Around<'_>,
    ) -> Result<TrainingReport, TrainError> {
        let coordinator = MembershipCoordinator::new(self.store.clone());
        let incarnation = coordinator.next_incarnation(slot).unwrap();
        let result = self.train(slot, incarnation, data, model, around);
        if result.is_err() {
            coordinator.note_end(slot, incarnation).unwrap();
        }
        result
    }

    fn train(
        &self,
        slot: usize,
        incarnation: u64,
        data: &Images,
        model: Classifier<Mlp, 4>,
        around: Around<'_>,
    ) -> Result<TrainingReport, TrainError> {
        let options = self.options(slot, incarnation);
        let address = IpAddr::from(Ipv4Addr::LOCALHOST);
        let membership = Membership::over(self.store.clone(), address, LONG, options)?;
        let options = GroupOptions {
            timeout: Some(LONG),
            ..GroupOptions::default()
        };
        let heartbeat = HeartbeatOptions::default();
        let group = ElasticGroup::form(membership, options, Some(heartbeat), Box::new(|_| None))?;
        let trainer = Trainer {
            run: Some(RunDirectory::create(self.folder)?),
            begun_before: incarnation > 1,
            connector: self.connect.map(|connect| connect(slot)),
            // Looked at where ranks share samples by their speed.
            compute_seconds: Some(Arc::new(move |samples, _measured| {
                samples as f64 * if slot == SLOW { 3e-3 } else { 1e-3 }
            })),
            ..Trainer::new(self.config.clone(), group.group())
        };
        let trainer = Trainer {
            elasticity: Elasticity::by(around(group)),
            ..trainer
        };
        let (_, report) = trainer.fit(model, data)?;
        Ok(report)
    }
}

/// The folder of a run that another can continue with.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    run_directory(folder.path(), &config());
    folder
}

fn failed(result: &Result<TrainingReport, TrainError>) -> String {
    result.as_ref().unwrap_err().to_string()
}

#[test]
fn the_others_go_on_without_a_rank_that_fails_whichever_it_is() {
    let (expected_hashes, expected_metrics) = undisturbed();
    // A rank reads a third of each batch: the first step, one in the middle, and one of another epoch.
    for (failing, fails_at) in [(2, 1), (1, 9), (0, 9), (0, 20)] {
        let folder = folder();
        let job = Job::new(&folder, (2, 3), config());
        let results = job.three_ranks(failing, fails_at);
        for (slot, result) in results.iter().enumerate() {
            match slot == failing {
                true => assert!(failed(result).contains("the disk is broken")),
                false => assert_eq!(result.as_ref().unwrap().world_size, 2),
            }
        }
        assert_eq!(hashes(folder.path()), expected_hashes, "without {failing}");
        let metrics = metrics_without_times(folder.path());
        assert_eq!(metrics, expected_metrics, "without {failing}");
    }
}

#[test]
fn a_rank_that_comes_back_learns_what_the_others_know() {
    comes_back(2);
}

#[test]
fn a_rank_0_that_comes_back_learns_what_the_others_know() {
    comes_back(0);
}

/// Trains three ranks, of which the one of `slot` is lost and comes back. Returns the reports of the others and of that one.
fn lost_and_back(
    slot: usize,
    config: TrainingConfig,
    folder: &tempfile::TempDir,
) -> [TrainingReport; 3] {
    let job = Job::new(folder, (2, 3), config);
    let store = job.store.clone();
    let [waits, other] = others_of(slot);
    // The first rank does not read on in the second epoch before the newcomer waits.
    let joined = format!("everburn/elastic/3/joined/{slot}");
    let wait = move |read: usize| {
        if read == 24 {
            store.wait_within(&[&*joined], LONG).unwrap();
        }
        if read > 24 {
            // Nor faster than the members look for newcomers.
            let moment = Duration::from_millis(100);
            drop(store.wait_within(&["everburn/elastic/3/closed"], moment));
        }
    };
    std::thread::scope(|scope| {
        let (job, waiting) = (&job, images(usize::MAX, wait));
        let first = scope.spawn(move || job.rank(waits, &waiting).unwrap());
        let second = scope.spawn(move || job.rank(other, &sound()).unwrap());
        let third = scope.spawn(move || {
            assert!(failed(&job.rank(slot, &images(3, |_| {}))).contains("the disk is broken"));
            // Not before the others have gone on without it.
            job.store
                .wait_within(&["everburn/elastic/2/closed"], LONG)
                .unwrap();
            job.rank(slot, &sound()).unwrap()
        });
        [first, second, third].map(|rank| rank.join().unwrap())
    })
}

/// The slots of the two ranks that stay; of these, the first one reads slowly.
fn others_of(slot: usize) -> [usize; 2] {
    match slot {
        0 => [1, 2],
        _ => [0, 1],
    }
}

fn comes_back(slot: usize) {
    let (expected, _) = undisturbed();
    let folder = folder();
    let reports = lost_and_back(slot, config(), &folder);
    for report in &reports {
        assert_eq!(report.world_size, 3);
        assert_eq!(report.test_loss, reports[0].test_loss);
        assert_eq!(report.steps, expected.len());
    }
    assert_eq!(hashes(folder.path()), expected);
    let events = std::fs::read_to_string(folder.path().join("events.jsonl")).unwrap();
    for ranks in ["ranks [0, 1, 2] have made step", "without"] {
        let said = match ranks {
            "without" => format!("ranks {:?} have made step", others_of(slot)),
            all => all.to_string(),
        };
        assert_eq!(events.matches(&said).count(), 1, "{said}: {events}");
    }
}

#[test]
fn too_few_ranks_leave_a_checkpoint_from_which_another_run_goes_on() {
    let (expected, _) = undisturbed();
    let folder = folder();
    let job = Job::new(&folder, (3, 3), config());
    let results = job.three_ranks(1, 9);
    for slot in [0, 2] {
        let error = failed(&results[slot]);
        assert!(error.contains("cannot continue"), "{error}");
        error.assert_contains(["`Trainer::resume` continues from it"]);
    }
    let trainer = Trainer {
        run: Some(RunDirectory::open(folder.path()).unwrap()),
        resume: true,
        ..alone(config())
    };
    trainer.fit(model(), &sound()).unwrap();
    assert_eq!(hashes(folder.path()), expected);
}

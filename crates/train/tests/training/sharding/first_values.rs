//! Ranks that read their parts of pretrained weights train as ranks that are given rank 0's.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::prelude::*;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_distributed::{Ddp, DdpError, GradientBackend, InitialValues, NcclWait, ShardStage};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_nccl_fake::FakeCluster;
use everburn_train::{
    Classification, Patterns, StateDictLayout, Supervised, TrainError, Trainer, TrainingConfig,
    load_state_dict_except, open_state_dict_except, save_state_dict,
};

use super::images;
use super::training::{adam_w, with};
use crate::harness::parameters::{drawn, filled, parameters};
use crate::harness::ranks::{connector, on_ranks};
use crate::harness::run::step_lines;

const RANKS: usize = 3;

/// Values of which each read is written down.
#[derive(Debug)]
struct Counted {
    values: Arc<dyn InitialValues>,
    reads: Mutex<BTreeMap<String, usize>>,
}

impl InitialValues for Counted {
    fn paths(&self) -> Vec<String> {
        self.values.paths()
    }

    fn value(&self, path: &str) -> Result<TensorData, String> {
        *self
            .reads
            .lock()
            .unwrap()
            .entry(path.to_owned())
            .or_default() += 1;
        self.values.value(path)
    }
}

fn config(shard: ShardStage) -> TrainingConfig {
    with(&adam_w(6), Some(shard))
}

fn built() -> MnistBn {
    MnistBnConfig::new().with_dropout(0.0).init(&Device::flex())
}

/// The losses and the parameters of the ranks of a training whose model `begin` yields.
fn train(
    begin: impl Fn(&mut Trainer) -> MnistBn + Sync,
) -> Result<(Vec<f64>, Vec<Vec<f32>>), TrainError> {
    let folder = tempfile::tempdir().unwrap();
    let (data, config) = (images(300), config(ShardStage::Parameters));
    let results = on_ranks(RANKS, &config, Some(folder.path()), |mut trainer| {
        let model = begin(&mut trainer);
        let model = Supervised::<_, Classification<4>>::of_blocks(model);
        trainer.fit(model, &data)
    });
    let results = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    let losses = step_lines(folder.path()).into_iter().map(|line| line.loss);
    Ok((losses.collect(), parameters(&results[1].0)))
}

fn opened(file: &Path, skip: &Patterns, rank: usize) -> (MnistBn, Arc<dyn InitialValues>) {
    let layout = StateDictLayout::default();
    let model = match *skip == Patterns::default() {
        true => built(),
        // What the file does not have is rank 0's.
        false => drawn(built()),
    };
    open_state_dict_except(model, file, skip, &layout, rank == 0).unwrap()
}

#[test]
fn each_rank_reads_each_tensor_once_and_the_bits_are_those_of_whole_weights() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weights.safetensors");
    save_state_dict(&drawn(built()), 0, &file).unwrap();
    for skip in [Patterns::default(), Patterns::from("fc2.*")] {
        let whole = train(|_| {
            let model = drawn(built());
            load_state_dict_except(model, &file, &skip, &StateDictLayout::default()).unwrap()
        });
        let counted = Mutex::new(Vec::new());
        let parts = train(|trainer| {
            let (model, values) = opened(&file, &skip, trainer.group.rank());
            let values = Arc::new(Counted {
                values,
                reads: Mutex::default(),
            });
            counted.lock().unwrap().push(Arc::clone(&values));
            trainer.initial_values = Some(values);
            model
        });
        assert_eq!(parts.unwrap(), whole.unwrap());
        let counted = counted.into_inner().unwrap();
        assert_eq!(counted.len(), RANKS);
        for values in counted {
            let reads = values.reads.lock().unwrap();
            assert!(reads.values().all(|count| *count == 1), "{reads:?}");
            let read: Vec<_> = reads.keys().cloned().collect();
            let mut paths = values.paths();
            paths.sort();
            assert_eq!(read, paths);
        }
    }
}

#[test]
fn ranks_with_other_files_are_refused_with_the_first_tensor_that_differs() {
    let folder = tempfile::tempdir().unwrap();
    let file = |rank: usize| folder.path().join(format!("{rank}.safetensors"));
    for rank in 0..RANKS {
        let mut model = drawn(built());
        if rank == 2 {
            model = filled(model, |_| 0.5);
        }
        save_state_dict(&model, 0, &file(rank)).unwrap();
    }
    let found = train(|trainer| {
        let rank = trainer.group.rank();
        let (model, values) = opened(&file(rank), &Patterns::default(), rank);
        trainer.initial_values = Some(values);
        model
    });
    let error = found.map(|_| ()).unwrap_err().to_string();
    let expected = "rank 2 has read another value of `conv1.weight` than rank 0";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn values_that_cannot_be_read_are_named_and_whole_parameters_have_none() {
    #[derive(Debug)]
    struct Broken;
    impl InitialValues for Broken {
        fn paths(&self) -> Vec<String> {
            vec!["fc2.weight".to_owned()]
        }

        fn value(&self, _path: &str) -> Result<TensorData, String> {
            Err("the disk is gone".to_owned())
        }
    }
    let found = train(|trainer| {
        trainer.initial_values = Some(Arc::new(Broken));
        drawn(built())
    });
    let error = found.map(|_| ()).unwrap_err().to_string();
    let expected = "the first value of `fc2.weight` could not be read: the disk is gone";
    assert!(error.contains(expected), "{error}");
    let config = config(ShardStage::Gradients);
    let group = ProcessGroup::alone(GroupOptions::default());
    let whole = Ddp::with_initial_values(built(), group, config.ddp, Arc::new(Broken));
    assert!(matches!(whole, Err(DdpError::Config(_))));
    // By NCCL the ranks would learn without them.
    let (data, cluster) = (images(300), Arc::new(FakeCluster::new(2)));
    let refused = on_ranks(2, &config, None, |mut trainer| {
        let rank = trainer.group.rank();
        trainer.connector = Some(connector(
            &cluster,
            rank,
            GradientBackend::Nccl,
            NcclWait::Device,
        ));
        trainer.initial_values = Some(Arc::new(Broken));
        let model = Supervised::<_, Classification<4>>::of_blocks(drawn(built()));
        trainer.fit(model, &data).map(|_| ()).unwrap_err()
    });
    for error in refused {
        let expected = "only where parameters are sharded";
        assert!(error.to_string().contains(expected), "{error}");
    }
}

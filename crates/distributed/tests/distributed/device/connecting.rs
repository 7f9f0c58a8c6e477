//! How ranks come to their communicator, again after each change of the group.

use burn::prelude::*;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_distributed::{Abilities, Connector, Ddp, DdpConfig, GradientBackend, NcclWait};
use everburn_distributed_fake::on_cluster;

use super::ways::{Rank, model, on_ranks};
use crate::steps::{all_values, assert_equal_within_rounding, overlapped, small_buckets, whole};

fn able(rank: &Rank) -> Abilities {
    everburn_distributed_fake::abilities(rank.number())
}

fn connector(rank: &Rank, wanted: GradientBackend, abilities: Abilities) -> Connector {
    let connector = Connector::new(wanted, abilities);
    on_cluster(connector, &rank.cluster, rank.number(), NcclWait::Host)
}

fn learns(connector: &Connector, group: &ProcessGroup) {
    let device = Device::flex().autodiff();
    let communicator = connector.connect(group).unwrap();
    let communicator = communicator.expect("every rank has a GPU of its own");
    assert_eq!(communicator.name(), "nccl");
    let made = Ddp::with_communicator(model(&device), group.clone(), small_buckets(), communicator);
    let (ddp, model) = made.unwrap();
    let synced = overlapped(&ddp, &model, 6, 1, true).unwrap();
    let expected = all_values(&model, &whole(&model, 6, true));
    assert_equal_within_rounding(&all_values(&model, &synced.gradients), &expected);
}

#[test]
fn ranks_with_gpus_of_their_own_take_nccl_and_connect_anew_after_a_failure() {
    on_ranks(3, |rank| {
        let connector = connector(&rank, GradientBackend::Auto, able(&rank));
        learns(&connector, &rank.group);
        let choice = connector.choice().unwrap().to_string();
        assert_eq!(choice, "nccl (2.21.5)");
        // Two of the ranks continue, in a group of their own.
        let survivors = rank.group.subgroup(&[0, 2]).unwrap();
        assert_eq!(survivors.is_some(), rank.group.rank() != 1);
        if let Some(group) = survivors {
            learns(&connector, &group);
        }
        rank.group.barrier().wait().unwrap();
        learns(&connector, &rank.group);
    });
}

#[test]
fn ranks_that_share_a_gpu_go_through_host_memory_or_are_refused() {
    on_ranks(2, |rank| {
        let shared = Abilities {
            gpu: Some("FAKE-0".to_string()),
            ..able(&rank)
        };
        let auto = connector(&rank, GradientBackend::Auto, shared.clone());
        assert!(auto.connect(&rank.group).unwrap().is_none());
        let choice = auto.choice().unwrap().to_string();
        assert_eq!(choice, "host (ranks 0 and 1 share the GPU FAKE-0)");
        let nccl = connector(&rank, GradientBackend::Nccl, shared);
        let refused = nccl.connect(&rank.group).unwrap_err().to_string();
        let expected = "gradients cannot be exchanged by `nccl`: ranks 0 and 1 share the GPU FAKE-0; give \
                        each rank a GPU of its own, or use `ranks.backend = auto`";
        assert_eq!(refused, expected);
    });
}

#[test]
fn one_rank_measures_nccl_where_it_is_asked_for() {
    on_ranks(1, |rank| {
        let auto = connector(&rank, GradientBackend::Auto, able(&rank));
        assert!(auto.connect(&rank.group).unwrap().is_none());
        let connector = connector(&rank, GradientBackend::Nccl, able(&rank));
        learns(&connector, &rank.group);
        let device = Device::flex().autodiff();
        let (ddp, _) = Ddp::new(model(&device), rank.group.clone(), DdpConfig::default()).unwrap();
        assert!(!ddp.synchronizes_gradients());
    });
}

#[test]
fn ranks_of_which_each_goes_through_host_memory_exchange_nothing() {
    let group = ProcessGroup::alone(GroupOptions::default());
    let on_gpu = || Abilities {
        device: "cuda:0".to_string(),
        ..Abilities::default()
    };
    let on_cpu = Connector::new(GradientBackend::Auto, Abilities::default());
    assert_eq!(on_cpu.host_only(), Some(GradientBackend::Auto));
    assert!(on_cpu.connect_by_host(&group).unwrap().is_none());
    assert_eq!(on_cpu.choice(), None);
    let by_host = Connector::new(GradientBackend::Host, on_gpu());
    assert_eq!(by_host.host_only(), Some(GradientBackend::Host));
    assert!(by_host.connect_by_host(&group).unwrap().is_none());
    assert_eq!(by_host.choice().unwrap().to_string(), "host (as requested)");
    for wanted in [GradientBackend::Auto, GradientBackend::Nccl] {
        let connector = Connector::new(wanted, on_gpu());
        assert_eq!(connector.host_only(), None);
        assert!(connector.connect_by_host(&group).is_err());
    }
}

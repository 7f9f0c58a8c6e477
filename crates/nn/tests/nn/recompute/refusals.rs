//! What goes wrong in a segment is said, and leaves the rest usable.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::prelude::*;
use everburn_nn::{Randomness, checkpoint, checkpoint_with, recomputing};

use super::model::{Net, autodiff, outcome, plain, rows};

fn message(work: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(work)).expect_err("must panic");
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| {
        payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_string())
    })
    .expect("a panic with a message")
}

fn still_works(net: &Net) {
    let found = outcome(net, |net, x| checkpoint(net, x, plain));
    assert_eq!(found, outcome(net, plain));
    assert!(!recomputing());
}

#[test]
fn a_panic_in_the_forward_pass() {
    let net = Net::new(&autodiff(), 2, 0.0);
    let said = message(|| {
        let _ = checkpoint(&net, rows(&autodiff()), |net: &Net, x| -> Tensor<2> {
            let _ = plain(net, x);
            panic!("the segment's own words")
        });
    });
    assert_eq!(said, "the segment's own words");
    still_works(&net);
}

#[test]
fn a_panic_in_the_recomputation() {
    let net = Net::new(&autodiff(), 2, 0.0);
    let output = checkpoint(&net, rows(&autodiff()), |net: &Net, x| {
        assert!(!recomputing(), "the segment's own words");
        plain(net, x)
    });
    let said = message(|| drop(output.sum().backward()));
    assert_eq!(said, "the segment's own words");
    still_works(&net);
}

#[test]
fn a_tensor_with_a_graph_that_did_not_come_with_the_input() {
    let net = Net::new(&autodiff(), 1, 0.0);
    let stranger = net.unused.weight.val();
    let said = message(|| {
        let _ = checkpoint(&net, rows(&autodiff()), move |net: &Net, x| {
            plain(net, x).matmul(stranger.clone())
        });
    });
    assert!(
        said.contains("neither part of its input nor a parameter"),
        "{said}"
    );
    still_works(&net);
}

#[test]
fn another_parameter_than_before() {
    let net = Net::new(&autodiff(), 1, 0.0);
    let output = checkpoint(
        &net,
        rows(&autodiff()),
        |net: &Net, x: Tensor<2>| match recomputing() {
            true => net.unused.forward(x),
            false => plain(net, x),
        },
    );
    let said = message(|| drop(output.sum().backward()));
    assert!(said.contains("did not in the forward pass"), "{said}");
    still_works(&net);
}

#[test]
fn another_shape_than_before() {
    let net = Net::new(&autodiff(), 1, 0.0);
    let segment = |net: &Net, x: Tensor<2>| {
        let output = plain(net, x);
        match recomputing() {
            true => output.slice_dim(0, 0..2),
            false => output,
        }
    };
    let output = checkpoint_with(Randomness::Unused, &net, rows(&autodiff()), segment);
    let said = message(|| drop(output.sum().backward()));
    assert!(said.contains("[2, 6]") && said.contains("[4, 6]"), "{said}");
    still_works(&net);
}

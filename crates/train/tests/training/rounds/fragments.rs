//! Outer steps over fragments of the model in turn.

use super::*;

#[test]
fn fragments_count_one_round_late_and_ranks_end_an_epoch_with_the_same_bits() {
    for fragments in [1, 2, 3] {
        let folder = tempfile::tempdir().unwrap();
        let config = changed(config("every=4"), |config| {
            config.epochs = 2;
            config.outer.fragments = Some(fragments);
            // Only the end of an epoch makes all models equal.
            config.compare_every = 100;
        });
        // `train` compares the ranks' bits.
        let (_, report) = train(3, &config, Some(folder.path()));
        let lines = step_lines(folder.path());
        assert!(lines.iter().map(|line| line.step).eq(1..=20));
        let samples = lines.iter().map(|line| line.samples).sum::<u64>();
        assert_eq!(samples, 2 * 440, "each sample of each epoch once");
        // A fragment after each round, and all of the model after the last one of an epoch.
        let every = 4usize.div_ceil(fragments);
        let rounds = 10usize.div_ceil(every);
        let exchanged = |line: &&MetricLine| line.cost.gradient_bytes > 0;
        let exchanges = lines.iter().filter(exchanged);
        let expected = (1..=2 * rounds).map(|round| match round <= rounds {
            true => (round * every).min(10),
            false => 10 + ((round - rounds) * every).min(10),
        });
        assert_eq!(
            exchanges.clone().map(|line| line.step).collect::<Vec<_>>(),
            expected.collect::<Vec<_>>()
        );
        let whole = lines[9].cost.gradient_bytes;
        let of_fragments = exchanges.filter(|line| line.step % 10 != 0);
        for line in of_fragments {
            let bytes = line.cost.gradient_bytes * fragments as u64;
            // They are cut at blocks of 256 numbers, so the last one may lack a block for each of the others.
            let off = bytes.abs_diff(whole);
            assert!(
                off <= (4 * 256 * fragments * fragments) as u64,
                "{bytes} of {whole}, step {}",
                line.step
            );
        }
        let outer = report.outer.unwrap();
        assert_eq!((report.steps, outer.steps), (20, 2 * rounds));
        assert_eq!(outer.bytes, report.gradient_bytes);
    }
}

#[test]
fn fragments_teach_as_much_as_the_whole_model_at_once() {
    let of = |fragments, compression| {
        let config = changed(config("every=4"), |config| {
            config.epochs = 6;
            config.outer.fragments = fragments;
            config.outer.compression = compression;
            config.outer.learning_rate = Some(0.9);
            config.outer.momentum = Some(0.5);
            config.compare_every = 1000;
        });
        let (_, report) = train(4, &config, None);
        report.best_epoch.unwrap().validation_loss
    };
    let whole = of(None, OuterCompression::None);
    assert!(whole < 2.0, "it learns: {whole}");
    for compression in [
        OuterCompression::None,
        OuterCompression::Int4,
        OuterCompression::Int2,
    ] {
        let in_turn = of(Some(4), compression);
        assert!(
            in_turn < 1.1 * whole,
            "{in_turn} in fragments with {compression}, {whole} at once"
        );
    }
}

//! Times the layers of `mnist`, `mnist-bn`, `resnet50` and `gpt-nano`, the best of some calls each.
//!
//! `cargo run --release -p everburn-kernels --example layers -- [part of a row's name]`, threads by
//! `RAYON_NUM_THREADS`.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use everburn_kernels::{
    BatchNormShape, BatchNormStatistics, Conv2dShape, KernelError, LayerNormShape, Pool2dShape,
    batch_norm_train, batch_norm_train_backward, causal_softmax, causal_softmax_backward, conv2d,
    conv2d_bias_grad, conv2d_input_grad, conv2d_weight_grad, gelu, gelu_backward, layer_norm,
    layer_norm_backward, log_softmax, log_softmax_backward, max_pool2d, max_pool2d_backward,
    softmax, softmax_backward,
};

const BUDGET: Duration = Duration::from_millis(60);

/// Microseconds of the fastest call.
fn best<R>(mut call: impl FnMut() -> R) -> f64 {
    call();
    let started = Instant::now();
    let mut best = f64::INFINITY;
    let mut calls = 0;
    while calls < 7 || started.elapsed() < BUDGET {
        calls += 1;
        let now = Instant::now();
        std::hint::black_box(call());
        best = best.min(now.elapsed().as_secs_f64() * 1e6);
    }
    best
}

/// Whether the command line names this row, or none.
fn wanted(name: &str) -> bool {
    std::env::args()
        .nth(1)
        .is_none_or(|part| name.contains(&part))
}

fn noise(count: usize) -> Vec<f32> {
    (0..count)
        .map(|index| (index as f32 * 0.618_034).fract() - 0.5)
        .collect()
}

fn convolution(batch: usize, channels: [usize; 2], input: usize, kernel: usize, step: [usize; 2]) {
    let [stride, padding] = step;
    let name = format!(
        "conv {}->{} k{kernel} s{stride} p{padding} on {input} batch {batch}",
        channels[0], channels[1]
    );
    if !wanted(&name) {
        return;
    }
    let shape = Conv2dShape {
        stride: [stride; 2],
        padding: [(padding, padding); 2],
        ..Conv2dShape::new(batch, channels, [input; 2], [kernel; 2])
    };
    let run = || {
        let input = noise(shape.input_len()?);
        let weight = noise(shape.weight_len()?);
        let mut output = vec![0.0; shape.output_len()?];
        let gradient = noise(output.len());
        let mut input_grad = vec![0.0; input.len()];
        let mut weight_grad = vec![0.0; weight.len()];
        let mut bias_grad = vec![0.0; channels[1]];
        conv2d(&shape, &input, &weight, None, &mut output)?;
        conv2d_input_grad(&shape, &gradient, &weight, &mut input_grad)?;
        conv2d_weight_grad(&shape, &input, &gradient, &mut weight_grad)?;
        conv2d_bias_grad(&shape, &gradient, &mut bias_grad)?;
        let forward = best(|| conv2d(&shape, &input, &weight, None, &mut output));
        let gx = best(|| conv2d_input_grad(&shape, &gradient, &weight, &mut input_grad));
        let gw = best(|| conv2d_weight_grad(&shape, &input, &gradient, &mut weight_grad));
        let gb = best(|| conv2d_bias_grad(&shape, &gradient, &mut bias_grad));
        let flops = 2.0 * shape.weight_len()? as f64 * output.len() as f64 / channels[1] as f64;
        println!(
            "{name}: forward {forward:.0} ({:.0} GFLOP/s), input {gx:.0} ({:.0}), weight {gw:.0} \
             ({:.0}), bias {gb:.0}",
            flops / forward / 1e3,
            flops / gx / 1e3,
            flops / gw / 1e3,
        );
        Ok::<(), KernelError>(())
    };
    if let Err(error) = run() {
        println!("{error}");
    }
}

fn max_pool(shape: &Pool2dShape) -> Result<(), KernelError> {
    let name = format!("max pool on {:?} {:?}", shape.planes, shape.input);
    if !wanted(&name) {
        return Ok(());
    }
    let input = noise(shape.input_len()?);
    let mut output = vec![0.0; shape.output_len()?];
    let mut indices = vec![0_i64; output.len()];
    let mut input_grad = vec![0.0; input.len()];
    max_pool2d(shape, &input, &mut output, &mut indices)?;
    let gradient = noise(output.len());
    let forward = best(|| max_pool2d(shape, &input, &mut output, &mut indices));
    let backward = best(|| max_pool2d_backward(shape, &gradient, &indices, &mut input_grad));
    println!("{name}: forward {forward:.0}, backward {backward:.0}");
    Ok(())
}

fn norm(shape: BatchNormShape) -> Result<(), KernelError> {
    let name = format!(
        "batch norm on {} {} {}",
        shape.batch, shape.channels, shape.pixels
    );
    if !wanted(&name) {
        return Ok(());
    }
    let input = noise(shape.batch * shape.channels * shape.pixels);
    let gradient = noise(input.len());
    let (gamma, beta) = (noise(shape.channels), noise(shape.channels));
    let mut output = vec![0.0; input.len()];
    let (mut mean, mut variance) = (beta.clone(), beta.clone());
    let mut train = || {
        let statistics = [&mut mean[..], &mut variance];
        batch_norm_train(
            &shape,
            &input,
            [&gamma, &beta],
            1e-5,
            &mut output,
            statistics,
        )
    };
    train()?;
    let forward = best(&mut train);
    let mut gradients = [beta.clone(), beta.clone()];
    let backward = best(|| {
        let [gamma_grad, beta_grad] = &mut gradients;
        let statistics = BatchNormStatistics {
            mean: &mean,
            variance: &variance,
        };
        let to = [&mut gamma_grad[..], beta_grad];
        let from = [&input[..], &gradient];
        batch_norm_train_backward(&shape, from, &gamma, statistics, 1e-5, &mut output, to)
    });
    println!("{name}: forward {forward:.0}, backward {backward:.0}");
    Ok(())
}

/// Times the gelu of `count` values.
fn gelu_of(count: usize) -> Result<(), KernelError> {
    let name = format!("gelu on {count}");
    if !wanted(&name) {
        return Ok(());
    }
    let input: Vec<_> = noise(count).iter().map(|value| 8.0 * value).collect();
    let gradient = noise(count);
    let mut output = vec![0.0; count];
    gelu(&input, &mut output)?;
    gelu_backward(&input, &gradient, &mut output)?;
    let forward = best(|| gelu(&input, &mut output));
    let backward = best(|| gelu_backward(&input, &gradient, &mut output));
    per_value(&name, count, [forward, backward]);
    Ok(())
}

/// Times the three kinds of softmax over rows of `columns`.
fn softmaxes([rows, columns]: [usize; 2]) -> Result<(), KernelError> {
    let count = rows * columns;
    let input: Vec<_> = noise(count).iter().map(|value| 8.0 * value).collect();
    let gradient = noise(count);
    let [mut output, mut grad] = [vec![0.0; count], vec![0.0; count]];
    let name = format!("softmax on {rows} {columns}");
    if wanted(&name) {
        let shape = [rows, columns];
        softmax(shape, &input, &mut output)?;
        let forward = best(|| softmax(shape, &input, &mut output));
        let backward = best(|| softmax_backward(shape, &output, &gradient, &mut grad));
        per_value(&name, count, [forward, backward]);
        let forward = best(|| log_softmax(shape, &input, &mut output));
        let backward = best(|| log_softmax_backward(shape, &output, &gradient, &mut grad));
        per_value(&format!("log {name}"), count, [forward, backward]);
        let shape = [rows / columns, columns];
        causal_softmax(shape, 0.2, &input, &mut output)?;
        let forward = best(|| causal_softmax(shape, 0.2, &input, &mut output));
        let backward = best(|| causal_softmax_backward(shape, 0.2, &output, &gradient, &mut grad));
        per_value(&format!("causal {name}"), count, [forward, backward]);
    }
    Ok(())
}

fn norm_of_rows(shape: LayerNormShape) -> Result<(), KernelError> {
    let LayerNormShape { rows, columns } = shape;
    let name = format!("layer norm on {rows} {columns}");
    if !wanted(&name) {
        return Ok(());
    }
    let count = rows * columns;
    let (input, gradient, gamma) = (noise(count), noise(count), noise(columns));
    let [mut output, mut mean, mut inverse] = [count, rows, rows].map(|count| vec![0.0; count]);
    let [mut gamma_grad, mut beta_grad] = [columns; 2].map(|count| vec![0.0; count]);
    let forward = best(|| {
        let statistics = [&mut mean[..], &mut inverse];
        layer_norm(
            &shape,
            &input,
            &gamma,
            Some(&gamma),
            1e-5,
            &mut output,
            statistics,
        )
    });
    let backward = best(|| {
        let (from, statistics) = ([&input[..], &gradient], [&mean[..], &inverse]);
        let beta_grad = Some(&mut beta_grad[..]);
        let sums = (&mut gamma_grad[..], beta_grad);
        layer_norm_backward(&shape, from, &gamma, statistics, &mut output, sums)
    });
    per_value(&name, count, [forward, backward]);
    Ok(())
}

/// Prints microseconds, and nanoseconds a value.
fn per_value(name: &str, count: usize, [forward, backward]: [f64; 2]) {
    let each = [forward, backward].map(|time| 1e3 * time / count as f64);
    println!(
        "{name}: forward {forward:.0} ({:.3} ns each), backward {backward:.0} ({:.3})",
        each[0], each[1]
    );
}

fn main() -> Result<(), KernelError> {
    convolution(64, [1, 10], 28, 5, [1, 0]);
    convolution(64, [10, 20], 12, 5, [1, 0]);
    convolution(64, [1, 12], 28, 3, [1, 1]);
    convolution(64, [12, 24], 28, 6, [2, 2]);
    convolution(64, [24, 32], 14, 6, [2, 2]);
    max_pool(&Pool2dShape::new([64, 10], [24, 24], [2, 2]))?;
    max_pool(&Pool2dShape::new([64, 20], [8, 8], [2, 2]))?;
    max_pool(&Pool2dShape {
        stride: [2, 2],
        padding: [1, 1],
        ..Pool2dShape::new([8, 64], [112, 112], [3, 3])
    })?;
    for (batch, channels, side) in [(64, 12, 28), (64, 24, 14), (64, 32, 7), (8, 64, 56)] {
        norm(BatchNormShape {
            batch,
            channels,
            pixels: side * side,
        })?;
    }
    gelu_of(64 * 64 * 512)?;
    softmaxes([64 * 4 * 64, 64])?;
    norm_of_rows(LayerNormShape {
        rows: 4096,
        columns: 128,
    })?;
    for batch in [8, 64] {
        convolution(batch, [3, 64], 224, 7, [2, 3]);
        convolution(batch, [64, 64], 56, 1, [1, 0]);
        convolution(batch, [64, 64], 56, 3, [1, 1]);
        convolution(batch, [64, 256], 56, 1, [1, 0]);
        convolution(batch, [128, 128], 28, 3, [1, 1]);
        convolution(batch, [256, 512], 56, 1, [2, 0]);
        convolution(batch, [256, 256], 14, 3, [1, 1]);
        convolution(batch, [512, 512], 7, 3, [1, 1]);
        convolution(batch, [512, 2048], 7, 1, [1, 0]);
    }
    Ok(())
}

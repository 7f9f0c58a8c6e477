//! Writes the synthetic digits as four IDX files, in MNIST's layout, for other programs to read:
//! `cargo run -p everburn-datasets --release --example export_idx -- FOLDER [SEED]`.

use std::path::PathBuf;
use std::time::Instant;

use everburn_datasets::{Split, SyntheticDigits};

type AnyError = Box<dyn std::error::Error>;

fn main() -> Result<(), AnyError> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("usage: export_idx FOLDER [SEED]")?);
    let seed = arguments.next().map_or(Ok(0), |seed| seed.parse())?;
    std::fs::create_dir_all(&folder)?;

    let digits = SyntheticDigits::new(seed);
    let start = Instant::now();
    let train = digits.generate(Split::Train, SyntheticDigits::TRAIN_COUNT)?;
    let test = digits.generate(Split::Test, SyntheticDigits::TEST_COUNT)?;
    #[allow(clippy::print_stderr, reason = "an example talks to its user")]
    {
        eprintln!("drawn in {:.2} s", start.elapsed().as_secs_f32());
    }
    for (set, prefix) in [(&train, "train"), (&test, "t10k")] {
        let write = |kind: &str, bytes| {
            std::fs::write(folder.join(format!("{prefix}-{kind}-ubyte")), bytes)
        };
        write(
            "images-idx3",
            idx(0x803, &[set.len(), 28, 28], set.images()),
        )?;
        write("labels-idx1", idx(0x801, &[set.len()], set.labels()))?;
    }
    Ok(())
}

fn idx(magic: u32, dimensions: &[usize], elements: &[u8]) -> Vec<u8> {
    let words = dimensions.iter().map(|&size| size as u32);
    let mut bytes: Vec<u8> = std::iter::once(magic)
        .chain(words)
        .flat_map(u32::to_be_bytes)
        .collect();
    bytes.extend_from_slice(elements);
    bytes
}

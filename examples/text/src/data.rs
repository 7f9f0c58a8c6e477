//! Lines of text files, and batches of them.

use std::path::PathBuf;

use everburn::burn::data::dataloader::batcher::Batcher;
use everburn::burn::prelude::*;
use everburn::burn::tensor::{Int, TensorData};
use everburn::prelude::*;

use crate::TextConfig;

/// The places of a line's words, from 1, and the number of its class.
pub type Line = (Vec<i32>, i32);

/// Words `[B, W]`, with 0 after the end of shorter lines, and classes `[B]`.
pub type Lines = (Tensor<2, Int>, Tensor<1, Int>);

/// The lines of all files to learn from, and those to test on; the names of the files are the classes.
pub fn read(config: &mut TextConfig) -> Result<(Vec<Line>, Vec<Line>), TaskError> {
    let told = |path: &PathBuf, error| TaskError::new(format!("{}: {error}", path.display()));
    let entries = std::fs::read_dir(&config.folder).map_err(|error| told(&config.folder, error))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, TaskError>>()?;
    files.retain(|file| file.extension().is_some_and(|end| end == "txt"));
    // By name, so that every rank has the same order.
    files.sort();
    config.classes = files.iter().filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned())).collect();
    let (mut train, mut test) = (Vec::new(), Vec::new());
    for (class, file) in files.iter().enumerate() {
        let text = std::fs::read_to_string(file).map_err(|error| told(file, error))?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        for (number, line) in lines.enumerate() {
            let part = if number % 5 == 4 { &mut test } else { &mut train };
            part.push((line.split_whitespace().map(|word| place(word, config.words)).collect(), class as i32));
        }
    }
    match train.is_empty() {
        true => Err(TaskError::new(format!("{} has no texts", config.folder.display()))
            .with_help("it wants a file NAME.txt for each class, with a text on each line")),
        false => Ok((train, test)),
    }
}

/// The place of a word, from 1 and below `words`: FNV-1a of its letters, the same on every machine.
fn place(word: &str, words: usize) -> i32 {
    let letters = word.to_lowercase();
    let hash = letters.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    1 + (hash as usize % (words - 1)) as i32
}

/// Makes a batch of several lines, as wide as the longest.
pub struct LineBatcher;

impl Batcher<Line, Lines> for LineBatcher {
    fn batch(&self, lines: Vec<Line>, device: &Device) -> Lines {
        let width = lines.iter().map(|(words, _)| words.len()).max().unwrap_or(1);
        let filled = lines.iter().flat_map(|(words, _)| words.iter().copied().chain(std::iter::repeat(0)).take(width));
        let words = TensorData::new(filled.collect::<Vec<i32>>(), [lines.len(), width]);
        let classes: Vec<i32> = lines.iter().map(|(_, class)| *class).collect();
        (Tensor::from_data(words, device), Tensor::from_ints(classes.as_slice(), device))
    }
}

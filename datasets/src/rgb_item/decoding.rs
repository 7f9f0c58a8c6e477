//! The pixels of a JPEG or PNG file.

use std::fs;
use std::io::{BufRead, BufReader, Cursor, Seek};
use std::path::Path;

use image::imageops::FilterType;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

use super::{MOST_PIXELS_A_SIDE, jpeg};
use crate::DatasetError;
use crate::error::unreadable;

/// The most memory that decoding one image may take, in bytes.
const MOST_DECODER_BYTES: u64 = 1 << 30;

/// The most bytes of pixels for a byte of a file. A PNG file has 1032 at most, as DEFLATE has, and a JPEG file 512: it
/// spends a bit or more on each 8 x 8 pixels.
const MOST_BYTES_A_BYTE: u64 = 2_048;

/// The pixels `[3, height, width]` of an image file.
pub(crate) fn decode_file(file: &Path, size: [u32; 2]) -> Result<Vec<u8>, DatasetError> {
    let opened = fs::File::open(file).map_err(|source| unreadable(file, source))?;
    let metadata = opened.metadata();
    let length = metadata.map_err(|source| unreadable(file, source))?.len();
    decode(BufReader::new(opened), length, file, size)
}

/// The pixels `[3, height, width]` of the bytes of an image file; `file` is for errors.
pub(crate) fn decode_bytes(
    bytes: &[u8],
    file: &Path,
    size: [u32; 2],
) -> Result<Vec<u8>, DatasetError> {
    decode(Cursor::new(bytes), bytes.len() as u64, file, size)
}

fn decode(
    source: impl BufRead + Seek,
    length: u64,
    file: &Path,
    size: [u32; 2],
) -> Result<Vec<u8>, DatasetError> {
    let damage = |problem: String| DatasetError::Image {
        path: file.to_path_buf(),
        problem,
    };
    let reader = ImageReader::new(source).with_guessed_format();
    let reader = reader.map_err(|source| unreadable(file, source))?;
    let (mut picture, orientation) = match reader.format() {
        Some(ImageFormat::Jpeg) => {
            let mut bytes = Vec::new();
            let read = reader.into_inner().read_to_end(&mut bytes);
            read.map_err(|source| unreadable(file, source))?;
            jpeg::decode(&bytes).map_err(damage)?
        }
        None | Some(ImageFormat::Png) => decode_png(reader, length).map_err(damage)?,
        Some(other) => return Err(damage(another_format(other))),
    };
    picture.apply_orientation(orientation);
    let [height, width] = size;
    let pixels = picture
        .resize_exact(width, height, FilterType::Triangle)
        .into_rgb8();
    let channel = |channel: usize| pixels.pixels().map(move |pixel| pixel[channel]);
    Ok((0..3).flat_map(channel).collect())
}

/// A PNG file, or one whose first bytes are of no format.
fn decode_png(
    mut reader: ImageReader<impl BufRead + Seek>,
    length: u64,
) -> Result<(DynamicImage, Orientation), String> {
    let mut limits = Limits::default();
    limits.max_alloc = Some(MOST_DECODER_BYTES);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|error| damaged(&error))?;
    check_size(decoder.dimensions(), decoder.total_bytes(), length)?;
    let orientation = decoder.orientation().map_err(|error| damaged(&error))?;
    let picture = DynamicImage::from_decoder(decoder).map_err(|error| damaged(&error))?;
    Ok((picture, orientation))
}

/// Refuses what a file of `length` bytes cannot have, and what is too large to be decoded.
pub(super) fn check_size(
    (width, height): (u32, u32),
    bytes: u64,
    length: u64,
) -> Result<(), String> {
    if bytes > length.saturating_mul(MOST_BYTES_A_BYTE) {
        return Err(damaged(&format!(
            "its header says {width} x {height} pixels, and it has {length} bytes"
        )));
    }
    if width.max(height) > MOST_PIXELS_A_SIDE {
        return Err(format!(
            "has {width} x {height} pixels, and {MOST_PIXELS_A_SIDE} is the most of a side: scale it down"
        ));
    }
    if bytes > MOST_DECODER_BYTES {
        return Err(format!(
            "has {width} x {height} pixels, which take {bytes} bytes in memory, and {MOST_DECODER_BYTES} is the most: scale \
             it down"
        ));
    }
    Ok(())
}

/// The words of some decoders have line breaks.
pub(super) fn damaged(error: &impl ToString) -> String {
    let words = error.to_string();
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("is damaged, or no image: {words}")
}

fn another_format(format: ImageFormat) -> String {
    let name = match format {
        ImageFormat::WebP => "WebP".to_owned(),
        other => format!("{other:?}").to_uppercase(),
    };
    let article = match name.starts_with(['A', 'E', 'I', 'O']) {
        true => "an",
        false => "a",
    };
    format!("is {article} {name}: convert it to JPEG or PNG")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_is_too_large_is_named_with_the_limit_and_is_not_called_damaged() {
        let large = check_size((20_000, 20_000), 1 << 30, 1 << 30).unwrap_err();
        let expected = "has 20000 x 20000 pixels, and 16384 is the most of a side: scale it down";
        assert_eq!(large, expected);
        let deep = check_size((16_000, 16_000), 3 << 30, 1 << 30).unwrap_err();
        assert!(deep.contains("3221225472 bytes in memory") && deep.ends_with("scale it down"));
        let lie = check_size((20_000, 20_000), 1 << 30, 100).unwrap_err();
        assert!(lie.contains("is damaged") && lie.ends_with("it has 100 bytes"));
        check_size((16_384, 16_384), 3 << 28, 1 << 20).unwrap();
    }
}

//! JPEG files, decoded strictly: what was cut off or is damaged is an error, and no image that is grey from some line on.

use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, RgbImage};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::decoding::{check_size, damaged};

/// The markers without a length: of a restart, of the beginning, and one of arithmetic coding.
const ALONE: [std::ops::RangeInclusive<u8>; 2] = [0xd0..=0xd8, 0x01..=0x01];

/// The marker of the image's end.
const END: u8 = 0xd9;

/// The markers of a sequential image, of restarts in its scans, and of a scan.
const SEQUENTIAL: [u8; 2] = [0xc0, 0xc1];
const RESTARTS: u8 = 0xdd;
const SCAN: u8 = 0xda;

/// Data that no scan has: sixteen bytes of ones, and no code is ones alone (ITU-T T.81, annex C).
const NO_CODE: [u8; 32] = [
    0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff,
    0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0,
];

/// The picture of a file's bytes, and how it is to be turned.
///
/// # Errors
/// What is wrong with the file, in words.
pub(super) fn decode(bytes: &[u8]) -> Result<(DynamicImage, Orientation), String> {
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX);
    let mut header = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    header.decode_headers().map_err(|error| undecoded(&error))?;
    let (Some((width, height)), Some(found)) = (header.dimensions(), header.input_colorspace())
    else {
        return Err(damaged(&"its header has no size"));
    };
    let (color, channels) = match found {
        ColorSpace::Luma => (ColorSpace::Luma, 1),
        _ => (ColorSpace::RGB, 3),
    };
    // A JPEG file cannot say more than 65,535.
    let (width, height) = (width as u32, height as u32);
    let decoded = u64::from(width) * u64::from(height) * channels;
    check_size((width, height), decoded, bytes.len() as u64)?;
    let Some(end) = End::of(bytes) else {
        return Err(damaged(
            &"it was cut off: the marker of the image's end is missing",
        ));
    };
    // The decoder takes zeros after the end of a scan's data: a grey rest, if these were cut off before the marker.
    let guarded = [&bytes[..end.at], &NO_CODE, &bytes[end.at..]];
    let guarded = end.is_of_one_scan.then(|| guarded.concat());
    let bytes = guarded.as_deref().unwrap_or(bytes);
    let orientation = header
        .exif()
        .and_then(|exif| Orientation::from_exif_chunk(exif));
    let options = options.jpeg_set_out_colorspace(color);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let pixels = decoder.decode().map_err(|error| undecoded(&error))?;
    let picture = match channels {
        1 => GrayImage::from_raw(width, height, pixels).map(DynamicImage::from),
        _ => RgbImage::from_raw(width, height, pixels).map(DynamicImage::from),
    };
    let picture = picture.ok_or_else(|| damaged(&"it has other pixels than its header says"))?;
    Ok((picture, orientation.unwrap_or(Orientation::NoTransforms)))
}

/// The decoder has its words in quotation marks.
fn undecoded(error: &impl ToString) -> String {
    damaged(&error.to_string().trim_matches('"'))
}

/// Where the marker of an image's end is.
struct End {
    at: usize,
    /// Whether the data before it are those of one sequential scan without restarts.
    is_of_one_scan: bool,
}

impl End {
    /// `None` if there is none. That of a preview in the metadata does not count, and bytes after the end are of no
    /// account: cameras write some.
    fn of(bytes: &[u8]) -> Option<Self> {
        let (mut at, mut scans, mut is_sequential, mut restarts) = (2, 0, false, false);
        while let Some(marker) = next_marker(bytes, &mut at) {
            if marker == END {
                return Some(Self {
                    at: at - 2,
                    is_of_one_scan: is_sequential && scans == 1 && !restarts,
                });
            }
            scans += usize::from(marker == SCAN);
            is_sequential |= SEQUENTIAL.contains(&marker);
            restarts |= marker == RESTARTS;
            if ALONE.iter().any(|alone| alone.contains(&marker)) {
                continue;
            }
            let length = bytes.get(at..at + 2)?;
            at += usize::from(u16::from_be_bytes([length[0], length[1]]));
        }
        None
    }
}

/// The next marker from `at` on, which is after it then. A byte 0xff in the data of a scan is followed by 0.
fn next_marker(bytes: &[u8], at: &mut usize) -> Option<u8> {
    loop {
        let found = bytes.get(*at..)?.iter().position(|byte| *byte == 0xff)?;
        *at += found + 1;
        let marker = *bytes.get(*at)?;
        if ![0, 0xff].contains(&marker) {
            *at += 1;
            return Some(marker);
        }
    }
}

#[cfg(test)]
mod tests {
    use image::codecs::jpeg::JpegEncoder;
    use image::{ExtendedColorType, Rgb};

    use super::*;

    fn drawn() -> RgbImage {
        let mix = |x: u32, y: u32| x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503);
        RgbImage::from_fn(61, 47, |x, y| {
            Rgb([(mix(x, y) >> 8) as u8, (4 * x) as u8, (5 * y) as u8])
        })
    }

    fn encoded() -> Vec<u8> {
        let mut bytes = Vec::new();
        let encoder = JpegEncoder::new_with_quality(&mut bytes, 90);
        drawn().write_with_encoder(encoder).unwrap();
        bytes
    }

    #[test]
    fn pixels_are_those_of_the_image_crate() {
        let bytes = encoded();
        let expected = image::load_from_memory(&bytes).unwrap();
        assert_eq!(decode(&bytes).unwrap().0, expected);
        let mut grey = Vec::new();
        let mut encoder = JpegEncoder::new_with_quality(&mut grey, 90);
        let shades: Vec<u8> = (0..30 * 20).map(|at| (at % 251) as u8).collect();
        encoder
            .encode(&shades, 30, 20, ExtendedColorType::L8)
            .unwrap();
        let expected = image::load_from_memory(&grey).unwrap();
        assert_eq!(decode(&grey).unwrap().0, expected);
    }

    /// At each length, the last ones included: without the end marker, or with half of it.
    #[test]
    fn a_file_that_is_cut_off_is_damaged_wherever_it_is_cut() {
        let bytes = encoded();
        for length in 4..bytes.len() {
            let error = decode(&bytes[..length]).unwrap_err();
            assert!(
                error.starts_with("is damaged, or no image: "),
                "{length}: {error}"
            );
        }
        let error = decode(&bytes[..bytes.len() / 2]).unwrap_err();
        assert!(error.contains("it was cut off"), "{error}");
    }

    /// Wherever the data of the scan are cut, apart from the bits that fill the last byte.
    #[test]
    fn a_scan_that_is_cut_off_before_the_marker_of_the_end_is_damaged() {
        let mut grey = Vec::new();
        let encoder = JpegEncoder::new_with_quality(&mut grey, 50);
        let plain = GrayImage::from_pixel(64, 64, image::Luma([90]));
        plain.write_with_encoder(encoder).unwrap();
        for whole in [encoded(), grey] {
            let mut scan = 2;
            while next_marker(&whole, &mut scan) != Some(SCAN) {}
            let header = usize::from(u16::from_be_bytes([whole[scan], whole[scan + 1]]));
            let expected = decode(&whole).unwrap().0;
            assert_eq!(expected, image::load_from_memory(&whole).unwrap());
            for length in scan + header..whole.len() - 3 {
                let cut = [&whole[..length], &[0xff, END]].concat();
                let error = decode(&cut).unwrap_err();
                assert!(error.starts_with("is damaged, or no image: "), "{error}");
            }
        }
    }

    #[test]
    fn bytes_after_the_end_are_accepted_and_a_preview_is_no_end() {
        let whole = encoded();
        let padded = [whole.as_slice(), &[0; 100], b"a camera's own data"].concat();
        assert_eq!(decode(&padded).unwrap().0, decode(&whole).unwrap().0);
        // Metadata with a whole image in them.
        let length = (whole.len() + 2) as u16;
        let preview = [&[0xff, 0xe4][..], &length.to_be_bytes(), &whole].concat();
        let with_preview = [&whole[..2], &preview, &whole[2..]].concat();
        assert_eq!(decode(&with_preview).unwrap().0, decode(&whole).unwrap().0);
        let cut = &with_preview[..with_preview.len() - 2];
        assert!(decode(cut).unwrap_err().contains("it was cut off"));
    }

    /// Codes that no table has are found; a changed bit may also make another image, which nobody can know.
    #[test]
    fn changed_bytes_in_a_scan_are_found_where_they_are_no_code() {
        let whole = encoded();
        let scan = whole.len() / 2;
        let found = (scan..scan + 200).filter(|at| {
            let mut changed = whole.clone();
            changed[*at..*at + 8].fill(0xfe);
            decode(&changed).is_err()
        });
        assert!(found.count() > 0);
    }
}

//! 200 damaged archives, shards and tables: each is an error that names the file and a place in it, or still whole; none is
//! a panic.

use std::path::Path;

use everburn_tests::AssertContains;
use everburn_tests::tar::{archive, signed};
use image::{Rgb, RgbImage};

use crate::cifar::writing::{gzip, tiny};
use crate::cifar::{CIFAR_10, CIFAR_100};
use crate::{Cifar, DatasetError, Missing, TableRequest, TarImages, TarShards, load_table};

/// Always the same numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % limit.max(1)
    }

    /// The bytes cut off, with a few bits changed, with a part left out, or other bytes altogether.
    pub(crate) fn damage(&mut self, whole: &[u8], round: usize) -> Vec<u8> {
        let mut bytes = whole.to_vec();
        match round % 4 {
            0 => bytes.truncate(self.below(whole.len())),
            1 => {
                for _ in 0..6 {
                    let at = self.below(bytes.len());
                    bytes[at] ^= 1 << self.below(8);
                }
            }
            2 => {
                let begin = self.below(bytes.len());
                let end = (begin + 1 + self.below(700)).min(bytes.len());
                bytes.drain(begin..end);
            }
            _ => {
                bytes = (0..self.below(3000))
                    .map(|_| self.below(256) as u8)
                    .collect();
            }
        }
        bytes
    }
}

/// What reading a damaged file says; `None` if it could be read.
fn refused(
    name: &str,
    bytes: &[u8],
    read: impl Fn(&Path) -> Result<(), DatasetError>,
) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let error = read(&path).err()?.to_string();
    let (_, place) = error
        .split_once(name)
        .unwrap_or_else(|| panic!("no file: {error}"));
    assert!(place.len() > 10, "no place: {error}");
    Some(error)
}

fn read_shards(path: &Path) -> Result<(), DatasetError> {
    let set = TarImages::open(TarShards::open(&[path.to_owned()])?, [4, 4], None)?;
    (0..set.len()).try_for_each(|index| set.image(index).map(drop))
}

fn read_cifar(path: &Path) -> Result<(), DatasetError> {
    Cifar::open(path, [32, 32]).map(drop)
}

fn read_table(path: &Path) -> Result<(), DatasetError> {
    let request = TableRequest {
        missing: Missing::Impute,
        ..TableRequest::new(path, "price")
    };
    let loaded = load_table(&request)?;
    (0..loaded.test.len()).for_each(|row| drop(loaded.test.row(row)));
    Ok(())
}

pub(crate) fn png(picture: &RgbImage) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    picture
        .write_to(&mut bytes, image::ImageFormat::Png)
        .unwrap();
    bytes.into_inner()
}

fn shards() -> Vec<u8> {
    let mut members = Vec::new();
    for number in 0..6_u8 {
        let picture = RgbImage::from_fn(20, 20, |x, y| Rgb([x as u8 * number, y as u8, 7]));
        members.push((format!("{number}.png"), png(&picture)));
        members.push((format!("{number}.cls"), number.to_string().into_bytes()));
    }
    let members: Vec<_> = members
        .iter()
        .map(|(name, content)| (name.as_str(), content.as_slice()))
        .collect();
    archive(&members)
}

fn table() -> String {
    let rows = (0..30).map(|row| format!("{row},{},\"a, b\",{}\n", ["x", "y"][row % 2], 3 * row));
    format!("area,kind,note,price\n{}", rows.collect::<String>())
}

#[test]
fn shards_that_are_damaged_are_named_with_the_place() {
    let whole = shards();
    assert_eq!(refused("a.tar", &whole, read_shards), None);
    let mut random = Random(1);
    let errors =
        (0..60).filter_map(|round| refused("a.tar", &random.damage(&whole, round), read_shards));
    let count = errors.count();
    assert!(count > 40, "{count}");
}

#[test]
fn archives_that_are_damaged_are_named_with_the_place() {
    let mut random = Random(2);
    let mut count = 0;
    for (set, images) in [(&CIFAR_10, 3), (&CIFAR_100, 9)] {
        let whole = tiny(set, images);
        assert_eq!(refused("a.tar.gz", &whole, read_cifar), None);
        for round in 0..30 {
            count += usize::from(
                refused("a.tar.gz", &random.damage(&whole, round), read_cifar).is_some(),
            );
        }
    }
    assert!(count > 45, "{count}");
}

#[test]
fn tables_that_are_damaged_are_named_with_the_place() {
    let whole = table();
    assert_eq!(refused("a.csv", whole.as_bytes(), read_table), None);
    let mut random = Random(3);
    let errors = (0..60)
        .filter_map(|round| refused("a.csv", &random.damage(whole.as_bytes(), round), read_table));
    let count = errors.count();
    assert!(count > 35, "{count}");
}

/// Headers that are whole, and promise more than there is.
#[test]
fn absurd_lengths_are_refused_before_anything_is_allocated() {
    let whole = shards();
    for size in [
        "77777777777",
        "70000000000",
        "00077777777",
        "00000100000",
        "99999999999",
    ] {
        let mut bytes = whole.clone();
        bytes[124..135].copy_from_slice(size.as_bytes());
        signed(&mut bytes);
        let error = refused("a.tar", &bytes, read_shards).unwrap();
        assert!(error.contains("size of the header at byte 0"), "{error}");
        let mut bytes = archive(&[("train.bin", &[0; 3074])]);
        bytes[124..135].copy_from_slice(size.as_bytes());
        signed(&mut bytes);
        let error = refused("a.tar.gz", &gzip(&bytes), read_cifar).unwrap();
        assert!(
            error.contains("train.bin") || error.contains("size of the header"),
            "{error}"
        );
    }
    // An image that promises 16,000 x 16,000 pixels.
    let mut image = png(&RgbImage::new(1, 1));
    image[16..24].copy_from_slice(&[0, 0, 0x3e, 0x80, 0, 0, 0x3e, 0x80]);
    let crc = crc32fast::hash(&image[12..29]);
    image[29..33].copy_from_slice(&crc.to_be_bytes());
    let bytes = archive(&[("0.png", &image), ("0.cls", b"1")]);
    let error = refused("a.tar", &bytes, read_shards).unwrap();
    error.assert_contains(["a.tar/0.png", "16000 x 16000"]);
    for (text, place) in [
        ("price,a\n1,\"2\n".to_owned(), "rows"),
        (format!("price,{}\n", "a".repeat(1 << 20)), "column `price`"),
        (format!("{}\n", ",".repeat(1 << 20)), "the header"),
        ("price,a\n".to_owned() + &"1,2,3\n".repeat(9), "line 2"),
        (
            "price,a\n".to_owned() + &"1e99,2\n".repeat(20),
            "line 2, column `price`",
        ),
        (
            "price,a\n".to_owned() + &"\u{0},2\n".repeat(20) + "1,2\n",
            "line 22, column `price`",
        ),
        ("\n\n\n".to_owned(), "the header"),
        ("price,price\n1,2\n".to_owned(), "the header"),
        ("a,b\n1,2\n".to_owned(), "the header"),
        (
            "price,a\n".to_owned() + &",2\n".repeat(20),
            "line 2, column `price`",
        ),
    ] {
        let error = refused("a.csv", text.as_bytes(), read_table).unwrap();
        assert!(error.contains(&format!("a.csv, {place}")), "{error}");
    }
}

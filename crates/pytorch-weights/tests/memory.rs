//! Files that are made to take all memory: refused, or read in little more than they have.
//!
//! All that is allocated in the process is counted, so one test runs at a time.

#![expect(unsafe_code, reason = "an allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Cursor;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use everburn_pytorch_weights::{WeightsError, WeightsFile};

/// What is allocated beyond the file may be this much, for files of a few MB.
const LIMIT: usize = 64 << 20;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

struct Counting;

fn count(size: usize) {
    let now = NOW.fetch_add(size, Ordering::Relaxed) + size;
    MOST.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: all is handed on to the system's allocator; counting allocates nothing. `realloc` is the trait's own, which
// allocates, copies and frees: a growing vector is counted twice while it grows.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is allocated at most while `file` is read: opened, and the tensors of these names loaded.
fn read(file: &[u8], names: &[&str]) -> (Result<usize, WeightsError>, usize) {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let result = WeightsFile::new(Cursor::new(file)).map(|mut file| {
        for name in names {
            file.load(name).unwrap();
        }
        file.tensors().count()
    });
    (result, MOST.load(Ordering::Relaxed) - before)
}

fn text(text: &str) -> Vec<u8> {
    [
        &b"X"[..],
        &(text.len() as u32).to_le_bytes(),
        text.as_bytes(),
    ]
    .concat()
}

/// An instruction that pushes a tensor of `count` numbers, the whole storage `key`.
fn tensor(key: &str, count: i32) -> Vec<u8> {
    let count = count.to_le_bytes();
    let parts = [
        &b"ctorch._utils\n_rebuild_tensor_v2\n(("[..],
        &text("storage"),
        b"ctorch\nFloatStorage\n",
        &text(key),
        &text("cpu"),
        b"J",
        &count,
        b"tQK\0J",
        &count,
        b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR",
    ];
    parts.concat()
}

/// An archive of stored files, without checksums.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let offset = archive.len() as u32;
        let size = (content.len() as u32).to_le_bytes();
        let mut head = vec![0; 14];
        head.extend([size, size].concat());
        head.extend((name.len() as u16).to_le_bytes());
        head.extend([0; 2]);
        archive.extend([&b"PK\x03\x04"[..], &head, name.as_bytes(), content].concat());
        let rest = [[0; 10].as_slice(), &offset.to_le_bytes(), name.as_bytes()].concat();
        directory.extend([&b"PK\x01\x02\0\0"[..], &head, &rest].concat());
    }
    let (offset, size) = (archive.len() as u32, directory.len() as u32);
    archive.extend(&directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend(
        [files.len() as u16, files.len() as u16]
            .map(u16::to_le_bytes)
            .concat(),
    );
    archive.extend([size, offset].map(u32::to_le_bytes).concat());
    archive.extend([0; 2]);
    archive
}

fn pickled(pickle: &[u8]) -> Vec<u8> {
    let pickle = [b"\x80\x02", pickle, b"."].concat();
    archive(&[("a/data.pkl", &pickle), ("a/data/0", &[0; 4])])
}

/// A state dict with one tensor, and `more` in another entry.
fn beside_a_tensor(more: &[u8]) -> Vec<u8> {
    let dict = [
        &b"}("[..],
        &text("weight"),
        &tensor("0", 1),
        &text("more"),
        more,
        b"u",
    ];
    pickled(&dict.concat())
}

/// Reads a file that is refused or has `tensors`, within [`LIMIT`].
fn is_read_in_little(file: &[u8], names: &[&str], tensors: usize) {
    let (result, most) = read(file, names);
    assert_eq!(result.unwrap(), tensors);
    assert!(most < LIMIT, "{most}");
}

#[test]
fn a_list_in_itself_is_one_list() {
    let _alone = alone();
    // Appended to itself, and to what was itself before: 1 MB.
    for list in [
        [&b"]q\0"[..], &b"h\0a".repeat(333_000)].concat(),
        [&b"]q\0"[..], &b"h\0aq\0".repeat(200_000)].concat(),
    ] {
        is_read_in_little(&beside_a_tensor(&list), &["weight"], 1);
    }
    // Each list holds the one before twice: 2 to the power of 100,000 items, were one ever copied.
    let list = [&b"]q\0"[..], &b"0](h\0h\0eq\0".repeat(100_000)].concat();
    is_read_in_little(&beside_a_tensor(&list), &["weight"], 1);
}

#[test]
fn ten_thousand_names_of_one_storage_are_one_storage() {
    let _alone = alone();
    let count = 1_000_000;
    let numbers = vec![0; count as usize * 4];
    let tensor = tensor("0", count);
    // One tensor under all names, and a tensor for each.
    for others in [b"h\x05".as_slice(), &tensor] {
        let mut pickle = [&b"\x80\x02}("[..], &text("n0"), &tensor, b"q\x05"].concat();
        for name in 1..10_000 {
            pickle.extend([&text(&format!("n{name}"))[..], others].concat());
        }
        pickle.extend(b"u.");
        let file = archive(&[("a/data.pkl", &pickle), ("a/data/0", &numbers)]);
        is_read_in_little(&file, &["n0", "n9999"], 10_000);
    }
}

/// Memoises what makes a tensor with this number of dimensions: the function as 8, its arguments as 9. Leaves nothing.
fn wide_tensor(dimensions: usize) -> Vec<u8> {
    let parts = [
        &b"(("[..],
        &text("storage"),
        b"ctorch\nFloatStorage\n",
        &text("0"),
        &text("cpu"),
        b"K\x01tQK\0(",
        &b"K\x01".repeat(dimensions),
        b"tq\x07h\x07tq\x090ctorch._utils\n_rebuild_tensor_v2\nq\x080",
    ];
    parts.concat()
}

/// Each would be compared or copied once for each tensor, in time out of proportion.
#[test]
fn what_tensors_share_is_short() {
    let _alone = alone();
    let refused = |pickle: &[u8], part: &str| {
        let error = WeightsFile::new(Cursor::new(pickled(pickle)))
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "{error}");
    };
    let long = "x".repeat(1025);
    refused(
        &[&b"}"[..], &text(&long), &tensor("0", 1), b"s"].concat(),
        "a name of more than 1024",
    );
    refused(
        &[&b"}"[..], &text("weight"), &tensor(&long, 1), b"s"].concat(),
        "a storage in its pickle",
    );
    let wide = [&wide_tensor(65)[..], b"}", &text("weight"), b"h\x08h\x09Rs"].concat();
    refused(&wide, "more dimensions");
}

/// What may be allocated beside a file: the pickle, and what the budget allows, a half more while a vector is copied.
fn allowed(file: &[u8]) -> usize {
    (12 << 20) + 49 * file.len()
}

#[test]
fn what_is_dear_to_build_in_few_bytes_is_counted() {
    let _alone = alone();
    let many = 2_000_000;
    for (what, part) in [
        ("lists", b"]".repeat(many)),
        ("dicts", b"}".repeat(many)),
        ("tuples", [&b")"[..], &b"\x85".repeat(many)].concat()),
        ("marks", b"(".repeat(many)),
        ("memos", [&b"N"[..], &b"\x94".repeat(many)].concat()),
        ("a far memo", b"Nr\xff\xff\xff\xff".to_vec()),
        (
            "lists in a list",
            [&b"]("[..], &b"]".repeat(many), b"e"].concat(),
        ),
        (
            "a name without an end",
            [&b"c"[..], &b"x".repeat(many)].concat(),
        ),
        (
            "a long name",
            [&b"c"[..], &b"x".repeat(many), b"\nx\n"].concat(),
        ),
        (
            "tensors",
            [
                &wide_tensor(64)[..],
                b"](",
                &b"h\x08h\x09R".repeat(many / 5),
                b"e",
            ]
            .concat(),
        ),
        ("a long text", b"X\xff\xff\xff\xff".to_vec()),
        (
            "a longer text",
            b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec(),
        ),
    ] {
        let file = beside_a_tensor(&part);
        let (result, most) = read(&file, &[]);
        assert!(
            most < allowed(&file),
            "{what}: {most} for {}: {result:?}",
            file.len()
        );
        let error = result
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(error.len() < 400, "{what}: {error}");
    }
}

#[test]
fn names_of_a_tensor_with_many_dimensions_are_counted() {
    let _alone = alone();
    for (count, is_read) in [(100_u32, true), (400_000, false)] {
        let mut pickle = [
            &wide_tensor(64)[..],
            b"}(",
            &text("first"),
            b"h\x08h\x09Rq\x0a",
        ]
        .concat();
        for name in 0..count {
            pickle.extend([text(&format!("{name:x}")), b"h\x0a".to_vec()].concat());
        }
        pickle.extend(b"u");
        let file = pickled(&pickle);
        let (result, most) = read(&file, &[]);
        assert!(most < allowed(&file), "{most} for {}", file.len());
        match is_read {
            true => assert_eq!(result.unwrap(), 101),
            false => assert!(matches!(result, Err(WeightsError::TooLarge)), "{result:?}"),
        }
    }
}

#[test]
fn archives_that_lie_are_refused() {
    let _alone = alone();
    let refused = |file: &[u8], part: &str| {
        let (result, most) = read(file, &[]);
        let error = result.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert!(most < LIMIT, "{most}");
    };
    let good = beside_a_tensor(b"N");
    let (result, _) = read(&good, &["weight"]);
    assert_eq!(result.unwrap(), 1);
    let pickle = [&b"\x80\x02}("[..], &text("weight"), &tensor("0", 1), b"u."].concat();
    let with = |files: &[(&str, &[u8])]| {
        archive(
            &[
                &[("a/data.pkl", &pickle[..]), ("a/data/0", &[0; 4][..])],
                files,
            ]
            .concat(),
        )
    };
    refused(&with(&[("a/data.pkl", &pickle)]), "is in it twice");
    refused(&with(&[("b/data.pkl", &pickle)]), "several data.pkl");
    refused(&with(&[("../a", b"")]), "leads out of it");
    refused(&with(&[("/a", b"")]), "leads out of it");
    refused(&with(&[("a\\..\\b", b"")]), "leads out of it");
    refused(&with(&[("a/\x1b[2J/../b", b"")]), "a/\\u{1b}[2J");

    // Where the entries of the directory begin, of which the first is the pickle's.
    let at = |file: &[u8]| {
        file.windows(4)
            .position(|bytes| bytes == b"PK\x01\x02")
            .unwrap()
    };
    let changed = |place: usize, bytes: &[u8]| {
        let mut file = with(&[]);
        let directory = at(&file);
        file[directory + place..][..bytes.len()].copy_from_slice(bytes);
        file
    };
    refused(&changed(8, &[1]), "damaged");
    refused(&changed(10, &[8]), "is compressed");
    // Sizes: larger than the file, one over the next.
    refused(&changed(20, &[0xf0; 8]), "overlaps");
    let longer = (pickle.len() as u32 + 1).to_le_bytes();
    refused(&changed(20, &[longer, longer].concat()), "overlaps");
    // Two files in one place.
    let second = 46 + "a/data.pkl".len();
    refused(&changed(second + 42, &[0; 4]), "overlaps");
    // As many entries as there can be, in a directory of two.
    let mut file = with(&[]);
    let end = file.len() - 22;
    file[end + 8..end + 12].copy_from_slice(&[0xfe, 0xff, 0xfe, 0xff]);
    refused(&file, "damaged");
    // A storage with more or fewer numbers than it says.
    let pickle = [&b"\x80\x02}("[..], &text("weight"), &tensor("0", 2), b"u."].concat();
    refused(
        &archive(&[("a/data.pkl", &pickle), ("a/data/0", &[0; 4])]),
        "not as many",
    );
    refused(&archive(&[("a/data.pkl", &pickle)]), "not in the file");
}

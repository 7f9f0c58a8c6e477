use std::fs;
use std::path::{Path, PathBuf};

use everburn_tests::AssertContains;
use sha2::{Digest, Sha256};

use super::header::OURS_BYTES;
use super::{MadeBy, ShardOptions, ShardWriter, TokenFiles, TokenFormat, TokenShards, TokenWidth};
use crate::DatasetError;
use crate::damaged::Random;

fn options(vocabulary: usize) -> ShardOptions {
    ShardOptions {
        vocabulary,
        made_by: MadeBy::File("0a".repeat(32)),
        end_of_document: Some(0),
        most: 100,
    }
}

/// Tokens below `vocabulary`, always the same.
fn some_tokens(count: usize, vocabulary: u32) -> Vec<u32> {
    let token = |place: usize| (place as u32).wrapping_mul(2_654_435_761) % vocabulary;
    (0..count).map(token).collect()
}

fn write(folder: &Path, name: &'static str, tokens: &[u32], options: ShardOptions) {
    let mut writer = ShardWriter::new(folder, name, options);
    for (number, document) in tokens.chunks(30).enumerate() {
        let (front, back) = document.split_at(document.len() / 3);
        let begins_in_front = !front.is_empty();
        writer.push(front, true).unwrap();
        writer.push(back, !begins_in_front).unwrap();
        assert_eq!(writer.documents, number as u64 + 1);
    }
    writer.finish().unwrap();
    assert_eq!(writer.tokens, tokens.len() as u64);
}

/// A file of llm.c.
fn llm_c(magic: u32, version: u32, count: i32, tokens: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    bytes[..4].copy_from_slice(&magic.to_le_bytes());
    bytes[4..8].copy_from_slice(&version.to_le_bytes());
    bytes[8..12].copy_from_slice(&count.to_le_bytes());
    bytes.extend(tokens);
    bytes
}

fn open(folder: &Path) -> Result<TokenFiles, DatasetError> {
    TokenFiles::open(folder, TokenFormat::Detect)
}

fn refused(folder: &Path) -> String {
    open(folder).unwrap_err().to_string()
}

#[test]
fn tokens_of_both_widths_come_back_from_several_files_as_one_sequence() {
    for vocabulary in [300, 65_536, 65_537, 1 << 20] {
        let folder = tempfile::tempdir().unwrap();
        let tokens = some_tokens(357, vocabulary as u32);
        write(folder.path(), "train", &tokens, options(vocabulary));
        let files = open(folder.path()).unwrap();
        let train = files.train;
        assert!(files.held_out.is_none());
        assert_eq!((train.tokens(), train.files()), (357, 4));
        assert_eq!(train.documents(), Some(12));
        assert_eq!(train.vocabulary(), Some(vocabulary));
        assert_eq!(train.end_of_document(), Some(0));
        assert_eq!(train.format(), TokenFormat::Ours);
        for range in [0..357, 0..1, 99..101, 50..350, 356..357, 100..200, 7..7] {
            assert_eq!(train.read(range.clone()).unwrap(), tokens[range]);
        }
        train.verify().unwrap();
    }
}

#[test]
fn files_of_llm_c_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = [50_256_u16, 464, 11_908, 286];
    let bytes = tokens.map(u16::to_le_bytes).concat();
    let gpt2 = llm_c(20_240_520, 1, 4, &bytes);
    fs::write(folder.path().join("fineweb_train_000001.bin"), &gpt2).unwrap();
    fs::write(folder.path().join("fineweb_val_000000.bin"), &gpt2).unwrap();
    let files = open(folder.path()).unwrap();
    assert_eq!(files.train.read(0..4).unwrap(), tokens.map(u32::from));
    assert_eq!(files.held_out.as_ref().unwrap().tokens(), 4);
    assert_eq!(files.train.vocabulary(), None);
    assert_eq!(files.train.format(), TokenFormat::LlmC);
    assert_eq!(files.record().tokens, 8);

    let tokens = [128_000_u32, 791, 128_255];
    let llama = llm_c(20_240_801, 7, 3, &tokens.map(u32::to_le_bytes).concat());
    let file = folder.path().join("llama.bin");
    fs::write(&file, llama).unwrap();
    let shards = TokenShards::open(std::slice::from_ref(&file), TokenFormat::LlmC).unwrap();
    assert_eq!(shards.read(0..3).unwrap(), tokens);
    let error = shards.with_vocabulary(128_000).read(1..3).unwrap_err();
    let error = error.to_string();
    error.assert_contains(["llama.bin: token 2: it is 128255, beyond the vocabulary of 128000"]);
    // Of 16 and of 32 bits.
    let error = refused(folder.path());
    error.assert_contains([
        "llama.bin has tokens of 32 bits, and",
        "fineweb_train_000001.bin has tokens of 16 bits",
    ]);
}

#[test]
fn files_of_llm_c_that_are_wrong_are_refused_by_field() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.bin");
    let cases = [
        (llm_c(20_240_520, 7, 2, &[0; 4]), "version: it is 7"),
        (llm_c(20_240_801, 1, 1, &[0; 4]), "version: it is 1"),
        (llm_c(20_240_520, 1, -2, &[0; 4]), "count: -2 tokens"),
        (
            llm_c(20_240_520, 1, 3, &[0; 4]),
            "count: 3 tokens of 16 bits",
        ),
        (llm_c(20_240_520, 1, 0, &[]), "count: it has no tokens"),
        (
            llm_c(20_240_522, 1, 2, &[0; 4]),
            "magic: it is llm.c's of questions",
        ),
        (
            llm_c(20_240_520, 1, 2, &[0; 4])[..900].to_vec(),
            "header: the file ends after 900",
        ),
        (b"EVTOKENS".to_vec(), "header: the file ends after 8"),
        (Vec::new(), "magic: it is none"),
        (b"some text, no tokens".to_vec(), "nanogpt:FILE"),
    ];
    for (bytes, expected) in cases {
        fs::write(&file, bytes).unwrap();
        let error = refused(folder.path());
        error.assert_contains(["a.bin: ", expected]);
    }
}

#[test]
fn files_of_nanogpt_are_read_where_they_are_named_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let bytes = [1_u16, 2, 3].map(u16::to_le_bytes).concat();
    fs::write(path("other.bin"), &bytes).unwrap();
    let error = refused(&path("other.bin"));
    assert!(error.contains("nanogpt:FILE"), "{error}");
    let named = TokenFiles::open(&path("other.bin"), TokenFormat::NanoGpt).unwrap();
    assert_eq!(named.train.read(0..3).unwrap(), [1, 2, 3]);
    fs::remove_file(path("other.bin")).unwrap();
    // The two names say it.
    fs::write(path("train.bin"), &bytes).unwrap();
    fs::write(path("val.bin"), &bytes).unwrap();
    let files = open(folder.path()).unwrap();
    assert_eq!(files.train.format(), TokenFormat::NanoGpt);
    assert_eq!(files.held_out.unwrap().tokens(), 3);
    fs::write(path("val.bin"), &bytes[..5]).unwrap();
    let error = refused(folder.path());
    assert!(error.contains("val.bin: length: 5 bytes"), "{error}");
    // A header is no tokens.
    fs::write(path("val.bin"), llm_c(20_240_520, 1, 3, &bytes)).unwrap();
    let error = refused(folder.path());
    assert!(error.contains("val.bin: magic: it has a header"), "{error}");
    // With a header, the name says nothing.
    fs::write(path("train.bin"), llm_c(20_240_520, 1, 3, &bytes)).unwrap();
    assert_eq!(
        open(folder.path()).unwrap().train.format(),
        TokenFormat::LlmC
    );
}

#[test]
fn a_folder_says_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.txt"), "text").unwrap();
    let error = refused(folder.path());
    assert!(error.contains("it has no files *.bin"), "{error}");
    write(folder.path(), "val", &[1; 9], options(300));
    let error = refused(folder.path());
    assert!(error.contains("none is to train on"), "{error}");
    let error = refused(&folder.path().join("nowhere"));
    assert!(error.contains("nowhere"), "{error}");
}

#[test]
fn files_of_another_tokenizer_are_refused_by_name() {
    let tokens = some_tokens(60, 300);
    let others = [
        (options(301), "a vocabulary of 301"),
        (options(1 << 17), "tokens of 32 bits"),
        (
            ShardOptions {
                made_by: MadeBy::File("0b".repeat(32)),
                ..options(300)
            },
            "SHA-256 0b0b",
        ),
        (
            ShardOptions {
                end_of_document: None,
                ..options(300)
            },
            "no token after a document",
        ),
    ];
    for (other, expected) in others {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "train", &tokens, options(300));
        write(folder.path(), "val", &tokens, other);
        let error = refused(folder.path());
        let names = ["train_000000.bin", "val_000000.bin", expected];
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
    }
}

#[test]
fn more_files_than_are_held_open_are_read_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = some_tokens(600, 300);
    let few = ShardOptions {
        most: 2,
        ..options(300)
    };
    write(folder.path(), "train", &tokens, few);
    let train = open(folder.path()).unwrap().train;
    assert_eq!(train.files(), 300);
    assert_eq!(train.read(0..600).unwrap(), tokens);
    train.verify().unwrap();
}

#[test]
fn a_record_is_equal_for_the_same_files_only() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = some_tokens(357, 300);
    write(folder.path(), "train", &tokens, options(300));
    let record = || open(folder.path()).unwrap().record();
    let first = record();
    assert_eq!(first, record());
    assert_eq!(first.to_string(), "4 files of 357 tokens");
    let path = |name: &str| folder.path().join(name);
    fs::rename(path("train_000003.bin"), path("train_000009.bin")).unwrap();
    let renamed = record();
    assert_eq!((renamed.files, renamed.tokens), (4, 357));
    assert_ne!(renamed.sha256, first.sha256);
    // Another token in the middle of a file.
    let mut bytes = fs::read(path("train_000001.bin")).unwrap();
    bytes[OURS_BYTES + 100] ^= 1;
    fs::write(path("train_000001.bin"), bytes).unwrap();
    assert_ne!(record().sha256, renamed.sha256);
    let error = open(folder.path()).unwrap().train.verify().unwrap_err();
    let error = error.to_string();
    error.assert_contains(["train_000001.bin: tokens: they are damaged"]);
}

#[test]
fn a_file_that_becomes_shorter_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "train", &some_tokens(90, 300), options(300));
    let train = open(folder.path()).unwrap().train;
    let file = folder.path().join("train_000000.bin");
    let file = fs::File::options().write(true).open(file).unwrap();
    file.set_len(300).unwrap();
    let error = train.read(80..90).unwrap_err().to_string();
    assert!(error.contains("train_000000.bin"), "{error}");
}

/// Makes the checksum of a header right again, so that what it says is looked at.
fn sign(bytes: &mut [u8]) {
    if bytes.len() >= OURS_BYTES {
        let checksum = Sha256::digest(&bytes[..OURS_BYTES - 32]);
        bytes[OURS_BYTES - 32..OURS_BYTES].copy_from_slice(&checksum);
    }
}

/// Reads all that there is of a file, and checks it.
fn read_all(file: &Path) -> Result<(), DatasetError> {
    let shards = TokenShards::open(&[file.to_owned()], TokenFormat::Detect)?;
    let shards = shards.with_vocabulary(300);
    assert!(shards.tokens() <= 400, "memory is bounded by the file");
    assert_eq!(shards.read(0..shards.tokens())?.len(), shards.tokens());
    shards.verify()
}

/// Files that are cut short, lengthened, and changed in their headers and tokens, 600 of them: an error that names the
/// file and a field of it, or tokens within the vocabulary; never a panic.
#[test]
fn damaged_files_are_errors_with_file_and_field() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "train", &some_tokens(90, 300), options(300));
    let ours = fs::read(folder.path().join("train_000000.bin")).unwrap();
    let tokens = TokenWidth::U16.encode(&some_tokens(90, 300));
    let foreign = llm_c(20_240_520, 1, 90, &tokens);
    let file: PathBuf = folder.path().join("damaged.bin");
    let mut random = Random(11);
    let (mut by_ours, mut by_foreign) = (0, 0);
    for round in 0..600 {
        let is_ours = round % 3 != 2;
        let mut bytes = if is_ours {
            ours.clone()
        } else {
            foreign.clone()
        };
        let fields = if is_ours { OURS_BYTES } else { 12 };
        match random.below(6) {
            0 => bytes.truncate(random.below(bytes.len())),
            1 => bytes.extend(vec![7; 1 + random.below(9)]),
            // A field with any value, absurd ones too, in a header that is right otherwise.
            2 | 3 => {
                let at = random.below(fields / 4) * 4;
                let values = [0, 1, 2, 7, u32::MAX, 1 << 31, random.below(1 << 31) as u32];
                let value = values[random.below(values.len())];
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
                if is_ours {
                    sign(&mut bytes);
                }
            }
            _ => {
                for _ in 0..4 {
                    let at = random.below(bytes.len());
                    bytes[at] ^= 1 + random.below(255) as u8;
                }
            }
        }
        fs::write(&file, &bytes).unwrap();
        let Err(error) = read_all(&file) else {
            continue;
        };
        let named = matches!(&error, DatasetError::Data { path, problem }
            if *path == file && problem.split(": ").filter(|part| !part.is_empty()).count() > 1);
        assert!(named, "{error}");
        match is_ours {
            true => by_ours += 1,
            false => by_foreign += 1,
        }
    }
    // Ours has checksums. Of the other nothing but its length, three fields and large tokens can be found out.
    assert!(by_ours > 330, "{by_ours} of 400");
    assert!(by_foreign > 100, "{by_foreign} of 200");
}

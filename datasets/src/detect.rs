//! The kind of data at a path.

use std::fmt;
use std::path::Path;

use crate::cifar::{self, CIFAR_10, CIFAR_100};
use crate::error::{unreadable, unusable};
use crate::files::{beginning, names};
use crate::rgb_item::is_image;
use crate::table::PARQUET_MAGIC;
use crate::tar_shards::is_pattern;
use crate::url::{check_url, is_url};
use crate::{DatasetError, token_shards};

/// The bytes of a file that are looked at: a tar header has its magic in them.
const BEGINNING: u64 = 512;

/// A kind of data at a path.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{DataKind, detect};
///
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("houses.csv");
/// std::fs::write(&file, "area,price\n90,240\n")?;
/// assert_eq!(detect(&file)?, Some(DataKind::Table));
/// assert_eq!(DataKind::Table.to_string(), "a table");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataKind {
    /// MNIST's format.
    Idx,
    /// The binary files of CIFAR-10 or CIFAR-100, or their archive.
    Cifar,
    /// A folder for each class, with images.
    ImageFolder,
    /// Tar files of samples.
    TarShards,
    /// Rows and columns.
    Table,
    /// Text.
    Text,
    /// Files of tokens.
    Tokens,
    /// A single image.
    Image,
}

impl DataKind {
    /// The tasks of the program `everburn` that learn from it.
    pub fn tasks(self) -> &'static str {
        match self {
            Self::Idx => "mnist, mnist-bn and mlp learn from it",
            Self::Cifar | Self::ImageFolder | Self::TarShards => {
                "resnet18, resnet50 and vit learn from it"
            }
            Self::Table => "the task `table` learns from it",
            Self::Text | Self::Tokens => "gpt-nano, gpt2 and llama learn from it",
            Self::Image => "resnet18, resnet50 and vit learn from a folder of them",
        }
    }
}

impl fmt::Display for DataKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idx => "a folder of IDX files",
            Self::Cifar => "an archive of CIFAR",
            Self::ImageFolder => "a folder of images, one folder per class",
            Self::TarShards => "tar shards",
            Self::Table => "a table",
            Self::Text => "text",
            Self::Tokens => "files of tokens",
            Self::Image => "a single image",
        })
    }
}

/// What a path is taken for: by the names in a folder, by the first bytes of a file, and by its extension. `None` of what is
/// none of the kinds. An address names tar shards; it is not asked for.
///
/// # Errors
/// [`DatasetError::Read`] if there is nothing, or it cannot be read; [`DatasetError::Data`] of an address that names no tar
/// shards.
pub fn detect(path: impl AsRef<Path>) -> Result<Option<DataKind>, DatasetError> {
    let path = path.as_ref();
    if is_url(path) {
        return check_url(path).map(|_| Some(DataKind::TarShards));
    }
    if is_pattern(path) {
        return Ok(Some(DataKind::TarShards));
    }
    let metadata = path.metadata().map_err(|source| unreadable(path, source))?;
    match metadata.is_dir() {
        true => of_folder(path),
        false => of_file(path),
    }
}

/// As [`detect`], for a task that learns from these kinds, which are `wanted` in prose.
///
/// # Errors
/// As [`detect`]; [`DatasetError::Data`] of a file without a byte, or with a task that learns from what is there, if this one
/// does not.
pub fn detect_for(
    path: impl AsRef<Path>,
    kinds: &[DataKind],
    wanted: &str,
) -> Result<Option<DataKind>, DatasetError> {
    let path = path.as_ref();
    let metadata = path.metadata();
    if metadata.is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0) {
        return Err(unusable(
            path,
            format!(" is an empty file: expected {wanted}"),
        ));
    }
    let wrong_kind = |found: &str, instead: &str| {
        let problem = format!(" is {found}, and this model learns from {wanted}; {instead}");
        unusable(path, problem)
    };
    if let Some(found) = packed(path) {
        return Err(wrong_kind(found, "unpack it, and name the folder"));
    }
    match detect(path)? {
        Some(kind) if !kinds.contains(&kind) => Err(wrong_kind(&kind.to_string(), kind.tasks())),
        kind => Ok(kind),
    }
}

/// The archive that a file is, if it is one that is not read.
fn packed(path: &Path) -> Option<&'static str> {
    const BEGINNINGS: [(&[u8], &str); 3] = [
        (b"PK\x03\x04", "a zip archive"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        (b"Rar!", "a RAR archive"),
    ];
    // What cannot be read says so where it is looked at.
    let beginning = path.is_file().then(|| beginning(path, 8))?.ok()?;
    let is = |(begin, _): &&(&[u8], &str)| beginning.starts_with(begin);
    BEGINNINGS.iter().find(is).map(|(_, name)| *name)
}

fn of_folder(folder: &Path) -> Result<Option<DataKind>, DatasetError> {
    let archives = [CIFAR_10.archive, CIFAR_100.archive];
    let has_archive = archives.iter().any(|name| folder.join(name).is_file());
    if has_archive || cifar::set_in_folder(folder).is_some() {
        return Ok(Some(DataKind::Cifar));
    }
    let (mut idx, mut tar, mut tokens, mut folders) = (false, false, false, false);
    for name in names(folder, |_| true)? {
        let lower = name.to_ascii_lowercase();
        idx |= is_idx_name(&lower);
        tar |= lower.ends_with(".tar");
        tokens |= lower.ends_with(".bin");
        folders |= folder.join(&name).is_dir();
    }
    let kinds = [
        (idx, DataKind::Idx),
        (tar, DataKind::TarShards),
        (tokens, DataKind::Tokens),
        (folders, DataKind::ImageFolder),
    ];
    let found = kinds.into_iter().find(|(found, _)| *found);
    Ok(found.map(|(_, kind)| kind))
}

fn of_file(file: &Path) -> Result<Option<DataKind>, DatasetError> {
    let beginning = beginning(file, BEGINNING)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let name = name.to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    if token_shards::has_header(file)? {
        return Ok(Some(DataKind::Tokens));
    }
    let is_tar = beginning.get(257..262) == Some(b"ustar");
    let is_idx = matches!(beginning[..], [0, 0, 8, 1 | 3, ..]) || is_idx_name(&name);
    let is_text = match std::str::from_utf8(&beginning) {
        Ok(text) => !text.contains('\0') && !text.is_empty(),
        // A character may have been cut.
        Err(error) => error.error_len().is_none(),
    };
    Ok(if is_tar || ends(&[".tar"]) {
        Some(DataKind::TarShards)
    } else if is_idx {
        Some(DataKind::Idx)
    } else if ends(&[".tar.gz", ".tgz"]) {
        Some(DataKind::Cifar)
    } else if is_image(file) {
        Some(DataKind::Image)
    } else if ends(&[".csv", ".tsv", ".parquet"]) || beginning.starts_with(PARQUET_MAGIC) {
        Some(DataKind::Table)
    } else if ends(&[".bin"]) {
        Some(DataKind::Tokens)
    } else {
        is_text.then_some(DataKind::Text)
    })
}

fn is_idx_name(name: &str) -> bool {
    let name = name.trim_end_matches(".gz");
    name.ends_with("-ubyte") && name.contains("-idx")
}

#[cfg(test)]
mod tests {
    use everburn_tests::tar::archive;

    use super::*;

    #[test]
    fn each_kind_is_taken_for_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, bytes: &[u8]| {
            std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            std::fs::write(path(name), bytes).unwrap();
        };
        let tar = archive(&[("0.txt", b"a")]);
        write("mnist/train-images-idx3-ubyte.gz", b"");
        write("cifar/cifar-10-binary.tar.gz", b"");
        write("flowers/train/roses/1.png", b"");
        write("shards/a-000.tar", &tar);
        write("tokens/train.bin", b"");
        write("empty/.hidden", b"");
        write("samples", &tar);
        write("labels", &[0, 0, 8, 1, 0, 0, 0, 0]);
        write("c.TAR.GZ", &[0x1f, 0x8b]);
        write("1.JPG", b"");
        write("houses.csv", b"a,b\n1,2\n");
        write("houses", b"PAR1\x15\x04\xff");
        write("novel.txt", "se\u{f1}or".as_bytes());
        write("noise", &[1, 2, 0xff, 0]);
        for (name, kind) in [
            ("mnist", Some(DataKind::Idx)),
            ("cifar", Some(DataKind::Cifar)),
            ("flowers", Some(DataKind::ImageFolder)),
            ("shards", Some(DataKind::TarShards)),
            ("shards/a-*.tar", Some(DataKind::TarShards)),
            ("tokens", Some(DataKind::Tokens)),
            ("tokens/train.bin", Some(DataKind::Tokens)),
            ("empty", None),
            ("samples", Some(DataKind::TarShards)),
            ("labels", Some(DataKind::Idx)),
            ("c.TAR.GZ", Some(DataKind::Cifar)),
            ("1.JPG", Some(DataKind::Image)),
            ("houses.csv", Some(DataKind::Table)),
            ("houses", Some(DataKind::Table)),
            ("novel.txt", Some(DataKind::Text)),
            ("noise", None),
        ] {
            assert_eq!(detect(path(name)).unwrap(), kind, "{name}");
        }
        let error = detect(path("nothing")).unwrap_err().to_string();
        assert!(error.contains("nothing"), "{error}");
        let error = detect_for(path("houses.csv"), &[DataKind::Text], "text").unwrap_err();
        let text = "is a table, and this model learns from text; the task `table` learns from it";
        assert!(error.to_string().ends_with(text), "{error}");
        write("split.zip", b"PK\x03\x04\x14\0");
        let error = detect_for(path("split.zip"), &[DataKind::ImageFolder], "images").unwrap_err();
        let text = "split.zip is a zip archive, and this model learns from images; unpack it, and name the folder";
        assert!(error.to_string().ends_with(text), "{error}");
        write("nothing.csv", b"");
        let error = detect_for(path("nothing.csv"), &[DataKind::Table], "a table").unwrap_err();
        let text = "nothing.csv is an empty file: expected a table";
        assert!(error.to_string().ends_with(text), "{error}");
    }
}

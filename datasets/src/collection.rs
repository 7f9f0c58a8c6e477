//! MNIST and Fashion-MNIST: the same four IDX files, published in different places.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::unusable;
use crate::{DatasetError, IMAGE_PIXELS, ImageDataset, idx, locate};

/// A data set of four IDX files.
pub(crate) struct Collection {
    /// Name in records and on the command line.
    pub(crate) name: &'static str,
    /// Name in prose.
    pub(crate) title: &'static str,
    /// Sub-folder of a data folder.
    pub(crate) folder: &'static str,
    /// URLs that end in `/`, the first the one to try first.
    pub(crate) mirrors: &'static [&'static str],
    /// Training images, training labels, test images, test labels.
    pub(crate) files: [IdxFile; 4],
}

/// One of a collection's files.
pub(crate) struct IdxFile {
    /// Name of the decompressed file.
    pub(crate) name: &'static str,
    pub(crate) content: Content,
    /// The published number of items.
    pub(crate) items: usize,
    /// The published hash.
    pub(crate) sha256: Sha256Of<'static>,
}

/// A published SHA-256, in hexadecimal, and what it is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sha256Of<'a> {
    /// The decompressed file.
    Content(&'a str),
    /// The file as it is downloaded.
    Compressed(&'a str),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Images,
    Labels,
}

const TRAIN_IMAGES: &str = "train-images-idx3-ubyte";
const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";

pub(crate) static MNIST: Collection = Collection {
    name: "mnist",
    title: "MNIST",
    folder: "mnist",
    mirrors: &[
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ],
    files: published([
        Sha256Of::Content("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        Sha256Of::Content("65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        Sha256Of::Content("0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        Sha256Of::Content("ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ]),
};

/// The hashes are those of the compressed files, because no others are published: they are the ones of
/// TensorFlow Datasets (`url_checksums/fashion_mnist.txt`). A file that was decompressed cannot be
/// verified, and is refused. A mirror without encryption is the last one that is tried.
pub(crate) static FASHION_MNIST: Collection = Collection {
    name: "fashion-mnist",
    title: "Fashion-MNIST",
    folder: "fashion-mnist",
    mirrors: &[
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ],
    files: published([
        Sha256Of::Compressed("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        Sha256Of::Compressed("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        Sha256Of::Compressed("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        Sha256Of::Compressed("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ]),
};

const fn published(sha256: [Sha256Of<'static>; 4]) -> [IdxFile; 4] {
    const fn file(
        name: &'static str,
        content: Content,
        items: usize,
        sha256: Sha256Of<'static>,
    ) -> IdxFile {
        IdxFile {
            name,
            content,
            items,
            sha256,
        }
    }
    [
        file(TRAIN_IMAGES, Content::Images, 60_000, sha256[0]),
        file(TRAIN_LABELS, Content::Labels, 60_000, sha256[1]),
        file(TEST_IMAGES, Content::Images, 10_000, sha256[2]),
        file(TEST_LABELS, Content::Labels, 10_000, sha256[3]),
    ]
}

impl IdxFile {
    pub(crate) fn compressed_name(&self) -> String {
        format!("{}.gz", self.name)
    }

    /// Decompresses a file and checks its structure; `path` is for messages.
    pub(crate) fn parse(&self, path: &Path, bytes: Vec<u8>) -> Result<Parsed, DatasetError> {
        let wrong = |problem| idx::wrong(path, problem);
        let sha256 = |bytes: &[u8]| format!("{:x}", Sha256::digest(bytes));
        let compressed_sha256 = idx::is_gzip(&bytes).then(|| sha256(&bytes));
        let content = idx::decompress(bytes).map_err(wrong)?;
        let content_sha256 = sha256(&content);
        let (elements, of_each) = match self.content {
            Content::Images => (idx::images(content), IMAGE_PIXELS),
            Content::Labels => (idx::labels(content), 1),
        };
        let elements = elements.map_err(wrong)?;
        Ok(Parsed {
            path: path.to_owned(),
            items: elements.len() / of_each,
            elements,
            content_sha256,
            compressed_sha256,
        })
    }
}

/// A file whose structure is right; what it holds may still be anything.
pub(crate) struct Parsed {
    path: PathBuf,
    elements: Vec<u8>,
    items: usize,
    content_sha256: String,
    /// Where it was compressed.
    compressed_sha256: Option<String>,
}

impl Collection {
    /// Reads and verifies the four files in `folder`: training set and test set.
    pub(crate) fn read(&self, folder: &Path) -> Result<[ImageDataset; 2], DatasetError> {
        let [train_images, train_labels, test_images, test_labels] = &self.files;
        Ok([
            self.read_split(folder, train_images, train_labels)?,
            self.read_split(folder, test_images, test_labels)?,
        ])
    }

    /// From the least to the most: structure, the two belong together, they are the published
    /// ones. So that a message says "truncated" and not only "altered".
    fn read_split(
        &self,
        folder: &Path,
        images_file: &IdxFile,
        labels_file: &IdxFile,
    ) -> Result<ImageDataset, DatasetError> {
        let images = read_file(folder, images_file)?;
        let labels = read_file(folder, labels_file)?;
        if images.items != labels.items {
            let problem = format!(
                "holds {} labels, but {} holds {} images",
                labels.items,
                images.path.display(),
                images.items
            );
            return Err(idx::wrong(&labels.path, problem));
        }
        self.check_published(images_file, &images)?;
        self.check_published(labels_file, &labels)?;
        ImageDataset::new(images.elements, labels.elements, 10)
    }

    /// Checks that `parsed` is what was published as `file`.
    pub(crate) fn check_published(
        &self,
        file: &IdxFile,
        parsed: &Parsed,
    ) -> Result<(), DatasetError> {
        let path = &parsed.path;
        if parsed.items != file.items {
            let problem = format!("holds {} items: expected {}", parsed.items, file.items);
            return Err(idx::wrong(path, problem));
        }
        // The two have the same names: a file of the other set is better called so than altered.
        let content = Sha256Of::Content(parsed.content_sha256.as_str());
        if self.name != MNIST.name && MNIST.files.iter().any(|file| file.sha256 == content) {
            let (expected, found) = (self.title, MNIST.title);
            let problem = format!(
                " is a file of {found}, not of {expected}; the two use the same file names: name a folder that holds \
                 {expected} with --data-dir"
            );
            return Err(unusable(path, problem));
        }
        match (file.sha256, &parsed.compressed_sha256) {
            (Sha256Of::Content(expected), _) => {
                let of = "its decompressed content";
                check_hash(path, self.title, of, expected, &parsed.content_sha256)
            }
            (Sha256Of::Compressed(expected), Some(found)) => {
                check_hash(path, self.title, "the file", expected, found)
            }
            (Sha256Of::Compressed(_), None) => Err(DatasetError::Altered {
                path: path.clone(),
                problem: format!(
                    "cannot be verified: {} publishes hashes of the compressed files only; put {} in its place, or delete \
                     the file so that it is downloaded again",
                    self.title,
                    file.compressed_name()
                ),
            }),
        }
    }
}

/// Refuses a file of the set `title` if the SHA-256 of `of` is not the published one.
pub(crate) fn check_hash(
    path: &Path,
    title: &str,
    of: &str,
    expected: &str,
    found: &str,
) -> Result<(), DatasetError> {
    match found == expected {
        true => Ok(()),
        false => Err(DatasetError::Altered {
            path: path.to_owned(),
            problem: format!(
                "is not the published {title} file: the SHA-256 of {of} is\n  {found}, expected\n  {expected}\nDelete the \
                 file so that it is downloaded again, or name another folder with --data-dir"
            ),
        }),
    }
}

fn read_file(folder: &Path, file: &IdxFile) -> Result<Parsed, DatasetError> {
    // A file that vanished since it was located fails by name when it is opened.
    let path = locate::find(folder, file)?.unwrap_or_else(|| folder.join(file.compressed_name()));
    file.parse(&path, idx::read(&path)?)
}

//! Files that PyTorch has written, by `make_files.py`: read as PyTorch reads them, or refused with what to do.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use everburn_pytorch_weights::{Tensor, WeightsError, WeightsFile};

fn here() -> PathBuf {
    std::path::absolute("tests/torch").unwrap()
}

/// The lines of `expected.txt` by file.
fn expected(folder: &Path) -> BTreeMap<String, Vec<String>> {
    let text = std::fs::read_to_string(folder.join("expected.txt")).unwrap();
    let mut files = BTreeMap::<String, Vec<String>>::new();
    for line in text.lines() {
        let (file, tensor) = line.split_once(' ').unwrap();
        files
            .entry(file.to_string())
            .or_default()
            .push(tensor.to_string());
    }
    files
}

/// What is in a file, as `expected.txt` has it.
fn found(path: &Path) -> Vec<String> {
    let mut file =
        WeightsFile::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let names: Vec<String> = file
        .tensors()
        .map(|tensor| tensor.name().to_string())
        .collect();
    let lines = names.iter().map(|name| {
        let info = file.tensor(name).unwrap();
        let (dtype, shape) = (
            info.dtype(),
            format!("{:?}", info.shape()).replace(", ", ","),
        );
        let tensor = file.load(name).unwrap();
        let mut line = format!("{name} {dtype} {shape} ");
        for byte in tensor.bytes {
            write!(line, "{byte:02x}").unwrap();
        }
        line
    });
    lines.collect()
}

fn all_are_read(folder: &Path) {
    let expected = expected(folder);
    assert_eq!(expected.len(), 15, "{:?}", expected.keys());
    for (name, mut lines) in expected {
        lines.sort();
        let mut found = found(&folder.join(format!("{name}.pt")));
        found.sort();
        assert_eq!(found, lines, "{name}");
    }
}

/// Files that are refused, and what each error says, with ` | ` between them.
const REFUSED: &str = r#"ambiguous | several dicts | net, ema\u{1b} | torch.save(checkpoint[...]
ambiguous_usual | several dicts | model, state_dict
no_tensor | there is no tensor in its dict | state_dict()
no_dict | it holds no dict | state_dict()
whole_model | torch.nn.modules.container.Sequential | nothing in a file is called | model.state_dict() | torch.save(torch.load(FILE, weights_only=False).state_dict(), ...)
whole_model_in_checkpoint | weights_only=False)["model"].state_dict(), ...)
arguments | argparse.Namespace | nothing in a file is called | torch.save(torch.load(FILE, weights_only=False)["model"], ...)
stranger | posix.system | nothing in a file is called
subclass | __main__.Subclass | weights_only=False)["state_dict"], ...)
complex | weight: numbers of its type | convert
float8 | weight: numbers of its type | v.float()
negated | weight: | resolve_neg()
sparse | torch._utils._rebuild_sparse_tensor: there are sparse tensors | torch.save({k: v.to_dense() for k, v in torch.load(FILE, weights_only=False).items()}, ...)
quantised | quantised tensors | {k: v.dequantize() for
numpy | numpy arrays | torch.as_tensor(v) for k, v in torch.load(FILE, weights_only=False).items()}
numpy_in_checkpoint | weights_only=False)["model"].items()}
numpy_beside_weights | torch.save(torch.load(FILE, weights_only=False)["model"], ...)
expanded | weight: it repeats its numbers | tensor.clone()
before_1_6 | before PyTorch 1.6 | torch.load | torch.save
script | torch.jit.save | torch.jit.load | state_dict()
compressed | is compressed | torch.save
other_byte_order | the other byte order | torch.load"#;

fn all_others_are_refused(folder: &Path) {
    for line in REFUSED.lines() {
        let (name, parts) = line.split_once(" | ").unwrap();
        let file = WeightsFile::open(&folder.join(format!("{name}.pt")));
        let error = file.unwrap_err().to_string();
        for part in parts.split(" | ") {
            assert!(error.contains(part), "{name}: {error}");
        }
    }
}

#[test]
fn what_pytorch_has_saved_is_read_with_the_same_bits() {
    all_are_read(&here().join("files"));
}

#[test]
fn what_is_no_weights_is_refused_with_what_to_do() {
    let folder = here().join("files");
    all_others_are_refused(&folder);
    // None is left out.
    let files = std::fs::read_dir(&folder).unwrap().flatten();
    let files = files.filter(|file| file.path().extension().is_some_and(|ending| ending == "pt"));
    assert_eq!(
        files.count(),
        expected(&folder).len() + REFUSED.lines().count()
    );
}

#[test]
fn a_checkpoint_of_another_version_of_pytorch_is_read() {
    let path = "../../tests/parity/golden/checkpoint.pt";
    let file = WeightsFile::open(Path::new(path)).unwrap();
    let weight = file.tensor("module.fc.weight").unwrap();
    assert_eq!(weight.shape(), [10, 16]);
    assert!(
        file.tensors()
            .all(|tensor| tensor.name().starts_with("module."))
    );
}

#[test]
fn a_checkpoint_says_which_of_its_entries_is_read() {
    let entry = |name: &str| {
        let file = WeightsFile::open(&here().join(format!("files/{name}.pt"))).unwrap();
        let entry = file.entry();
        (entry.taken.clone(), entry.others.join(" "))
    };
    let of = |taken: &str, others: &str| (taken.to_owned(), others.to_owned());
    assert_eq!(entry("model_and_ema"), of("model", "ema"));
    assert_eq!(entry("nested"), of("checkpoint.state_dict", ""));
    assert_eq!(entry("module"), of("", ""));
    // The same tensors under two names are no other ones.
    assert_eq!(entry("alike"), of("net", ""));
}

#[test]
fn an_unknown_tensor_is_no_panic() {
    let mut file = WeightsFile::open(&here().join("files/module.pt")).unwrap();
    assert!(file.tensor("2.weight").is_none());
    let error = file.load("2.\x1bweight").unwrap_err();
    assert!(matches!(error, WeightsError::NoTensor(_)));
    assert!(!error.to_string().contains('\x1b'), "{error}");
}

/// All tensors of a file, or why it or one of them is refused.
fn all_tensors(file: &[u8]) -> Result<BTreeMap<String, Tensor>, WeightsError> {
    let mut file = WeightsFile::new(std::io::Cursor::new(file))?;
    let names: Vec<String> = file
        .tensors()
        .map(|tensor| tensor.name().to_string())
        .collect();
    let tensors = names.into_iter().map(|name| {
        let tensor = file.load(&name)?;
        Ok((name, tensor))
    });
    tensors.collect()
}

#[test]
fn a_damaged_file_is_refused_or_holds_the_same_numbers() {
    let good = std::fs::read(here().join("files/checkpoint.pt")).unwrap();
    let tensors = all_tensors(&good).unwrap();
    for length in 0..good.len() {
        let cut = std::io::Cursor::new(&good[..length]);
        assert!(WeightsFile::new(cut).is_err(), "{length} bytes");
    }
    for place in 0..good.len() {
        let mut bad = good.clone();
        bad[place] ^= 0xff;
        if let Ok(found) = all_tensors(&bad) {
            assert_eq!(found, tensors, "byte {place}");
        }
    }
}

#[test]
fn damage_anywhere_in_a_storage_is_told_by_the_tensor_that_shows_a_part_of_it() {
    let mut file = std::fs::read(here().join("files/views.pt")).unwrap();
    let base = all_tensors(&file).unwrap()["base"].bytes.clone();
    let place = file.windows(base.len()).position(|bytes| bytes == base);
    // The last of its 24 numbers, of which `slice` shows some in the middle.
    file[place.unwrap() + base.len() - 1] ^= 1;
    let mut file = WeightsFile::new(std::io::Cursor::new(file)).unwrap();
    let told = file.load("slice").unwrap_err().to_string();
    assert!(
        told.starts_with("slice in it is damaged: its checksum is "),
        "{told}"
    );
    assert!(told.contains("copy or download the file again"), "{told}");
    file.load("channels_last").unwrap();
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn files_that_pytorch_makes_now_are_read_as_the_ones_here() {
    let python = std::env::var_os("EVERBURN_PYTHON");
    let python = python.expect("EVERBURN_PYTHON names a Python that has torch");
    let folder = tempfile::tempdir().unwrap();
    let ended = Command::new(python)
        .arg(here().join("make_files.py"))
        .arg(folder.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{errors}");
    assert_eq!(expected(folder.path()), expected(&here().join("files")));
    all_are_read(folder.path());
    all_others_are_refused(folder.path());
}

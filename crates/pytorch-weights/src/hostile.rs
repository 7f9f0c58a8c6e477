//! Files of strangers, for the fuzz targets in `fuzz/` and for a test that drives the same functions with random
//! bytes. Only there in tests and under `--cfg fuzzing`.
//!
//! A target takes arbitrary bytes, reads them as a file, and panics where a tensor is not what was said of it, or
//! more than the file.

use std::io::Cursor;

use crate::{DType, NewTensor, WeightsError, WeightsFile, archive, to_bytes};

/// A fuzz target.
pub type Target = fn(&[u8]);

/// All targets by name; `fuzz/fuzz_targets` has a file for each.
pub const TARGETS: [(&str, Target); 2] = [
    ("pytorch_weights", pytorch_weights),
    ("pytorch_pickle", pytorch_pickle),
];

/// How many tensors of a file are loaded.
const LOADED: usize = 64;

/// What pickles of state dicts are made of, so that random bytes come far.
const PIECES: [&[u8]; 40] = [
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch._utils\n_rebuild_tensor_v3\n",
    b"ctorch._utils\n_rebuild_parameter\n",
    b"ctorch._tensor\n_rebuild_from_type_v2\n",
    b"ctorch\nTensor\n",
    b"ctorch\nFloatStorage\n",
    b"ctorch\nBoolStorage\n",
    b"ctorch.storage\nUntypedStorage\n",
    b"ctorch\nuint16\n",
    b"ccollections\nOrderedDict\n",
    b"ctorch\nSize\n",
    b"X\x07\0\0\0storage",
    b"X\x01\0\0\x000",
    b"X\x03\0\0\0cpu",
    b"X\x0a\0\0\0state_dict",
    b"X\x05\0\0\0model",
    b"X\x03\0\0\0net",
    b"X\x03\0\0\0neg",
    // A whole tensor of 2 x 3 numbers.
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x08tQK\0K\x02K\x03\x86K\x03K\x01\x86\x89ccollections\nOrderedDict\n)RtR",
    b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x08tQ",
    b"K\0",
    b"K\x01",
    b"K\x08",
    b"J\xff\xff\xff\x7f",
    b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"}",
    b"]",
    b")",
    b"(",
    b"t",
    b"u",
    b"e",
    b"s",
    b"a",
    b"R",
    b"Q",
    b"q\0",
    b"h\0",
    b"q\x01",
    b"h\x01",
];

/// Any bytes as a file; a file that begins as ours is overwritten after its beginning.
pub fn pytorch_weights(bytes: &[u8]) {
    read(bytes.to_vec());
    let ours = NewTensor {
        name: "weight",
        dtype: DType::F16,
        shape: &[2, 2],
        bytes: &[1; 8],
    };
    let mut file = to_bytes(&[
        ours,
        NewTensor {
            name: "bias",
            ..ours
        },
    ])
    .expect("a small file can be written");
    for change in bytes.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]])) % file.len();
        file[place] = change[2];
    }
    read(file);
}

/// Any pickle in an archive as it should be. Bytes that name one of [`PIECES`] stand for it, so that few make much.
pub fn pytorch_pickle(bytes: &[u8]) {
    let in_archive = |pickle: &[u8]| {
        let storage = [2; 32];
        let files = [
            ("a/data.pkl".to_string(), pickle),
            ("a/data/0".to_string(), &storage[..]),
        ];
        archive::write(&files).expect("a small file can be written")
    };
    read(in_archive(bytes));
    let pieces = bytes.iter().map(|byte| {
        PIECES
            .get(usize::from(*byte))
            .copied()
            .unwrap_or(std::slice::from_ref(byte))
    });
    let pickle: Vec<u8> = pieces.flatten().copied().collect();
    read(in_archive(&[&b"\x80\x02"[..], &pickle, b"."].concat()));
    // The same within a dict that is under way.
    read(in_archive(
        &[&b"\x80\x02}q\0("[..], &pickle, b"u."].concat(),
    ));
}

fn read(bytes: Vec<u8>) {
    let length = bytes.len();
    let mut file = match WeightsFile::new(Cursor::new(bytes)) {
        Ok(file) => file,
        Err(error) => {
            let text = error.to_string();
            assert!(!text.chars().any(char::is_control), "{text:?}");
            return;
        }
    };
    let tensors = file.tensors().take(LOADED);
    let known: Vec<_> = tensors
        .map(|tensor| {
            (
                tensor.name().to_string(),
                tensor.dtype(),
                tensor.shape().to_vec(),
            )
        })
        .collect();
    for (name, dtype, shape) in known {
        match file.load(&name) {
            Ok(tensor) => {
                assert_eq!((tensor.dtype, &tensor.shape), (dtype, &shape), "{name}");
                let count: usize = shape.iter().product();
                assert_eq!(tensor.bytes.len(), count * dtype.size(), "{name}");
                assert!(tensor.bytes.len() <= length, "{name}");
                let booleans = dtype != DType::Bool || tensor.bytes.iter().all(|byte| *byte <= 1);
                assert!(booleans, "{name}");
            }
            // Its local header and its checksum are only looked at now.
            Err(WeightsError::Archive(_) | WeightsError::Checksum { .. }) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_target_has_a_file() {
        let folder = "../../fuzz/fuzz_targets";
        for (name, _) in TARGETS {
            let program = std::fs::read_to_string(format!("{folder}/{name}.rs")).unwrap();
            let call = format!("everburn_pytorch_weights::hostile::{name}(bytes)");
            assert!(program.contains(&call), "{name}");
        }
    }

    /// What the pieces are for: some of them make tensors that are read.
    #[test]
    fn pieces_make_a_state_dict() {
        let place = |piece: &[u8]| PIECES.iter().position(|known| *known == piece).unwrap() as u8;
        let tensor = PIECES.iter().position(|piece| piece.len() > 100).unwrap() as u8;
        let state_dict = [place(b"X\x03\0\0\0net"), tensor];
        let pickle: Vec<u8> = state_dict
            .iter()
            .flat_map(|piece| PIECES[usize::from(*piece)])
            .copied()
            .collect();
        let pickle = [&b"\x80\x02}q\0("[..], &pickle, b"u."].concat();
        let files = [
            ("a/data.pkl".to_string(), &pickle[..]),
            ("a/data/0".to_string(), &[2; 32]),
        ];
        let mut file = WeightsFile::new(Cursor::new(archive::write(&files).unwrap())).unwrap();
        assert_eq!(file.load("net").unwrap().shape, [2, 3]);
        pytorch_pickle(&state_dict);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for (_, target) in TARGETS {
                target(&bytes);
            }
        }

        #[test]
        fn no_pickle_makes_the_reader_panic(
            pieces in proptest::collection::vec(0..PIECES.len() as u8 + 4, 0..60)
        ) {
            pytorch_pickle(&pieces);
        }
    }
}

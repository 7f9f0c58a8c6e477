//! See `everburn_pytorch_weights::hostile::pytorch_pickle`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everburn_pytorch_weights::hostile::pytorch_pickle(bytes));

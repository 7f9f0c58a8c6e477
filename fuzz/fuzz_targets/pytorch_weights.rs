//! See `everburn_pytorch_weights::hostile::pytorch_weights`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everburn_pytorch_weights::hostile::pytorch_weights(bytes));

//! See `everburn_collectives::hostile::channel_peer`.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: everburn_fuzz::survive_closed_connections(),
    |bytes: &[u8]| everburn_collectives::hostile::channel_peer(bytes)
);

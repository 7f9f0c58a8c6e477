//! See `everburn_monitor::hostile::prometheus_request`.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: everburn_fuzz::survive_closed_connections(),
    |bytes: &[u8]| everburn_monitor::hostile::prometheus_request(bytes)
);

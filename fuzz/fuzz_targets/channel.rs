//! See `canopy_fuzz::TARGETS`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| canopy_fuzz::channel(data));

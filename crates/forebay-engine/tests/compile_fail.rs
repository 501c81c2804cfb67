//! Programs that the compiler must refuse: memory under a transfer can be neither freed nor touched by safe code.
//!
//! After a change of wording: `TRYBUILD=overwrite cargo test -p forebay-engine --test compile_fail`, with the
//! toolchain of `rust-toolchain.toml`.

#[test]
fn memory_in_flight_is_out_of_reach() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

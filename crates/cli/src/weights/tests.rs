//! Tests of `weights`.

use super::size;

#[test]
fn sizes_have_units_and_are_not_nothing() {
    assert_eq!(size("5GB"), Ok(5_000_000_000));
    assert_eq!(size("20KB"), Ok(20_000));
    assert_eq!(size("7"), Ok(7));
    for wrong in ["", "GB", "-1", "0", "1.5GB", "5 GB", "99999999999GB"] {
        assert!(
            size(wrong).unwrap_err().contains("is not a size"),
            "{wrong}"
        );
    }
}

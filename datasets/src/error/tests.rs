//! Tests of `error`.

use super::DatasetError;

#[test]
fn a_text_that_is_none_is_said_to_be_what_its_first_bytes_are() {
    let said = |start| {
        let (path, offset) = ("a.txt".into(), 0);
        DatasetError::NotText {
            path,
            offset,
            start,
        }
        .to_string()
    };
    assert!(said([0xff, 0xfe, b'a', 0]).contains("iconv -f UTF-16"));
    assert!(said([0x1f, 0x8b, 8, 0]).contains("gunzip"));
    assert!(said([0xe9, 0x20, 0x61, 0x20]).contains("LATIN1"));
}

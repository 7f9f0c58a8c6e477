use super::*;

#[test]
fn errors_carry_nothing_that_a_terminal_obeys() {
    let (address, text) = ("host:1".to_owned(), "\u{1b}[2J\n".to_owned());
    let errors = [
        StoreError::Timeout {
            operation: "get",
            keys: vec![text.clone()],
            waited: Duration::ZERO,
        },
        StoreError::Unreachable {
            address: address.clone(),
            operation: "get",
            reason: text.clone(),
        },
        StoreError::Protocol {
            address: address.clone(),
            reason: text.clone(),
        },
        StoreError::Unauthenticated {
            address: address.clone(),
            reason: text.clone(),
        },
        StoreError::WriteRefused {
            address,
            operation: "set",
            key: text.clone(),
            others: String::new(),
        },
        StoreError::Invalid {
            operation: "add",
            reason: text.clone(),
        },
        StoreError::RoundBroken {
            generation: 1,
            reason: text,
        },
    ];
    for error in errors {
        let shown = error.to_string();
        assert!(!shown.contains(char::is_control), "{shown:?}");
        // `Timeout` quotes its keys.
        let expected = ["\u{fffd}[2J ", "\\u{1b}[2J\\n"];
        assert!(expected.iter().any(|text| shown.contains(text)), "{shown}");
    }
}

//! `host:port`, whose parts an IPv6 host has in brackets.

use super::StoreError;

/// Splits `host:port`; an IPv6 host is in brackets.
///
/// # Errors
/// [`StoreError::Invalid`] of another text.
pub fn split_address(address: &str) -> Result<(&str, u16), StoreError> {
    let invalid = || StoreError::Invalid {
        operation: "connect",
        reason: format!("`{address}` is not of the form host:port, such as 127.0.0.1:29500"),
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(invalid)?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = match bare {
        Some(host) => host,
        None if host.contains(':') => return Err(invalid()),
        None => host,
    };
    match port.parse() {
        Ok(port) if !host.is_empty() => Ok((host, port)),
        _ => Err(invalid()),
    }
}

/// The opposite of [`split_address`].
#[must_use]
pub fn join_address(host: &str, port: u16) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::split_address;

    #[test]
    fn addresses_are_split_at_the_last_colon() {
        assert_eq!(split_address("node1:29500").ok(), Some(("node1", 29500)));
        assert_eq!(split_address("[::1]:80").ok(), Some(("::1", 80)));
        for wrong in ["node1", ":80", "::1:80", "node1:", "node1:99999", "a:b"] {
            let message = split_address(wrong).expect_err(wrong).to_string();
            assert!(message.contains("host:port"), "{message}");
        }
    }
}

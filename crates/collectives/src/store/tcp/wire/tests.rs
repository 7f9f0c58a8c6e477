//! Requests cut and read, whatever their bytes.

use proptest::prelude::*;

use super::*;

fn multi_set(pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut out = vec![opcode::MULTI_SET];
    out.extend_from_slice(&(pairs.len() as u64).to_ne_bytes());
    for (key, value) in pairs {
        put_string(&mut out, key);
        put_string(&mut out, value);
    }
    out
}

#[test]
fn a_request_is_found_however_it_is_cut() {
    let request = multi_set(&[(b"/a", b"1"), (b"/b", b""), (b"", b"33")]);
    let stream = [request.clone(), vec![opcode::GETNUMKEYS]].concat();
    let mut scanner = Scanner::default();
    for end in 0..request.len() {
        assert_eq!(scanner.scan(&stream[..end]), Ok(None), "{end} bytes");
    }
    assert_eq!(scanner.scan(&stream), Ok(Some(request.len())));
    assert_eq!(scanner.scan(&stream[request.len()..]), Ok(Some(1)));
    assert_eq!(
        Request::parse(&request),
        Ok(Request::MultiSet(vec![
            (b"/a", b"1"),
            (b"/b", b""),
            (b"", b"33")
        ]))
    );
}

#[test]
fn absurd_lengths_are_refused_before_their_bytes_arrive() {
    for length in [KEY_LIMIT as u64 + 1, u64::MAX, 1 << 63] {
        let mut request = vec![opcode::GET];
        request.extend_from_slice(&length.to_ne_bytes());
        assert!(Scanner::default().scan(&request).is_err(), "{length}");
        request[0] = opcode::WAIT;
        let refused = Scanner::default().scan(&request);
        assert_eq!(refused.is_err(), length > MAX_KEYS as u64, "{length}");
    }
    assert_eq!(Scanner::default().scan(&[19]), Err(WireFault::Opcode(19)));
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(Some(length)) = Scanner::default().scan(&bytes) {
            prop_assert!(length <= bytes.len());
            prop_assert!(Request::parse(&bytes[..length]).is_ok());
        }
        let _ = Request::parse(&bytes);
    }
}

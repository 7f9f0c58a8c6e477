//! Tokens, and the keys derived from them.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::{AuthError, random};

/// The shortest token, in bytes.
pub const MIN_TOKEN_BYTES: usize = 16;

/// The longest token, in bytes.
pub const MAX_TOKEN_BYTES: usize = 1024;

/// The secret of a job, which all its processes know and nobody else does.
///
/// `Debug` does not show it, and there is no `Display`.
#[derive(Clone)]
pub struct JobToken(String);

impl JobToken {
    /// A token of 256 random bits, in hexadecimal.
    ///
    /// # Errors
    /// [`AuthError::NoRandomness`] when the operating system gives none.
    pub fn random() -> Result<Self, AuthError> {
        let bytes: [u8; 32] = random()?;
        Ok(Self(HEXLOWER.encode(&bytes)))
    }

    /// The token itself, to be handed to a child process by its environment. Not for logs, and not
    /// for command lines, which other users of the machine can read.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// A token for one purpose, in hexadecimal, for a protocol that has to send its secret: this token cannot be found
    /// from it.
    ///
    /// ```
    /// use everburn_auth::JobToken;
    ///
    /// let token: JobToken = "correct horse battery staple".parse()?;
    /// assert_eq!(token.derived("example").reveal().len(), 64);
    /// assert_ne!(token.derived("example"), token.derived("another"));
    /// # Ok::<(), everburn_auth::AuthError>(())
    /// ```
    #[must_use]
    pub fn derived(&self, purpose: &str) -> Self {
        Self(HEXLOWER.encode(&self.key(purpose).0))
    }

    /// The key for one purpose, such as `store`: HMAC-SHA-256 of the purpose under the token.
    #[must_use]
    pub fn key(&self, purpose: &str) -> Key {
        Key::from_secret(self.0.as_bytes(), purpose)
    }
}

/// In a time that does not tell where they differ.
impl PartialEq for JobToken {
    fn eq(&self, other: &Self) -> bool {
        is_same(&self.0, &other.0)
    }
}

impl Eq for JobToken {}

impl FromStr for JobToken {
    type Err = AuthError;

    fn from_str(text: &str) -> Result<Self, AuthError> {
        if !(MIN_TOKEN_BYTES..=MAX_TOKEN_BYTES).contains(&text.len()) {
            return Err(AuthError::TokenLength { bytes: text.len() });
        }
        // Stands for what could not be read, so that different tokens would be one.
        if text.contains(char::REPLACEMENT_CHARACTER) {
            return Err(AuthError::TokenNotText);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobToken(not shown)")
    }
}

/// A token as somebody has given it on a command line or in the environment, not yet checked: what
/// parses command lines prints an argument that it refuses, and a secret must not be printed.
///
/// ```
/// use everburn_auth::GivenToken;
///
/// let given: GivenToken = "hunter2".parse()?;
/// let refused = given.token().unwrap_err().to_string();
/// assert!(!format!("{given:?} {refused}").contains("hunter2"));
/// assert_eq!(GivenToken::default().token(), Ok(None));
/// # Ok::<(), std::convert::Infallible>(())
/// ```
#[derive(Clone, Default)]
pub struct GivenToken(String);

impl GivenToken {
    /// The token; `None` where it is empty, as a variable that is set to nothing.
    ///
    /// # Errors
    /// [`AuthError::TokenLength`] when it is too short or too long, [`AuthError::TokenNotText`] when it is no
    /// UTF-8.
    pub fn token(&self) -> Result<Option<JobToken>, AuthError> {
        match self.0.trim() {
            "" => Ok(None),
            text => text.parse().map(Some),
        }
    }
}

/// In a time that does not tell where they differ.
impl PartialEq for GivenToken {
    fn eq(&self, other: &Self) -> bool {
        is_same(&self.0, &other.0)
    }
}

impl Eq for GivenToken {}

impl FromStr for GivenToken {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl From<OsString> for GivenToken {
    fn from(text: OsString) -> Self {
        Self(text.to_string_lossy().into_owned())
    }
}

impl fmt::Debug for GivenToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GivenToken(not shown)")
    }
}

/// The size of an authentication code, in bytes.
pub const CODE_BYTES: usize = 32;

/// A secret for one purpose.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// The key for `purpose` derived from `secret`, which must be unpredictable.
    #[must_use]
    pub fn from_secret(secret: &[u8], purpose: &str) -> Self {
        let mut mac = mac(secret);
        mac.update(b"everburn ");
        mac.update(purpose.as_bytes());
        Self(mac.finalize().into_bytes().into())
    }

    /// A random key.
    ///
    /// # Errors
    /// [`AuthError::NoRandomness`] when the operating system gives none.
    pub fn random() -> Result<Self, AuthError> {
        random().map(Self)
    }

    /// A key for a narrower purpose.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> Self {
        Self::from_secret(&self.0, purpose)
    }

    /// The authentication code of `parts` under this key: HMAC-SHA-256 of each part after its length. Who does not
    /// have the key cannot make it, nor change a part.
    #[must_use]
    pub fn code(&self, parts: &[&[u8]]) -> [u8; CODE_BYTES] {
        self.mac_of(parts).finalize().into_bytes().into()
    }

    /// Checks the [`code`](Self::code) of `parts`, in the same time wherever it differs.
    ///
    /// # Errors
    /// [`AuthError::WrongSecret`] when it was made with another key, or of other parts.
    pub fn verify(&self, parts: &[&[u8]], code: &[u8; CODE_BYTES]) -> Result<(), AuthError> {
        let verified = self.mac_of(parts).verify_slice(code);
        verified.map_err(|_| AuthError::WrongSecret)
    }

    fn mac_of(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.mac();
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    pub(crate) fn mac(&self) -> Hmac<Sha256> {
        mac(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(not shown)")
    }
}

fn mac(key: &[u8]) -> Hmac<Sha256> {
    <Hmac<Sha256> as Mac>::new_from_slice(key).expect("HMAC takes keys of any length")
}

/// Compares by codes, whose comparison takes the same time wherever they differ.
fn is_same(one: &str, other: &str) -> bool {
    let code = |text: &str| mac(text.as_bytes()).finalize();
    code(one) == code(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_neither_short_nor_endless() {
        for (bytes, good) in [
            (0, false),
            (15, false),
            (16, true),
            (1024, true),
            (1025, false),
        ] {
            let parsed = "k".repeat(bytes).parse::<JobToken>();
            assert_eq!(parsed.is_ok(), good, "{bytes}");
        }
        let error = "short".parse::<JobToken>().unwrap_err().to_string();
        assert!(error.contains("5 bytes") && error.contains("16"), "{error}");
    }

    #[test]
    fn a_token_that_is_not_text_is_refused_and_not_shown() {
        use std::os::unix::ffi::OsStringExt;

        let bytes = b"a secret with \xFF in it".to_vec();
        let given = GivenToken::from(OsString::from_vec(bytes));
        assert_eq!(given.token(), Err(AuthError::TokenNotText));
        let text = OsString::from(" a secret of all ranks\n");
        let token = GivenToken::from(text).token().unwrap().unwrap();
        assert_eq!(token.reveal(), "a secret of all ranks");
    }

    #[test]
    fn random_tokens_differ_and_are_tokens() {
        let (one, other) = (JobToken::random().unwrap(), JobToken::random().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.reveal().len(), 64);
        assert_eq!(one.reveal().parse(), Ok(one));
        let given = |text: &str| text.parse::<GivenToken>().unwrap();
        assert_eq!(given("a token"), given("a token"));
        assert_ne!(given("a token"), given("a tokem"));
    }

    #[test]
    fn keys_are_hmac_sha_256_of_their_purpose() {
        // From Python: hmac.new(b"0123456789abcdef", b"everburn store", "sha256").hexdigest()
        let token: JobToken = "0123456789abcdef".parse().unwrap();
        let expected = "56586d74f92514ee9326d58413a3359b4a5dff6163da794830d69769002f28de";
        let found = HEXLOWER.encode(&token.key("store").0);
        assert_eq!(found, expected);
        assert_ne!(token.key("store").0, token.key("mesh").0);
    }

    #[test]
    fn codes_are_of_one_key_and_of_parts_with_their_ends() {
        let token: JobToken = "0123456789abcdef".parse().unwrap();
        let (key, other) = (token.key("one"), token.key("other"));
        let code = key.code(&[b"a", b"bc"]);
        assert_eq!(key.verify(&[b"a", b"bc"], &code), Ok(()));
        let wrong = Err(AuthError::WrongSecret);
        assert_eq!(key.verify(&[b"ab", b"c"], &code), wrong);
        assert_eq!(key.verify(&[b"a", b"bd"], &code), wrong);
        assert_eq!(other.verify(&[b"a", b"bc"], &code), wrong);
    }

    #[test]
    fn secrets_are_not_shown() {
        let token: JobToken = "0123456789abcdef".parse().unwrap();
        assert!(!format!("{token:?} {:?}", token.key("store")).contains("0123"));
    }
}

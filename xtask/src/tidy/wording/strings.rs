//! The string literals of Rust code.

/// The literals of `code` outside of comments and tests, each with the number of its line, from 0. An escaped end of a
/// line is left out with the spaces after it.
pub(super) fn literals(code: &str) -> Vec<(usize, String)> {
    let code = before_tests(code);
    let bytes: Vec<char> = code.chars().collect();
    let (mut found, mut line, mut at) = (Vec::new(), 0, 0);
    while at < bytes.len() {
        match bytes[at] {
            '\n' => line += 1,
            '/' if bytes.get(at + 1) == Some(&'/') => {
                while at + 1 < bytes.len() && bytes[at + 1] != '\n' {
                    at += 1;
                }
            }
            // A quote as a character.
            '\'' if bytes.get(at + 1) == Some(&'"') => at += 2,
            '\'' if bytes.get(at + 1) == Some(&'\\') => at += 2,
            '"' => {
                let (text, end) = literal(&bytes, at + 1);
                let lines = bytes[at..end].iter().filter(|c| **c == '\n').count();
                found.push((line, text));
                line += lines;
                at = end;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// The code before the module of tests at its end.
fn before_tests(code: &str) -> &str {
    let start = code.find("#[cfg(test)]\nmod ");
    start.map_or(code, |start| &code[..start])
}

/// The literal that begins at `at`, and where its quote is.
fn literal(code: &[char], mut at: usize) -> (String, usize) {
    let mut text = String::new();
    while at < code.len() && code[at] != '"' {
        if code[at] != '\\' {
            text.push(code[at]);
            at += 1;
            continue;
        }
        at += 1;
        match code.get(at) {
            Some('\n') => {
                while code.get(at).is_some_and(|c| c.is_whitespace()) {
                    at += 1;
                }
            }
            Some(_) => {
                text.push(' ');
                at += 1;
            }
            None => {}
        }
    }
    (text, at)
}

#[cfg(test)]
mod tests {
    use super::literals;

    #[test]
    fn literals_are_found_with_their_lines() {
        let code = "let a = \"one \\\n    two\";\n// \"three\"\nlet b = ('\"', \"fo\\\"ur\");\n#[cfg(test)]\nmod tests { \"five\" }";
        let expected = [(0, "one two".to_string()), (3, "fo ur".to_string())];
        assert_eq!(literals(code), expected);
    }
}

//! HTML, written such that text from outside never becomes markup.

use std::fmt::{self, Write};

use everburn_record::plain;

/// A page or a part of one, as it grows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Html(String);

impl Html {
    /// Adds markup. What comes from outside stands in it as [`text`].
    pub(crate) fn put(&mut self, markup: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.0.write_fmt(markup);
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Text that may be anything, for an element or an attribute in double quotes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text<'a>(&'a str);

/// `text` as it is to be shown.
pub(crate) fn text(text: &str) -> Text<'_> {
    Text(text)
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                unruly if plain::is_unruly(unruly) => f.write_char('\u{fffd}')?,
                plain => f.write_char(plain)?,
            }
        }
        Ok(())
    }
}

/// Values as JSON that can stand in an element `script`, which ends at the first `</script` whatever is around it.
pub(crate) fn json(value: &impl serde::Serialize) -> String {
    // Strings and numbers always have a form in JSON; what is no number becomes null.
    let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        let escaped = text("<b a='1' c=\"2\">&\u{202e}\u{1b}é</b>").to_string();
        assert_eq!(
            escaped,
            "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;\u{fffd}\u{fffd}é&lt;/b&gt;"
        );
    }

    #[test]
    fn json_does_not_end_its_element() {
        let json = json(&["</script><!--", "a&b"]);
        assert_eq!(json, r#"["\u003c/script\u003e\u003c!--","a\u0026b"]"#);
        assert_eq!(
            serde_json::from_str::<Vec<String>>(&json).unwrap()[0],
            "</script><!--"
        );
    }
}

//! HTML, written such that text from outside never becomes markup.

use std::fmt::{self, Write};

use everburn_record::EventKind;
use everburn_record::svg::Axis;

/// Text from outside, as it is to be shown.
pub(crate) use everburn_record::svg::escaped as text;

/// The text of a number, or a dash where there is none.
pub(crate) fn or_dash<T>(number: Option<T>, shown: impl FnOnce(T) -> String) -> String {
    number.map_or_else(|| "–".to_owned(), shown)
}

/// A page or a part of one, as it grows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Html(String);

impl Html {
    /// Adds markup. What comes from outside is in it as [`text`].
    pub(crate) fn put(&mut self, markup: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.0.write_fmt(markup);
    }

    /// The numbers of a horizontal axis, as `left` in per cent.
    pub(crate) fn ticks(&mut self, axis: &Axis) {
        self.put(format_args!(r#"<div class="x" aria-hidden="true">"#));
        for (value, label) in &axis.ticks {
            let place = 100.0 * axis.place(*value);
            // A number at an end must not reach beyond it.
            let end = match place {
                ..6.0 => r#" class="first""#,
                94.0.. => r#" class="last""#,
                _ => "",
            };
            self.put(format_args!(
                r#"<span{end} style="left:{place:.2}%">{}</span>"#,
                text(label)
            ));
        }
        self.put(format_args!("</div>"));
    }

    /// The sign and the word of a kind of event.
    pub(crate) fn kind(&mut self, kind: EventKind) {
        let (name, sign, label) = (kind.name(), kind.sign(), kind.label());
        self.put(format_args!("<b class=\"sign e-{name}\">{sign}</b>{label}"));
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Values as JSON that can are in an element `script`, which ends at the first `</script` whatever is around it.
pub(crate) fn json(value: &impl serde::Serialize) -> String {
    // Strings and numbers always have a form in JSON; what is not a number becomes null.
    let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! Drawings as SVG, which any browser shows: elements whose text cannot become markup, axes with round numbers, legends.

mod axis;

use std::fmt::{self, Display, Write};

pub use axis::{Axis, Labels};

use crate::plain;

/// An element, and what is in it. Attributes and children stay in the order in which they are given.
///
/// ```
/// use everburn_record::svg::Element;
///
/// let title = Element::new("title").text("a < b");
/// let group = Element::new("g").with("class", "box").child(title).child(Element::new("rect").with("x", 1.5));
/// assert_eq!(group.to_string(), r#"<g class="box"><title>a &lt; b</title><rect x="1.5"/></g>"#);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "an element is nowhere until it is put into another one or written"]
pub struct Element {
    name: &'static str,
    attributes: String,
    content: String,
}

impl Element {
    /// An element without attributes and children.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            attributes: String::new(),
            content: String::new(),
        }
    }

    /// The root of a file that needs nothing else, this many pixels wide and high, with text in `font` of this many pixels.
    /// What it is given as children is on lines of its own: [`line`](Self::line).
    pub fn file(width: f64, height: f64, font: Font, size: f64) -> Self {
        Self::new("svg")
            .with("xmlns", "http://www.w3.org/2000/svg")
            .with("width", width)
            .with("height", height)
            .with("viewBox", format_args!("0 0 {width} {height}"))
            .with("font-family", font.family())
            .with("font-size", size)
            .verbatim("\n")
    }

    /// The rectangle with this corner and size.
    pub fn rect(
        x: impl Display,
        y: impl Display,
        width: impl Display,
        height: impl Display,
    ) -> Self {
        Self::new("rect")
            .with("x", x)
            .with("y", y)
            .with("width", width)
            .with("height", height)
    }

    /// Text that begins at this place; `y` is its baseline.
    pub fn label(x: impl Display, y: impl Display, text: &str) -> Self {
        Self::new("text").with("x", x).with("y", y).text(text)
    }

    /// With an attribute.
    pub fn with(mut self, attribute: &str, value: impl Display) -> Self {
        // Writing to a string does not fail.
        let _ = write!(self.attributes, " {attribute}=\"");
        let _ = write!(Escaping(&mut self.attributes), "{value}");
        self.attributes.push('"');
        self
    }

    /// With text, after what is in it.
    pub fn text(mut self, text: &str) -> Self {
        // Writing to a string does not fail.
        let _ = Escaping(&mut self.content).write_str(text);
        self
    }

    /// With a child, after what is in it.
    pub fn child(mut self, child: Self) -> Self {
        self.put(child);
        self
    }

    /// With a child, which ends its line.
    pub fn line(mut self, child: Self) -> Self {
        self.put_line(child);
        self
    }

    /// With markup of the program's own: a style or a script.
    pub fn verbatim(mut self, markup: &'static str) -> Self {
        self.content.push_str(markup);
        self
    }

    /// Adds a child, after what is in it.
    pub fn put(&mut self, child: Self) {
        let Self {
            name,
            attributes,
            content,
        } = child;
        // Writing to a string does not fail.
        let _ = write_element(&mut self.content, name, &attributes, &content);
    }

    /// Adds a child, which ends its line.
    pub fn put_line(&mut self, child: Self) {
        self.put(child);
        self.content.push('\n');
    }
}

impl Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_element(f, self.name, &self.attributes, &self.content)
    }
}

fn write_element(to: &mut impl Write, name: &str, attributes: &str, content: &str) -> fmt::Result {
    match content.is_empty() {
        true => write!(to, "<{name}{attributes}/>"),
        false => write!(to, "<{name}{attributes}>{content}</{name}>"),
    }
}

/// Text that may be anything, for an element or an attribute in double quotes, of SVG or of HTML.
pub fn escaped(text: &str) -> impl Display + '_ {
    struct Text<'a>(&'a str);

    impl Display for Text<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            Escaping(f).write_str(self.0)
        }
    }

    Text(text)
}

/// Writes text such that it never becomes markup, and nothing that commands a page.
struct Escaping<'a, W>(&'a mut W);

impl<W: Write> Write for Escaping<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.write_str("&amp;")?,
                '<' => self.0.write_str("&lt;")?,
                '>' => self.0.write_str("&gt;")?,
                '"' => self.0.write_str("&quot;")?,
                '\'' => self.0.write_str("&#39;")?,
                unruly if plain::is_unruly(unruly) => self.0.write_char('\u{fffd}')?,
                plain => self.0.write_char(plain)?,
            }
        }
        Ok(())
    }
}

/// What text is written in. Nobody knows the reader's fonts: widths are those of common ones.
///
/// ```
/// use everburn_record::svg::Font;
///
/// assert_eq!(Font::Sans.width("1234", 12.0), 28.0);
/// assert_eq!(Font::Monospace.fitting(80.0, 11.0), 11);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Font {
    /// Letters of several widths.
    Sans,
    /// Letters of one width.
    Monospace,
}

impl Font {
    fn family(self) -> &'static str {
        match self {
            Self::Sans => "Helvetica, Arial, sans-serif",
            Self::Monospace => "monospace",
        }
    }

    /// How wide a letter is, by its size.
    fn letter(self) -> f64 {
        match self {
            Self::Sans => 7.0 / 12.0,
            Self::Monospace => 7.0 / 11.0,
        }
    }

    /// About how wide `text` is, in pixels, where letters are of `size` pixels.
    pub fn width(self, text: &str, size: f64) -> f64 {
        text.chars().count() as f64 * self.letter() * size
    }

    /// About how many letters of `size` pixels fit into `width` pixels.
    pub fn fitting(self, width: f64, size: f64) -> usize {
        (width / (self.letter() * size)).max(0.0) as usize
    }
}

/// A name of a legend, and the look that it explains: an attribute such as `fill` or `class`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The attribute's name.
    pub attribute: &'static str,
    /// Its value.
    pub look: String,
    /// What has this look.
    pub name: String,
}

/// For each key a box and its name, beside each other from this place on, in letters of 12 pixels; `class` is that of the
/// names. Also tells where the next would begin.
pub fn legend(
    keys: impl IntoIterator<Item = Key>,
    x: f64,
    y: f64,
    class: &str,
) -> (Vec<Element>, f64) {
    let mut left = x;
    let mut elements = Vec::new();
    for key in keys {
        let sample = Element::rect(left, y, 16, 12).with("rx", 2);
        elements.push(sample.with(key.attribute, &key.look));
        let name = Element::label(left + 22.0, y + 10.0, &key.name);
        elements.push(name.with("class", class));
        left += 22.0 + Font::Sans.width(&key.name, 12.0) + 18.0;
    }
    (elements, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        let text = escaped("<b a='1' c=\"2\">&\u{202e}\u{1b}é</b>").to_string();
        assert_eq!(
            text,
            "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;\u{fffd}\u{fffd}é&lt;/b&gt;"
        );
        let element = Element::new("a").with("href", "\"><script>").text("</a>");
        assert_eq!(
            element.to_string(),
            r#"<a href="&quot;&gt;&lt;script&gt;">&lt;/a&gt;</a>"#
        );
    }

    #[test]
    fn a_file_is_one_element_with_a_line_for_each_child() {
        let file = Element::file(20.0, 10.5, Font::Sans, 12.0)
            .line(Element::rect(0, 0, "100%", "100%"))
            .line(Element::label(1, 2, "a & b"));
        let expected = "\
            <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"20\" height=\"10.5\" viewBox=\"0 0 20 10.5\" \
            font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n\
            <rect x=\"0\" y=\"0\" width=\"100%\" height=\"100%\"/>\n\
            <text x=\"1\" y=\"2\">a &amp; b</text>\n\
            </svg>";
        assert_eq!(file.to_string(), expected);
    }

    #[test]
    fn keys_of_a_legend_do_not_lie_on_each_other() {
        let key = |name: &str| Key {
            attribute: "class",
            look: "idle".into(),
            name: name.into(),
        };
        let (elements, end) = legend([key("forward"), key("a")], 10.0, 0.0, "ink");
        let second = elements[2].to_string();
        assert!(second.starts_with("<rect x=\"99\" "), "{second}");
        assert_eq!((elements.len(), end), (4, 99.0 + 22.0 + 7.0 + 18.0));
    }
}

//! A test that returns before its end has checked nothing and passes: it has to say so by `skip`.
//!
//! The source is read by its indentation, which rustfmt sees to.

use super::TextFile;

/// The functions of `everburn_tests` that note a skip.
const SKIPS: [&str; 7] = [
    "skip",
    "skip_missing",
    "data_folder",
    "open_or_skip",
    "open_sized_or_skip",
    "start_or_skip",
    "start_with_tls_or_skip",
];

const WHAT: &str = "a test that returns here passes without a check: call `skip` or `skip_missing` of \
                    `everburn_tests` before, or let it fail";

pub(super) fn check(file: &TextFile) -> Vec<String> {
    if !file.is_rust() {
        return Vec::new();
    }
    let lines: Vec<&str> = file.text.lines().collect();
    let noting = functions_that_skip(&lines);
    let mut complaints = Vec::new();
    for at in (0..lines.len()).filter(|&at| lines[at].trim() == "#[test]") {
        let Some(start) = (at..lines.len()).find(|&line| function(lines[line]).is_some()) else {
            continue;
        };
        let body = start..end_of(&lines, start);
        for line in body.clone().filter(|&line| calls(lines[line], "return")) {
            if !is_seen(&lines, body.clone(), line, &noting) {
                complaints.push(file.complain(line, WHAT));
            }
        }
    }
    complaints
}

/// Whether the `return` at `line` is no end of the test in `body`, or one that is noted.
fn is_seen(lines: &[&str], body: std::ops::Range<usize>, line: usize, noting: &[&str]) -> bool {
    let openers = openers(lines, body.start, line);
    let before = lines[line].split("return").next().unwrap_or_default();
    let ends_a_closure =
        |text: &str| text.contains('|') && !text.contains("||") || text.contains("|| {");
    let of_something_else = |opener: &usize| {
        let text = lines[*opener].trim_end();
        text.ends_with("| {") || text.contains("| -> ") || function(text).is_some()
    };
    if ends_a_closure(before) || openers.iter().any(of_something_else) {
        return true;
    }
    // One of several tries: without a return it panics in the end.
    let is_loop = |opener: &usize| {
        let text = lines[*opener].trim_start();
        text.starts_with("for ") || text.starts_with("loop ") || text.starts_with("while ")
    };
    let end = indentation(lines[body.start]) + 4;
    let last = body.clone().rev().find(|&at| {
        let text = lines[at];
        indentation(text) == end && !text.trim().is_empty() && !text.trim().starts_with([')', '}'])
    });
    let panics = last.is_some_and(|at| lines[at].trim_start().starts_with("panic!("));
    if panics && openers.iter().any(is_loop) {
        return true;
    }
    let opener = openers.last().copied().unwrap_or(line);
    let from = start_of_statement(lines, body.start, opener);
    let text = lines[from..=line].iter();
    let mut names = text.flat_map(|line| noting.iter().map(move |name| (line, name)));
    names.any(|(line, name)| calls(line, name))
}

/// The lines that open the blocks around `line`, the innermost last; that of the function itself is none of them.
fn openers(lines: &[&str], start: usize, line: usize) -> Vec<usize> {
    let mut depth = indentation(lines[line]);
    let mut openers = Vec::new();
    for at in (start + 1..line).rev() {
        let text = lines[at];
        if indentation(text) < depth && text.trim_end().ends_with('{') {
            depth = indentation(text);
            openers.insert(0, at);
        }
    }
    openers
}

/// Where the statement of line `at` begins: after the last line that ends one or opens a block.
fn start_of_statement(lines: &[&str], start: usize, at: usize) -> usize {
    let mut from = at;
    while from > start + 1 {
        let before = lines[from - 1].trim();
        if before.is_empty() || before.starts_with("//") || before.ends_with([';', '{', '}']) {
            break;
        }
        from -= 1;
    }
    from
}

/// The functions of the file that note a skip, themselves or by another, and those of `everburn_tests`.
fn functions_that_skip<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let functions: Vec<_> = (0..lines.len())
        .filter_map(|start| Some((function(lines[start])?, start + 1..end_of(lines, start))))
        .collect();
    let mut noting = SKIPS.to_vec();
    loop {
        let known = noting.len();
        for (name, body) in &functions {
            let mut body = lines[body.clone()].iter();
            let notes = body.any(|line| noting.iter().any(|name| calls(line, name)));
            if notes && !noting.contains(name) {
                noting.push(name);
            }
        }
        if noting.len() == known {
            return noting;
        }
    }
}

/// The name of the function that begins on this line.
fn function(line: &str) -> Option<&str> {
    let mut text = line.trim_start();
    for word in [
        "pub(crate) ",
        "pub(super) ",
        "pub ",
        "const ",
        "async ",
        "unsafe ",
    ] {
        text = text.strip_prefix(word).unwrap_or(text);
    }
    let name = text.strip_prefix("fn ")?;
    let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    Some(&name[..end])
}

/// The line after the last of the function that begins at `start`.
fn end_of(lines: &[&str], start: usize) -> usize {
    let close = format!("{}}}", " ".repeat(indentation(lines[start])));
    let end = (start..lines.len()).find(|&at| lines[at] == close);
    end.unwrap_or(start) + 1
}

/// Whether `line` has the word `name`, in a comment not; a method of that name is another.
fn calls(line: &str, name: &str) -> bool {
    let code = line.trim_start();
    if code.starts_with("//") {
        return false;
    }
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = &code[at + name.len()..];
        let is_word = !before.is_some_and(|c| in_word(c) || c == '.');
        let is_text = code[..at].replace("\\\"", "").matches('"').count() % 2 == 1;
        let ends = match name {
            // One that checks something last.
            "return" => !after.starts_with(in_word) && !after.starts_with(" assert"),
            _ => after.starts_with('('),
        };
        is_word && ends && !is_text
    })
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(body: &[&str]) -> usize {
        let body: String = body.iter().map(|line| format!("    {line}\n")).collect();
        let helper = "fn there_is(what: &str) -> bool {\n    skip(what, \"why\");\n    false\n}\n";
        let text = format!("{helper}#[test]\nfn a_test() {{\n{body}}}\n");
        check(&TextFile::sample("crates/a/tests/a.rs", &text)).len()
    }

    #[test]
    fn a_test_that_returns_early_is_refused() {
        let early: [&[&str]; 6] = [
            &[
                "if cfg!(windows) {",
                "    return;",
                "}",
                "assert_eq!(1, one());",
            ],
            &[
                "let Ok(text) = read() else { return };",
                "assert!(text.is_empty());",
            ],
            &[
                "let Ok(text) = read() else {",
                "    return;",
                "};",
                "check(text);",
            ],
            // An iterator's method of that name.
            &["if names.iter().skip(1).count() == 0 {", "    return;", "}"],
            &["eprintln!(\"SKIPPED\");", "return;"],
            &[
                "for name in names {",
                "    if name == \"a\" {",
                "        return;",
                "    }",
                "}",
            ],
        ];
        for body in early {
            assert_eq!(complaints(body), 1, "{body:?}");
        }
    }

    #[test]
    fn a_skip_and_a_return_of_something_else_are_not() {
        let fine: [&[&str]; 10] = [
            &["assert_eq!(1, one());"],
            &["let text = \"it does \\\"not\\\" return;\";"],
            &["if late() {", "    return assert_eq!(1, one());", "}"],
            &[
                "if !may() {",
                "    return skip(\"a\", \"it may not\");",
                "}",
            ],
            &[
                "if !may() {",
                "    everburn_tests::skip_missing(",
                "        \"a\",",
                "    );",
                "    return;",
                "}",
            ],
            &["if !there_is(\"a\") {", "    return;", "}", "check();"],
            &[
                "let Some(real) = everburn_tests::data_folder(\"mnist\", \"a\")",
                "else {",
                "    return;",
                "};",
            ],
            &[
                "on_ranks(2, |rank| {",
                "    if rank == 1 {",
                "        return;",
                "    }",
                "});",
            ],
            &["let run = || {", "    return 1;", "};"],
            &[
                "for port in 0..10 {",
                "    if free(port) {",
                "        return;",
                "    }",
                "}",
                "panic!(\"none is free\");",
            ],
        ];
        for body in fine {
            assert_eq!(complaints(body), 0, "{body:?}");
        }
        // Outside of tests a function may return.
        let text = "fn a() {\n    return;\n}\n";
        assert!(check(&TextFile::sample("crates/a/src/a.rs", text)).is_empty());
    }
}

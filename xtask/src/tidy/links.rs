//! Rules about links: each leads to a file, a heading or a folder that exists, on GitHub and in the book.

use std::collections::HashMap;

use markdown::mdast::Node;
use markdown::{ParseOptions, to_mdast};

use super::TextFile;

/// The folder of the book's pages, and the page that lists them.
const BOOK: &str = "docs/";
const SUMMARY: &str = "docs/SUMMARY.md";

/// Where the repository's files are shown. Pages of the book link to files outside of the book by this.
const REPOSITORY: &str = "https://github.com/everburn/everburn/";

/// `exists` answers for paths relative to the root.
pub(super) fn check(files: &[TextFile], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let pages: Vec<&TextFile> = files
        .iter()
        .filter(|file| file.path.ends_with(".md"))
        .collect();
    let anchors: HashMap<&str, Vec<String>> = pages
        .iter()
        .map(|page| (page.path.as_str(), anchors(&page.text)))
        .collect();
    let mut complaints = Vec::new();
    for page in &pages {
        for (target, line) in links(&page.text) {
            if let Some(fault) = fault(&page.path, &target, &anchors, &exists) {
                complaints.push(page.complain(line, &fault));
            }
        }
    }
    complaints.extend(unlisted(&pages));
    complaints
}

/// Pages of the book that its summary does not list: the book would leave them out.
fn unlisted(pages: &[&TextFile]) -> Vec<String> {
    let Some(summary) = pages.iter().find(|page| page.path == SUMMARY) else {
        return Vec::new();
    };
    let listed: Vec<String> = links(&summary.text)
        .into_iter()
        .map(|(target, _)| format!("{BOOK}{target}"))
        .collect();
    let is_page = |page: &&&TextFile| page.path.starts_with(BOOK) && page.path != SUMMARY;
    let missing = pages
        .iter()
        .filter(is_page)
        .filter(|page| !listed.contains(&page.path));
    missing
        .map(|page| page.complain(0, "the page is missing in `docs/SUMMARY.md`"))
        .collect()
}

/// What is wrong with a link to `target` on the page `page`.
fn fault(
    page: &str,
    target: &str,
    anchors: &HashMap<&str, Vec<String>>,
    exists: impl Fn(&str) -> bool,
) -> Option<String> {
    let (address, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = match address.strip_prefix(REPOSITORY) {
        Some(rest) => {
            let file = ["blob/main/", "tree/main/"].map(|prefix| rest.strip_prefix(prefix));
            file.into_iter().flatten().next()?.to_owned()
        }
        None if address.contains(':') => return None,
        None if address.is_empty() => page.to_owned(),
        None => match resolve(page, address) {
            Some(path) => path,
            None => return Some(format!("the link `{target}` leaves the repository")),
        },
    };
    let in_book = |path: &str| path.starts_with(BOOK);
    if in_book(page) && !in_book(&path) && !address.contains(':') {
        return Some(format!(
            "the link `{target}` leaves the book: write {REPOSITORY}blob/main/{path}"
        ));
    }
    if !exists(&path) {
        return Some(format!("the link `{target}` leads nowhere"));
    }
    let headings = anchors.get(path.as_str())?;
    (!anchor.is_empty() && !headings.iter().any(|heading| heading == anchor))
        .then(|| format!("the link `{target}` leads to a heading that `{path}` does not have"))
}

/// `address`, written on `page`, as a path from the root; `None` outside of the repository.
fn resolve(page: &str, address: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in address.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The targets of links and pictures, with their lines (from 0).
fn links(text: &str) -> Vec<(String, usize)> {
    let mut links = Vec::new();
    visit(&parsed(text), &mut |node| {
        let target = match node {
            Node::Link(link) => &link.url,
            Node::Image(image) => &image.url,
            Node::Definition(definition) => &definition.url,
            _ => return,
        };
        let line = node
            .position()
            .map_or(0, |position| position.start.line - 1);
        links.push((target.clone(), line));
    });
    links
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> Vec<String> {
    let mut slugs = Vec::<String>::new();
    visit(&parsed(text), &mut |node| {
        if let Node::Heading(_) = node {
            slugs.push(slug(&node.to_string()));
        }
    });
    let earlier = |at: usize| slugs[..at].iter().filter(|it| **it == slugs[at]).count();
    let anchor = |at: usize| match earlier(at) {
        0 => slugs[at].clone(),
        times => format!("{}-{times}", slugs[at]),
    };
    (0..slugs.len()).map(anchor).collect()
}

/// The tree of a page, as CommonMark has it.
fn parsed(text: &str) -> Node {
    to_mdast(text, &ParseOptions::default()).expect("any text is CommonMark")
}

/// Calls `each` with `node` and all that are in it, in the page's order.
fn visit(node: &Node, each: &mut impl FnMut(&Node)) {
    each(node);
    for child in node.children().into_iter().flatten() {
        visit(child, each);
    }
}

fn slug(heading: &str) -> String {
    let lower = heading.trim().to_lowercase();
    let kept = lower
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(files: &[(&str, &str)]) -> String {
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| TextFile::sample(path, text))
            .collect();
        let there = |path: &str| files.iter().any(|file| file.path == path) || path == "crates/nn";
        check(&files, there).join("\n")
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let guide = ("docs/a.md", "# The `--seed` flag, in short\n\n[b](b.md)");
        let summary = ("docs/SUMMARY.md", "[a](a.md)\n[b](b.md)");
        let page = |text| complaints(&[guide, summary, ("docs/b.md", text)]);
        let good = "[1](a.md#the---seed-flag-in-short) [2](https://x.org/gone) [3](#b)\n# B\n\
                    [4](https://github.com/everburn/everburn/tree/main/crates/nn)";
        assert_eq!(page(good), "");
        assert_eq!(
            page("\n[1](c.md)"),
            "docs/b.md:2: the link `c.md` leads nowhere"
        );
        assert!(page("[1](a.md#other)").contains("a heading that `docs/a.md` does not have"));
        assert!(page("![1](../../x.png)").contains("leaves the repository"));
        assert!(page("[1](../crates/nn)").contains("leaves the book: write https://"));
        let gone = "[1](https://github.com/everburn/everburn/blob/main/crates/gone)";
        assert!(page(gone).contains("leads nowhere"));
    }

    #[test]
    fn every_page_is_part_of_the_book() {
        let found = complaints(&[("docs/SUMMARY.md", ""), ("docs/a.md", "")]);
        assert_eq!(
            found,
            "docs/a.md:1: the page is missing in `docs/SUMMARY.md`"
        );
    }

    #[test]
    fn headings_of_one_name_are_counted() {
        assert_eq!(anchors("# A\n# A\n## B `c`"), ["a", "a-1", "b-c"]);
    }
}

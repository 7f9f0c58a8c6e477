//! The report as a page: one file that needs no other, and no network.

mod confusion;
mod curves;
mod heat_map;
mod lanes;
pub(crate) mod markup;
mod overview;
mod ranks;
mod tables;

pub(crate) use curves::{MIB, start};

use std::collections::BTreeMap;

use data_encoding::BASE64;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::chart::{Chart, Detail};
use crate::run::Run;
use markup::{Html, text};

/// What a page may have: more is slow to open and to send. A page that would have more draws its curves in less detail.
pub(crate) const MOST_BYTES: usize = 2_000_000;

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

/// What the script shows when it is asked.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Data {
    charts: BTreeMap<String, crate::chart::Figures>,
    maps: BTreeMap<String, heat_map::Figures>,
}

/// A part of a page.
pub(crate) struct Section {
    /// A word without spaces.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) html: Html,
}

impl Section {
    pub(crate) fn new(id: &'static str, title: &'static str) -> Self {
        Self {
            id,
            title,
            html: Html::default(),
        }
    }

    /// The charts that have curves, if there are any; their figures are kept in `data`.
    pub(crate) fn of_charts(
        id: &'static str,
        title: &'static str,
        charts: &[Chart],
        data: &mut Data,
    ) -> Option<Self> {
        let mut section = Self::new(id, title);
        let html = &mut section.html;
        html.put(format_args!("<div class=\"charts\">\n"));
        for chart in charts.iter().filter(|chart| !chart.is_empty()) {
            let figures = crate::chart::html(chart, html);
            data.charts.insert(chart.id.clone(), figures);
        }
        html.put(format_args!("</div>\n"));
        charts
            .iter()
            .any(|chart| !chart.is_empty())
            .then_some(section)
    }
}

impl Run {
    /// The run as one HTML file of at most about 2 MB, which needs neither network nor other files: curves, throughput,
    /// ranks, events, confusion matrix, configuration, environment and results, and what of these could not be read.
    /// All text in it is text, whatever is in the run directory, and it allows no script but its own.
    #[must_use]
    pub fn to_html(&self) -> String {
        within_bounds(|detail| {
            let mut data = Data::default();
            let sections = [
                overview::section(self),
                curves::learning(self, detail, &mut data),
                curves::speed(self, detail, &mut data),
                ranks::section(self, &mut data),
                tables::events(&self.events),
                confusion::section(self),
                tables::settings(self),
                tables::environment(self),
                tables::files(self),
            ];
            let title = overview::title(self);
            page(
                &title,
                &overview::subtitle(self),
                sections.into_iter().flatten(),
                &data,
            )
        })
    }
}

/// Draws in less and less detail until the page is small enough.
pub(crate) fn within_bounds(mut draw: impl FnMut(Detail) -> String) -> String {
    let mut detail = Detail::FULL;
    loop {
        let html = draw(detail);
        let less = detail.less();
        if html.len() <= MOST_BYTES || less == detail {
            return html;
        }
        detail = less;
    }
}

/// A whole page.
pub(crate) fn page(
    title: &str,
    subtitle: &str,
    sections: impl Iterator<Item = Section>,
    data: &Data,
) -> String {
    let sections: Vec<Section> = sections.collect();
    let mut html = Html::default();
    html.put(format_args!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    ));
    // The browser is told, too, that nothing is to be fetched, and that no script but this one may run.
    html.put(format_args!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'sha256-{}'; base-uri 'none'; form-action 'none'\">\n",
        BASE64.encode(&Sha256::digest(SCRIPT))
    ));
    html.put(format_args!(
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
        text(title)
    ));
    html.put(format_args!(
        "<header><h1>{}</h1><p>{}</p></header>\n<nav aria-label=\"sections\">",
        text(title),
        text(subtitle)
    ));
    for section in &sections {
        html.put(format_args!(
            "<a href=\"#{}\">{}</a>",
            section.id,
            text(section.title)
        ));
    }
    html.put(format_args!("</nav>\n<main>\n"));
    for section in &sections {
        html.put(format_args!(
            "<section id=\"{}\"><h2>{}</h2>\n{}</section>\n",
            section.id,
            text(section.title),
            section.html.as_str()
        ));
    }
    html.put(format_args!(
        "</main>\n<footer>made by Everburn {}</footer>\n<div id=\"tip\" role=\"status\" hidden></div>\n",
        env!("CARGO_PKG_VERSION")
    ));
    html.put(format_args!(
        "<script type=\"application/json\" id=\"data\">{}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        markup::json(data)
    ));
    html.into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_too_long_is_drawn_in_less_detail() {
        let mut details = Vec::new();
        let html = within_bounds(|detail| {
            details.push(detail);
            "x".repeat(detail.buckets * MOST_BYTES / 128)
        });
        assert_eq!(html.len(), MOST_BYTES);
        assert_eq!(details.last().unwrap().buckets, 128);
        let endless = within_bounds(|_| "x".repeat(MOST_BYTES + 1));
        assert_eq!(endless.len(), MOST_BYTES + 1);
    }
}

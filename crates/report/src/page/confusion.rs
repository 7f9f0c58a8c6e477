//! Which classes were taken for which.

use everburn_record::svg::Element;
use everburn_record::{ConfusionMatrix, plain, units};

use super::Section;
use super::markup::{Html, or_dash, text};
use crate::run::Run;

/// With more classes, numbers have no room.
const MOST_NUMBERED: usize = 24;

/// With more classes, a class would be less than a pixel.
const MOST_DRAWN: usize = 400;

/// How many mistakes, and how many classes, are in tables.
const MOST_MISTAKES: usize = 15;
const MOST_CLASSES: usize = 60;

/// How many shades there are.
const SHADES: f64 = 9.0;

pub(super) fn section(run: &Run) -> Option<Section> {
    let matrix = run.confusion.as_ref()?;
    let mut section = Section::new("confusion", "Confusion");
    let html = &mut section.html;
    let (correct, total) = (matrix.correct(), matrix.total());
    let split = plain::line(&matrix.split, 40);
    let of = if split.is_empty() {
        "samples".to_owned()
    } else {
        format!("{split} samples")
    };
    let after = matrix.step.map_or(String::new(), |step| {
        format!(", after step {}", units::count(step))
    });
    let share = if total > 0 {
        format!(" ({})", units::percent(correct as f64 / total as f64, 2))
    } else {
        String::new()
    };
    html.put(format_args!(
        "<p>{} of {} {}{share} were recognised{}.</p>\n<div class=\"pair\">",
        units::count(correct),
        units::count(total),
        text(&of),
        text(&after)
    ));
    let count = matrix.classes.len();
    if count <= MOST_NUMBERED {
        numbered(matrix, html);
    } else if count <= MOST_DRAWN {
        drawn(matrix, html);
    } else {
        html.put(format_args!(
            "<p class=\"faint\">{count} classes are too many to be drawn.</p>"
        ));
    }
    mistakes(matrix, html);
    html.put(format_args!("</div>\n"));
    classes(matrix, html);
    Some(section)
}

fn name(matrix: &ConfusionMatrix, class: usize) -> String {
    plain::line(matrix.classes.get(class).map_or("", String::as_str), 24)
}

/// The shade of a count, as a share of its true class: right ones and wrong ones have colours of their own.
fn class_of(matrix: &ConfusionMatrix, actual: usize, predicted: usize) -> Option<String> {
    let count = matrix.count(actual, predicted);
    let share = count as f64 / matrix.actual(actual).max(1) as f64;
    let kind = if actual == predicted { 'r' } else { 'w' };
    // Few mistakes are worth seeing, too: the root lifts them.
    (count > 0).then(|| {
        format!(
            "{kind}{}",
            ((share.sqrt() * SHADES).ceil() as usize).clamp(1, SHADES as usize)
        )
    })
}

fn numbered(matrix: &ConfusionMatrix, html: &mut Html) {
    let classes = 0..matrix.classes.len();
    html.put(format_args!(
        "<div class=\"scroll\"><table class=\"confusion\"><caption>rows: true class; columns: predicted class</caption><thead><tr><td></td>"
    ));
    for predicted in classes.clone() {
        html.put(format_args!(
            "<th scope=\"col\">{}</th>",
            text(&name(matrix, predicted))
        ));
    }
    html.put(format_args!("</tr></thead><tbody>"));
    for actual in classes.clone() {
        html.put(format_args!(
            "<tr><th scope=\"row\">{}</th>",
            text(&name(matrix, actual))
        ));
        for predicted in classes.clone() {
            let count = matrix.count(actual, predicted);
            let class = class_of(matrix, actual, predicted).unwrap_or_default();
            let title = format!(
                "{} of {} taken for {}",
                units::count(count),
                name(matrix, actual),
                name(matrix, predicted)
            );
            html.put(format_args!(
                "<td class=\"{class}\" title=\"{}\">{count}</td>",
                text(&title)
            ));
        }
        html.put(format_args!("</tr>"));
    }
    html.put(format_args!("</tbody></table></div>"));
}

fn drawn(matrix: &ConfusionMatrix, html: &mut Html) {
    let classes = matrix.classes.len();
    html.put(format_args!(
        "<figure><figcaption>rows: true class; columns: predicted class</figcaption>"
    ));
    let mut svg = Element::new("svg")
        .with("class", "confusion")
        .with("viewBox", format_args!("0 0 {classes} {classes}"))
        .with("shape-rendering", "crispEdges")
        .with("role", "img")
        .with(
            "aria-label",
            format_args!("confusion matrix of {classes} classes"),
        );
    let mut paths = std::collections::BTreeMap::<String, String>::new();
    for actual in 0..classes {
        for predicted in 0..classes {
            if let Some(class) = class_of(matrix, actual, predicted) {
                let path = paths.entry(class).or_default();
                path.push_str(&format!("M{predicted} {actual}h1v1h-1z"));
            }
        }
    }
    for (class, path) in paths {
        svg.put(Element::new("path").with("class", class).with("d", path));
    }
    html.put(format_args!("{svg}</figure>"));
}

fn mistakes(matrix: &ConfusionMatrix, html: &mut Html) {
    let mistakes = matrix.mistakes(MOST_MISTAKES);
    if mistakes.is_empty() {
        return;
    }
    html.put(format_args!(
        "<div class=\"scroll\"><table><caption>most frequent mistakes</caption><thead><tr><th class=\"text\">true</th>\
         <th class=\"text\">taken for</th><th>times</th><th>of the class</th></tr></thead><tbody>"
    ));
    for (actual, predicted, count) in mistakes {
        html.put(format_args!(
            "<tr><td class=\"text\">{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td></tr>",
            text(&name(matrix, actual)),
            text(&name(matrix, predicted)),
            units::count(count),
            units::percent(count as f64 / matrix.actual(actual).max(1) as f64, 2)
        ));
    }
    html.put(format_args!("</tbody></table></div>"));
}

/// How well each class is recognised; of many, those that are worst.
fn classes(matrix: &ConfusionMatrix, html: &mut Html) {
    let mut classes: Vec<usize> = (0..matrix.classes.len()).collect();
    let all = classes.len();
    if all > MOST_CLASSES {
        let recall = |class: &usize| matrix.recall(*class).unwrap_or(f64::INFINITY);
        classes.sort_by(|one, other| recall(one).total_cmp(&recall(other)));
        classes.truncate(MOST_CLASSES);
    }
    let which = if all > MOST_CLASSES {
        format!("the {MOST_CLASSES} classes of {all} that are recognised worst")
    } else {
        "by class".to_owned()
    };
    html.put(format_args!(
        "<details><summary>Recall and precision, {}</summary><div class=\"scroll\"><table><thead><tr><th class=\"text\">class</th>\
         <th>samples</th><th>recall</th><th>precision</th></tr></thead><tbody>",
        text(&which)
    ));
    for class in classes {
        let share = |share: Option<f64>| or_dash(share, |share| units::percent(share, 2));
        html.put(format_args!(
            "<tr><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            text(&name(matrix, class)),
            units::count(matrix.actual(class)),
            share(matrix.recall(class)),
            share(matrix.precision(class))
        ));
    }
    html.put(format_args!("</tbody></table></div></details>\n"));
}

//! The page: text stays text, nothing is fetched, and it is small.

use std::fmt::Write as _;

use serde_json::Value;

use crate::sample::{Sample, metrics};

/// What breaks a page that does not escape.
const EVIL: &str = "\"'></title></style></script><script>alert(1)</script><img src=x onerror=alert(1)>&lt;\u{1b}[2J";

/// A tag: its name, and its attributes' names.
type Tag<'a> = (&'a str, Vec<&'a str>);

/// The tags of a page outside of its style and scripts, and the contents of these.
fn tags(html: &str) -> (Vec<Tag<'_>>, Vec<&str>) {
    let (mut tags, mut contents) = (Vec::new(), Vec::new());
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let mut quoted = false;
        let end = rest.char_indices().find(|(_, character)| {
            quoted ^= *character == '"';
            !quoted && *character == '>'
        });
        let tag = &rest[..end.unwrap().0];
        rest = &rest[end.unwrap().0 + 1..];
        let (name, attributes) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
        // Between the quotes of values.
        let names = attributes
            .split('"')
            .step_by(2)
            .flat_map(str::split_whitespace);
        tags.push((name, names.map(|name| name.trim_end_matches('=')).collect()));
        if name == "script" || name == "style" {
            let end = rest.find(&format!("</{name}>")).unwrap();
            contents.push(&rest[..end]);
            rest = &rest[end..];
        }
    }
    (tags, contents)
}

/// Elements without an end.
const VOID: [&str; 4] = ["meta", "input", "wbr", "!DOCTYPE"];

/// Checks that the page has its own elements and no others, properly nested, and returns its data.
pub(crate) fn sound(html: &str) -> Value {
    const ELEMENTS: &str = "html head meta title style body header h1 h2 h3 p nav a main section div span strong small ul li code \
                            figure figcaption label input svg path g table caption thead tbody tr th td b i em details summary \
                            footer script wbr";
    const ATTRIBUTES: &str = "lang charset http-equiv content name id class href role aria-label aria-hidden hidden type value \
                              checked style title data-chart data-lines data-line data-l data-map data-x0 data-x1 data-y0 data-y1 \
                              tabindex viewBox preserveAspectRatio shape-rendering width height d scope colspan";
    let (tags, contents) = tags(html);
    let mut open = Vec::new();
    for (name, attributes) in &tags {
        let plain = name.trim_start_matches('/');
        let known = ELEMENTS.split_whitespace().any(|known| known == plain) || plain == "!DOCTYPE";
        assert!(known, "<{name}> is none of ours");
        for attribute in attributes
            .iter()
            .filter(|name| **name != "/" && plain != "!DOCTYPE")
        {
            let known = ATTRIBUTES
                .split_whitespace()
                .any(|known| known == *attribute);
            assert!(known, "<{name}> has {attribute}");
        }
        let closed = attributes.last() == Some(&"/") || VOID.contains(name);
        match (name.strip_prefix('/'), closed) {
            (Some(name), _) => assert_eq!(open.pop(), Some(name)),
            (None, false) => open.push(*name),
            (None, true) => {}
        }
    }
    assert!(open.is_empty(), "{open:?} is not closed");
    assert_eq!(contents.len(), 3, "a style, the data and a script");
    serde_json::from_str(contents[1]).unwrap()
}

#[test]
fn a_page_is_properly_nested_and_has_all_its_parts() {
    let html = Sample::whole().read().to_html();
    let data = sound(&html);
    for part in [
        "Overview",
        "Learning",
        "Speed",
        "Ranks",
        "Events",
        "Confusion",
        "Configuration and results",
        "Environment",
        "Files",
    ] {
        assert!(
            html.contains(&format!("<h2>{part}</h2>")),
            "{part} is missing"
        );
    }
    for chart in [
        "loss",
        "accuracy",
        "learning-rate",
        "throughput",
        "step-time",
        "memory",
        "bytes",
    ] {
        assert!(
            data["charts"][chart]["lines"][0]["x"][0].is_number(),
            "{chart} is missing"
        );
    }
    assert_eq!(data["maps"]["work"]["values"][1][0], 62.5);
    // Rank 2 took no part in steps 12 to 20.
    assert_eq!(data["maps"]["work"]["values"][2][11], Value::Null);
    assert!(html.contains("1.9× the median"), "rank 1 is not marked");
    assert!(html.contains("98.40 %") && html.contains("learning_<wbr>rate"));
    assert!(!html.contains("<td>abc"), "a secret is told");
}

#[test]
fn nothing_is_fetched() {
    let html = Sample::whole().read().to_html();
    for way in [
        "http://",
        "https://",
        "src=",
        "url(",
        "@import",
        "fetch(",
        "XMLHttpRequest",
        "import(",
    ] {
        assert!(!html.contains(way), "the page has {way}");
    }
    assert!(html.contains("default-src 'none'"));
}

#[test]
fn text_from_outside_is_never_markup() {
    let json = serde_json::to_string(EVIL).unwrap();
    let toml = format!("'''{}'''", EVIL.replace(['\'', '\u{1b}'], ""));
    let line = EVIL.replace('\u{1b}', "");
    let folder = Sample::empty();
    let name = "a\"><script>alert(1)<";
    let inner = folder.path().join(name);
    std::fs::create_dir_all(&inner).unwrap();
    let sample = Sample::whole()
        .with("config.toml", format!("model = {toml}\n[\"{}\"]\na = {toml}\n", EVIL.replace(['"', '\u{1b}'], "")))
        .with("report.json", format!(r#"{{"model":{json},"dataset":{json},"dataset_origin":{json},"stopped":{json},"test_accuracy":0.5,"world_size":3,"versions":{{"everburn":{json},"burn":{json}}}}}"#))
        .with("events.jsonl", format!(r#"{{"kind":"loss","step":3,"rank":1,"text":{json}}}
{{"kind":{json},"step":4,"rank":1,"text":{json}}}
"#))
        .with("confusion.json", format!(r#"{{"split":{json},"classes":[{json},"b"],"counts":[[1,2],[3,4]]}}"#))
        .with("environment.json", format!(r#"{{"command":{json},"host":{json},"system":{json},"kernel":{json},"processor":{json},"accelerators":[{json}],"versions":{{{json}:{json}}},"variables":{{{json}:{json}}}}}"#))
        .with(name, "")
        .with("checkpoints/epoch-0001\"><script>/manifest.json", "{}");
    let run = sample.read();
    let data = sound(&run.to_html());
    // The script gets the text as it is, but for what commands a terminal, and shows it as text.
    let mark = data["charts"]["loss"]["marks"][0][2].as_str().unwrap();
    assert!(
        mark.starts_with("\"'></title></style></script><script>alert(1)"),
        "{mark}"
    );
    assert!(!mark.contains('\u{1b}'));

    let logs = Sample::elastic()
        .with("logs/rank-0.log", format!("2026-11-22T00:32:49Z  WARN after step 3: rank 0 lost rank 1 {line}\nerror: {line}\n"))
        .with("logs/rank-1.error.json", format!(r#"{{"rank":1,"message":{json}}}"#));
    sound(&logs.read().to_html());

    std::fs::write(inner.join("config.toml"), "").unwrap();
    let strange = everburn_report::Run::read(&inner).unwrap();
    sound(&strange.to_html());
    let comparison = everburn_report::Comparison::new(vec![strange, run]);
    sound(&comparison.to_html());
    assert!(!comparison.to_text().contains('\u{1b}'));
}

#[test]
fn a_long_run_makes_a_small_page_that_keeps_its_extremes() {
    let mut text = String::new();
    for step in 1..=200_000_u64 {
        // Noise that no line hides: every point differs from its neighbours.
        let noise = step.wrapping_mul(2_654_435_761) % 1000;
        let loss = if step == 123_456 {
            77.5
        } else {
            1.0 + noise as f64 / 1000.0
        };
        writeln!(
            text,
            r#"{{"kind":"step","epoch":1,"step":{step},"loss":{loss},"accuracy":{},"samples":32,"seconds":{},"waited":{},"exposed":{},"communication":{},"gradient_bytes":{step},"peak_memory":{},"learning_rate":{loss},"gradient_norm":{loss},"unix_time_ms":{}}}"#,
            loss / 100.0, loss / 10.0, loss / 20.0, loss / 30.0, loss / 15.0, 1_000_000 + noise, 1_795_300_855_000 + 40 * step
        )
        .unwrap();
    }
    let run = Sample::empty().with("metrics.jsonl", text).read();
    assert_eq!((run.metrics.lines, run.metrics.damaged), (200_000, 0));
    let html = run.to_html();
    assert!(html.len() <= 2_000_000, "{} bytes", html.len());
    let data = sound(&html);
    let line = &data["charts"]["loss"]["lines"][0];
    let at = line["y"]
        .as_array()
        .unwrap()
        .iter()
        .position(|y| *y == 77.5)
        .unwrap();
    assert_eq!(line["x"][at], 123_456.0);
}

#[test]
fn a_page_of_almost_nothing_is_a_page() {
    let html = Sample::empty().with("config.toml", "").read().to_html();
    sound(&html);
    assert!(html.contains("it is missing"));
    let one = metrics(1);
    sound(&Sample::empty().with("metrics.jsonl", one).read().to_html());
}

#[test]
fn each_metric_of_the_objective_has_a_curve_and_a_result() {
    let lines = (1..=8_u64).map(|step| {
        let kind = if step % 4 == 0 { "validation" } else { "step" };
        format!(
            r#"{{"kind":"{kind}","epoch":1,"step":{step},"loss":0.5,"metrics":{{"iou":null,"mae <b>":{}}},"samples":8}}"#,
            0.25 * step as f64
        )
    });
    let report = r#"{"test_loss":0.5,"test_metrics":{"iou":null,"mae <b>":0.125},"best_by":"max:mae <b>",
        "best_epoch":{"epoch":2,"validation_loss":0.5,"value":2.0}}"#;
    let run = Sample::whole()
        .with("metrics.jsonl", lines.collect::<Vec<_>>().join("\n"))
        .with("report.json", report)
        .read();
    let html = run.to_html();
    let data = sound(&html);
    // What is not a number has no curve, and what is never reported neither.
    assert_eq!(data["charts"]["metric-1"]["lines"][0]["y"][5], 1.75);
    assert!(data["charts"]["metric-0"].is_null() && data["charts"]["accuracy"].is_null());
    assert!(
        html.contains("test mae &lt;b&gt;") && !html.contains("test iou"),
        "{html}"
    );
    assert!(html.contains("best validation mae &lt;b&gt;") && !html.contains("test accuracy"));
}

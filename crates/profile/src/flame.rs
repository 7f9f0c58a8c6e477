//! What the CPU was found doing, as a flame graph.
//!
//! A flame graph (B. Gregg, "The Flame Graph", CACM 59(6), 2016) lays samples side by side, merged where their stacks
//! agree from the outermost function on: a box's width is the share of samples that go through the function.
//! `inferno` draws them too; its licence (CDDL) is not one of those that `deny.toml` allows.

use std::collections::BTreeMap;

use everburn_record::svg::{Element, Font};

use crate::analysis::windows_of;
use crate::recording::Recording;

/// The picture's width and a row's height, in pixels.
const WIDTH: f64 = 1200.0;
const ROW: f64 = 17.0;

/// Boxes narrower than this many pixels are not drawn: nobody sees them.
const NARROWEST: f64 = 0.3;

/// The size of letters, in pixels.
const LETTERS: f64 = 11.0;

/// Room for the title.
const TOP: f64 = 40.0;

/// Stacks and how often each was found, as flame-graph programs and `speedscope` read them: functions with `;` between,
/// the outermost first, after rank and thread; then a space and the count. Samples within steps only.
///
/// Threads that are asked as time passes are not counted once more as they compute.
pub fn collapsed(recordings: &[Recording]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for recording in recordings {
        let samples = &recording.samples;
        let windows = windows_of(recording);
        let (Some((_, first)), Some((_, last))) = (windows.first(), windows.last()) else {
            continue;
        };
        let followed = |thread: u32| {
            let mut of_thread = samples
                .samples
                .iter()
                .filter(|sample| sample.thread == thread);
            of_thread.any(|sample| sample.on_the_clock)
        };
        let mut threads: BTreeMap<u32, (String, bool)> = BTreeMap::new();
        for sample in &samples.samples {
            if !(first.begin..=last.end).contains(&sample.at) {
                continue;
            }
            let (thread, on_the_clock) = threads.entry(sample.thread).or_insert_with(|| {
                let named = samples
                    .threads
                    .iter()
                    .find(|(number, _)| *number == sample.thread);
                let name = match named {
                    _ if sample.thread == recording.facts.training_thread => "training",
                    Some((_, name)) => name.as_str(),
                    None => "thread that has ended",
                };
                (name.to_owned(), followed(sample.thread))
            });
            if sample.on_the_clock != *on_the_clock {
                continue;
            }
            let mut line = format!("rank {};{thread}", recording.facts.rank);
            for number in samples
                .stacks
                .get(sample.stack as usize)
                .into_iter()
                .flatten()
            {
                let name = samples
                    .functions
                    .get(*number as usize)
                    .map_or("(unknown)", String::as_str);
                line.push(';');
                // What separates functions cannot be in the name of one: `[T; 2]`.
                line.push_str(&name.replace("; ", " of ").replace(';', ":"));
            }
            *counts.entry(line).or_default() += 1;
        }
    }
    counts
}

/// A box: a function called by those below it.
#[derive(Default)]
struct Node {
    count: u64,
    children: BTreeMap<String, Node>,
}

/// A picture of [`collapsed`] stacks: boxes show their function and share when pointed at, and fill the width when
/// clicked.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// let stacks = [("rank 0;training;step;forward".to_owned(), 3), ("rank 0;training;step".to_owned(), 1)];
/// let svg = everburn::profile::flame_graph(&stacks.into(), "a run");
/// assert!(svg.starts_with("<svg") && svg.contains("forward: 3 samples, 75.0 %"));
/// ```
pub fn flame_graph(stacks: &BTreeMap<String, u64>, title: &str) -> String {
    let mut root = Node::default();
    for (stack, count) in stacks {
        root.count += count;
        let mut node = &mut root;
        for name in stack.split(';') {
            node = node.children.entry(name.to_owned()).or_default();
            node.count += count;
        }
    }
    let mut boxes = Vec::new();
    let mut depth = 0;
    draw(&root, 0.0, 0, &root, &mut boxes, &mut depth);
    let height = TOP + ROW * (depth + 1) as f64;
    let title = format!("{title}: {} samples", root.count);
    let advice = "Point at a box; click it to fill the width, and here to go back.";
    let mut svg = Element::file(WIDTH, height, Font::Monospace, LETTERS)
        .line(Element::new("style").verbatim("g:hover rect{stroke:#000} text{pointer-events:none}"))
        .line(Element::rect(0, 0, "100%", "100%").with("fill", "#fff"))
        .line(Element::label(8, 16, &title).with("font-size", 14))
        .line(Element::label(8, 32, advice).with("id", "label"));
    for element in boxes {
        svg.put_line(element);
    }
    svg.put_line(Element::new("script").verbatim(SCRIPT));
    format!("{svg}\n")
}

/// Scales the boxes so that the clicked one fills the width.
const SCRIPT: &str = "<![CDATA[
const root=document.documentElement,boxes=[...root.querySelectorAll('g')],W=1200;
const label=document.getElementById('label');
function show(x,w){for(const g of boxes){const r=g.querySelector('rect'),t=g.querySelector('text');
let a=(g.dataset.x-x)*W/w,b=a+g.dataset.w*W/w;a=Math.max(a,0);b=Math.min(b,W);
g.style.display=b-a<0.3?'none':'';r.setAttribute('x',a);r.setAttribute('width',Math.max(b-a,0));
if(t){t.setAttribute('x',a+3);const n=Math.floor((b-a-6)/7);t.textContent=n<3?'':g.dataset.n.slice(0,n);}}}
for(const g of boxes){g.addEventListener('click',()=>show(+g.dataset.x,+g.dataset.w));
g.addEventListener('mousemove',()=>{label.textContent=g.querySelector('title').textContent;});}
label.style.pointerEvents='auto';label.addEventListener('click',()=>show(0,W));
]]>";

fn draw(
    node: &Node,
    x: f64,
    row: usize,
    root: &Node,
    boxes: &mut Vec<Element>,
    deepest: &mut usize,
) {
    let all = root.count.max(1) as f64;
    let mut left = x;
    for (name, child) in &node.children {
        let width = child.count as f64 / all * WIDTH;
        if width >= NARROWEST {
            *deepest = (*deepest).max(row + 1);
            let y = TOP + ROW * row as f64;
            let share = 100.0 * child.count as f64 / all;
            let title = format!("{name}: {} samples, {share:.1} %", child.count);
            let letters = Font::Monospace.fitting(width - 6.0, LETTERS);
            let text: String = match letters {
                ..3 => String::new(),
                _ => name.chars().take(letters).collect(),
            };
            let (red, green) = colour(name);
            let (left_edge, wide) = (format!("{left:.2}"), format!("{width:.2}"));
            let rect = Element::rect(&left_edge, format_args!("{y:.1}"), &wide, ROW - 1.0)
                .with("rx", 1)
                .with("fill", format_args!("rgb({red},{green},60)"));
            let (x, baseline) = (left + 3.0, y + 12.0);
            boxes.push(
                Element::new("g")
                    .with("data-x", &left_edge)
                    .with("data-w", &wide)
                    .with("data-n", name)
                    .child(Element::new("title").text(&title))
                    .child(rect)
                    .child(Element::label(
                        format_args!("{x:.2}"),
                        format_args!("{baseline:.1}"),
                        &text,
                    )),
            );
            draw(child, left, row + 1, root, boxes, deepest);
        }
        left += width;
    }
}

/// A warm colour, the same for the same function.
fn colour(name: &str) -> (u8, u8) {
    // FNV-1a: any spread does.
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (205 + (hash % 50) as u8, 90 + (hash / 64 % 140) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{Facts, Sample, Samples, StepStart};

    fn recording() -> Recording {
        let start = |step, at| StepStart {
            step,
            at,
            ..StepStart::default()
        };
        let sample = |at, thread, stack, on_the_clock| Sample {
            at,
            thread,
            stack,
            on_the_clock,
        };
        Recording {
            facts: Facts {
                rank: 1,
                training_thread: 7,
                ..Facts::default()
            },
            steps: vec![start(1, 100), start(0, 200)],
            samples: Samples {
                functions: ["main", "<[f32; 4]>::add", "wait"]
                    .map(String::from)
                    .to_vec(),
                stacks: vec![vec![0, 1], vec![0, 2]],
                samples: vec![
                    sample(110, 7, 0, true),
                    sample(120, 7, 0, false),
                    sample(130, 7, 1, true),
                    sample(140, 8, 0, false),
                    sample(250, 7, 0, true),
                ],
                threads: vec![(8, "rayon".to_owned())],
                ..Samples::default()
            },
            ..Recording::default()
        }
    }

    #[test]
    fn samples_are_counted_once_and_within_steps() {
        let counts = collapsed(&[recording()]);
        let expected = [
            ("rank 1;rayon;main;<[f32 of 4]>::add", 1),
            ("rank 1;training;main;<[f32 of 4]>::add", 1),
            ("rank 1;training;main;wait", 1),
        ];
        assert_eq!(
            counts,
            expected
                .map(|(stack, count)| (stack.to_owned(), count))
                .into()
        );
    }

    #[test]
    fn names_are_no_markup() {
        let svg = flame_graph(&collapsed(&[recording()]), "a & b");
        assert!(
            svg.contains("&lt;[f32 of 4]&gt;::add: 1 samples, 33.3 %"),
            "{svg}"
        );
        assert!(svg.contains("a &amp; b: 3 samples"));
    }
}

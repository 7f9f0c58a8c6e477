//! A table of times as a map: rows are ranks, columns are pieces of the run, colours are times.

use everburn_record::svg::{Axis, Element, Labels};
use everburn_record::units;
use serde::Serialize;

use super::markup::{Html, text};
use crate::chart::plain_number;
use crate::run::Grid;

/// Shades of viridis (van der Walt and Smith 2015), which also those tell apart who see few colours; they are in the style.
const SHADES: usize = 9;

/// What the page's script knows of a map.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    rows: Vec<String>,
    from: u64,
    width: u64,
    unit: &'static str,
    values: Vec<Vec<Option<f64>>>,
}

/// Draws `grid`, in milliseconds, as the map `id`, and yields its figures.
pub(super) fn html(id: &str, title: &str, grid: &Grid, html: &mut Html) -> Figures {
    let scale = Scale::of(grid);
    let columns = grid.values.first().map_or(0, Vec::len);
    let end = grid
        .from
        .saturating_add(grid.width.saturating_mul(columns as u64));
    html.put(format_args!(
        r#"<div class="map" data-map="{}"><div class="rows" aria-hidden="true">"#,
        text(id)
    ));
    // This many names as there is room for.
    let every = grid.rows.len().div_ceil(24).max(1);
    for (number, name) in grid.rows.iter().enumerate().step_by(every) {
        let middle = 100.0 * (number as f64 + 0.5) / grid.rows.len() as f64;
        html.put(format_args!(
            r#"<span style="top:{middle:.2}%">{}</span>"#,
            text(name)
        ));
    }
    html.put(format_args!(
        r#"</div><div class="cells" style="--rows:{}" tabindex="0" role="img" aria-label="{}: {} rows of ranks, steps {} to {end}, {} to {} ms">"#,
        grid.rows.len(),
        text(title),
        grid.rows.len(),
        grid.from,
        scale.shown(scale.low),
        scale.shown(scale.high)
    ));
    svg(grid, &scale, html);
    html.put(format_args!("</div>"));
    html.ticks(&Axis::between(grid.from as f64, end as f64, Labels::Steps));
    html.put(format_args!(
        r#"<p class="axis">step</p><p class="scale">{} ms <span>"#,
        scale.shown(scale.low)
    ));
    for shade in 0..SHADES {
        html.put(format_args!(r#"<i class="h{shade}"></i>"#));
    }
    let more = if scale.cut { " or more" } else { "" };
    html.put(format_args!(
        r#"</span> {} ms{more}<i class="none"></i>took no part</p></div>"#,
        scale.shown(scale.high)
    ));
    figures(grid)
}

fn figures(grid: &Grid) -> Figures {
    let row = |row: &Vec<Option<f64>>| {
        row.iter()
            .map(|value| value.map(|seconds| plain_number(1e3 * seconds)))
            .collect()
    };
    Figures {
        rows: grid.rows.clone(),
        from: grid.from,
        width: grid.width,
        unit: "ms",
        values: grid.values.iter().map(row).collect(),
    }
}

/// A path for each shade: a cell is a square of 1, stretched to the room that there is.
fn svg(grid: &Grid, scale: &Scale, html: &mut Html) {
    let columns = grid.values.first().map_or(0, Vec::len).max(1);
    let rows = grid.rows.len().max(1);
    let mut svg = Element::new("svg")
        .with("viewBox", format_args!("0 0 {columns} {rows}"))
        .with("preserveAspectRatio", "none")
        .with("shape-rendering", "crispEdges")
        .with("aria-hidden", true);
    let mut paths = vec![String::new(); SHADES];
    for (y, row) in grid.values.iter().enumerate() {
        let mut x = 0;
        while x < row.len() {
            let shade = row[x].map(|value| scale.shade(value));
            let same = row[x..]
                .iter()
                .take_while(|value| value.map(|value| scale.shade(value)) == shade);
            let length = same.count();
            if let Some(shade) = shade {
                paths[shade].push_str(&format!("M{x} {y}h{length}v1h-{length}z"));
            }
            x += length;
        }
    }
    for (shade, path) in paths
        .iter()
        .enumerate()
        .filter(|(_, path)| !path.is_empty())
    {
        let class = format_args!("h{shade}");
        svg.put(Element::new("path").with("class", class).with("d", path));
    }
    html.put(format_args!("{svg}"));
}

/// Which times the shades stand for.
struct Scale {
    low: f64,
    high: f64,
    /// There are some beyond it.
    cut: bool,
}

impl Scale {
    /// From the shortest to the longest, but for the longest hundredth: one long step would hide all others.
    fn of(grid: &Grid) -> Self {
        let mut values: Vec<f64> = grid.values.iter().flatten().flatten().copied().collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1);
        let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
        let (low, high) = (at(0), at(last - last / 100));
        Self {
            low,
            high,
            cut: at(last) > high,
        }
    }

    fn shade(&self, value: f64) -> usize {
        let share = (value - self.low) / (self.high - self.low);
        let shade = if share.is_finite() {
            share * SHADES as f64
        } else {
            0.0
        };
        (shade.max(0.0) as usize).min(SHADES - 1)
    }

    fn shown(&self, seconds: f64) -> String {
        units::significant(1e3 * seconds, 3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_a_path_for_each_shade() {
        let grid = Grid {
            rows: vec!["0".into(), "1".into()],
            from: 10,
            width: 5,
            values: vec![
                vec![Some(0.001), Some(0.001), None],
                vec![Some(0.009), None, Some(0.005)],
            ],
        };
        let mut drawn = Html::default();
        svg(&grid, &Scale::of(&grid), &mut drawn);
        insta::assert_snapshot!(drawn.into_string().replace("><", ">\n<"));
        let figures = serde_json::to_string(&figures(&grid)).unwrap();
        assert!(
            figures.ends_with(r#""values":[[1.0,1.0,null],[9.0,null,5.0]]}"#),
            "{figures}"
        );
    }

    #[test]
    fn one_long_step_does_not_hide_the_others() {
        let mut row = vec![Some(0.010); 150];
        row[3] = Some(0.020);
        row[7] = Some(40.0);
        let grid = Grid {
            rows: vec!["0".into()],
            from: 0,
            width: 1,
            values: vec![row],
        };
        let scale = Scale::of(&grid);
        assert_eq!((scale.high, scale.cut), (0.020, true));
        assert_eq!(
            [0.010, 0.020, 40.0].map(|value| scale.shade(value)),
            [0, 8, 8]
        );
    }
}

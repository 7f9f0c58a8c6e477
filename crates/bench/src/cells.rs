//! How figures are in the tables of benchmarks.

use everburn_record::statistics::Spread;
use serde_json::Value;

/// `1.50x`, or `-` where there is nothing to compare with.
pub(crate) fn times(ratio: Option<f64>) -> String {
    or_dash(ratio, |ratio| format!("{ratio:.2}x"))
}

/// A value as it is shown, or `-` where there is none.
pub(crate) fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// A median, and from where to where the rounds reach.
pub(crate) fn spread(spread: Spread, digits: usize) -> [String; 2] {
    let Spread { median, min, max } = spread;
    [
        format!("{median:.digits$}"),
        format!("({min:.digits$}-{max:.digits$})"),
    ]
}

/// `+25 %`
pub(crate) fn more(share: f64, digits: usize) -> String {
    format!("{:+.digits$} %", 100.0 * share)
}

/// What the rounds do not agree on is not to be quoted.
pub(crate) fn mark(is_steady: bool) -> String {
    if is_steady { "" } else { "unsteady" }.to_owned()
}

/// What a reader is told of the rounds.
pub(crate) fn rounds(count: usize) -> String {
    match count {
        1 => "1 round".to_owned(),
        count => format!("medians of {count} rounds"),
    }
}

/// A row with all that is in `more`, too.
pub(crate) fn joined(mut row: Value, more: Value) -> Value {
    if let (Value::Object(row), Value::Object(more)) = (&mut row, more) {
        row.extend(more);
    }
    row
}

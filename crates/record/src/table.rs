//! Tables as lines of text.

/// `rows` below `header`, each column as wide as its widest cell. The first column is aligned to the left and so are the
/// columns in `left`, the others to the right. No line ends with spaces, and the last has no end of line.
///
/// ```
/// let rows = [["gpipe", "33 s", "all"], ["1f1b", "7 µs", "few"]].map(|row| row.map(String::from).to_vec());
/// let text = everburn_record::table::aligned(&["schedule", "time", "live"], &rows, &[2]);
/// assert_eq!(text, "\
/// schedule  time  live
/// gpipe     33 s  all
/// 1f1b      7 µs  few");
/// ```
pub fn aligned(header: &[&str], rows: &[Vec<String>], left: &[usize]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        widest.max(header[column].chars().count())
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).enumerate();
        let padded =
            padded.map(
                |(column, (cell, &width))| match column == 0 || left.contains(&column) {
                    true => format!("{cell:<width$}"),
                    false => format!("{cell:>width$}"),
                },
            );
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(&mut header.iter().copied())];
    lines.extend(
        rows.iter()
            .map(|row| line(&mut row.iter().map(String::as_str))),
    );
    lines.join("\n")
}

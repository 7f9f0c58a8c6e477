//! Tables for people.

/// `rows` below `heads`, each column as wide as it has to be: the first to the left, the others to the
/// right, except for the columns in `left`.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>], left: &[usize]) -> String {
    let heads = heads.iter().map(ToString::to_string).collect::<Vec<_>>();
    let length = |text: &str| text.chars().count();
    let width = |column: usize| {
        let cells = std::iter::once(&heads).chain(rows);
        let cells = cells.filter_map(|row| row.get(column));
        cells.map(|cell| length(cell)).max().unwrap_or(0)
    };
    let widths = (0..heads.len()).map(width).collect::<Vec<_>>();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| {
            let room = " ".repeat(width - length(cell));
            match column == 0 || left.contains(&column) {
                true => format!("{cell}{room}"),
                false => format!("{room}{cell}"),
            }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    std::iter::once(&heads).chain(rows).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 3]| cells.map(ToString::to_string).to_vec();
        let rows = [row(["gpipe", "33 s", "all"]), row(["1f1b", "7 µs", "few"])];
        let text = table(&["schedule", "time", "live"], &rows, &[2]);
        assert_eq!(
            text,
            "schedule  time  live\n\
             gpipe     33 s  all\n\
             1f1b      7 µs  few\n"
        );
    }
}

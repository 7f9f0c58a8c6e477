//! Numbers as people write them: with separators of thousands.

/// What separates thousands in one country or another.
const SEPARATORS: [char; 8] = [
    '.', ',', ' ', '\u{a0}', '\u{2009}', '\u{202f}', '\'', '\u{2019}',
];

/// Whether a text looks like a number with separators of thousands: `1.054,25`, `1,054.25` or `1 054`. Versions, dates and
/// addresses of machines do not.
pub(super) fn has_separators(cell: &str) -> bool {
    let unsigned = cell.strip_prefix(['+', '-']).unwrap_or(cell);
    let separator = unsigned.chars().find(|it| !it.is_ascii_digit());
    let Some(separator) = separator.filter(|it| SEPARATORS.contains(it)) else {
        return false;
    };
    let is_point = |it: char| it != separator && ['.', ','].contains(&it);
    let (whole, decimals) = unsigned.split_once(is_point).unwrap_or((unsigned, "0"));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let mut groups = whole.split(separator);
    let first = groups.next().unwrap_or_default();
    let groups: Vec<&str> = groups.collect();
    let is_address = separator == '.'
        && groups.len() == 3
        && groups.iter().all(|group| group.parse::<u8>().is_ok());
    are_digits(first)
        && first.len() <= 3
        && !first.starts_with('0')
        && !groups.is_empty()
        && groups.iter().all(|it| it.len() == 3 && are_digits(it))
        && are_digits(decimals)
        && !is_address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_separators_are_seen() {
        let numbers = "1.054,25|1,054.25|1 054,25|-12\u{202f}054|1'054.5|1.054.250|+1,054";
        for number in numbers.split('|') {
            assert!(has_separators(number), "{number}");
        }
    }

    #[test]
    fn versions_dates_and_other_names_are_none() {
        let names = "|flat|1.2.3|10.12.2024|2024-12-10|12,5|1054,25|192.168.100.200|030 123 456|\
                     123 45|1,054.|1,054,|1.054,25,5|,054|12:30|1.054 EUR|1054";
        for name in names.split('|') {
            assert!(!has_separators(name), "{name}");
        }
    }
}

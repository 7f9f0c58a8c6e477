//! Lists of hosts and of counts as Slurm writes them.
//!
//! ```text
//! list  = part ("," part)*
//! part  = text with any number of "[" range ("," range)* "]"
//! range = number ["-" number]          leading zeros are kept
//! ```
//!
//! `rack[1-2]n[01-03],gpu5` is `rack1n01, rack1n02, rack1n03, rack2n01, ..., gpu5`: the last bracket
//! runs fastest, which is the order in which Slurm numbers the nodes.

/// More hosts than any cluster has; a longer list is a mistake, and must not fill the memory.
const MOST_HOSTS: usize = 65_536;

/// All hosts of a list, in its order.
///
/// # Errors
/// What is wrong with the list, in words that follow "is not".
pub(super) fn hosts(list: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for part in parts(list)? {
        expand(part, &mut hosts)?;
    }
    Ok(hosts)
}

/// Cuts at the commas that are outside of brackets.
fn parts(list: &str) -> Result<Vec<&str>, String> {
    let mut parts = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, character) in list.char_indices() {
        match character {
            '[' if inside => return Err("a list of hosts: brackets do not nest".into()),
            '[' => inside = true,
            ']' if !inside => return Err("a list of hosts: `]` without `[`".into()),
            ']' => inside = false,
            ',' if !inside => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ if character.is_whitespace() || character.is_control() => {
                return Err("a list of hosts: there is white space in it".into());
            }
            _ => {}
        }
    }
    if inside {
        return Err("a list of hosts: `[` without `]`".into());
    }
    parts.push(&list[start..]);
    if parts.iter().any(|part| part.is_empty()) {
        return Err("a list of hosts: a host has no name".into());
    }
    Ok(parts)
}

fn expand(part: &str, hosts: &mut Vec<String>) -> Result<(), String> {
    let mut names = vec![String::new()];
    let mut rest = part;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, after) = after.split_once(']').unwrap_or((after, ""));
        let numbers = numbers(ranges)?;
        fits(hosts.len(), names.len().saturating_mul(numbers.len()))?;
        names = names
            .iter()
            .flat_map(|name| numbers.iter().map(move |it| format!("{name}{before}{it}")))
            .collect();
        rest = after;
    }
    fits(hosts.len(), names.len())?;
    hosts.extend(names.into_iter().map(|name| name + rest));
    Ok(())
}

/// The numbers of what is in brackets, as they are written.
fn numbers(ranges: &str) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (number(first, range)?, number(last, range)?);
        if from > to {
            return Err(format!("a list of hosts: `{range}` runs backwards"));
        }
        let count = usize::try_from(to - from).map_or(usize::MAX, |steps| steps.saturating_add(1));
        fits(numbers.len(), count)?;
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

fn number(text: &str, range: &str) -> Result<u64, String> {
    let refused = || format!("a list of hosts: `{range}` in brackets is no range such as 01-16");
    // `+1` would parse.
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(refused());
    }
    text.parse().map_err(|_| refused())
}

fn fits(there: usize, more: usize) -> Result<(), String> {
    if there.saturating_add(more) > MOST_HOSTS {
        return Err(format!("a list of at most {MOST_HOSTS} hosts"));
    }
    Ok(())
}

/// The entry of node number `node` in a list of counts, as in `2(x3),1`: three times 2, then 1.
///
/// # Errors
/// What is wrong with the list, in words that follow "is not".
pub(super) fn count_of(list: &str, node: usize) -> Result<Option<usize>, String> {
    let mut first_node: usize = 0;
    for (count, times) in counts(list)? {
        first_node = first_node.saturating_add(times);
        if node < first_node {
            return Ok(Some(count));
        }
    }
    Ok(None)
}

/// The sum of a list of counts.
///
/// # Errors
/// As [`count_of`].
pub(super) fn total_of(list: &str) -> Result<usize, String> {
    let products = counts(list)?.into_iter();
    let products = products.map(|(count, times)| count.saturating_mul(times));
    Ok(products.fold(0, usize::saturating_add))
}

/// The counts of a list, each with how many nodes have it.
fn counts(list: &str) -> Result<Vec<(usize, usize)>, String> {
    let count = |entry: &str| {
        let refused = || format!("a list of counts such as 2(x3),1: `{entry}`");
        let (count, times) = match entry.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').ok_or_else(refused)?),
            None => (entry, "1"),
        };
        let count = count.parse::<usize>().map_err(|_| refused())?;
        Ok((count, times.parse::<usize>().map_err(|_| refused())?))
    };
    list.split(',').map(count).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hosts_come_in_the_lists_order() {
        let cases: [(&str, &[&str]); 9] = [
            ("a", &["a"]),
            ("b,a", &["b", "a"]),
            (
                "node[01-03,07],gpu5",
                &["node01", "node02", "node03", "node07", "gpu5"],
            ),
            ("n[9-11]", &["n9", "n10", "n11"]),
            ("n[099-101]", &["n099", "n100", "n101"]),
            ("n[5]", &["n5"]),
            ("r[1-2]n[1-2]", &["r1n1", "r1n2", "r2n1", "r2n2"]),
            ("n[1-2]-ib.cluster", &["n1-ib.cluster", "n2-ib.cluster"]),
            ("ip-10-0-1-[5,9]", &["ip-10-0-1-5", "ip-10-0-1-9"]),
        ];
        for (list, expected) in cases {
            assert_eq!(hosts(list).unwrap(), expected, "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_with_its_fault() {
        let cases = [
            ("", "no name"),
            ("a,,b", "no name"),
            ("a,", "no name"),
            ("n[1-2", "without `]`"),
            ("n1-2]", "without `[`"),
            ("n[[1]]", "do not nest"),
            ("n[]", "is no range"),
            ("n[a-b]", "is no range"),
            ("n[+1]", "is no range"),
            ("n[1-2-3]", "is no range"),
            ("n[3-1]", "backwards"),
            ("n 1", "white space"),
            ("n[1-99999999999999999999]", "is no range"),
            ("n[0-18446744073709551615]", "at most 65536"),
            ("n[0-999][0-999]", "at most 65536"),
            ("n[0-65535],m", "at most 65536"),
        ];
        for (list, fault) in cases {
            let error = hosts(list).unwrap_err();
            assert!(error.contains(fault), "{list}: {error}");
        }
    }

    #[test]
    fn counts_are_repeated() {
        let of = |node| count_of("2(x3),1,4", node).unwrap();
        assert_eq!([0, 2, 3, 4].map(of), [Some(2), Some(2), Some(1), Some(4)]);
        assert_eq!(of(5), None);
        assert_eq!(count_of("8", 0).unwrap(), Some(8));
        for wrong in ["", "2(x3", "2(3)", "x", "-1", "1,,2", "2(xx)"] {
            let error = count_of(wrong, 9).unwrap_err();
            assert!(error.contains("list of counts"), "{wrong}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            parts in prop::collection::vec(
                ("[a-z][a-z-]{0,5}", prop::collection::vec((0_u64..1000, 0_u64..20), 0..4), 1_usize..5),
                1..5,
            ),
        ) {
            let (mut list, mut expected) = (Vec::new(), Vec::new());
            for (name, ranges, width) in parts {
                if ranges.is_empty() {
                    list.push(name.clone());
                    expected.push(name);
                    continue;
                }
                let written = ranges.iter().map(|&(from, steps)| match steps {
                    0 => format!("{from:0width$}"),
                    _ => format!("{from:0width$}-{:0width$}", from + steps),
                });
                list.push(format!("{name}[{}]", written.collect::<Vec<_>>().join(",")));
                for (from, steps) in ranges {
                    let all = from..=from + steps;
                    expected.extend(all.map(|number| format!("{name}{number:0width$}")));
                }
            }
            prop_assert_eq!(hosts(&list.join(",")).unwrap(), expected);
        }

        #[test]
        fn no_text_is_too_much(list in "[a-c0-9,\\[\\]()x \\-]{0,40}") {
            if let Ok(hosts) = hosts(&list) {
                prop_assert!(!hosts.is_empty() && hosts.len() <= MOST_HOSTS);
                prop_assert!(hosts.iter().all(|host| !host.is_empty()));
            }
            let _ = count_of(&list, 3);
        }

        #[test]
        fn counts_are_those_of_the_list_written_out(
            entries in prop::collection::vec((0_usize..300, 1_usize..6), 1..8),
        ) {
            let written = entries.iter().map(|(count, times)| format!("{count}(x{times})"));
            let list = written.collect::<Vec<_>>().join(",");
            let plain: Vec<usize> = entries
                .iter()
                .flat_map(|&(count, times)| std::iter::repeat_n(count, times))
                .collect();
            for (node, count) in plain.iter().enumerate() {
                prop_assert_eq!(count_of(&list, node).unwrap(), Some(*count));
            }
            prop_assert_eq!(total_of(&list).unwrap(), plain.iter().sum::<usize>());
            prop_assert_eq!(count_of(&list, plain.len()).unwrap(), None);
        }
    }
}

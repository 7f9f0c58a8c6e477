//! Lists of ranks for a message.

/// Runs shorter than this are written out.
const SHORTEST_RANGE: usize = 4;

/// Ascending numbers as `0, 1, 5-9`, so that a message about a thousand ranks stays readable.
///
/// ```
/// use everburn_record::ranges;
///
/// assert_eq!(ranges(&[0, 1, 2, 4]), "0, 1, 2, 4");
/// assert_eq!(ranges(&[0, 1, 2, 3, 7]), "0-3, 7");
/// assert_eq!(ranges(&(0..88).chain(89..128).collect::<Vec<_>>()), "0-87, 89-127");
/// ```
pub fn ranges(numbers: &[usize]) -> String {
    let mut parts = Vec::new();
    let mut rest = numbers;
    while let Some(first) = rest.first() {
        let follows =
            |(offset, number): &(usize, &usize)| first.checked_add(*offset) == Some(**number);
        let length = rest.iter().enumerate().take_while(follows).count();
        let (run, after) = rest.split_at(length);
        rest = after;
        match run {
            [first, .., last] if run.len() >= SHORTEST_RANGE => {
                parts.push(format!("{first}-{last}"));
            }
            _ => parts.extend(run.iter().map(ToString::to_string)),
        }
    }
    parts.join(", ")
}

/// Ascending ranks as `rank 3` or `ranks 1, 2`; `the others` where the list is empty.
///
/// ```
/// use everburn_record::ranks;
///
/// assert_eq!(ranks(&[3]), "rank 3");
/// assert_eq!(ranks(&[0, 1, 2, 3, 7]), "ranks 0-3, 7");
/// assert_eq!(ranks(&[]), "the others");
/// ```
pub fn ranks(ranks: &[usize]) -> String {
    match ranks {
        [] => "the others".to_owned(),
        [one] => format!("rank {one}"),
        many => format!("ranks {}", ranges(many)),
    }
}

/// The same with their machines, where each has `per_machine` ranks: `ranks 2, 3 of machine 1`. Of many, the first are named.
///
/// ```
/// use everburn_record::located;
///
/// assert_eq!(located(&[1, 3], None), "ranks 1, 3");
/// assert_eq!(located(&[2, 3], Some(2)), "ranks 2, 3 of machine 1");
/// assert_eq!(located(&[1, 2, 4], Some(2)), "ranks 1, 2, 4 of machines 0, 1, 2");
/// ```
pub fn located(missing: &[usize], per_machine: Option<usize>) -> String {
    const SHOWN: usize = 16;
    let mut listed = ranks(&missing[..missing.len().min(SHOWN)]);
    if missing.len() > SHOWN {
        listed.push_str(&format!(" and {} more", missing.len() - SHOWN));
    }
    let Some(per_machine) = per_machine.filter(|ranks| *ranks > 0) else {
        return listed;
    };
    let mut machines: Vec<usize> = missing.iter().map(|rank| rank / per_machine).collect();
    machines.sort_unstable();
    machines.dedup();
    match &*machines {
        [machine] => format!("{listed} of machine {machine}"),
        several => format!("{listed} of machines {}", ranges(several)),
    }
}

//! Who waits for whom.

use std::collections::BTreeSet;
use std::fmt;

use crate::ranks;

/// Ranks that wait in a collective, and the ranks that keep them waiting.
///
/// ```
/// use everburn_record::Waits;
///
/// let of = |waits: &[(usize, &[usize])]| Waits::of(waits.iter().copied());
/// assert_eq!(of(&[(0, &[]), (1, &[])]), None);
/// // Who waits itself keeps nobody waiting.
/// let waits = of(&[(0, &[1, 3]), (1, &[3]), (2, &[3]), (3, &[])]).unwrap();
/// assert_eq!(waits.awaited, [3]);
/// assert_eq!(waits.to_string(), "ranks 0, 1, 2 wait for rank 3");
/// // Of many, a rank names the first that it waits for.
/// assert_eq!(of(&[(0, &[1]), (1, &[0]), (2, &[])]).unwrap().to_string(), "ranks 0, 1 wait for rank 2");
/// assert_eq!(of(&[(0, &[1]), (1, &[0])]).unwrap().to_string(), "ranks 0, 1 wait for each other");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// The ranks that wait, ascending.
    pub waiting: Vec<usize>,
    /// The ranks that they wait for and that wait for nobody, ascending; empty where all wait for each other.
    pub awaited: Vec<usize>,
}

impl Waits {
    /// Of all ranks that take part, the number of each and the ranks that it waits for. `None` where nobody waits.
    pub fn of<'a>(all: impl IntoIterator<Item = (usize, &'a [usize])>) -> Option<Self> {
        let [mut waiting, mut named, mut idle] = [const { BTreeSet::<usize>::new() }; 3];
        for (rank, waits_for) in all {
            match waits_for {
                [] => idle.insert(rank),
                _ => waiting.insert(rank),
            };
            named.extend(waits_for);
        }
        let mut awaited: Vec<usize> = named.difference(&waiting).copied().collect();
        if awaited.is_empty() {
            awaited.extend(idle);
        }
        (!waiting.is_empty()).then(|| Self {
            waiting: waiting.into_iter().collect(),
            awaited,
        })
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = match self.waiting.as_slice() {
            [_] => "waits",
            _ => "wait",
        };
        let whom = match self.awaited.as_slice() {
            [] => "each other".to_owned(),
            awaited => ranks(awaited),
        };
        write!(f, "{} {waits} for {whom}", ranks(&self.waiting))
    }
}

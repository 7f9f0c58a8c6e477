//! The order of the findings.

use super::{Finding, FindingKind, rules};
use crate::analysis::Analysis;

/// What a share counts for that belongs after another finding.
const BEHIND: f64 = 0.5;

/// Sorts by what mending wins.
///
/// That other programs have the cores weighs half where there is a fault of the training itself (data, a slow rank, a
/// copy) of at least half the size: it is of this run alone, and the fault will be there in the next one, too, when the
/// machine is quiet. That the ranks themselves want more cores than there are is a fault like any other. And a rank that
/// is slow for lack of a core is told after the want.
pub(super) fn sort(analysis: &Analysis, findings: &mut [Finding]) {
    let is_lasting = |finding: &&Finding| match finding.kind {
        FindingKind::Data | FindingKind::HostCopy => true,
        FindingKind::SlowRank => !rules::is_slow_for_want_of_cores(analysis, finding),
        _ => false,
    };
    let lasting = findings.iter().filter(is_lasting);
    let lasting = lasting.map(|finding| finding.share).fold(0.0, f64::max);
    let by_others = !rules::ranks_want_more_than_there_is(analysis);
    let weight = |finding: &Finding| {
        let comes_behind = match finding.kind {
            FindingKind::Cores => by_others && lasting >= BEHIND * finding.share,
            FindingKind::SlowRank => rules::is_slow_for_want_of_cores(analysis, finding),
            _ => false,
        };
        finding.share * if comes_behind { BEHIND } else { 1.0 }
    };
    findings.sort_by(|one, other| weight(other).total_cmp(&weight(one)));
}

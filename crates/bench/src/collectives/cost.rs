//! The bytes that a collective must move, and the time below which no implementation can be.
//!
//! With `n` ranks and a message of `S` bytes, what the busiest rank sends and receives:
//!
//! | Collective | Algorithm | Sends | Receives |
//! |---|---|---|---|
//! | all_reduce | ring, direct, halving-doubling, hierarchical, chosen | 2 (n-1)/n S | 2 (n-1)/n S |
//! | all_reduce | recursive-doubling | log2(n) S, rounded up | the same |
//! | all_reduce | flat | (n-1) S | (n-1) S |
//! | reduce_scatter, all_to_all | any | (n-1)/n S | (n-1)/n S |
//! | all_gather | any | (n-1) S | (n-1) S |
//! | broadcast, reduce | any | S | S |
//!
//! The first is the least of all algorithms (Patarasuk and Yuan, "Bandwidth optimal all-reduce
//! algorithms for clusters of workstations", 2009).
//!
//! **Inside a machine** a rank cannot do with less than bringing each byte that it receives from the
//! other's memory into its own once, where a reduction counts as a copy, at the rate that `memcpy`
//! has while all ranks copy pieces as large as the message: `bound = received / memcpy`. What is
//! between the two, a ring in shared memory or the kernel's buffers, may stay in a cache and does
//! not count.
//!
//! **Over links** that are full duplex: `bound = max(sent, received) / link`, which for all_reduce
//! is `2 (n-1)/n S / link`.

use super::rank::Operation;

/// What the busiest rank sends; it receives as much.
pub(super) fn bytes_each_way(
    operation: Operation,
    algorithm: Option<&str>,
    ranks: usize,
    bytes: u64,
) -> Option<f64> {
    let (n, size) = (ranks as f64, bytes as f64);
    let factor = match (operation, algorithm) {
        (Operation::AllReduce, Some("flat")) => n - 1.0,
        (Operation::AllReduce, Some("recursive-doubling")) => n.log2().ceil(),
        (Operation::AllReduce, _) => 2.0 * (n - 1.0) / n,
        (Operation::ReduceScatter | Operation::AllToAll, _) => (n - 1.0) / n,
        (Operation::AllGather, _) => n - 1.0,
        (Operation::Broadcast | Operation::Reduce, _) if ranks > 1 => 1.0,
        (Operation::Broadcast | Operation::Reduce, _) => return None,
    };
    Some(factor * size).filter(|moved| *moved > 0.0)
}

/// The microseconds below which nothing can be where a rank copies, or a link carries each way, `rate` bytes per second.
pub(super) fn bound_us(bytes_each_way: f64, rate: f64) -> f64 {
    bytes_each_way / rate * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_all_reduces_send_almost_twice_the_message() {
        let sent = |algorithm, ranks| bytes_each_way(Operation::AllReduce, algorithm, ranks, 1000);
        assert_eq!(sent(None, 2), Some(1000.0));
        assert_eq!(sent(Some("ring"), 4), Some(1500.0));
        assert_eq!(sent(Some("flat"), 4), Some(3000.0));
        assert_eq!(sent(Some("recursive-doubling"), 8), Some(3000.0));
        assert_eq!(sent(None, 1), None);
        assert_eq!(
            bytes_each_way(Operation::AllGather, None, 3, 10),
            Some(20.0)
        );
    }

    #[test]
    fn bounds_are_those_of_the_documents() {
        // 25 MiB over 1 Gbit/s with 4 ranks: 1.5 x 26.2 MB at 125 MB/s.
        let sent = bytes_each_way(Operation::AllReduce, Some("ring"), 4, 25 << 20).unwrap();
        assert_eq!(bound_us(sent, 125e6).round(), 314_573.0);
        // Two ranks: the other's half to reduce, and the other's sums of the other half.
        let sent = bytes_each_way(Operation::AllReduce, None, 2, 1_000_000).unwrap();
        assert_eq!(bound_us(sent, 10e9), 100.0);
    }
}

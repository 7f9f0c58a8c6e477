//! The collectives, as their callers see them.

use super::ProcessGroup;
use super::algorithm::Algorithm;
use super::collective::Collective;
use super::element::Element;
use super::error::CollectiveError;
use super::reduce::ReduceOp;
use super::signature::{Call, Operation, Signature};
use super::tuning::Path;
use super::work::{Partner, Work};

/// The collectives. Each returns at once; its [`Work`] gives the result.
///
/// Arguments that can never succeed (a root that does not exist, the mean of integers, a message
/// above the limit) are refused with [`CollectiveError::Invalid`] before anything is sent. All
/// other errors are those of [`Work::wait`].
impl ProcessGroup {
    /// Reduces `values` element by element over all ranks; every rank gets the same bits.
    ///
    /// The lengths must be equal on all ranks. See [`ReduceOp`] for the arithmetic.
    pub fn all_reduce<T: Element>(&self, values: Vec<T>, op: ReduceOp) -> Work<Vec<T>> {
        let algorithm = self.algorithm_for(&values);
        let signature = Signature::new(Operation::AllReduce)
            .of::<T>()
            .length(values.len())
            .op(op)
            .algorithm(algorithm);
        let check = self
            .check_op::<T>(op)
            .and(self.check_size::<T>(values.len()));
        self.issue(signature, check, move |collective| {
            collective.all_reduce(values, op, algorithm)
        })
    }

    /// Reduces `values` element by element over all ranks in place, on the caller's own thread;
    /// every rank gets the same bits.
    ///
    /// Comes in the same order as all other collectives of the group: those that were issued
    /// before on this rank are finished first.
    ///
    /// # Errors
    /// Those of [`Work::wait`]. What `values` hold after an error is not specified.
    pub fn all_reduce_in_place<T: Element>(
        &self,
        values: &mut [T],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let result = self.all_reduce(values.to_vec(), op).wait()?;
        values.copy_from_slice(&result);
        Ok(())
    }

    /// Gives every rank the `values` of `root` in place, on the caller's own thread. The lengths
    /// must be equal. As [`ProcessGroup::all_reduce_in_place`] in all else.
    ///
    /// # Errors
    /// Those of [`Work::wait`]. What `values` hold after an error is not specified.
    pub fn broadcast_in_place<T: Element>(
        &self,
        values: &mut [T],
        root: usize,
    ) -> Result<(), CollectiveError> {
        let result = self.broadcast(values.to_vec(), root).wait()?;
        values.copy_from_slice(&result);
        Ok(())
    }

    /// Gives every rank the `values` of `root`. All ranks hand in as many elements as the root
    /// has; those of the others are not looked at.
    pub fn broadcast<T: Element>(&self, values: Vec<T>, root: usize) -> Work<Vec<T>> {
        let algorithm = self.algorithm_for(&values);
        let signature = Signature::new(Operation::Broadcast)
            .of::<T>()
            .length(values.len())
            .root(root)
            .algorithm(algorithm);
        let check = self
            .check_rank(root)
            .and(self.check_size::<T>(values.len()));
        self.issue(signature, check, move |collective| {
            collective.broadcast(values, root, algorithm)
        })
    }

    /// As [`ProcessGroup::all_reduce`], but only `root` gets the result; the others get their own
    /// `values` back.
    pub fn reduce<T: Element>(&self, values: Vec<T>, op: ReduceOp, root: usize) -> Work<Vec<T>> {
        let algorithm = self.algorithm_for(&values);
        let signature = Signature::new(Operation::Reduce)
            .of::<T>()
            .length(values.len())
            .op(op)
            .root(root)
            .algorithm(algorithm);
        let check = self
            .check_op::<T>(op)
            .and(self.check_rank(root))
            .and(self.check_size::<T>(values.len()));
        self.issue(signature, check, move |collective| {
            collective.reduce(values, op, root, algorithm)
        })
    }

    /// Gives every rank the `values` of all ranks, in rank order. The lengths must be equal.
    pub fn all_gather<T: Element>(&self, values: Vec<T>) -> Work<Vec<Vec<T>>> {
        let length = values.len();
        let signature = Signature::new(Operation::AllGather)
            .of::<T>()
            .length(length);
        self.issue(signature, self.check_size::<T>(length), move |collective| {
            collective.all_gather(values, Some(length))
        })
    }

    /// Gives every rank the `values` of all ranks, in rank order. The lengths may differ.
    pub fn all_gather_varied<T: Element>(&self, values: Vec<T>) -> Work<Vec<Vec<T>>> {
        let signature = Signature::new(Operation::AllGatherVaried).of::<T>();
        self.issue(
            signature,
            self.check_size::<T>(values.len()),
            move |collective| collective.all_gather(values, None),
        )
    }

    /// Gives `root` the `values` of all ranks, in rank order, and the others `None`. The lengths
    /// must be equal.
    pub fn gather<T: Element>(&self, values: Vec<T>, root: usize) -> Work<Option<Vec<Vec<T>>>> {
        let signature = Signature::new(Operation::Gather)
            .of::<T>()
            .length(values.len())
            .root(root);
        let check = self
            .check_rank(root)
            .and(self.check_size::<T>(values.len()));
        self.issue(signature, check, move |collective| {
            collective.gather(values, root)
        })
    }

    /// Gives rank `r` the list `r` of `root`. The root hands in one list for each rank, of any
    /// lengths; the others `None`.
    pub fn scatter<T: Element>(&self, lists: Option<Vec<Vec<T>>>, root: usize) -> Work<Vec<T>> {
        let signature = Signature::new(Operation::Scatter).of::<T>().root(root);
        let check = self
            .check_rank(root)
            .and_then(|()| match (&lists, self.rank() == root) {
                (Some(lists), true) => self.check_lists(lists),
                (None, false) => Ok(()),
                (None, true) => Err("the root must hand in a list for each rank".to_owned()),
                (Some(_), false) => Err(format!("only the root, rank {root}, hands in lists")),
            });
        self.issue(signature, check, move |collective| {
            collective.scatter(lists, root)
        })
    }

    /// Reduces `values` over all ranks and gives rank `r` the `r`th of `world_size` equal parts,
    /// into which the length must be divisible.
    pub fn reduce_scatter<T: Element>(&self, values: Vec<T>, op: ReduceOp) -> Work<Vec<T>> {
        let (length, size) = (values.len(), self.world_size());
        let signature = Signature::new(Operation::ReduceScatter)
            .of::<T>()
            .length(length)
            .op(op);
        let check = self
            .check_op::<T>(op)
            .and(self.check_size::<T>(length))
            .and_then(|()| {
                if length.is_multiple_of(size) {
                    return Ok(());
                }
                Err(format!(
                    "the length {length} is not divisible by the {size} ranks; pad it"
                ))
            });
        self.issue(signature, check, move |collective| {
            collective.reduce_scatter(values, op)
        })
    }

    /// Sends list `r` to rank `r` and gives the lists that the ranks sent here, in rank order.
    /// Each rank hands in one list for each rank, of any lengths.
    pub fn all_to_all<T: Element>(&self, lists: Vec<Vec<T>>) -> Work<Vec<Vec<T>>> {
        let signature = Signature::new(Operation::AllToAll).of::<T>();
        self.issue(signature, self.check_lists(&lists), move |collective| {
            collective.all_to_all(lists)
        })
    }

    /// Is done when every rank has called it.
    pub fn barrier(&self) -> Work<()> {
        self.issue(Signature::new(Operation::Barrier), Ok(()), |collective| {
            collective
                .open(|_| crate::transport::Payload::empty())
                .map(drop)
        })
    }

    /// Queues a collective for the communication thread, unless `check` has found why it can
    /// never succeed.
    pub(super) fn issue<R: Send + 'static>(
        &self,
        signature: Signature,
        check: Result<(), String>,
        run: impl FnOnce(&Collective<'_>) -> Result<R, CollectiveError> + Send + 'static,
    ) -> Work<R> {
        let call = Call::Collective(signature);
        if let Err(reason) = check {
            return self.refuse(call, reason);
        }
        self.shared.enqueue(call, |place| {
            let (work, completion) = Work::new(&self.shared, place, Partner::Everyone);
            let core = self.core().clone();
            let job = move |refused: Option<CollectiveError>| {
                let failure = core
                    .mailbox
                    .failure()
                    .map(|failure| core.failed(&place, &failure));
                let result = match refused.or(failure) {
                    Some(error) => Err(error),
                    None => run(&Collective::new(&core, place, signature)),
                };
                completion.complete(result);
            };
            (Box::new(job), work)
        })
    }

    /// A call whose arguments can never succeed: nothing is sent, no number is taken.
    pub(super) fn refuse<R>(&self, call: Call, reason: String) -> Work<R> {
        let place = self.core().place(call);
        let (work, completion) = Work::new(&self.shared, place, Partner::Everyone);
        completion.complete(Err(self.invalid(call, reason)));
        work
    }

    pub(super) fn invalid(&self, call: Call, reason: String) -> CollectiveError {
        let (rank, operation) = (self.core().job_rank(), call.to_string());
        CollectiveError::Invalid {
            rank,
            operation,
            reason,
        }
    }

    fn algorithm_for<T: Element>(&self, values: &[T]) -> Algorithm {
        let options = &self.core().options;
        let algorithm = options.algorithm.unwrap_or_else(|| {
            options
                .tuning
                .choose(Path::Tcp, self.world_size(), size_of_val(values))
        });
        algorithm.simplified()
    }

    pub(super) fn check_rank(&self, rank: usize) -> Result<(), String> {
        let size = self.world_size();
        if rank < size {
            return Ok(());
        }
        Err(format!("rank {rank} does not exist in a group of {size}"))
    }

    pub(super) fn check_size<T: Element>(&self, length: usize) -> Result<(), String> {
        let bytes = length as u64 * size_of::<T>() as u64;
        let limit = self.core().options.max_message_bytes;
        if bytes <= limit {
            return Ok(());
        }
        Err(format!(
            "{bytes} bytes are more than the limit of {limit} a message; split it or raise \
             `max_message_bytes` on all ranks"
        ))
    }

    fn check_lists<T: Element>(&self, lists: &[Vec<T>]) -> Result<(), String> {
        let size = self.world_size();
        if lists.len() != size {
            return Err(format!("{} lists were given for {size} ranks", lists.len()));
        }
        lists
            .iter()
            .try_for_each(|list| self.check_size::<T>(list.len()))
    }

    fn check_op<T: Element>(&self, op: ReduceOp) -> Result<(), String> {
        if op.supports::<T>() {
            return Ok(());
        }
        Err(format!(
            "{op} does not exist for {}; sum and divide, or convert first",
            T::DTYPE
        ))
    }
}

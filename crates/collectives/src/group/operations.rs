//! The collectives, as their callers see them.

use super::ProcessGroup;
use super::collective::Collective;
use super::core::{Core, OpContext};
use super::element::Element;
use super::engine::WaitPolicy;
use super::error::CollectiveError;
use super::reduce::ReduceOp;
use super::signature::{Call, Operation, Signature};
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
    pub fn all_reduce<T: Element>(&self, mut values: Vec<T>, op: ReduceOp) -> Work<Vec<T>> {
        let signature = self.all_reduce_call(&values, op);
        self.issue(signature, Ok(()), move |collective| {
            collective.all_reduce(&mut values, op)?;
            Ok(values)
        })
    }

    /// As [`ProcessGroup::all_reduce`], in place and on the caller's own thread: no allocation
    /// and, for small messages, no switch between threads.
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
        let signature = self.all_reduce_call(values, op);
        self.run_here(signature, |collective| collective.all_reduce(values, op))
    }

    fn all_reduce_call<T: Element>(&self, values: &[T], op: ReduceOp) -> Signature {
        Signature::new(Operation::AllReduce)
            .of::<T>()
            .length(values.len())
            .op(op)
            .under(&self.core().options)
    }

    /// Gives every rank the `values` of `root`. All ranks hand in as many elements as the root
    /// has; those of the others are not looked at.
    pub fn broadcast<T: Element>(&self, mut values: Vec<T>, root: usize) -> Work<Vec<T>> {
        let signature = self.broadcast_call(&values, root);
        self.issue(signature, Ok(()), move |collective| {
            collective.broadcast(&mut values, root)?;
            Ok(values)
        })
    }

    /// As [`ProcessGroup::broadcast`], in place and on the caller's own thread.
    ///
    /// # Errors
    /// Those of [`Work::wait`]. What `values` hold after an error is not specified.
    pub fn broadcast_in_place<T: Element>(
        &self,
        values: &mut [T],
        root: usize,
    ) -> Result<(), CollectiveError> {
        let signature = self.broadcast_call(values, root);
        self.run_here(signature, |collective| collective.broadcast(values, root))
    }

    fn broadcast_call<T: Element>(&self, values: &[T], root: usize) -> Signature {
        Signature::new(Operation::Broadcast)
            .of::<T>()
            .length(values.len())
            .root(root)
            .under(&self.core().options)
    }

    /// As [`ProcessGroup::all_reduce`], but only `root` gets the result; the others get their own
    /// `values` back.
    pub fn reduce<T: Element>(&self, values: Vec<T>, op: ReduceOp, root: usize) -> Work<Vec<T>> {
        let signature = Signature::new(Operation::Reduce)
            .of::<T>()
            .length(values.len())
            .op(op)
            .root(root)
            .under(&self.core().options);
        self.issue(signature, Ok(()), move |collective| {
            collective.reduce(values, op, root)
        })
    }

    /// Gives every rank the `values` of all ranks, in rank order. The lengths must be equal.
    pub fn all_gather<T: Element>(&self, values: Vec<T>) -> Work<Vec<Vec<T>>> {
        let length = values.len();
        let signature = Signature::new(Operation::AllGather)
            .of::<T>()
            .length(length);
        self.issue(signature, Ok(()), move |collective| {
            collective.gather(values, None)
        })
    }

    /// Gives every rank the `values` of all ranks, in rank order. The lengths may differ.
    pub fn all_gather_varied<T: Element>(&self, values: Vec<T>) -> Work<Vec<Vec<T>>> {
        let signature = Signature::new(Operation::AllGatherVaried).of::<T>();
        self.issue(
            signature,
            self.check_size::<T>(values.len()),
            move |collective| collective.gather_varied(values),
        )
    }

    /// Gives `root` the `values` of all ranks, in rank order, and the others `None`. The lengths
    /// must be equal.
    pub fn gather<T: Element>(&self, values: Vec<T>, root: usize) -> Work<Option<Vec<Vec<T>>>> {
        let signature = Signature::new(Operation::Gather)
            .of::<T>()
            .length(values.len())
            .root(root);
        let is_root = self.rank() == root;
        self.issue(signature, Ok(()), move |collective| {
            let lists = collective.gather(values, Some(root))?;
            Ok(is_root.then_some(lists))
        })
    }

    /// Gives rank `r` the list `r` of `root`. The root hands in one list for each rank, of any
    /// lengths; the others `None`.
    pub fn scatter<T: Element>(&self, lists: Option<Vec<Vec<T>>>, root: usize) -> Work<Vec<T>> {
        let signature = Signature::new(Operation::Scatter).of::<T>().root(root);
        let check = match (&lists, self.rank() == root) {
            (Some(lists), true) => self.check_lists(lists),
            (None, false) => Ok(()),
            (None, true) => Err("the root must hand in a list for each rank".to_owned()),
            (Some(_), false) => Err(format!("only the root, rank {root}, hands in lists")),
        };
        self.issue(signature, check, move |collective| {
            let mut lists = collective.all_to_all(lists.unwrap_or_default())?;
            Ok(lists.swap_remove(root))
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
        let check = match length.is_multiple_of(size) {
            true => Ok(()),
            false => Err(format!(
                "the length {length} is not divisible by the {size} ranks; pad it"
            )),
        };
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
        let signature = Signature::new(Operation::Barrier);
        self.issue(signature, Ok(()), |collective| {
            // The method itself would be one of a single lifetime.
            collective.barrier()?;
            Ok(())
        })
    }

    /// Queues a collective for the communication thread, unless `check` has found why it can
    /// never succeed.
    pub(super) fn issue<R: Send + 'static>(
        &self,
        signature: Signature,
        check: Result<(), String>,
        run: impl FnOnce(&mut Collective<'_>) -> Result<R, CollectiveError> + Send + 'static,
    ) -> Work<R> {
        let call = Call::Collective(signature);
        if let Err(reason) = self.check_call(call).and(check) {
            return self.refuse(call, reason);
        }
        self.shared.enqueue(call, |context| {
            let (work, completion) = Work::new(&self.shared, context, Partner::Everyone);
            let core = self.core().clone();
            let job = move |refused: Option<CollectiveError>| {
                let turn = match refused {
                    Some(error) => {
                        core.record_end(&context, true);
                        Err(error)
                    }
                    None => core.take_turn(&context),
                };
                let wait_policy = WaitPolicy::Background;
                let result = turn.and_then(|context| {
                    let result = run(&mut Collective::new(&core, context, signature, wait_policy));
                    core.record_end(&context, result.is_err());
                    result
                });
                completion.complete(result);
            };
            (Box::new(job), work)
        })
    }

    /// Runs a collective on this thread when its turn has come, unless it can never succeed.
    fn run_here<R>(
        &self,
        signature: Signature,
        run: impl FnOnce(&mut Collective<'_>) -> Result<R, CollectiveError>,
    ) -> Result<R, CollectiveError> {
        let call = Call::Collective(signature);
        self.check_call(call)
            .map_err(|reason| self.invalid(call, reason))?;
        let core = self.core();
        let context = self.shared.take_number(call)?;
        // Failed unless it is seen to be done: it may panic.
        let mut turn = TurnGuard {
            core,
            context,
            failed: true,
        };
        turn.context = core.take_turn(&context)?;
        let result = run(&mut Collective::new(
            core,
            turn.context,
            signature,
            self.wait_policy,
        ));
        turn.failed = result.is_err();
        result
    }

    /// A call whose arguments can never succeed: nothing is sent, no number is taken.
    pub(super) fn refuse<R>(&self, call: Call, reason: String) -> Work<R> {
        let context = self.core().context(call);
        let (work, completion) = Work::new(&self.shared, context, Partner::Everyone);
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

    /// Refuses what can never succeed, as far as the call says so.
    pub(super) fn check_call(&self, call: Call) -> Result<(), String> {
        call.check(self.world_size())?;
        self.check_bytes(call.bytes().unwrap_or(0))
    }

    fn check_size<T: Element>(&self, length: usize) -> Result<(), String> {
        self.check_bytes(length as u64 * size_of::<T>() as u64)
    }

    fn check_bytes(&self, bytes: u64) -> Result<(), String> {
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
}

/// Lets the next collective begin, whichever way this one ends.
struct TurnGuard<'a> {
    core: &'a Core,
    context: OpContext,
    failed: bool,
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        self.core.finish(&self.context, self.failed);
    }
}

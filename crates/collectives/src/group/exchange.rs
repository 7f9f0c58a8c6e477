//! What each collective does once its turn has come. Costs are in [`super::algorithm`].

use std::sync::Arc;

use super::algorithm::{Algorithm, chunk};
use super::collective::Collective;
use super::element::Element;
use super::error::CollectiveError;
use super::reduce::{ReduceOp, reduce_in_rank_order};
use crate::transport::Payload;

/// The phase after the opening.
const HANDING_OUT: u8 = 1;

impl Collective<'_> {
    /// Flat: everybody sends everything to everybody and reduces all of it.
    ///
    /// Direct, a reduce-scatter and an all-gather in one step each: rank `r` receives chunk `r`
    /// of everybody, reduces it in rank order and sends the result to everybody.
    pub(crate) fn all_reduce<T: Element>(
        &self,
        values: Vec<T>,
        op: ReduceOp,
        algorithm: Algorithm,
    ) -> Result<Vec<T>, CollectiveError> {
        let length = values.len();
        let values = Arc::new(values);
        match algorithm {
            Algorithm::Flat => {
                let parts = self.open(|_| Payload::part_of(&values, 0..length))?;
                self.reduce_parts(&values, &parts, op)
            }
            _ => {
                let reduced = self.reduce_own_chunk(&values, op)?;
                for peer in self.others() {
                    self.send(
                        peer,
                        HANDING_OUT,
                        Payload::part_of(&reduced, 0..reduced.len()),
                    );
                }
                let mut result = reuse(values);
                result[chunk(length, self.rank(), self.size())].copy_from_slice(&reduced);
                self.receive(HANDING_OUT, self.others(), |peer, payload| {
                    let range = chunk(length, peer, self.size());
                    let part = self.elements(peer, &payload, range.len())?;
                    result[range].copy_from_slice(part);
                    Ok(())
                })?;
                Ok(result)
            }
        }
    }

    /// Flat: everybody sends everything to the root. Direct: as in all_reduce, but the reduced
    /// chunks go to the root only.
    pub(crate) fn reduce<T: Element>(
        &self,
        values: Vec<T>,
        op: ReduceOp,
        root: usize,
        algorithm: Algorithm,
    ) -> Result<Vec<T>, CollectiveError> {
        let length = values.len();
        let values = Arc::new(values);
        let is_root = self.rank() == root;
        match algorithm {
            Algorithm::Flat => {
                let parts = self.open(|peer| {
                    let length = if peer == root { length } else { 0 };
                    Payload::part_of(&values, 0..length)
                })?;
                if is_root {
                    self.reduce_parts(&values, &parts, op)
                } else {
                    Ok(unshare(values))
                }
            }
            _ => {
                let reduced = self.reduce_own_chunk(&values, op)?;
                if !is_root {
                    self.send(
                        root,
                        HANDING_OUT,
                        Payload::part_of(&reduced, 0..reduced.len()),
                    );
                    return Ok(unshare(values));
                }
                let mut result = reuse(values);
                result[chunk(length, root, self.size())].copy_from_slice(&reduced);
                self.receive(HANDING_OUT, self.others(), |peer, payload| {
                    let range = chunk(length, peer, self.size());
                    let part = self.elements(peer, &payload, range.len())?;
                    result[range].copy_from_slice(part);
                    Ok(())
                })?;
                Ok(result)
            }
        }
    }

    /// Every rank gives `size` chunks and gets the reduction of its own.
    pub(crate) fn reduce_scatter<T: Element>(
        &self,
        values: Vec<T>,
        op: ReduceOp,
    ) -> Result<Vec<T>, CollectiveError> {
        let values = Arc::new(values);
        self.reduce_own_chunk(&values, op).map(unshare)
    }

    /// Flat: the root sends everything to everybody. Direct: the root sends chunk `r` to rank
    /// `r`, which hands it out, and its own chunk to everybody.
    pub(crate) fn broadcast<T: Element>(
        &self,
        values: Vec<T>,
        root: usize,
        algorithm: Algorithm,
    ) -> Result<Vec<T>, CollectiveError> {
        let length = values.len();
        let values = Arc::new(values);
        let is_root = self.rank() == root;
        let own = chunk(length, self.rank(), self.size());
        match algorithm {
            Algorithm::Flat => {
                let length_for = if is_root { length } else { 0 };
                let mut parts = self.open(|_| Payload::part_of(&values, 0..length_for))?;
                if is_root {
                    return Ok(unshare(values));
                }
                self.take_list(root, parts.swap_remove(root), Some(length))
            }
            _ => {
                let parts = self.open(|peer| {
                    let range = if is_root {
                        chunk(length, peer, self.size())
                    } else {
                        0..0
                    };
                    Payload::part_of(&values, range)
                })?;
                if is_root {
                    for peer in self.others() {
                        self.send(peer, HANDING_OUT, Payload::part_of(&values, own.clone()));
                    }
                    return Ok(unshare(values));
                }
                let part = &parts[root];
                self.elements::<T>(root, part, own.len())?;
                for peer in self.others().filter(|peer| *peer != root) {
                    self.send(peer, HANDING_OUT, part.clone());
                }
                let mut result = reuse(values);
                result[own.clone()].copy_from_slice(self.elements(root, part, own.len())?);
                self.receive(HANDING_OUT, self.others(), |peer, payload| {
                    let range = chunk(length, peer, self.size());
                    let part = self.elements(peer, &payload, range.len())?;
                    result[range].copy_from_slice(part);
                    Ok(())
                })?;
                Ok(result)
            }
        }
    }

    /// Everybody sends everything to everybody; `length` is what each must send, if it is known.
    pub(crate) fn all_gather<T: Element>(
        &self,
        values: Vec<T>,
        length: Option<usize>,
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        let own = values.len();
        let values = Arc::new(values);
        let parts = self.open(|_| Payload::part_of(&values, 0..own))?;
        self.take_lists(parts, unshare(values), length)
    }

    /// Everybody sends everything to the root.
    pub(crate) fn gather<T: Element>(
        &self,
        values: Vec<T>,
        root: usize,
    ) -> Result<Option<Vec<Vec<T>>>, CollectiveError> {
        let length = values.len();
        let values = Arc::new(values);
        let parts = self.open(|peer| {
            let length = if peer == root { length } else { 0 };
            Payload::part_of(&values, 0..length)
        })?;
        if self.rank() != root {
            return Ok(None);
        }
        self.take_lists(parts, unshare(values), Some(length))
            .map(Some)
    }

    /// The root sends each rank its list.
    pub(crate) fn scatter<T: Element>(
        &self,
        lists: Option<Vec<Vec<T>>>,
        root: usize,
    ) -> Result<Vec<T>, CollectiveError> {
        let lists: Vec<_> = lists
            .unwrap_or_default()
            .into_iter()
            .map(Payload::from_vec)
            .collect();
        let list_for = |rank: usize| lists.get(rank).cloned().unwrap_or_else(Payload::empty);
        let mut parts = self.open(list_for)?;
        let mine = if self.rank() == root {
            list_for(root)
        } else {
            parts.swap_remove(root)
        };
        drop(lists);
        self.take_list(root, mine, None)
    }

    /// Rank `a` sends its list `b` to rank `b`, which gets it as its list `a`.
    pub(crate) fn all_to_all<T: Element>(
        &self,
        mut lists: Vec<Vec<T>>,
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        let own = std::mem::take(&mut lists[self.rank()]);
        let lists: Vec<_> = lists.into_iter().map(Payload::from_vec).collect();
        let parts = self.open(|peer| lists[peer].clone())?;
        self.take_lists(parts, own, None)
    }

    /// The opening in which rank `r` gets chunk `r` of everybody, and the reduction of this
    /// rank's.
    fn reduce_own_chunk<T: Element>(
        &self,
        values: &Arc<Vec<T>>,
        op: ReduceOp,
    ) -> Result<Arc<Vec<T>>, CollectiveError> {
        let chunk_of = |rank| chunk(values.len(), rank, self.size());
        let parts = self.open(|peer| Payload::part_of(values, chunk_of(peer)))?;
        self.reduce_parts(&values[chunk_of(self.rank())], &parts, op)
            .map(Arc::new)
    }

    /// Reduces what all ranks sent for this one in rank order; `own` is this rank's contribution.
    fn reduce_parts<T: Element>(
        &self,
        own: &[T],
        parts: &[Payload],
        op: ReduceOp,
    ) -> Result<Vec<T>, CollectiveError> {
        let mut contributions = Vec::with_capacity(self.size());
        for (peer, part) in parts.iter().enumerate() {
            contributions.push(if peer == self.rank() {
                own
            } else {
                self.elements(peer, part, own.len())?
            });
        }
        let mut result = bytemuck::allocation::zeroed_vec(own.len());
        reduce_in_rank_order(op, &contributions, &mut result);
        Ok(result)
    }

    /// What all ranks sent, by rank.
    fn take_lists<T: Element>(
        &self,
        parts: Vec<Payload>,
        own: Vec<T>,
        length: Option<usize>,
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        let mut lists = Vec::with_capacity(self.size());
        for (peer, part) in parts.into_iter().enumerate() {
            if peer != self.rank() {
                lists.push(self.take_list(peer, part, length)?);
            } else {
                lists.push(Vec::new());
            }
        }
        lists[self.rank()] = own;
        Ok(lists)
    }
}

/// The `Vec` itself where the network has finished with it, else one of the same length whose
/// elements mean nothing yet.
fn reuse<T: Element>(values: Arc<Vec<T>>) -> Vec<T> {
    let length = values.len();
    Arc::try_unwrap(values).unwrap_or_else(|_| bytemuck::allocation::zeroed_vec(length))
}

/// The `Vec` itself where the network has finished with it, else a copy.
fn unshare<T: Element>(values: Arc<Vec<T>>) -> Vec<T> {
    Arc::try_unwrap(values).unwrap_or_else(|shared| shared.to_vec())
}

//! A store that puts a prefix before every key of another.

use std::borrow::Cow;

use super::{SharedStore, Store, StoreView};

/// A view of another [`Store`] in which every key is `prefix + "/" + key`, as in PyTorch.
///
/// Several jobs, groups or attempts share one store by it. [`Store::num_keys`] counts the keys of
/// the whole store below, as PyTorch's does.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::sync::Arc;
/// use everburn::collectives::store::{HashStore, PrefixStore, Store};
///
/// let whole = Arc::new(HashStore::new());
/// let group = PrefixStore::new("group0", whole.clone());
/// group.set("size", b"4")?;
/// assert_eq!(whole.get("group0/size")?, b"4");
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
#[derive(Debug, Clone)]
pub struct PrefixStore {
    prefix: String,
    inner: SharedStore,
}

impl PrefixStore {
    /// A view of `inner` below `prefix`.
    #[must_use]
    pub fn new(prefix: impl Into<String>, inner: SharedStore) -> Self {
        Self {
            prefix: prefix.into(),
            inner,
        }
    }

    /// The store below.
    #[must_use]
    pub fn inner(&self) -> &SharedStore {
        &self.inner
    }
}

impl StoreView for PrefixStore {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    fn name<'a>(&self, key: &'a str) -> Cow<'a, str> {
        Cow::Owned(format!("{}/{key}", self.prefix))
    }
}

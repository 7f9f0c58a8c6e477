//! Where a layer's backward step leaves what its weight's gradient is computed from.

use std::any::Any;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Filled in the first backward pass, emptied in the second.
#[derive(Default)]
pub(crate) struct Slot {
    content: Mutex<Content>,
}

#[derive(Default)]
enum Content {
    /// The weight needs no gradient.
    #[default]
    Nothing,
    /// The first backward pass has not come to the layer.
    Awaited,
    /// An `operations::Operands<B>` of the layer's backend.
    Filled(Box<dyn Any + Send>),
}

impl Slot {
    fn content(&self) -> MutexGuard<'_, Content> {
        // It is replaced as a whole, so a panic cannot leave half of it.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces that something will come.
    pub(crate) fn expect(&self) {
        *self.content() = Content::Awaited;
    }

    pub(crate) fn fill<T: Send + 'static>(&self, operands: T) {
        *self.content() = Content::Filled(Box::new(operands));
    }

    /// What has come, once.
    pub(crate) fn take<T: 'static>(&self) -> Option<T> {
        match std::mem::take(&mut *self.content()) {
            Content::Filled(operands) => operands.downcast().ok().map(|operands| *operands),
            Content::Nothing | Content::Awaited => None,
        }
    }

    pub(crate) fn is_awaited(&self) -> bool {
        matches!(*self.content(), Content::Awaited)
    }

    pub(crate) fn is_filled(&self) -> bool {
        matches!(*self.content(), Content::Filled(_))
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self.content() {
            Content::Nothing => "Slot(nothing)",
            Content::Awaited => "Slot(awaited)",
            Content::Filled(_) => "Slot(filled)",
        })
    }
}

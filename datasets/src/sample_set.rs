//! What sets of samples have in common: they are sets of Burn, and are printed by a few figures.

/// Makes a type a set of Burn, of the items that its method `$get` returns.
macro_rules! burn_set {
    ($set:ident of $item:ident by $get:ident) => {
        impl burn_dataset::Dataset<$item> for $set {
            fn get(&self, index: usize) -> Result<$item, burn_dataset::DatasetError> {
                self.$get(index).map_err(burn_dataset::DatasetError::new)
            }

            fn len(&self) -> usize {
                $set::len(self)
            }
        }
    };
}

/// Prints a type by these fields: the derived form would print all samples.
macro_rules! debug_by {
    ($set:ident, $it:ident => $($field:ident: $value:expr),+) => {
        impl std::fmt::Debug for $set {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $it = self;
                f.debug_struct(stringify!($set))
                    $(.field(stringify!($field), &$value))+
                    .finish_non_exhaustive()
            }
        }
    };
}

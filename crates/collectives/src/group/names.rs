//! The names and codes of what ranks agree on.

/// Gives an enum its list, its names and its codes on the wire, which are the places in the list: the variants in
/// the order of their declaration.
macro_rules! names {
    ($type:ident { $($variant:ident: $name:literal),* $(,)? }) => {
        impl $type {
            /// Every one; the place in this list is the code on the wire.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            pub(crate) const fn code(self) -> u8 {
                self as u8
            }

            pub(crate) fn from_code(code: u8) -> Option<Self> {
                Self::ALL.get(usize::from(code)).copied()
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub(super) use names;

#[cfg(test)]
mod tests {
    use crate::group::{Algorithm, DType, Operation, ReduceOp};

    #[test]
    fn codes_survive_the_wire() {
        fn survive<T: Copy + PartialEq + std::fmt::Debug>(
            all: &[T],
            code: fn(T) -> u8,
            from_code: fn(u8) -> Option<T>,
        ) {
            for one in all {
                assert_eq!(from_code(code(*one)), Some(*one));
            }
            assert_eq!(from_code(all.len() as u8), None);
        }
        survive(&DType::ALL, DType::code, DType::from_code);
        survive(&Operation::ALL, Operation::code, Operation::from_code);
        survive(&ReduceOp::ALL, ReduceOp::code, ReduceOp::from_code);
        survive(&Algorithm::ALL, Algorithm::code, Algorithm::from_code);
    }
}

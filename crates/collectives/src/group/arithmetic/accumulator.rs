//! The types in which reductions are computed, and the ways to combine two numbers.

/// The arithmetic of reductions.
#[doc(hidden)]
pub trait Accumulator: Copy + Default + Send + Sync + 'static {
    /// `self + other`; integers wrap.
    fn add(self, other: Self) -> Self;
    /// `self * other`; integers wrap.
    fn multiply(self, other: Self) -> Self;
    /// The lesser; NaN if one of them is NaN, the first one if both are.
    fn least(self, other: Self) -> Self;
    /// The greater; NaN if one of them is NaN, the first one if both are.
    fn greatest(self, other: Self) -> Self;
    /// `self / ranks`; integers are returned unchanged (their mean is refused before).
    fn divide(self, ranks: usize) -> Self;
    /// Every NaN as the one positive, quiet NaN without a payload. Which NaN an addition returns
    /// is the processor's choice, and its operands' order the compiler's.
    fn canonical(self) -> Self;
}

macro_rules! float_accumulator {
    ($($type:ty, $nan:expr);*) => {$(
        impl Accumulator for $type {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }
            // `self.is_nan()` first: a comparison with NaN is false, so a NaN on the right falls
            // through to `other`, and one on the left needs to be kept by name.
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                if self.is_nan() || self < other { self } else { other }
            }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                if self.is_nan() || self > other { self } else { other }
            }
            #[inline(always)]
            fn divide(self, ranks: usize) -> Self {
                self / ranks as $type
            }
            #[inline(always)]
            fn canonical(self) -> Self {
                if self.is_nan() { <$type>::from_bits($nan) } else { self }
            }
        }
    )*};
}

macro_rules! integer_accumulator {
    ($($type:ty),*) => {$(
        impl Accumulator for $type {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn divide(self, _ranks: usize) -> Self {
                self
            }
            #[inline(always)]
            fn canonical(self) -> Self {
                self
            }
        }
    )*};
}

float_accumulator!(f32, 0x7fc0_0000; f64, 0x7ff8_0000_0000_0000);
integer_accumulator!(i32, i64, u8);

/// How two numbers become one, and what becomes of the last.
pub(crate) trait Combination<A: Accumulator>: Copy {
    /// Combines what lower ranks gave with what a higher one gave.
    fn combine(self, before: A, after: A) -> A;
    /// Makes the result of what all gave.
    fn finish(self, all: A) -> A;
}

macro_rules! combination {
    ($(#[$doc:meta])* $name:ident, $combine:ident, $finish:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl<A: Accumulator> Combination<A> for $name {
            #[inline(always)]
            fn combine(self, before: A, after: A) -> A {
                before.$combine(after)
            }
            #[inline(always)]
            fn finish(self, all: A) -> A {
                $finish(all)
            }
        }
    };
}

combination!(
    /// The sum.
    Sum, add, Accumulator::canonical
);
combination!(
    /// The product.
    Product, multiply, Accumulator::canonical
);
combination!(
    /// The least.
    Least, least, std::convert::identity
);
combination!(
    /// The greatest.
    Greatest, greatest, std::convert::identity
);

/// The sum, and at the end its quotient by this number of ranks.
#[derive(Clone, Copy)]
pub(crate) struct Mean {
    pub(crate) ranks: usize,
}

impl<A: Accumulator> Combination<A> for Mean {
    #[inline(always)]
    fn combine(self, before: A, after: A) -> A {
        before.add(after)
    }
    #[inline(always)]
    fn finish(self, all: A) -> A {
        all.divide(self.ranks).canonical()
    }
}

/// Another combination, with the two numbers given in the opposite order.
#[derive(Clone, Copy)]
pub(crate) struct Swapped<C>(pub(crate) C);

impl<A: Accumulator, C: Combination<A>> Combination<A> for Swapped<C> {
    #[inline(always)]
    fn combine(self, before: A, after: A) -> A {
        self.0.combine(after, before)
    }
    #[inline(always)]
    fn finish(self, all: A) -> A {
        self.0.finish(all)
    }
}

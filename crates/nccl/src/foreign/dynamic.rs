//! Libraries that are opened at run time, and tables of their functions.

#![expect(unsafe_code, reason = "libraries are opened at run time")]

use std::fs;
use std::path::{Path, PathBuf};

/// A library that stays open for as long as the process runs: NCCL and the driver have threads of
/// their own, from under which code must not be taken.
pub(super) struct Opened {
    library: &'static libloading::Library,
    pub(super) path: PathBuf,
}

impl Opened {
    /// The first of `names` that can be opened; else what the loader said of each.
    pub(super) fn first(names: impl IntoIterator<Item = PathBuf>) -> Result<Self, Vec<String>> {
        let mut tried = Vec::new();
        for name in names {
            // SAFETY: opening runs the initialisers of a library that bears the name of NVIDIA's or AMD's;
            // they are sound on any thread. That it is theirs is the user's word, as with every
            // library that the system's loader finds.
            match unsafe { libloading::Library::new(&name) } {
                Ok(library) => {
                    let path = mapped(&name).unwrap_or(name);
                    let library = Box::leak(Box::new(library));
                    return Ok(Self { library, path });
                }
                Err(error) => tried.push(describe(&name, &error)),
            }
        }
        Err(tried)
    }

    /// The function `name`, if there is one.
    ///
    /// # Safety
    /// `F` is the type of a function pointer with the signature that the library's header gives
    /// `name`.
    pub(super) unsafe fn function<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: the caller vouches for the type. The library is never closed.
        let found = unsafe { self.library.get::<F>(name.as_bytes()) };
        found.ok().map(|function| *function)
    }
}

/// The loader's own words, which mostly begin with the name already.
fn describe(name: &Path, error: &libloading::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = innermost.to_string();
    let name = name.display().to_string();
    match text.contains(&name) {
        true => text,
        false => format!("{name}: {text}"),
    }
}

/// The file that the loader has taken for `name`, as far as the system tells.
fn mapped(name: &Path) -> Option<PathBuf> {
    let wanted = name.file_name()?.to_str()?;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    paths.map(Path::new).find_map(|path| {
        // The file may have a longer number than the link by which it was found.
        let file = path.file_name()?.to_str()?;
        file.starts_with(wanted).then(|| path.to_path_buf())
    })
}

/// A table of functions: `field: fn(types) -> type = "symbol";`, as the library's header has them.
macro_rules! functions {
    ($(#[$attribute:meta])* $table:ident {
        $($field:ident: fn($($argument:ty),*) -> $result:ty = $symbol:literal;)*
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy)]
        pub(super) struct $table {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            /// All of them, or the name of one that is missing.
            pub(super) fn load(opened: &$crate::foreign::dynamic::Opened) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the table repeats the signatures of the library's header.
                    $($field: unsafe { opened.function($symbol) }.ok_or($symbol)?,)*
                })
            }
        }
    };
}

pub(super) use functions;

/// A function that has another name in the library of each vendor.
#[derive(Clone, Copy)]
pub(super) struct Named<F> {
    pub(super) name: &'static str,
    pub(super) call: F,
}

/// As [`functions`], for what the libraries of both vendors have: `field: fn(types) -> type = "NVIDIA's" | "AMD's";`.
macro_rules! functions_of_both {
    ($(#[$attribute:meta])* $table:ident {
        $($field:ident: fn($($argument:ty),*) -> $result:ty = $nvidia:literal | $amd:literal;)*
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy)]
        pub(super) struct $table {
            $(pub(super) $field: $crate::foreign::dynamic::Named<unsafe extern "C" fn($($argument),*) -> $result>,)*
        }

        impl $table {
            /// All of them, or the name of one that is missing.
            pub(super) fn load(
                vendor: $crate::vendor::Vendor,
                opened: &$crate::foreign::dynamic::Opened,
            ) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        let name = match vendor {
                            $crate::vendor::Vendor::Nvidia => $nvidia,
                            $crate::vendor::Vendor::Amd => $amd,
                        };
                        // SAFETY: the table repeats the signatures of both libraries' headers.
                        let call = unsafe { opened.function(name) }.ok_or(name)?;
                        $crate::foreign::dynamic::Named { name, call }
                    },)*
                })
            }
        }
    };
}

pub(super) use functions_of_both;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_nowhere_is_named_with_the_loaders_answer() {
        let names = ["libno-such-thing.so.7", "/no/such/folder/lib.so"].map(PathBuf::from);
        let tried = Opened::first(names).err().unwrap();
        assert_eq!(tried.len(), 2);
        assert!(tried[0].contains("libno-such-thing.so.7"), "{tried:?}");
        assert!(tried[1].contains("/no/such/folder/lib.so"), "{tried:?}");
    }

    functions! {
        /// Of the C library, which is always there.
        Arithmetic {
            absolute: fn(i32) -> i32 = "abs";
        }
    }

    functions! {
        Missing {
            _nothing: fn() -> i32 = "everburn_has_no_such_function";
        }
    }

    functions_of_both! {
        OfEach {
            magnitude: fn(i64) -> i64 = "labs" | "llabs";
            _missing: fn() -> i32 = "abs" | "everburn_has_no_such_function";
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_function_of_both_vendors_is_found_by_the_name_of_one() {
        use crate::vendor::Vendor;

        let opened = Opened::first(["libc.so.6".into()]).ok().unwrap();
        let table = OfEach::load(Vendor::Nvidia, &opened).unwrap();
        assert_eq!(table.magnitude.name, "labs");
        // SAFETY: `labs` takes and gives a `long`.
        assert_eq!(unsafe { (table.magnitude.call)(-7) }, 7);
        let missing = OfEach::load(Vendor::Amd, &opened).err();
        assert_eq!(missing, Some("everburn_has_no_such_function"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn functions_are_found_by_name_and_the_missing_one_is_named() {
        let opened = Opened::first(["libc.so.6".into()]).ok().unwrap();
        assert!(opened.path.is_absolute(), "{}", opened.path.display());
        let table = Arithmetic::load(&opened).unwrap();
        // SAFETY: `abs` takes and gives an `int`.
        assert_eq!(unsafe { (table.absolute)(-7) }, 7);
        assert_eq!(
            Missing::load(&opened).err(),
            Some("everburn_has_no_such_function")
        );
    }
}

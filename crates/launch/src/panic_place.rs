//! What the message of a panic leaves out: where in the user's code it began (Burn's own message about shapes names neither the
//! layer nor the model), and that the device has failed.

use std::backtrace::Backtrace;
use std::sync::{Arc, Mutex, OnceLock};

use everburn_collectives::sync::lock;
use everburn_collectives::worker::message_of;
use everburn_record::{attempt, task_method};

use crate::failure::split_headline;

/// How many of the newest panics are remembered: the one that ends a rank is among the last.
const REMEMBERED: usize = 16;

/// What the messages of this process's panics leave out, for a process that is no launcher's rank.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::PanicPlaces;
///
/// let places = PanicPlaces::watch();
/// let ended = std::thread::spawn(|| panic!("Device is lost")).join();
/// assert!(ended.is_err());
/// let more = places.of("rank 0: Device is lost").unwrap();
/// assert!(more.contains("dmesg"));
/// assert_eq!(places.of("rank 0: out of memory"), None);
/// assert!(places.of("no result: The device is poisoned").unwrap().contains("dmesg"));
/// ```
#[derive(Debug, Clone, Default)]
pub struct PanicPlaces(Arc<Mutex<Vec<(String, String)>>>);

impl PanicPlaces {
    /// Notes every panic of this process from now on, then does what was done before; none of an
    /// [`attempt`](everburn_record::attempt). Called again, it returns the same.
    pub fn watch() -> Self {
        static WATCHED: OnceLock<PanicPlaces> = OnceLock::new();
        WATCHED.get_or_init(Self::note_all).clone()
    }

    fn note_all() -> Self {
        let this = Self::default();
        let noted = this.clone();
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let report = panic.to_string();
            let lost = lost_device(&report).map(str::to_owned);
            let more = [lost, place_of_panic(&report)];
            let more = more.into_iter().flatten().collect::<Vec<_>>().join("\n");
            if attempt::holds(format!("{report}\n{more}").trim_end()) {
                return;
            }
            let mut places = lock(&noted.0);
            if places.len() == REMEMBERED {
                places.remove(0);
            }
            places.push((message_of(panic.payload()).to_owned(), more));
            drop(places);
            previous(panic);
        }));
        this
    }

    /// Where the panic began whose message `error` has, and whether its device has failed; of an error without a panic, the
    /// latter alone.
    #[must_use]
    pub fn of(&self, error: &str) -> Option<String> {
        let places = lock(&self.0);
        let noted = places.iter().rev().find(|(said, _)| error.ends_with(said));
        match noted {
            Some((_, more)) => (!more.is_empty()).then(|| more.clone()),
            None => lost_device(error).map(str::to_owned),
        }
    }
}

/// The layer in which this thread is, and the function of the user (or of one of our models) that has called it, from the
/// symbols of the stack, and the task's method: "in `burn_nn::modules::linear::Linear::forward`, called by
/// `images::Net::forward`, in `Task::loss`". Below it, what the method works on, unless `report` is of a device that has failed.
/// `None` where there is none of them.
pub(crate) fn place_of_panic(report: &str) -> Option<String> {
    let stack = Backtrace::force_capture().to_string();
    let place = with_method(named(&stack), task_method::present());
    let facts = match lost_device(report) {
        Some(_) => None,
        None => task_method::facts(),
    };
    match (place, facts) {
        (Some(place), Some(facts)) => Some(format!("{place}\n{facts}")),
        (place, facts) => place.or(facts),
    }
}

fn with_method(place: Option<String>, method: Option<&str>) -> Option<String> {
    let (place, method) = match (place, method) {
        (place, None) => return place,
        (None, Some(method)) => return Some(format!("in `{method}`")),
        (Some(place), Some(method)) => (place, method),
    };
    // `<images::Flowers as everburn_train::task::Task>::model` has said so.
    let implemented = method.replace("::", ">::") + "`";
    Some(match place.ends_with(&implemented) {
        true => place,
        false => format!("{place}, in `{method}`"),
    })
}

/// `message` with what to look at in its headline, which is what the launcher says of a rank; `None` where its device has not
/// failed, or the headline says so.
pub(crate) fn naming_lost_device(message: &str) -> Option<String> {
    let advice = lost_device(message)?;
    let (headline, rest) = split_headline(message);
    (!headline.contains(advice)).then(|| format!("{headline}; {advice}{rest}"))
}

/// What to look at if `error` is that of a GPU's runtime whose device has failed: neither wgpu nor CUDA says so in its message.
fn lost_device(error: &str) -> Option<&'static str> {
    let signs = [
        "Device is lost",
        "device is lost",
        "device is poisoned",
        "device was poisoned",
        "BufferAsyncError",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "hipErrorIllegalAddress",
        "hipErrorLaunchFailure",
        "hipErrorECCNotCorrectable",
    ];
    let is_lost = signs.iter().any(|sign| error.contains(sign));
    is_lost.then_some(
        "the device of this rank has failed: its driver has reset it, it is gone, or a kernel has failed on it. Look at the driver's lines in `dmesg`; \
         a new start opens the device again, and an elastic run does so by itself",
    )
}

fn named(stack: &str) -> Option<String> {
    let frames = stack.lines().filter_map(|line| {
        let (number, name) = line.trim_start().split_once(": ")?;
        number.parse::<usize>().ok()?;
        Some(without_hash(name))
    });
    let frames = frames.collect::<Vec<_>>();
    let is_layer = |name: &&&str| {
        let of_layers = ["burn_nn", "everburn_nn"].contains(&root(name));
        of_layers && name.ends_with("::forward")
    };
    let is_users = |name: &&&str| name.contains("::") && is_of_a_model(root(name));
    let users = frames.iter().position(|name| is_users(&name));
    // A layer that calls the user's function, as for a block of layers, is not where it began.
    let inside = &frames[..users.unwrap_or(frames.len())];
    let layer = inside.iter().find(is_layer);
    let users = users.map(|users| &frames[users]);
    match (layer, users) {
        (Some(layer), Some(users)) => Some(format!("in `{layer}`, called by `{users}`")),
        (Some(one), None) | (None, Some(one)) => Some(format!("in `{one}`")),
        (None, None) => None,
    }
}

/// Whether a crate is neither the panic's own, nor Burn's, nor ours, but for our models.
fn is_of_a_model(root: &str) -> bool {
    let libraries = ["std", "core", "alloc", "burn", "rayon", "rayon_core"];
    let families = ["__", "rust_", "burn_", "cubecl", "everburn"];
    let of_family = families.iter().any(|family| root.starts_with(family));
    root == "everburn_models" || !libraries.contains(&root) && !of_family
}

/// The crate of a function, also of `<images::Net as Model>::forward`.
fn root(name: &str) -> &str {
    let name = name.trim_start_matches(['<', '&']);
    name.split_once("::").map_or(name, |(root, _)| root)
}

/// Without the compiler's `::h0123456789abcdef`.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 => name,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{RankReport, ReportKind};

    /// What CubeCL says when a loss is read from a Vulkan device that is gone.
    const LAZY_READ: &str = r#"bytes: host access failed: Read("The device is poisoned\nCaused by:\n  Unknown: Device is lost\nBacktrace:\nNo backtrace available")"#;

    #[test]
    fn the_headline_of_a_rank_names_the_device_that_has_failed() {
        let base = "panicked at cubecl-environment-0.11.3/src/bytes/base.rs:446:14:";
        let poll = "panicked at wgpu-30.0.1/src/backend/wgpu_core.rs:1924:30:";
        let in_wgpu = "Error in Device::poll: Validation Error";
        let plain = "bucket 0 of the gradients: The device is poisoned";
        let cuda = "An IO error happened";
        for (said, headline, rest) in [
            (
                format!("{base}\n{LAZY_READ}\nin `Task::loss`"),
                format!("{base} {LAZY_READ}"),
                vec!["in `Task::loss`"],
            ),
            (
                format!("{poll}\n{in_wgpu}\n\nCaused by:\n  Parent device is lost"),
                format!("{poll} {in_wgpu}"),
                vec!["", "Caused by:", "  Parent device is lost"],
            ),
            (
                format!("{plain}\nCaused by:\n  Unknown: Device is lost"),
                plain.to_owned(),
                vec!["Caused by:", "  Unknown: Device is lost"],
            ),
            (
                format!("{cuda}\nCaused by:\n  The device was poisoned during launch"),
                cuda.to_owned(),
                vec!["Caused by:", "  The device was poisoned during launch"],
            ),
        ] {
            let named = naming_lost_device(&said).unwrap();
            assert_eq!(naming_lost_device(&named), None, "it is said once");
            let report = RankReport::new(1, ReportKind::Panic, named);
            let (first, more) = report.headline_and_rest().unwrap();
            let advice = lost_device(&said).unwrap();
            assert_eq!(first, format!("{headline}; {advice}"));
            assert_eq!(more, rest);
        }
        assert_eq!(naming_lost_device("loss is NaN\nat step 3"), None);
    }

    #[test]
    fn a_device_that_has_failed_is_called_that() {
        let wgpu = "panicked at cubecl-wgpu/src/compute/timings.rs:510:22:\nFailed to map buffer: BufferAsyncError";
        let cuda =
            "called `Result::unwrap()` on an `Err` value: DriverError(CUDA_ERROR_ILLEGAL_ADDRESS)";
        assert!([wgpu, cuda].map(lost_device).iter().all(Option::is_some));
        for other in [
            "index out of bounds: the len is 3",
            "DriverError(CUDA_ERROR_OUT_OF_MEMORY)",
        ] {
            assert_eq!(lost_device(other), None);
        }
    }

    #[test]
    fn the_layer_and_the_users_function_are_named() {
        let stack = "   0: std::backtrace::Backtrace::create\n   1: core::panicking::panic_fmt\n             at /rustc/1.rs:3\n   \
                     2: burn_tensor::tensor::api::check::TensorCheck::failed::h0123456789abcdef\n   \
                     3: burn_nn::modules::linear::Linear<_>::forward\n   4: <images::Net as everburn_train::Supervised>::forward\n   \
                     5: everburn_train::training_loop::run\n   6: images::main\n";
        assert_eq!(
            named(stack).as_deref(),
            Some(
                "in `burn_nn::modules::linear::Linear<_>::forward`, called by `<images::Net as everburn_train::Supervised>::forward`"
            )
        );
        let closure = "   0: burn_tensor::x\n   1: images::Net::blocks\n   2: everburn_nn::blocks::Blocks::forward\n";
        assert_eq!(named(closure).as_deref(), Some("in `images::Net::blocks`"));
        let own = "   0: core::panicking::panic\n   1: everburn_models::gpt::Gpt::forward::habcdef0123456789\n   2: main\n";
        assert_eq!(
            named(own).as_deref(),
            Some("in `everburn_models::gpt::Gpt::forward`")
        );
        assert_eq!(named("   0: std::rt::lang_start\n   1: main\n"), None);
        assert_eq!(named("<unknown>"), None);
    }

    #[test]
    fn the_method_of_the_task_is_named_once() {
        let place = |text: &str| Some(text.to_owned());
        let layer = "in `burn_nn::Linear::forward`, called by `images::Net::new`";
        let whole = with_method(place(layer), Some("Task::model"));
        assert_eq!(whole, place(&format!("{layer}, in `Task::model`")));
        assert_eq!(
            with_method(None, Some("Task::check")),
            place("in `Task::check`")
        );
        let of_trait = "in `<images::Flowers as everburn_train::task::Task>::model`";
        assert_eq!(
            with_method(place(of_trait), Some("Task::model")),
            place(of_trait)
        );
        assert_eq!(with_method(place(layer), None), place(layer));
        let reported = std::thread::spawn(|| {
            task_method::within("Task::data", || place_of_panic("").unwrap_or_default())
        });
        let reported = reported.join().unwrap();
        assert!(reported.ends_with("in `Task::data`"), "{reported}");
    }

    #[test]
    fn what_the_method_works_on_is_below_its_name() {
        let reported = |report: &str| {
            let place = || place_of_panic(report).unwrap_or_default();
            let work = || task_method::within("Task::loss", place);
            task_method::with_facts(|| "a batch of [8, 4]\nand layers".to_owned(), work)
        };
        let shapes = reported("panicked at linear.rs: the sizes differ");
        let below = "in `Task::loss`\na batch of [8, 4]\nand layers";
        assert!(shapes.ends_with(below), "{shapes}");
        let lost = reported("panicked at base.rs: The device is poisoned");
        assert!(lost.ends_with("in `Task::loss`"), "{lost}");
    }

    #[test]
    fn a_panic_is_found_by_the_end_of_an_error() {
        let places = PanicPlaces::default();
        lock(&places.0).push(("broken".to_owned(), "in `a::b`".to_owned()));
        lock(&places.0).push(("nowhere".to_owned(), String::new()));
        assert_eq!(places.of("rank 0: broken").as_deref(), Some("in `a::b`"));
        assert_eq!(places.of("rank 0: nowhere"), None);
        assert_eq!(places.of("broken: something else"), None);
    }

    #[test]
    fn a_panic_of_an_attempt_is_not_noted() {
        let places = PanicPlaces::watch();
        let panics = |message: &'static str| move || -> u8 { panic!("{message}: Device is lost") };
        assert!(attempt::run(panics("an attempt")).is_err());
        let held = attempt::take_report().unwrap();
        assert!(
            held.contains("panicked at") && held.contains("dmesg"),
            "{held}"
        );
        assert!(std::panic::catch_unwind(panics("no attempt")).is_err());
        let is_noted = |start: &str| {
            lock(&places.0)
                .iter()
                .any(|(said, _)| said.starts_with(start))
        };
        assert!(is_noted("no attempt") && !is_noted("an attempt"));
        let noted = places.of("no attempt: Device is lost").unwrap();
        assert!(noted.contains("dmesg"), "{noted}");
    }

    #[test]
    fn a_panic_of_this_program_is_in_this_program() {
        let place = place_of_panic("");
        // Symbols may have been stripped, but then nothing else is named.
        assert!(place.is_none_or(|place| !place.contains("std::")));
    }
}

//! Whether a command line asks for GPUs, of which kind, and what to say where there are none.

use std::ffi::OsString;

use everburn_record::plain::word;

/// The APIs by which a GPU can be named; each is a feature of the binary too.
const APIS: [&str; 5] = ["cuda", "rocm", "metal", "vulkan", "webgpu"];

/// The GPUs that a command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub count: usize,
    /// Those that `--devices` names; none for `--gpus`, which takes what is there.
    pub apis: Vec<&'static str>,
}

/// The GPUs that the arguments ask for; `None` when they ask for none.
pub fn gpus_asked_for(arguments: &[OsString]) -> Option<Asked> {
    let flag = flags(arguments).find(|flag| flag.gpus().is_some())?;
    Some(Asked {
        count: flag.gpus()?,
        apis: flag.apis(),
    })
}

/// For which GPUs `--gpus` builds on this machine: by the drivers that are there, NVIDIA's first.
pub fn api_here() -> Option<&'static str> {
    if everburn_nccl::nvidia_driver().is_some() {
        return Some("cuda");
    }
    let found = everburn_nccl::drivers().into_iter();
    let mut found = found.filter(|driver| driver.here.is_ok());
    found.next().map(|driver| driver.api)
}

/// The same arguments with CPU ranks in place of GPUs, as one would type them.
pub fn with_ranks_instead(arguments: &[OsString]) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut next = 0;
    let has_ranks = arguments.iter().any(|word| {
        word.to_str()
            .is_some_and(|word| word == "--ranks" || word.starts_with("--ranks="))
    });
    for flag in flags(arguments).filter(|flag| flag.gpus().is_some()) {
        words.extend(arguments[next..flag.at].iter().map(word));
        if !has_ranks && !words.iter().any(|word| word == "--ranks") {
            words.push("--ranks".into());
            words.push(flag.gpus().unwrap_or(1).to_string());
        }
        next = flag.at + flag.words;
    }
    words.extend(arguments[next..].iter().map(word));
    words.join(" ")
}

/// A flag that bears on devices, with its value.
struct DeviceFlag<'a> {
    at: usize,
    words: usize,
    name: &'a str,
    value: &'a str,
}

impl DeviceFlag<'_> {
    fn gpus(&self) -> Option<usize> {
        match self.name {
            "--gpus" if self.value == "0" => None,
            // `all` and mistakes are the binary's to judge; both are about GPUs.
            "--gpus" => Some(self.value.parse().unwrap_or(1)),
            _ if !self.apis().is_empty() => Some(self.value.split(',').count()),
            _ => None,
        }
    }

    /// The APIs that it names.
    fn apis(&self) -> Vec<&'static str> {
        let named = |api: &&str| {
            let mut devices = self.value.split(',').map(str::trim);
            self.name != "--gpus" && devices.any(|device| device.split(':').next() == Some(*api))
        };
        APIS.into_iter().filter(named).collect()
    }
}

fn flags(arguments: &[OsString]) -> impl Iterator<Item = DeviceFlag<'_>> {
    let own = arguments.iter().take_while(|word| *word != "--");
    own.enumerate().filter_map(|(at, word)| {
        let word = word.to_str()?;
        let (name, value, words) = match word.split_once('=') {
            Some((name, value)) => (name, value, 1),
            None => match arguments.get(at + 1).and_then(|value| value.to_str()) {
                Some(value) => (word, value, 2),
                None => (word, "", 1),
            },
        };
        let known = ["--gpus", "--devices", "--device"].contains(&name);
        known.then_some(DeviceFlag {
            at,
            words,
            name,
            value,
        })
    })
}

/// What to say when GPUs are asked for and there is no driver.
pub fn no_driver_message(command: &str, arguments: &[OsString], gpus: usize) -> String {
    let what = if gpus == 1 {
        "a GPU is".to_owned()
    } else {
        format!("{gpus} GPUs are")
    };
    format!(
        "{what} asked for, but this machine has no NVIDIA driver (neither \
         /proc/driver/nvidia/version nor libcuda.so.1 is there), no ROCm (/dev/kfd) and no other GPU (/dev/dri).\n\
         Install the driver (in a container, start it with `--gpus all`), or train on the CPU \
         with as many ranks:\n\n    cargo xtask {command} {}\n",
        with_ranks_instead(arguments)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn gpus_are_asked_for_by_number_or_by_device() {
        let asked = |line| gpus_asked_for(&words(line)).map(|asked| asked.count);
        assert_eq!(asked("mnist --ranks 2"), None);
        assert_eq!(asked("mnist --gpus 2 --epochs 1"), Some(2));
        assert_eq!(asked("mnist --gpus=4"), Some(4));
        assert_eq!(asked("mnist --gpus 0"), None);
        assert_eq!(asked("mnist --gpus all"), Some(1));
        assert_eq!(asked("mnist --devices cuda:0,cuda:1"), Some(2));
        assert_eq!(asked("mnist --devices=flex"), None);
        assert_eq!(asked("mnist --devices flex,cuda:0"), Some(2));
        assert_eq!(asked("mnist --device cuda"), Some(1));
        assert_eq!(asked("mnist -- --gpus 2"), None);
        assert_eq!(asked("mnist --gpus"), Some(1));
        let apis = |line| gpus_asked_for(&words(line)).unwrap().apis;
        assert!(apis("mnist --gpus 2").is_empty());
        assert_eq!(
            apis("mnist --devices vulkan:1,flex,cuda:0"),
            ["cuda", "vulkan"]
        );
        assert_eq!(apis("mnist --devices webgpu:cpu"), ["webgpu"]);
    }

    #[test]
    fn the_message_says_what_is_missing_and_offers_ranks() {
        let arguments = words("mnist --gpus 2 --epochs 3");
        let message = no_driver_message("train", &arguments, 2);
        assert!(message.contains("2 GPUs"), "{message}");
        assert!(message.contains("libcuda.so.1"), "{message}");
        assert!(
            message.contains("cargo xtask train mnist --ranks 2 --epochs 3\n"),
            "{message}"
        );
    }

    #[test]
    fn the_offered_command_can_be_typed() {
        let offered = |line| with_ranks_instead(&words(line));
        assert_eq!(
            offered("mnist --gpus=4 --lr 0.1"),
            "mnist --ranks 4 --lr 0.1"
        );
        assert_eq!(offered("mnist --devices cuda:0,cuda:1"), "mnist --ranks 2");
        assert_eq!(offered("mnist --ranks 3 --gpus 3"), "mnist --ranks 3");
        assert_eq!(
            with_ranks_instead(&["a b".into(), "--gpus=1".into()]),
            "'a b' --ranks 1"
        );
    }
}

//! The backend of gradients on GPUs: one choice for all ranks, from what is requested and available.

use std::fmt;

use everburn_collectives::group::ProcessGroup;
use everburn_nccl::Vendor;
use serde::{Deserialize, Serialize};

use crate::error::DdpError;
use crate::objects::all_gather_object;

/// The backend that gradients travel by.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::GradientBackend;
///
/// assert_eq!("nccl".parse(), Ok(GradientBackend::Nccl));
/// assert_eq!(GradientBackend::default().to_string(), "auto");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GradientBackend {
    /// NCCL (RCCL on AMD's GPUs) if every rank has it and a GPU of its own, otherwise through host memory.
    #[default]
    Auto,
    /// Through host memory.
    Host,
    /// NCCL, from GPU to GPU; RCCL on AMD's.
    Nccl,
}

everburn_record::named!(GradientBackend, "none of auto, host, nccl", Self::Auto => "auto", Self::Host => "host", Self::Nccl => "nccl");

/// What a rank supports, exchanged before the ranks choose.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::Abilities;
///
/// let on_cpu = Abilities::default();
/// assert_eq!((&*on_cpu.device, on_cpu.gpu), ("flex", None));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    /// The rank's device, as [`DeviceName`](crate::DeviceName) has it.
    pub device: String,
    /// Identifies the rank's GPU among all machines, if NCCL or RCCL can use it: NVIDIA's or AMD's.
    pub gpu: Option<String>,
    /// NCCL's version, or RCCL's on an AMD GPU, or why it is unavailable.
    pub nccl: Result<String, String>,
    /// What else in this run needs gradients in host memory: completes the sentence "gradients travel through host
    /// memory: ".
    pub keeps_to_host: Option<String>,
}

impl Default for Abilities {
    fn default() -> Self {
        Self {
            device: "flex".to_string(),
            gpu: None,
            nccl: Err("not checked".to_string()),
            keeps_to_host: None,
        }
    }
}

/// The backend that all ranks agreed on.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{Abilities, Choice, GradientBackend};
///
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let choice = Choice::agree(&group, GradientBackend::Auto, Abilities::default())?;
/// assert_eq!(choice.backend, GradientBackend::Host);
/// assert_eq!(choice.to_string(), "host (all ranks are on CPUs)");
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Never [`GradientBackend::Auto`].
    pub backend: GradientBackend,
    /// The reason, or the version.
    pub reason: String,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.backend, self.reason)
    }
}

impl Choice {
    /// Why gradients are in host memory where nothing else was to choose.
    const NO_GPUS: &str = "all ranks are on CPUs";

    /// Whether a rank of the job has a GPU, so that there was something to choose.
    pub(crate) fn is_about_gpus(&self) -> bool {
        self.reason != Self::NO_GPUS
    }
}

/// What a rank sends the others.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct RankRequest {
    wanted: GradientBackend,
    abilities: Abilities,
}

impl Choice {
    /// Chooses between ranks that all request `wanted` and have these abilities.
    pub(crate) fn among_equals(
        wanted: GradientBackend,
        abilities: Abilities,
    ) -> Result<Self, DdpError> {
        decide(wanted, &[(0, abilities)]).map_err(|reason| DdpError::Backend {
            wanted: wanted.to_string(),
            reason,
        })
    }

    /// Chooses between the ranks of `group`, all of which call it.
    ///
    /// # Errors
    /// [`DdpError::Backend`], on all ranks, if the requested backend is not available, or the ranks request
    /// different ones; [`DdpError::Object`] if a rank of another build requests what this one cannot read;
    /// [`DdpError::Collective`] if a collective fails.
    pub fn agree(
        group: &ProcessGroup,
        wanted: GradientBackend,
        abilities: Abilities,
    ) -> Result<Self, DdpError> {
        let refuse = |reason: String| DdpError::Backend {
            wanted: wanted.to_string(),
            reason,
        };
        let own = RankRequest { wanted, abilities };
        let requests = all_gather_object::<RankRequest>(group, &own)?;
        let ranks = group.job_ranks().iter().copied().zip(requests);
        let ranks = ranks.collect::<Vec<_>>();
        let first = ranks[0].1.wanted;
        if let Some((rank, request)) = ranks.iter().find(|(_, request)| request.wanted != first) {
            return Err(refuse(format!(
                "rank {rank} was started with `ranks.backend = {}`, and rank {} with `ranks.backend = {first}`; give all \
                 ranks the same",
                request.wanted, ranks[0].0
            )));
        }
        let abilities = ranks
            .into_iter()
            .map(|(rank, request)| (rank, request.abilities));
        decide(first, &abilities.collect::<Vec<_>>()).map_err(refuse)
    }
}

/// The choice for ranks that request the same, each with its rank in the job.
fn decide(wanted: GradientBackend, ranks: &[(usize, Abilities)]) -> Result<Choice, String> {
    let choice = |backend, reason: &str| Choice {
        backend,
        reason: reason.to_string(),
    };
    let host = |reason: &str| Ok(choice(GradientBackend::Host, reason));
    let version = |(_, abilities): &(usize, Abilities)| {
        let version = abilities.nccl.clone().unwrap_or_default();
        match collectives(abilities) {
            "NCCL" => version,
            other => format!("{other} {version}"),
        }
    };
    match (wanted, unsupported(ranks)) {
        (GradientBackend::Host, _) => host("as requested"),
        (GradientBackend::Auto, _) if ranks.iter().all(|(_, rank)| rank.device == "flex") => {
            host(Choice::NO_GPUS)
        }
        (GradientBackend::Auto, _) if ranks.len() == 1 => host("there is one rank"),
        (GradientBackend::Auto, Some(unsupported)) => host(&unsupported.what),
        (GradientBackend::Auto | GradientBackend::Nccl, None) => {
            Ok(choice(GradientBackend::Nccl, &version(&ranks[0])))
        }
        (GradientBackend::Nccl, Some(UnsupportedReason { what, advice })) => {
            Err(format!("{what}; {advice}, or use `ranks.backend = auto`"))
        }
    }
}

/// Why gradients cannot be exchanged between GPUs, and what to do.
struct UnsupportedReason {
    what: String,
    advice: &'static str,
}

fn unsupported(ranks: &[(usize, Abilities)]) -> Option<UnsupportedReason> {
    let stop = |what: String, advice| Some(UnsupportedReason { what, advice });
    for (at, (rank, abilities)) in ranks.iter().enumerate() {
        if let Some(reason) = &abilities.keeps_to_host {
            return stop(reason.clone(), "leave one of the two out");
        }
        let Some(gpu) = &abilities.gpu else {
            let what = format!("rank {rank} is on {}", abilities.device);
            return stop(what, "give each rank an NVIDIA GPU, or each an AMD GPU");
        };
        let twin = ranks[..at]
            .iter()
            .find(|(_, other)| other.gpu.as_ref() == Some(gpu));
        if let Some((twin, _)) = twin {
            let what = format!("ranks {twin} and {rank} share the GPU {gpu}");
            return stop(what, "give each rank a GPU of its own");
        }
        let (first, first_abilities) = &ranks[0];
        if api(abilities) != api(first_abilities) {
            let what = format!(
                "rank {first} is on {}, rank {rank} on {}",
                first_abilities.device, abilities.device
            );
            return stop(what, "give all ranks GPUs of one vendor");
        }
        let library = collectives(abilities);
        match (&abilities.nccl, &ranks[0].1.nccl) {
            (Err(reason), _) => {
                let what = format!("rank {rank} has no {library}: {reason}");
                return stop(what, "install it on all machines");
            }
            (Ok(own), Ok(first)) if own != first => {
                let what = format!(
                    "rank {} has {library} {first}, rank {rank} has {library} {own}",
                    ranks[0].0
                );
                return stop(what, "install the same on all machines");
            }
            _ => {}
        }
    }
    None
}

/// `cuda` of `cuda:1`.
fn api(abilities: &Abilities) -> &str {
    let api = abilities.device.split_once(':');
    api.map_or(&abilities.device, |(api, _)| api)
}

/// The library that connects GPUs like the rank's.
fn collectives(abilities: &Abilities) -> &'static str {
    match api(abilities) == Vendor::Amd.api() {
        true => Vendor::Amd.collectives(),
        false => Vendor::Nvidia.collectives(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_ranks::on_ranks;

    fn able(gpu: &str) -> Abilities {
        Abilities {
            device: "cuda:0".to_string(),
            gpu: Some(gpu.to_string()),
            nccl: Ok("2.21.5".to_string()),
            keeps_to_host: None,
        }
    }

    fn decided(wanted: GradientBackend, ranks: &[Abilities]) -> Result<String, String> {
        let ranks: Vec<_> = ranks.iter().cloned().enumerate().collect();
        decide(wanted, &ranks).map(|choice| choice.to_string())
    }

    #[test]
    fn nccl_is_taken_where_every_rank_can() {
        use GradientBackend::{Auto, Host, Nccl};
        let two = [able("a"), able("b")];
        assert_eq!(decided(Auto, &two).unwrap(), "nccl (2.21.5)");
        assert_eq!(decided(Nccl, &two).unwrap(), "nccl (2.21.5)");
        assert_eq!(decided(Host, &two).unwrap(), "host (as requested)");
        let on_processors = [Abilities::default(), Abilities::default()];
        let choice = decided(Auto, &on_processors).unwrap();
        assert_eq!(choice, "host (all ranks are on CPUs)");
        // One rank needs nobody, unless the cost of NCCL is to be measured.
        assert_eq!(
            decided(Auto, &two[..1]).unwrap(),
            "host (there is one rank)"
        );
        assert_eq!(decided(Nccl, &two[..1]).unwrap(), "nccl (2.21.5)");
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let without_nccl = Abilities {
            nccl: Err("no NCCL: libnccl.so.2".to_string()),
            ..able("b")
        };
        let older = Abilities {
            nccl: Ok("2.18.3".to_string()),
            ..able("b")
        };
        let virtual_ranks = Abilities {
            keeps_to_host: Some(
                "`training.virtual_ranks` adds up in an order of its own".to_string(),
            ),
            ..able("b")
        };
        let cases = [
            (Abilities::default(), "rank 1 is on flex"),
            (able("a"), "ranks 0 and 1 share the GPU a"),
            (without_nccl, "rank 1 has no NCCL: no NCCL: libnccl.so.2"),
            (older, "rank 0 has NCCL 2.21.5, rank 1 has NCCL 2.18.3"),
            (
                virtual_ranks,
                "`training.virtual_ranks` adds up in an order of its own",
            ),
        ];
        for (other, what) in cases {
            let ranks = [able("a"), other];
            let auto = decided(GradientBackend::Auto, &ranks).unwrap();
            assert_eq!(auto, format!("host ({what})"));
            let nccl = decided(GradientBackend::Nccl, &ranks).unwrap_err();
            assert!(nccl.starts_with(&format!("{what}; ")), "{nccl}");
            assert!(nccl.ends_with("or use `ranks.backend = auto`"), "{nccl}");
        }
    }

    #[test]
    fn amds_gpus_take_rccl_and_not_with_nvidias() {
        let on_amd = |gpu: &str| Abilities {
            device: "rocm:0".to_string(),
            ..able(gpu)
        };
        let two = [on_amd("a"), on_amd("b")];
        let auto = GradientBackend::Auto;
        assert_eq!(decided(auto, &two).unwrap(), "nccl (RCCL 2.21.5)");
        // The versions are equal, and the libraries do not speak to each other.
        let both = [able("a"), on_amd("b")];
        let choice = decided(auto, &both).unwrap();
        assert_eq!(choice, "host (rank 0 is on cuda:0, rank 1 on rocm:0)");
        let refused = decided(GradientBackend::Nccl, &both).unwrap_err();
        assert!(refused.contains("GPUs of one vendor"), "{refused}");
    }

    #[test]
    fn ranks_that_want_different_things_all_hear_it() {
        let wanted = [GradientBackend::Host, GradientBackend::Nccl];
        let errors = on_ranks(2, |group| {
            Choice::agree(&group, wanted[group.rank()], able("a")).unwrap_err()
        });
        for error in errors {
            let error = error.to_string();
            let expected = "rank 1 was started with `ranks.backend = nccl`, and rank 0 with `ranks.backend = host`";
            assert!(error.contains(expected), "{error}");
        }
    }
}

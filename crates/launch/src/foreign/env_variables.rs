//! Numbers in the environment of a process, and the secret of a job in it.

use everburn_auth::JobToken;
use everburn_collectives::rendezvous::{MalformedVariable, Variables};

use crate::environment::variables as v;
use crate::error::RankEnvironmentError;
use crate::origin::StartedBy;

impl From<MalformedVariable> for RankEnvironmentError {
    fn from(malformed: MalformedVariable) -> Self {
        Self::Invalid {
            name: malformed.name,
            value: malformed.value,
            expected: malformed.expected,
        }
    }
}

/// The number in the first variable of `names` that is set, and that variable.
pub(super) fn first_number(
    env: &Variables<'_>,
    names: &[&'static str],
) -> Result<Option<EnvNumber>, RankEnvironmentError> {
    for &name in names {
        if let Some(value) = env.number(name)? {
            return Ok(Some(EnvNumber { name, value }));
        }
    }
    Ok(None)
}

/// The secret that members of a job must have.
pub(crate) struct Secret {
    pub(crate) job_token: Option<JobToken>,
    pub(crate) open_store: bool,
}

impl Secret {
    /// That of the job.
    pub(crate) fn of(env: &Variables<'_>) -> Result<Self, RankEnvironmentError> {
        let open_store = env.flag(v::OPEN_STORE)?;
        Ok(Self {
            job_token: env.job_token().map_err(RankEnvironmentError::JobToken)?,
            open_store,
        })
    }

    /// Refuses a job of several ranks without a secret, unless that is requested.
    pub(crate) fn check(
        &self,
        started_by: StartedBy,
        store_of_torchrun: bool,
        meeting: &str,
        found: &[String],
    ) -> Result<(), RankEnvironmentError> {
        let address = meeting.to_owned();
        match (self.open_store, &self.job_token) {
            (true, _) => Ok(()),
            _ if store_of_torchrun => Err(RankEnvironmentError::StoreOfTorchrun { address }),
            (false, Some(_)) => Ok(()),
            (false, None) => Err(RankEnvironmentError::NoJobToken {
                found: found.join(" and "),
                address,
                advice: started_by.sets_secret(),
            }),
        }
    }
}

/// A number and the environment variable it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EnvNumber {
    pub(super) name: &'static str,
    pub(super) value: usize,
}

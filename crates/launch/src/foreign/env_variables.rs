//! The environment of a process, and the secret of a job in it.

use std::ffi::OsString;

use everburn_auth::{GivenToken, JobToken};
use everburn_collectives::rendezvous::{SWITCH, switch};

use crate::environment::variables as v;
use crate::error::RankEnvironmentError;
use crate::origin::StartedBy;

/// The environment variables; tests supply their own.
pub(crate) struct EnvVariables<'a> {
    pub(crate) lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl EnvVariables<'_> {
    /// The variable's text; an empty one counts as missing.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let text = (self.lookup)(name)?.trim().to_owned();
        Some(text).filter(|text| !text.is_empty())
    }

    /// The variable's value, read by `parse`.
    pub(crate) fn parsed<T>(
        &self,
        name: &'static str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, RankEnvironmentError> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        match parse(&value) {
            None => Err(RankEnvironmentError::Invalid {
                name,
                value,
                expected: expected.into(),
            }),
            parsed => Ok(parsed),
        }
    }

    pub(crate) fn number(&self, name: &'static str) -> Result<Option<usize>, RankEnvironmentError> {
        self.parsed(name, "a number", |value| value.parse().ok())
    }

    /// Whether a switch is on; one that is missing is off.
    pub(crate) fn flag(&self, name: &'static str) -> Result<bool, RankEnvironmentError> {
        Ok(self.parsed(name, SWITCH, switch)?.unwrap_or(false))
    }

    /// The number in the first variable of `names` that is set, and that variable.
    pub(super) fn first_number(
        &self,
        names: &[&'static str],
    ) -> Result<Option<EnvNumber>, RankEnvironmentError> {
        for &name in names {
            if let Some(value) = self.number(name)? {
                return Ok(Some(EnvNumber { name, value }));
            }
        }
        Ok(None)
    }

    pub(super) fn first_text(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names
            .iter()
            .find_map(|&name| Some((name, self.text(name)?)))
    }

    /// The secret of the job.
    pub(crate) fn secret(&self) -> Result<Secret, RankEnvironmentError> {
        let token = GivenToken::from(OsString::from(self.text(v::JOB_TOKEN).unwrap_or_default()));
        let open_store = self.flag(v::OPEN_STORE)?;
        Ok(Secret {
            job_token: token.token().map_err(RankEnvironmentError::JobToken)?,
            open_store,
        })
    }

    /// `NAME=value` for those of `names` that are set.
    pub(crate) fn set_among(&self, names: &[&str]) -> Vec<String> {
        let set = names
            .iter()
            .filter_map(|name| Some((name, self.text(name)?)));
        set.map(|(name, value)| format!("{name}={value}")).collect()
    }
}

/// The secret that members of a job must have.
pub(crate) struct Secret {
    pub(crate) job_token: Option<JobToken>,
    pub(crate) open_store: bool,
}

impl Secret {
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

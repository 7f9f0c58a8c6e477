//! The secret of a job, and who is let into its store.

use std::fs;

use everburn_collectives::store::{StoreAccess, StoreError};
use everburn_launch::{LaunchConfig, Launcher};
use everburn_tests::assert_matches;

use crate::process::{self, LauncherProcess, TOKEN, rank_job};

#[test]
fn ranks_meet_at_the_store_of_their_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let given = Some(TOKEN.parse().unwrap());
    for (job_token, open_store) in [(None, false), (given, false), (None, true)] {
        let config = LaunchConfig {
            job_token,
            open_store,
            ..rank_job(folder.path(), 2, "meets at the store")
        };
        let outcome = Launcher::new(config).run().unwrap();
        assert_eq!(outcome.exit_code(), 0, "{outcome}");
    }
}

#[test]
fn a_stranger_is_not_let_into_the_store_of_a_job_that_was_given_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
        echo $MASTER_PORT > $DIR/new.$RANK; mv $DIR/new.$RANK $DIR/port
        until [ -e $DIR/done ]; do sleep 0.02; done; finished";
    let mut launcher = LauncherProcess::start(folder.path(), 2, "", script);
    let other = StoreAccess::Token(TOKEN.parse().unwrap());
    for access in [StoreAccess::Open, other] {
        let refused = process::connect(folder.path(), access).unwrap_err();
        assert_matches!(refused, StoreError::Unauthenticated { .. });
    }
    fs::write(folder.path().join("done"), "").unwrap();
    assert!(launcher.wait().success());
}

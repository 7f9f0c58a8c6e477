//! TCP: PyTorch's clients at our server, ours at PyTorch's.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use everburn_collectives::store::{
    SharedStore, Store, StoreAccess, StoreOptions, TcpStore, TcpStoreServer,
};
use everburn_tests::DEADLINE;

use crate::crowd::Crowd;
use crate::operations::{every_operation_of_pytorch, every_store, gloo_adds_up, script_answers};
use crate::python;

fn options() -> StoreOptions {
    StoreOptions {
        timeout: DEADLINE,
        ..StoreOptions::new(StoreAccess::Open)
    }
}

fn serve() -> (TcpStoreServer, String) {
    let loopback = "127.0.0.1:0".parse().unwrap();
    let server = TcpStoreServer::bind(loopback, options()).unwrap();
    let address = server.local_addr().to_string();
    (server, address)
}

fn connect(address: &str) -> TcpStore {
    TcpStore::connect(address, options()).unwrap()
}

/// The referee: what the script expects is PyTorch's word and not ours.
#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn the_script_states_what_pytorchs_own_server_answers() {
    let mut server = python::start("serve.py", &["--backend", "libuv"]);
    script_answers(["--tcp", &server.line()], &[]);
    server.finish();
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn a_client_of_pytorch_does_every_operation_on_our_server() {
    let (_server, address) = serve();
    every_operation_of_pytorch(["--tcp", &address], &connect(&address));
}

/// The older one has no queues, which our client does not use.
#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn our_client_does_every_operation_on_pytorchs_newer_and_older_server() {
    for backend in ["libuv", "legacy"] {
        let mut server = python::start("serve.py", &["--backend", backend]);
        let address = server.line();
        let shared: SharedStore = Arc::new(connect(&address));
        every_store(&shared, &connect(&address));
        drop(shared);
        server.finish();
    }
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn eight_clients_of_pytorch_and_eight_of_ours_share_our_server() {
    let (_server, address) = serve();
    let crowd = Crowd {
        of_each: 8,
        rounds: 100,
    };
    crowd.meet(["--tcp", &address], || connect(&address));
    let store = connect(&address);
    assert_eq!(store.get("crowd/log").unwrap(), [b'x'; 8]);
    assert!(!store.check(&["crowd/queue"]).unwrap());
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn eight_clients_of_pytorch_and_eight_of_ours_share_pytorchs_server() {
    let mut server = python::start("serve.py", &["--backend", "libuv"]);
    let address = server.line();
    let crowd = Crowd {
        of_each: 8,
        rounds: 100,
    };
    crowd.meet(["--tcp", &address], || connect(&address));
    assert_eq!(connect(&address).get("crowd/log").unwrap(), [b'x'; 8]);
    server.finish();
}

/// The newer server answers a wait for a missing key when another client compares it with a value.
#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn a_wait_at_pytorchs_servers_ends_with_the_key_and_not_with_a_comparison() {
    for backend in ["libuv", "legacy"] {
        let mut server = python::start("serve.py", &["--backend", backend]);
        let address = server.line();
        let (waiting, other) = (connect(&address), connect(&address));
        thread::scope(|scope| {
            let got = scope.spawn(|| waiting.get("late"));
            let waited =
                scope.spawn(|| waiting.wait(&["later"]).and_then(|()| waiting.get("later")));
            // The server shows nobody who waits: some of many comparisons come after both waits have begun.
            for _ in 0..200 {
                assert_eq!(
                    other.try_get_many(&["late", "later"]).unwrap(),
                    [None, None]
                );
                thread::sleep(Duration::from_millis(1));
            }
            other.set("late", b"one").unwrap();
            other.set("later", b"two").unwrap();
            assert_eq!(got.join().unwrap().unwrap(), b"one", "{backend}");
            assert_eq!(waited.join().unwrap().unwrap(), b"two", "{backend}");
        });
        drop((waiting, other));
        server.finish();
    }
}

#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn a_client_with_a_token_learns_that_pytorchs_store_is_open() {
    for backend in ["libuv", "legacy"] {
        let mut server = python::start("serve.py", &["--backend", backend]);
        let address = server.line();
        let options = StoreOptions {
            timeout: DEADLINE,
            ..StoreOptions::new(StoreAccess::Token("a token of the tests".parse().unwrap()))
        };
        let error = TcpStore::connect(&address, options).unwrap_err();
        assert!(error.to_string().contains("the store is open"), "{error}");
        // It still serves.
        assert_eq!(connect(&address).add("n", 1).unwrap(), 1);
        server.finish();
    }
}

/// As under a launcher that hosts the store: rank 0 does not.
#[test]
#[ignore = "needs torch: cargo xtask test --with-torch"]
fn a_gloo_group_of_pytorch_meets_and_adds_up_over_our_server() {
    let (server, _) = serve();
    let variables = [
        ("MASTER_ADDR", "127.0.0.1".to_owned()),
        ("MASTER_PORT", server.local_addr().port().to_string()),
        ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
    ];
    gloo_adds_up("env://", &variables);
}

//! Several clients at once: threads here, processes of `crowd.py` beside them.

use std::thread;

use everburn_collectives::store::Store;

use crate::python;

/// Clients of each side, and how often each adds.
#[derive(Clone, Copy)]
pub struct Crowd {
    pub of_each: usize,
    pub rounds: usize,
}

impl Crowd {
    fn world(self) -> usize {
        2 * self.of_each
    }

    /// Has as many of our clients as of PyTorch's work on one store, and looks at what is left.
    /// `place` is where the store is.
    pub fn meet<S: Store>(self, place: [&str; 2], open: impl Fn() -> S + Sync) {
        let numbers = [self.of_each, self.world(), self.rounds].map(|number| number.to_string());
        let [of_each, world, rounds] = &numbers;
        let arguments = [
            "--first", of_each, "--count", of_each, "--world", world, "--rounds", rounds,
        ];
        let mut script = python::start("crowd.py", &[&place[..], &arguments].concat());
        thread::scope(|scope| {
            for index in 0..self.of_each {
                let open = &open;
                scope.spawn(move || {
                    let store = open();
                    self.member(&store, index);
                    store.add("crowd/done", 1).unwrap();
                });
            }
        });
        assert_eq!(script.line(), "the crowd is done");
        script.finish();
        let store = open();
        let sum = (self.world() * self.rounds).to_string();
        assert_eq!(store.get("crowd/sum").unwrap(), sum.as_bytes());
        let world = self.world().to_string();
        assert_eq!(store.get("crowd/done").unwrap(), world.as_bytes());
        let winner = store.get("crowd/winner").unwrap();
        for index in 0..self.world() {
            let seen = store.get(&format!("crowd/winner seen by {index}"));
            assert_eq!(seen.unwrap(), winner, "client {index}");
        }
    }

    /// What `member` in `crowd.py` does, on the same keys.
    fn member(self, store: &dyn Store, index: usize) {
        let own = format!("value {index}");
        store
            .set(&format!("crowd/{index}"), own.as_bytes())
            .unwrap();
        if store.add("crowd/arrived", 1).unwrap() == self.world() as i64 {
            store.set("crowd/all", b"here").unwrap();
        }
        store.wait(&["crowd/all"]).unwrap();
        for _ in 0..self.rounds {
            store.add("crowd/sum", 1).unwrap();
        }
        for other in 0..self.world() {
            let value = store.get(&format!("crowd/{other}")).unwrap();
            assert_eq!(value, format!("value {other}").as_bytes());
        }
        let own = index.to_string();
        store
            .compare_set("crowd/winner", b"", own.as_bytes())
            .unwrap();
        let winner = store.get("crowd/winner").unwrap();
        store
            .set(&format!("crowd/winner seen by {index}"), &winner)
            .unwrap();
    }
}

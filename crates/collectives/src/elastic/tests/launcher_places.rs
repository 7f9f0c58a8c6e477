//! Several launchers with the number of one machine.

use super::*;

fn two_places() -> (SharedStore, LauncherPlace, LauncherPlace) {
    let store: SharedStore = Arc::new(HashStore::new());
    let [first, second] = [0, 0].map(|node| LauncherPlace::new(Arc::clone(&store), node));
    (store, first, second)
}

/// Looks until the place is free or taken; how often it was neither.
fn look_until_decided(place: &mut LauncherPlace) -> (u32, PlaceState) {
    for waited in 0..100 {
        let state = place.look().unwrap();
        if state != PlaceState::Waiting {
            return (waited, state);
        }
    }
    panic!("undecided after 100 looks");
}

#[test]
fn a_second_launcher_of_a_machine_is_refused_while_the_first_lives() {
    let (store, mut first, mut second) = two_places();
    assert_eq!(first.look().unwrap(), PlaceState::Held);
    assert_eq!(second.look().unwrap(), PlaceState::Waiting);
    assert_eq!(second.look().unwrap(), PlaceState::Waiting);
    assert_eq!(first.look().unwrap(), PlaceState::Held);
    let PlaceState::Taken(other) = second.look().unwrap() else {
        panic!("the first launcher has shown that it lives");
    };
    let named = other.to_string();
    assert!(
        named.starts_with(&format!("process {} on ", std::process::id())),
        "{named}"
    );
    // One that has no place leaves that of the other alone.
    second.leave().unwrap();
    assert_eq!(first.look().unwrap(), PlaceState::Held);
    // Another machine's is another.
    let mut elsewhere = LauncherPlace::new(store, 1);
    assert_eq!(elsewhere.look().unwrap(), PlaceState::Held);
}

#[test]
fn the_place_of_a_dead_launcher_is_taken_and_one_that_comes_back_late_has_lost_it() {
    let (_store, mut first, mut second) = two_places();
    assert_eq!(first.look().unwrap(), PlaceState::Held);
    let waiting = second.interval();
    let (waited, state) = look_until_decided(&mut second);
    assert_eq!(state, PlaceState::Held);
    // One that lives would have looked several times meanwhile.
    assert!(waiting * waited > 3 * first.interval());
    assert!(matches!(first.look().unwrap(), PlaceState::Taken(_)));
    assert_eq!(second.look().unwrap(), PlaceState::Held);
}

#[test]
fn a_place_that_was_left_is_taken_at_once() {
    let (_store, mut first, mut second) = two_places();
    assert_eq!(first.look().unwrap(), PlaceState::Held);
    first.leave().unwrap();
    assert_eq!(second.look().unwrap(), PlaceState::Held);
}

#[test]
fn a_place_is_kept_though_its_key_vanishes_or_an_answer_is_lost() {
    let (store, mut first, mut second) = two_places();
    assert_eq!(first.look().unwrap(), PlaceState::Held);
    let key = "everburn/elastic/launcher/0/place";
    let text = String::from_utf8(store.get(key).unwrap()).unwrap();
    store
        .set(key, text.replace(":1}", ":2}").as_bytes())
        .unwrap();
    assert_eq!(first.look().unwrap(), PlaceState::Held);
    assert!(store.delete(key).unwrap());
    assert_eq!(first.look().unwrap(), PlaceState::Held);
    assert_eq!(second.look().unwrap(), PlaceState::Waiting);
}

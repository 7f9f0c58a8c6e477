"""Every operation of a PyTorch store, each held against what PyTorch answers.

The Rust test lets this script talk to PyTorch's own server first: what is expected here is PyTorch's
word. Then it lets it talk to ours.
"""

import threading

import torch.distributed as dist

from stores import LONG, SHORT, arguments, connect, expect, expect_failure

BINARY = bytes(range(256))


def values(store):
    store.set("v/a", "one")
    store.set("v/a", "two")
    expect("get", store.get("v/a"), b"two")
    store.set("v/empty", "")
    expect("get of an empty value", store.get("v/empty"), b"")
    store.set("v/binary", BINARY)
    expect("get of all bytes", store.get("v/binary"), BINARY)
    large = b"x" * (1 << 20)
    store.set("v/large", large)
    expect("get of a large value", store.get("v/large"), large)
    store.set("v/\N{LATIN SMALL LETTER U WITH DIAERESIS}", "key")
    expect("get of a key beyond ASCII", store.get("v/\N{LATIN SMALL LETTER U WITH DIAERESIS}"), b"key")


def counters(store):
    expect("add", store.add("n", 5), 5)
    expect("add", store.add("n", -7), -2)
    expect("get of a counter", store.get("n"), b"-2")
    store.set("n", "40")
    expect("add to a value", store.add("n", 2), 42)
    expect("add of a large number", store.add("n/large", 1 << 62), 1 << 62)


def compare_set(store):
    expect("compare_set, absent", store.compare_set("c", "old", "new"), b"old")
    expect("check after it", store.check(["c"]), False)
    expect("compare_set, new", store.compare_set("c", "", "first"), b"first")
    expect("compare_set, unequal", store.compare_set("c", "wrong", "x"), b"first")
    expect("compare_set, equal", store.compare_set("c", "first", "next"), b"next")
    expect("get after it", store.get("c"), b"next")


def presence(store, is_file):
    store.set("p/a", "")
    before = store.num_keys()
    store.set("p/b", "")
    expect("num_keys", store.num_keys(), before + 1)
    expect("check", store.check(["p/a", "p/b"]), True)
    expect("check", store.check(["p/a", "p/none"]), False)
    store.wait(["p/a", "p/b"])
    expect("delete_key", store.delete_key("p/b"), True)
    # PyTorch's FileStore says so every time.
    expect("delete_key again", store.delete_key("p/b"), is_file)
    expect("check after it", store.check(["p/b"]), False)
    expect("num_keys after it", store.num_keys(), before)


def time_outs(store, late):
    store.set("t/there", "")
    expect_failure("wait", late, lambda: store.wait(["t/there", "t/never"], SHORT))
    store.set_timeout(SHORT)
    expect_failure("get", late, lambda: store.get("t/never"))
    expect_failure("wait", late, lambda: store.wait(["t/never"]))
    store.set_timeout(LONG)
    # A wait that was called off leaves the connection usable.
    expect("add after it", store.add("t/n", 1), 1)
    store.set("t/never", "now")
    expect("get after it", store.get("t/never"), b"now")


def wake_ups(store, other):
    """`other` waits while `store` sets."""
    found = []
    waiting = threading.Thread(target=lambda: found.append(other.get("w/late")))
    waiting.start()
    store.set("w/late", "woken")
    waiting.join(LONG.total_seconds())
    expect("get that waited", found, [b"woken"])


def prefixes(store, late):
    outer = dist.PrefixStore("a", store)
    inner = dist.PrefixStore("b", outer)
    inner.set("k", "v")
    expect("get through a prefix", store.get("a/b/k"), b"v")
    expect("add through a prefix", outer.add("n", 3), 3)
    expect("get of it", store.get("a/n"), b"3")
    expect("check through a prefix", inner.check(["k"]), True)
    inner.wait(["k"], LONG)
    expect_failure("wait through a prefix", late, lambda: inner.wait(["no"], SHORT))
    expect("compare_set through a prefix", inner.compare_set("k", "v", "w"), b"w")
    expect("delete_key through a prefix", inner.delete_key("k"), True)


def batches(store):
    store.append("b/log", "a")
    store.append("b/log", "bc")
    expect("append", store.get("b/log"), b"abc")
    store.multi_set(["b/1", "b/2"], ["one", ""])
    expect("multi_get", store.multi_get(["b/2", "b/log", "b/1"]), [b"", b"abc", b"one"])
    many = [f"b/many/{index}" for index in range(500)]
    store.multi_set(many, many)
    expect("multi_get of many", store.multi_get(many), [key.encode() for key in many])


def queues(store, other):
    expect("queue_len of nothing", store.queue_len("q"), 0)
    expect_failure("queue_pop", dist.QueueEmptyError, lambda: store.queue_pop("q", block=False))
    store.queue_push("q", "first")
    store.queue_push("q", "second")
    expect("queue_len", store.queue_len("q"), 2)
    expect("check of a queue", store.check(["q"]), True)
    expect("queue_pop", store.queue_pop("q"), b"first")
    expect("queue_pop", store.queue_pop("q", block=False), b"second")
    expect("queue_len of an empty one", store.queue_len("q"), 0)
    store.set_timeout(SHORT)
    expect_failure("queue_pop of nothing", dist.DistStoreError, lambda: store.queue_pop("q"))
    store.set_timeout(LONG)
    popped = []
    waiting = threading.Thread(target=lambda: popped.append(other.queue_pop("q")))
    waiting.start()
    store.queue_push("q", "late")
    waiting.join(LONG.total_seconds())
    expect("queue_pop that waited", popped, [b"late"])


def newest(store):
    """What only the newest PyTorch has."""
    if hasattr(store, "barrier"):
        store.barrier("barrier of one", 1)
    if hasattr(store, "list_keys"):
        store.set("listed", "")
        expect("list_keys", any(key.endswith("listed") for key in store.list_keys()), True)


def main():
    parser = arguments()
    parser.add_argument("--rust", action="store_true", help="our client has left a value")
    options = parser.parse_args()
    store, other = connect(options), connect(options)
    if options.rust:
        expect("get of what Rust has set", store.get("from rust"), BINARY)
        expect("add to what Rust has added", store.add("from both", 2), 42)
    # What a wait that comes to its end raises; PyTorch's FileStore has no kind of its own for it.
    late = RuntimeError if options.file else dist.DistStoreError
    values(store)
    counters(store)
    compare_set(store)
    presence(store, bool(options.file))
    time_outs(store, late)
    wake_ups(store, other)
    prefixes(store, late)
    if options.tcp:
        batches(store)
        queues(store, other)
        newest(store)
    store.set("from python", BINARY)
    print("every operation answers as it should", flush=True)


if __name__ == "__main__":
    main()

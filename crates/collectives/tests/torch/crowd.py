"""Several clients at once, each a process; Rust threads of the test do the same beside them."""

import multiprocessing

from stores import arguments, connect, expect


def member(options, index):
    """What `member` in `crowd.rs` does, on the same keys."""
    store = connect(options)
    everyone = range(options.world)
    store.set(f"crowd/{index}", f"value {index}")
    if store.add("crowd/arrived", 1) == options.world:
        store.set("crowd/all", "here")
    store.wait(["crowd/all"])
    for _ in range(options.rounds):
        store.add("crowd/sum", 1)
    for other in everyone:
        expect("get of another's value", store.get(f"crowd/{other}"), f"value {other}".encode())
    store.compare_set("crowd/winner", "", str(index))
    winner = int(store.get("crowd/winner"))
    expect("the winner is one of us", winner in everyone, True)
    store.set(f"crowd/winner seen by {index}", str(winner))
    if options.tcp:
        store.append("crowd/log", "x")
        store.queue_push("crowd/queue", str(index))
        expect("queue_pop", int(store.queue_pop("crowd/queue")) in everyone, True)
    store.add("crowd/done", 1)


def main():
    parser = arguments()
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    # Forked, so that PyTorch is loaded once; no store is open yet.
    context = multiprocessing.get_context("fork")
    indices = range(options.first, options.first + options.count)
    members = [context.Process(target=member, args=(options, index)) for index in indices]
    for process in members:
        process.start()
    for process in members:
        process.join()
    expect("exit codes", [process.exitcode for process in members], [0] * options.count)
    print("the crowd is done", flush=True)


if __name__ == "__main__":
    main()

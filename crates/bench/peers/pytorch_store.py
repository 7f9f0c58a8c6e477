"""PyTorch's side of `cargo xtask bench store`: its store's server, and its client.

`serve` says in JSON where it listens and serves until standard input ends. `client` carries out the
orders on standard input, a line of JSON each, and answers each with one line: what
`crates/bench/src/store/client.rs` does in Rust.
"""

import argparse
import datetime
import json
import resource
import sys
import time

import torch.distributed as dist

VALUE = b"v" * 32
TIMEOUT = datetime.timedelta(seconds=60)


def serve():
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=TIMEOUT, wait_for_workers=False, use_libuv=True
    )
    print(json.dumps({"host": "127.0.0.1", "port": store.port}), flush=True)
    sys.stdin.read()


def connect(address):
    host, port = address.rsplit(":", 1)
    return dist.TCPStore(host, int(port), is_master=False, timeout=TIMEOUT)


def measure(store, operation, calls):
    store.set("bench/value", VALUE)
    before = store.add("bench/sum", 0)
    start = time.perf_counter()
    if operation == "get":
        for _ in range(calls):
            store.get("bench/value")
    elif operation == "add":
        for _ in range(calls):
            store.add("bench/sum", 1)
    else:
        for _ in range(calls):
            store.set("bench/value", VALUE)
        # Nothing answers a set: the last of them are done when this is.
        store.check(["bench/value"])
    seconds = time.perf_counter() - start
    added = calls if operation == "add" else 0
    if store.add("bench/sum", 0) != before + added or store.get("bench/value") != VALUE:
        raise SystemExit("the store has lost what was done to it")
    return {"seconds": seconds}


def client():
    stores = {}
    for line in sys.stdin:
        order = json.loads(line)
        address = order["address"]
        if address not in stores:
            stores[address] = connect(address)
        answer = measure(stores[address], order["operation"], order["calls"])
        print(json.dumps(answer), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["serve", "client"])
    part = parser.parse_args().part
    # A thousand connections are more than the usual limit of files.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    serve() if part == "serve" else client()


if __name__ == "__main__":
    main()

"""What all scripts of this folder share: which store is meant, and what a wrong answer does."""

import argparse
import datetime
import os

import torch.distributed as dist

# PyTorch makes the file of a store by the umask, and ours opens none that others can read.
os.umask(0o077)

LONG = datetime.timedelta(seconds=60)
SHORT = datetime.timedelta(milliseconds=50)


def arguments():
    """A parser that knows where the store is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tcp", help="host:port of a server")
    parser.add_argument("--file", help="path of a FileStore")
    return parser


def connect(options, workers=None):
    """A client of the server, or a handle of the file that counts no workers."""
    if options.file:
        return dist.FileStore(options.file)
    host, port = options.tcp.rsplit(":", 1)
    return dist.TCPStore(host, int(port), workers, is_master=False, timeout=LONG)


def expect(what, got, wanted):
    """Ends the script with a failure unless both are equal; `assert` could be switched off."""
    if got != wanted:
        raise SystemExit(f"{what}: {got!r} where {wanted!r} was expected")


def expect_failure(what, kind, call):
    """Ends the script with a failure unless `call` raises `kind`."""
    try:
        answer = call()
    except kind:
        return
    raise SystemExit(f"{what}: answered {answer!r} where {kind.__name__} was expected")

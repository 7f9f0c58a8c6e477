#!/usr/bin/env python3
"""Follows the metrics.jsonl of a run, and logs each line to a tracker.

    python3 follow.py runs/mnist-1 --to wandb --project digits
    python3 follow.py runs/mnist-1 --to mlflow --experiment digits
    python3 follow.py runs/mnist-1 --to stdout

The position is kept in a file (RUN/follow-TRACKER.json; for stdout only with --state), so that a follower that is started
again continues where it was. It waits for a run that has no metrics yet, and ends when the run has ended and everything is
logged. Needs Python 3.9; `wandb` and `mlflow` only if they are used.
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

# Lines longer than this are no lines of metrics.
LONGEST_LINE = 2 << 20

# A training writes live.json about twice a second; after this many seconds without, it has ended.
SILENCE = 30

# The seconds that a training has to begin, where --wait does not say.
WAIT = 60


class Follower:
    """Reads whole lines of a file from a position on, also while others append to it or write it anew."""

    def __init__(self, path, state_path):
        self.path, self.state_path = path, state_path
        self.position, self.inode, self.step, self.resumed = 0, None, {}, {}
        if state_path is None:
            return
        try:
            state = json.loads(state_path.read_text())
            self.position, self.inode = int(state["position"]), state["inode"]
            self.step, self.resumed = dict(state["step"]), dict(state["tracker"])
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            sys.exit(f"{state_path}: {error!r}: delete the file to log the run from its beginning")

    def lines(self):
        """What is new: pairs of a metrics line and the position after it."""
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            return
        with file:
            status = os.fstat(file.fileno())
            if self.inode not in (None, status.st_ino) or status.st_size < self.position:
                # A resumed run has written it anew, without the steps after its checkpoint. Steps that were logged are
                # left out below.
                self.position = 0
            self.inode = status.st_ino
            file.seek(self.position)
            while line := file.readline(LONGEST_LINE):
                if not line.endswith(b"\n"):
                    if len(line) == LONGEST_LINE:
                        sys.exit(f"{self.path}: a line at byte {file.tell()} is longer than {LONGEST_LINE} bytes")
                    break  # the rest is still to come
                self.position = file.tell()
                try:
                    metrics = json.loads(line)
                    kind, step = metrics["kind"], int(metrics["step"])
                except (ValueError, KeyError, TypeError):
                    print(f"{self.path}: the line before byte {self.position} is left out: no metrics", file=sys.stderr)
                    continue
                if step > self.step.get(kind, -1):
                    self.step[kind] = step
                    yield kind, step, metrics

    def keep(self, tracker):
        """Keeps the position, if there is a file for it, so that a crash leaves the old or the new one."""
        if self.state_path is None:
            return
        state = {"position": self.position, "inode": self.inode, "step": self.step, "tracker": tracker}
        temporary = self.state_path.with_suffix(".new")
        temporary.write_text(json.dumps(state))
        os.replace(temporary, self.state_path)


def numbers(kind, metrics):
    """The values of a line by name, as trackers show them: `train/loss`, `validation/accuracy`."""
    split = {"step": "train", "train": "epoch"}.get(kind, kind)
    values = {f"{split}/{name}": metrics.get(name) for name in ("loss", "accuracy")}
    values.update({f"{split}/{name}": value for name, value in (metrics.get("metrics") or {}).items()})
    if kind == "step":
        values.update({name: metrics.get(name) for name in ("learning_rate", "gradient_norm", "epoch")})
        values["memory/peak_bytes"] = metrics.get("peak_memory")
        seconds, samples = metrics.get("seconds") or 0, metrics.get("samples")
        if seconds > 0:
            values["speed/step_seconds"] = seconds
            values["speed/samples_per_second"] = samples / seconds if samples else None
            values["speed/communication_share"] = (metrics.get("exposed") or 0) / seconds
    return {name: value for name, value in values.items() if isinstance(value, (int, float))}


class Stdout:
    """Prints a line of JSON for each line of metrics."""

    def __init__(self, arguments, config, state):
        self.state = {}

    def log(self, kind, step, values):
        print(json.dumps({"kind": kind, "step": step, **values}), flush=True)

    def finish(self, report):
        pass


class Wandb:
    """Weights & Biases. A follower that is started again continues its run."""

    def __init__(self, arguments, config, state):
        import wandb

        self.run = wandb.init(
            project=arguments.project,
            name=arguments.run.resolve().name,
            id=state.get("id"),
            resume="allow",
            config=config,
        )
        # Validations come at the step of the newest training line: wandb's own step only grows.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        self.state = {"id": self.run.id}

    def log(self, kind, step, values):
        self.run.log({**values, "step": step})

    def finish(self, report):
        self.run.summary.update({name: value for name, value in report.items() if isinstance(value, (int, float, str))})
        self.run.finish()


class Mlflow:
    """MLflow, at MLFLOW_TRACKING_URI. A follower that is started again continues its run."""

    def __init__(self, arguments, config, state):
        import mlflow

        self.mlflow = mlflow
        if "id" in state:
            self.run = mlflow.start_run(run_id=state["id"])
        else:
            mlflow.set_experiment(arguments.project)
            self.run = mlflow.start_run(run_name=arguments.run.resolve().name)
            flat = dict(flattened(config))
            mlflow.log_params({name: str(value)[:500] for name, value in list(flat.items())[:100]})
        self.state = {"id": self.run.info.run_id}

    def log(self, kind, step, values):
        self.mlflow.log_metrics(values, step=step)

    def finish(self, report):
        finished = report.get("finished", False)
        self.mlflow.end_run("FINISHED" if finished else "KILLED")


def flattened(table, prefix=""):
    """`{"a": {"b": 1}}` as pairs: `a.b`, 1."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def configuration(run):
    """The run's config.toml; empty before Python 3.11, which cannot read TOML."""
    try:
        import tomllib
    except ImportError:
        return {}
    try:
        return tomllib.loads((run / "config.toml").read_text())
    except (FileNotFoundError, tomllib.TOMLDecodeError):
        return {}


def is_running(run):
    """Whether a process trains. No lock is taken to find out: that could keep a training out."""
    try:
        inode = (run / ".lock").stat().st_ino
        locks = Path("/proc/locks").read_text().splitlines()
        # `1: FLOCK ADVISORY WRITE 4321 fe:01:8912898 0 EOF`; `->` marks one that is waited for.
        held = (line.split() for line in locks)
        if any(words[1] == "FLOCK" and words[5].rsplit(":")[-1] == str(inode) for words in held):
            return True
    except FileNotFoundError:
        pass
    try:
        # Of a training on another machine only its signs of life are seen.
        live = json.loads((run / "live.json").read_text())
        return live["phase"] != "ended" and time.time() - live["unix_time_ms"] / 1e3 < SILENCE
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def wait_for_training(run, seconds, even_if_ended):
    """Waits for the metrics of a run: of any, or of one that runs or has run since this call."""
    began, deadline = time.time(), time.monotonic() + seconds
    metrics = run / "metrics.jsonl"

    def is_there():
        try:
            # A training that begins removes the files of the last one.
            return even_if_ended or is_running(run) or metrics.stat().st_mtime >= began
        except FileNotFoundError:
            return False

    if not (metrics.exists() and is_there()):
        print(f"{run}: waiting up to {seconds:g} s for a training to begin", file=sys.stderr)
    while not (metrics.exists() and is_there()):
        if time.monotonic() > deadline:
            sys.exit(f"{run}: no training has begun within {seconds:g} s; check the folder, or wait longer with --wait")
        time.sleep(0.1)


def report_of(run):
    try:
        return json.loads((run / "report.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of the run")
    parser.add_argument("--to", choices=["wandb", "mlflow", "stdout"], required=True)
    parser.add_argument("--project", "--experiment", default="everburn", help="the project or experiment [everburn]")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between looks at the file [2]")
    parser.add_argument("--state", type=Path, help="the file of the position [RUN/follow-TRACKER.json; of stdout, none]")
    parser.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help=f"wait for a training that begins, and leave out one that has ended; without it, a run that has ended is "
        f"logged, and one without metrics is waited for {WAIT} s",
    )
    return parser.parse_args()


def main():
    arguments = parsed()
    if arguments.to != "stdout" and importlib.util.find_spec(arguments.to) is None:
        sys.exit(f"{arguments.to} is not installed: pip install {arguments.to}")
    wait_for_training(arguments.run, WAIT if arguments.wait is None else arguments.wait, arguments.wait is None)
    state_path = arguments.state
    if state_path is None and arguments.to != "stdout":
        state_path = arguments.run / f"follow-{arguments.to}.json"
    follower = Follower(arguments.run / "metrics.jsonl", state_path)
    trackers = {"wandb": Wandb, "mlflow": Mlflow, "stdout": Stdout}
    tracker = trackers[arguments.to](arguments, configuration(arguments.run), follower.resumed)
    follower.keep(tracker.state)
    while True:
        # Asked before the file is read: what is written in between is read in the next round.
        running = is_running(arguments.run)
        for kind, step, metrics in follower.lines():
            tracker.log(kind, step, numbers(kind, metrics))
        follower.keep(tracker.state)
        if not running:
            tracker.finish(report_of(arguments.run))
            return
        time.sleep(arguments.interval)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

"""Makes golden.tfevents with TensorBoard's own code: pip install tensorboard; python make_golden.py"""

import pathlib

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


def scalars(wall_time, step, values):
    value = [summary_pb2.Summary.Value(tag=tag, simple_value=number) for tag, number in values]
    return event_pb2.Event(wall_time=wall_time, step=step, summary=summary_pb2.Summary(value=value))


start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
events = [
    event_pb2.Event(wall_time=1700000000.25, file_version="brain.Event:2"),
    event_pb2.Event(wall_time=1700000000.25, step=301, session_log=start),
    scalars(1700000001.0, 310, [("loss/train", 2.25), ("learning_rate", 0.001)]),
    scalars(1700000002.5, 1 << 40, [("accuracy/validation", 0.98), ("größe", -1.5e-30)]),
]
with open(pathlib.Path(__file__).parent / "golden.tfevents", "wb") as file:
    writer = RecordWriter(file)
    for event in events:
        writer.write(event.SerializeToString())
    writer.flush()

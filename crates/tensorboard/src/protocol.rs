//! The few messages of protocol buffers that scalars need.

/// The kinds of fields, as they are in a tag.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const BYTES: u64 = 2;
const FIXED_32: u64 = 5;

/// A message under construction.
#[derive(Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    fn tag(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 128 {
            self.0.push((value & 127 | 128) as u8);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub(crate) fn number(mut self, field: u64, value: u64) -> Self {
        self.tag(field, VARINT);
        self.varint(value);
        self
    }

    pub(crate) fn double(mut self, field: u64, value: f64) -> Self {
        self.tag(field, FIXED_64);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn float(mut self, field: u64, value: f32) -> Self {
        self.tag(field, FIXED_32);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.tag(field, BYTES);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    pub(crate) fn message(self, field: u64, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// `Event` up to what it says: when, and at which step.
fn event(wall_time: f64, step: u64) -> Message {
    let event = Message::default().double(1, wall_time);
    match step {
        // What is zero is left out.
        0 => event,
        step => event.number(2, step),
    }
}

/// The first event of a file.
pub(crate) fn version(wall_time: f64) -> Vec<u8> {
    event(wall_time, 0).bytes(3, b"brain.Event:2").into_bytes()
}

/// Says that what other files have of later steps comes again, and does not count.
pub(crate) fn begins_at(wall_time: f64, step: u64) -> Vec<u8> {
    let start = Message::default().number(1, 1);
    event(wall_time, step).message(7, &start).into_bytes()
}

/// Some numbers of a step.
pub(crate) fn scalars(wall_time: f64, step: u64, values: &[(&str, f64)]) -> Vec<u8> {
    let summary = values
        .iter()
        .fold(Message::default(), |summary, (tag, value)| {
            let value = Message::default()
                .bytes(1, tag.as_bytes())
                .float(2, *value as f32);
            summary.message(1, &value)
        });
    event(wall_time, step).message(5, &summary).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_that_of_tensorboard() {
        // Event(wall_time=1.5, step=300, summary=Summary(value=[Summary.Value(tag="a", simple_value=0.5)]))
        let expected =
            b"\x09\0\0\0\0\0\0\xf8\x3f\x10\xac\x02\x2a\x0a\x0a\x08\x0a\x01a\x15\0\0\0\x3f";
        assert_eq!(scalars(1.5, 300, &[("a", 0.5)]), expected);
    }
}

//! Streams and events that are given back when they are dropped.

use std::sync::Arc;

use crate::api::{Event, NcclApi, Stream};
use crate::error::LibraryError;

pub(crate) struct OwnedEvent {
    api: Arc<dyn NcclApi>,
    event: Option<Event>,
}

impl OwnedEvent {
    pub(crate) fn new(api: &Arc<dyn NcclApi>) -> Result<Self, LibraryError> {
        let event = Some(api.create_event()?);
        let api = api.clone();
        Ok(Self { api, event })
    }

    pub(crate) fn get(&self) -> &Event {
        self.event.as_ref().expect("only `drop` takes it")
    }

    pub(crate) fn is_over(&self) -> Result<bool, LibraryError> {
        self.api.query(self.get())
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            self.api.destroy_event(event);
        }
    }
}

pub(crate) struct OwnedStream {
    api: Arc<dyn NcclApi>,
    stream: Option<Stream>,
}

impl OwnedStream {
    pub(crate) fn new(api: &Arc<dyn NcclApi>) -> Result<Self, LibraryError> {
        let stream = Some(api.create_stream()?);
        let api = api.clone();
        Ok(Self { api, stream })
    }

    pub(crate) fn get(&self) -> &Stream {
        self.stream.as_ref().expect("only `drop` takes it")
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.api.destroy_stream(stream);
        }
    }
}

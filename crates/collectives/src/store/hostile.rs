//! The store's fuzz targets.

pub use super::tcp::hostile::{store_client, store_server, store_stream};
pub use super::tcp::store_requests;

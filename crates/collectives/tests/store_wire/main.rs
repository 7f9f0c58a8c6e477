//! The server as bytes on the wire see it: PyTorch's protocol, and those who do not follow it.

mod early_waits;
mod floods;
mod lifetime;
mod malformed;
mod protocol;
mod raw;
mod refusals;
mod writes;

//! The room `local`.

pub mod manifests;

//! The room `local`.

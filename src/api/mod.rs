//! The room `api`.

//! The room `plan`.

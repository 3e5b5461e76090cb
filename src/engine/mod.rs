//! The room `engine`.

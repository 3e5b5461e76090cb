//! The room `telemetry`.

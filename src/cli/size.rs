//! Sizes on a command line.
//!
//! Lives here: the reading of `256Mi` and its like into bytes above zero. May use: `api`'s quantities, so that flags and
//! manifests speak one language. Must never come in: anything else.

use freshet::api::Quantity;

/// Reads a size above zero.
pub fn parse(text: &str) -> Result<u64, String> {
    match text.parse::<Quantity>() {
        Ok(q) if q.bytes() > 0 => Ok(q.bytes()),
        Ok(_) => Err("it must be more than nothing, as in 256Mi".into()),
        Err(e) => Err(format!("{e}; write it as in 256Mi or 1Gi")),
    }
}

/// The least memory that merges work in. With less, a table is read over and over.
const LEAST_BUDGET: u64 = 4 << 10;

/// Reads a memory budget.
pub fn budget(text: &str) -> Result<u64, String> {
    match parse(text)? {
        bytes if bytes >= LEAST_BUDGET => Ok(bytes),
        _ => Err("it must be at least 4Ki; write it as in 256Mi".into()),
    }
}

/// Bytes for people: `1.5 MiB`.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    match unit {
        "B" => format!("{bytes} B"),
        _ => format!("{value:.1} {unit}"),
    }
}

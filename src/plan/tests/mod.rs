//! Tests of the room as a whole.
//!
//! Lives here: fixtures, the rules by example, properties of every plan, and a simulation. May use: proptest. Must never
//! come in: anything that is compiled outside tests.

mod aside;
mod fixtures;
mod merging;
mod properties;
mod simulation;
mod telling;
mod turns;

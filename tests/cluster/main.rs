//! A real Kubernetes: what only its API server can say of the resource, and later of the operator.
//!
//! Lives here: tests that need the programs of `make cluster-tools`, and root. May use: the harness, the fixtures and the
//! store servers, and the library for what is compared. Never: a stand-in for a part of Kubernetes, and a cluster that outlives its test.

#[path = "../fixtures/mod.rs"]
mod fixtures;
#[path = "../stores/servers.rs"]
mod servers;

mod alerts;
mod bad;
mod bad_specs;
mod chart;
mod controller;
mod ends;
mod harness;
mod lending;
mod node;
mod operator;
mod pods;
mod reader;
mod reading;
mod rebinding;
mod release;
mod resource;
mod rights;
mod rotation;
mod running;
mod steady;
mod storms;
mod tally;
mod visitors;
mod writing;

//! A real Kubernetes: what only its API server can say of the resource, and later of the operator.
//!
//! Lives here: tests that need the programs of `make cluster-tools`, and root. May use: the harness, and the library for
//! what is compared. Never: a stand-in for a part of Kubernetes, and a cluster that outlives its test.

mod chart;
mod controller;
mod ends;
mod harness;
mod node;
mod resource;

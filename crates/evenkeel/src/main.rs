//! Placeholder while the skeleton is laid.
fn main() {}

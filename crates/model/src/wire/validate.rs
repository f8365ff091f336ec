//! Strict request validators, one for each wire. They accept what the real APIs accept and report
//! every finding, with the place where it is.

mod anthropic;
mod openai;
mod shape;

pub use anthropic::anthropic;
pub use openai::openai;

#[cfg(test)]
mod tests;

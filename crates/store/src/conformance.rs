//! One suite for every engine: named cases that say what must hold at the contract.

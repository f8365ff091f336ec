//! Faults that are planted in the store to prove that they are found: the proof of the proof.
//!
//! No command reaches them; the tests do. Each stands for a mistake that an engine could make, and is
//! either named by the checker from the outside or made up for by the product. The checks of fenced
//! writes are not among them: without all three of them a stopped replica that goes on leaves no
//! trace in three seeds, because a turn is one transition only. Each has a test of its own at the store.

use evenkeel_core::Generator;
use evenkeel_core::port::store::{Op, Reply, TurnCommitted};

/// A mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests plant mistakes"))]
pub(crate) enum Plant {
    /// None: everything is as it should be.
    #[default]
    Nothing,
    /// Idempotency keys are forgotten: each attempt is a turn of its own.
    KeyLost,
    /// Now and then the end of a turn is acknowledged and not stored.
    EndLost,
    /// Now and then a turn is accepted before it is stored, and then never is.
    AnswerFirst,
}

/// One in so many turns, or ends of turns, is acknowledged without being stored.
const ONE_IN: u64 = 20;

impl Plant {
    /// The operation as the mistake makes it.
    pub(super) fn bend(self, mut op: Op) -> Op {
        if let (Self::KeyLost, Op::Admit(admit)) = (self, &mut op) {
            admit.key = None;
        }
        op
    }

    /// Whether an operation is answered, and what it wrote then lost.
    pub(super) fn forgets(self, op: &Op, generator: &Generator) -> bool {
        matches!((self, op), (Self::AnswerFirst, Op::Admit(_))) && generator.below(ONE_IN) == 0
    }

    /// The answer to an operation that is then not carried out.
    pub(super) fn lie(self, op: &Op, generator: &Generator) -> Option<Reply> {
        match (self, op) {
            (Self::EndLost, Op::CommitTurn(turn)) if generator.below(ONE_IN) == 0 => {
                let version = turn.version + 1;
                Some(Reply::CommitTurn(TurnCommitted::Done { version, seq_last: 0, next: None }))
            }
            _ => None,
        }
    }
}

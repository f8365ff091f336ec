//! The load of a chat: how its turns fall on threads, and what its clients do.

use serde::{Deserialize, Serialize};

/// `[chat]`: used when `traffic.shape` is `chat`. Shares are of turns.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Chat {
    /// How clients ask.
    pub door: Door,
    /// Share of messages that are followed by a second one before the first is answered.
    pub second_share: f64,
    /// Seconds within which that second message comes.
    pub second_within_s: f64,
    /// Messages that are sent at once on one thread.
    pub burst: usize,
    /// Share that goes to one and the same thread.
    pub hot_share: f64,
    /// Share of requests that are sent again at once, with the same key.
    pub duplicate_share: f64,
    /// Share of clients that leave before the answer and come back for it.
    pub disconnect_share: f64,
    /// What a busy thread does with a second message.
    pub busy_policy: String,
    /// Tokens of a reply.
    pub reply_tokens: usize,
    /// Seconds within which a turn must be answered to count as a success.
    pub answer_within_s: f64,
}

impl Default for Chat {
    fn default() -> Self {
        Self {
            door: Door::Wait,
            second_share: 0.4,
            second_within_s: 2.5,
            burst: 1,
            hot_share: 0.0,
            duplicate_share: 0.0,
            disconnect_share: 0.0,
            busy_policy: "enqueue".to_owned(),
            reply_tokens: 60,
            answer_within_s: 30.0,
        }
    }
}

/// How a client asks for a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Door {
    /// `POST /threads/{id}/runs/wait`: the answer comes whole.
    #[default]
    Wait,
    /// `POST /threads/{id}/runs/stream`: the answer comes in pieces.
    Stream,
}

impl Chat {
    /// Whether a message may end the turn that is under way.
    pub(crate) fn lets_messages_end_turns(&self) -> bool {
        ["interrupt", "rollback", "latest"].contains(&self.busy_policy.as_str())
    }

    /// What makes no sense, in words.
    pub(super) fn problem(&self) -> Option<String> {
        let shares = [
            ("second_share", self.second_share),
            ("hot_share", self.hot_share),
            ("duplicate_share", self.duplicate_share),
            ("disconnect_share", self.disconnect_share),
        ];
        if let Some((key, _)) = shares.iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
            return Some(format!("chat.{key} is a share: from 0 to 1."));
        }
        if self.burst == 0 || self.reply_tokens == 0 {
            return Some("chat.burst and chat.reply_tokens are at least 1.".to_owned());
        }
        if self.second_within_s <= 0.0 || self.answer_within_s <= 0.0 {
            return Some("chat.second_within_s and chat.answer_within_s are more than 0.".to_owned());
        }
        let policies = ["enqueue", "reject", "interrupt", "rollback", "steer", "merge", "latest"];
        if !policies.contains(&self.busy_policy.as_str()) {
            return Some(format!("chat.busy_policy is not one of {}.", policies.join(", ")));
        }
        None
    }
}

//! Fuzz targets: many made-up inputs, and what must hold of every one of them.
//!
//! A target is an ordinary test. As such it tries a fixed number of inputs, the same each time. With
//! `EVENKEEL_FUZZ_SECONDS` it goes on with others for that long; `cargo xtask fuzz` sets it. A failure
//! prints the smallest input that was found to fail, and the seed of its round, which
//! `EVENKEEL_FUZZ_SEED` repeats.
//!
//! This file is compiled into the tests of each crate that has targets: it is no part of any library.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner};
use tokio::time::Instant;

/// Inputs of one round.
const CASES: u32 = 64;
/// Rounds of an ordinary test.
const ROUNDS: u64 = 8;

/// Tries inputs of this strategy.
pub(crate) fn fuzz<S: Strategy>(name: &str, strategy: &S, check: impl Fn(S::Value) -> TestCaseResult) {
    let asked = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    let (seconds, seed) = (asked("EVENKEEL_FUZZ_SECONDS"), asked("EVENKEEL_FUZZ_SEED"));
    let begun = Instant::now();
    let first = seed.unwrap_or_else(|| if seconds.is_some() { fresh_seed() } else { 0 });
    let mut n_rounds = 0;
    loop {
        let is_over = match (seconds, seed) {
            (_, Some(_)) => n_rounds > 0,
            (Some(seconds), None) => begun.elapsed() >= Duration::from_secs(seconds),
            (None, None) => n_rounds >= ROUNDS,
        };
        if is_over {
            break;
        }
        round(name, first.wrapping_add(n_rounds), strategy, &check);
        n_rounds += 1;
    }
    let (n, took) = (n_rounds * u64::from(CASES), begun.elapsed().as_secs_f64());
    println!("fuzz {name}: {n} inputs in {took:.1} s, seeds from {first}, no finding");
}

/// One round; it is known by its seed.
fn round<S: Strategy>(name: &str, seed: u64, strategy: &S, check: &impl Fn(S::Value) -> TestCaseResult) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config =
        Config { cases: CASES, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    if let Err(finding) = runner.run(strategy, check) {
        panic!("fuzz {name}: {finding}\nrepeat it with EVENKEEL_FUZZ_SEED={seed}");
    }
}

/// Another one each time, so that a long run does not try what the last one did.
#[expect(clippy::disallowed_methods, reason = "it only has to differ, and it is printed")]
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(0)
}

/// Texts of the corpus with changes, sentences made of the words, and noise.
pub(crate) fn inputs(
    corpus: &'static [&'static str],
    words: &'static [&'static str],
) -> impl Strategy<Value = Vec<u8>> {
    let noise =
        prop_oneof![prop::collection::vec(any::<u8>(), 0..64), "\\PC{0,32}".prop_map(String::into_bytes)];
    let sentence = prop::collection::vec(prop::sample::select(words), 0..24);
    let sentence = sentence.prop_map(|words| words.concat().into_bytes());
    let changed = (prop::sample::select(corpus), prop::collection::vec(change(corpus, words), 0..6));
    let changed = changed.prop_map(|(text, changes)| {
        changes.iter().fold(text.as_bytes().to_vec(), |bytes, change| change.applied(bytes))
    });
    prop_oneof![5 => changed, 3 => sentence, 1 => noise]
}

/// One change of an input.
#[derive(Clone, Debug)]
enum Change {
    Remove(Index, usize),
    Repeat(Index, usize, usize),
    Flip(Index, u32),
    Put(Index, Vec<u8>),
    /// The rest of another text of the corpus from here on.
    Splice(Index, &'static str, Index),
}

fn change(corpus: &'static [&'static str], words: &'static [&'static str]) -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    let word = prop::sample::select(words).prop_map(|word: &str| word.as_bytes().to_vec());
    let piece = prop_oneof![4 => word, 1 => prop::collection::vec(any::<u8>(), 1..4)];
    prop_oneof![
        2 => (at(), 1..12_usize).prop_map(|(at, n)| Change::Remove(at, n)),
        1 => (at(), 1..24_usize, 1..40_usize).prop_map(|(at, n, times)| Change::Repeat(at, n, times)),
        2 => (at(), 0..8_u32).prop_map(|(at, bit)| Change::Flip(at, bit)),
        4 => (at(), piece).prop_map(|(at, bytes)| Change::Put(at, bytes)),
        1 => (at(), prop::sample::select(corpus), at())
            .prop_map(|(at, other, from)| Change::Splice(at, other, from)),
    ]
}

impl Change {
    fn applied(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let place = |at: &Index, bytes: &[u8]| at.index(bytes.len() + 1);
        match self {
            Self::Remove(at, n) => {
                let from = place(at, &bytes);
                bytes.drain(from..(from + n).min(bytes.len()));
            }
            Self::Repeat(at, n, times) => {
                let from = place(at, &bytes);
                let part = bytes[from..(from + n).min(bytes.len())].repeat(*times);
                bytes.splice(from..from, part);
            }
            Self::Flip(at, bit) => {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] ^= 1 << bit;
                }
            }
            Self::Put(at, piece) => {
                let from = place(at, &bytes);
                bytes.splice(from..from, piece.iter().copied());
            }
            Self::Splice(at, other, from) => {
                bytes.truncate(place(at, &bytes));
                bytes.extend(&other.as_bytes()[place(from, other.as_bytes())..]);
            }
        }
        bytes
    }
}

/// Ways to cut an input into chunks, for [`cut`].
pub(crate) fn cuts() -> impl Strategy<Value = Vec<Index>> {
    prop::collection::vec(any::<Index>(), 0..6)
}

/// The chunks of an input that is cut at these places; some may be empty.
pub(crate) fn cut<'a>(bytes: &'a [u8], cuts: &[Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    places.sort_unstable();
    let mut chunks = Vec::with_capacity(places.len() + 1);
    let mut from = 0;
    for to in places.into_iter().chain([bytes.len()]) {
        chunks.push(&bytes[from..to]);
        from = to;
    }
    chunks
}

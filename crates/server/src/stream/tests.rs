use evenkeel_core::Code;
use proptest::prelude::*;

use super::cursor::Cursor;

proptest! {
    #[test]
    fn a_cursor_reads_what_it_wrote(seq in 1u64.., part in proptest::option::of(0usize..1000)) {
        let cursor = Cursor { seq, part };
        prop_assert_eq!(Cursor::parse(&cursor.to_string()).ok(), Some(cursor));
    }

    #[test]
    fn any_text_is_a_cursor_or_is_refused(text in ".{0,40}") {
        match Cursor::parse(&text) {
            Ok(cursor) => prop_assert!(cursor.complete_to() <= cursor.seq),
            Err(error) => prop_assert_eq!(error.code, Code::CursorInvalid),
        }
    }

    #[test]
    fn what_was_seen_is_a_prefix(seq in 1u64..50, part in proptest::option::of(0usize..5)) {
        let cursor = Cursor { seq, part };
        let places: Vec<(u64, usize)> = (1..60).flat_map(|seq| (0..6).map(move |part| (seq, part))).collect();
        let n_seen = places.iter().take_while(|(seq, part)| cursor.has_seen(*seq, *part)).count();
        prop_assert!(places.iter().skip(n_seen).all(|(seq, part)| !cursor.has_seen(*seq, *part)));
        // Everything behind the last complete event is read again, so nothing unseen is passed over.
        prop_assert!(places.iter().filter(|(seq, _)| *seq <= cursor.complete_to()).all(|(s, p)| cursor.has_seen(*s, *p)));
    }
}

//! The codec on whole streams and on every way of cutting them.

use proptest::prelude::*;

use super::{Event, Item, Parser, TooLong};

fn event(name: &str, data: &str, id: Option<&str>) -> Item {
    Item::Event(Event { name: name.to_owned(), data: data.to_owned(), id: id.map(str::to_owned) })
}

fn parse(chunks: &[&[u8]]) -> Vec<Item> {
    let mut parser = Parser::new(64);
    chunks.iter().flat_map(|chunk| parser.push(chunk).expect("the streams here are short")).collect()
}

const STREAM: &str = "\u{feff}: hello\r\nevent: values\r\ndata: {\"a\":\r\ndata:  1}\r\nid: 7-0\r\n\r\n\
    event: empty\n\ndata\n\nretry: 5\ndata:ü\r\rdata: not ended";

#[test]
fn a_stream_with_everything() {
    let expected = [
        Item::Comment,
        event("values", "{\"a\":\n 1}", Some("7-0")),
        event("", "", None),
        event("", "ü", None),
    ];
    assert_eq!(parse(&[STREAM.as_bytes()]), expected);
}

#[test]
fn a_cut_anywhere_changes_nothing() {
    let whole = parse(&[STREAM.as_bytes()]);
    for at in 0..=STREAM.len() {
        let (left, right) = STREAM.as_bytes().split_at(at);
        assert_eq!(parse(&[left, right]), whole, "cut at {at}");
    }
    let bytes: Vec<&[u8]> = STREAM.as_bytes().chunks(1).collect();
    assert_eq!(parse(&bytes), whole);
}

#[test]
fn a_line_or_an_event_without_end_is_refused() {
    let mut parser = Parser::new(64);
    assert_eq!(parser.push(&[b'x'; 65]), Err(TooLong { limit: 64 }));
    let mut parser = Parser::new(64);
    let line = b"data: 0123456789012345678901234567890123456789\n";
    assert_eq!(parser.push(line), Ok(vec![]));
    assert_eq!(parser.push(line), Err(TooLong { limit: 64 }));
}

proptest! {
    /// However the bytes are cut, also inside characters and line ends, the events are the same.
    #[test]
    fn any_chunking_gives_the_same_events(
        parts in prop::collection::vec(
            "(data|event|id|: c|data:)?(:| )?[a-zäß€😀]{0,6}(\n|\r\n|\r|\n\n|\r\n\r\n)",
            0..12,
        ),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let bytes = parts.concat().into_bytes();
        let all = |chunks: &[&[u8]]| {
            let mut parser = Parser::new(1024);
            chunks.iter().flat_map(|chunk| parser.push(chunk).expect("short")).collect::<Vec<_>>()
        };
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.sort_unstable();
        let mut chunks = Vec::new();
        let mut begin = 0;
        for end in at {
            chunks.push(&bytes[begin..end]);
            begin = end;
        }
        chunks.push(&bytes[begin..]);
        prop_assert_eq!(all(&chunks), all(&[&bytes]));
    }
}

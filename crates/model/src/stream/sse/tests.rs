use proptest::prelude::*;

use super::{EVENT_BYTES_MAX, Item, Parser, TooLarge};

fn parse(chunks: &[&[u8]]) -> Vec<Item> {
    let mut parser = Parser::default();
    let mut items = Vec::new();
    for chunk in chunks {
        parser.feed(chunk, &mut items).unwrap();
    }
    items
}

fn event(name: Option<&str>, data: &str) -> Item {
    Item::Event { name: name.map(str::to_owned), data: data.to_owned() }
}

#[test]
fn every_line_end_and_a_byte_order_mark() {
    let text =
        "\u{feff}data: a\n\ndata:b\r\n\r\ndata: c\r\rdata\n\n: ping\n\nevent: x\ndata: d\ndata:  e\n\n";
    let expected = [
        event(None, "a"),
        event(None, "b"),
        event(None, "c"),
        event(None, ""),
        Item::Comment,
        event(Some("x"), "d\n e"),
    ];
    assert_eq!(parse(&[text.as_bytes()]), expected);
}

#[test]
fn an_unfinished_event_is_no_event() {
    assert_eq!(parse(&[b"data: [DONE]\n"]), []);
    assert_eq!(parse(&[b"event: message_stop\n\n"]), [], "an event without data is none");
}

#[test]
fn a_huge_event_is_refused_and_many_small_ones_are_not() {
    let mut parser = Parser::default();
    let mut items = Vec::new();
    for _ in 0..EVENT_BYTES_MAX / 512 * 3 {
        parser.feed(b"data: ", &mut items).unwrap();
        parser.feed(&[b'x'; 506], &mut items).unwrap();
        parser.feed(b"\n\n", &mut items).unwrap();
        items.clear();
    }
    assert_eq!(parser.feed(&vec![b'x'; EVENT_BYTES_MAX + 1], &mut items), Err(TooLarge));
}

proptest! {
    /// However the bytes are cut, also inside characters and line ends, the events are the same.
    #[test]
    fn any_chunking_gives_the_same_events(
        parts in prop::collection::vec("(data|event|id|: c|data:)?(:| )?[a-zäß€😀]{0,6}(\n|\r\n|\r|\n\n|\r\n\r\n)", 0..30),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let bytes = parts.concat().into_bytes();
        let whole = parse(&[&bytes]);
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.sort_unstable();
        let mut chunks = Vec::new();
        let mut begin = 0;
        for end in at {
            chunks.push(&bytes[begin..end]);
            begin = end;
        }
        chunks.push(&bytes[begin..]);
        prop_assert_eq!(parse(&chunks), whole);
    }
}

//! Streams of events: any bytes, cut in any way.

use proptest::prelude::*;

use super::{Event, Item, Parser, TooLong};
use crate::fuzzing::{cut, cuts, fuzz, inputs};

const LIMIT: usize = 96;

const CORPUS: &[&str] = &[
    "event: message_start\ndata: {\"type\":\"message_start\"}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n\n",
    ": ping\r\n\r\nid: 7-0\r\nevent: values\r\ndata: {\r\ndata: }\r\n\r\n",
    "\u{feff}data: one\rdata: two\r\rretry: 5\nid\n\n",
    "data: äß€😀\n\nid: a\0b\ndata\n\n",
];

const WORDS: &[&str] = &[
    "data", "event", "id", "retry", ":", ": ", " ", "\n", "\r", "\r\n", "\n\n", "\u{feff}", "\0", "ä", "😀",
    "x", "{}", "[DONE]",
];

/// What came before an error, and the error.
fn parse(chunks: &[&[u8]], limit: usize) -> (Vec<Item>, Option<TooLong>) {
    let mut parser = Parser::new(limit);
    let mut items = Vec::new();
    for chunk in chunks {
        match parser.push(chunk) {
            Ok(more) => items.extend(more),
            Err(error) => return (items, Some(error)),
        }
    }
    (items, None)
}

/// The same events as text.
fn written(items: &[Item]) -> String {
    let event = |event: &Event| {
        let id = event.id.iter().map(|id| format!("id: {id}\n")).collect::<String>();
        let data = event.data.split('\n').map(|line| format!("data: {line}\n")).collect::<String>();
        format!("event: {}\n{id}{data}\n", event.name)
    };
    let one = |item: &Item| match item {
        Item::Comment => ":\n".to_owned(),
        Item::Event(of) => event(of),
    };
    items.iter().map(one).collect()
}

#[test]
fn fuzz_event_streams() {
    fuzz("sse", &(inputs(CORPUS, WORDS), cuts()), |(bytes, cuts)| {
        let (whole, error) = parse(&[&bytes], LIMIT);
        let (items, cut_error) = parse(&cut(&bytes, &cuts), LIMIT);
        prop_assert_eq!(error, cut_error);
        if error.is_some() {
            return Ok(());
        }
        prop_assert_eq!(&items, &whole);
        prop_assert!(items.len() <= bytes.len());
        for item in &items {
            let Item::Event(Event { name, data, id }) = item else { continue };
            prop_assert!(data.len() <= LIMIT, "{} bytes of data", data.len());
            // A byte that is no UTF-8 becomes a character of three.
            let short = |text: &str| text.len() <= 3 * LIMIT && !text.contains(['\n', '\r']);
            prop_assert!(short(name) && id.as_deref().is_none_or(short), "{item:?}");
        }
        // What was read means the same when it is written down again.
        let again = parse(&[written(&items).as_bytes()], 8 * LIMIT);
        prop_assert_eq!(again, (items, None));
        Ok(())
    });
}

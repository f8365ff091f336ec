use super::typed::Typed;

#[test]
fn lines_are_messages_or_commands() {
    let message = |text: &str, policy| Typed::Message { text: text.to_owned(), policy };
    let table = [
        ("", Typed::Nothing),
        ("   ", Typed::Nothing),
        ("hello there", message("hello there", None)),
        ("/steer  look in src", message("look in src", Some("steer"))),
        ("/interrupt no", message("no", Some("interrupt"))),
        ("/latest x", message("x", Some("latest"))),
        ("/steer", Typed::Help),
        ("//etc/hosts", message("/etc/hosts", None)),
        ("/cancel", Typed::Cancel),
        ("/quit", Typed::Quit),
        ("/shout x", Typed::Unknown("shout".to_owned())),
    ];
    for (line, expected) in table {
        assert_eq!(Typed::parse(line), expected, "{line:?}");
    }
}

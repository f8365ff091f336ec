use std::io::Write;

use super::Capture;

/// A command may write and end before the runtime has looked at its pipes even once.
#[tokio::test]
async fn what_a_fast_command_wrote_is_never_lost() {
    let (stdout, mut writer) = std::io::pipe().unwrap();
    let (stderr, _held_open) = std::io::pipe().unwrap();
    let capture = Capture::new(stdout.into(), stderr.into(), 1 << 20).unwrap();
    writer.write_all(b"hi\n").unwrap();
    drop(writer);
    assert_eq!(capture.drain(), (b"hi\n".to_vec(), Vec::new(), 0));
}

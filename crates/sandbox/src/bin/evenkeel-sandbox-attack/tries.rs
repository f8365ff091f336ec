//! One try at a time: make it, and print how it was answered.
#![expect(unsafe_code, reason = "attacks are raw system calls")]

use std::ffi::CStr;
use std::io;

/// Prints the answer to a try.
pub(crate) fn tell(name: &str, result: io::Result<()>) {
    match result {
        Ok(()) => println!("{name}: ALLOWED"),
        Err(error) => {
            let text = error.to_string();
            println!("{name}: {}", text.split(" (os error").next().unwrap_or_default());
        }
    }
}

/// Prints only that a try was refused: kernels and distributions differ in how.
pub(crate) fn tell_refused(name: &str, result: io::Result<()>) {
    println!("{name}: {}", if result.is_ok() { "ALLOWED" } else { "refused" });
}

/// Prints what was seen.
pub(crate) fn show(name: &str, value: impl std::fmt::Display) {
    println!("{name}: {value}");
}

/// Prints whether something holds that should.
pub(crate) fn holds(name: &str, holds: bool) {
    println!("{name}: {}", if holds { "yes" } else { "NO" });
}

/// Makes a system call and prints its answer.
pub(crate) fn syscall(name: &str, number: i64, arguments: [i64; 5]) {
    tell(name, result(call(number, arguments)));
}

/// Makes a system call: its answer.
pub(crate) fn call(number: i64, [a, b, c, d, e]: [i64; 5]) -> i64 {
    // SAFETY: pointers are null or to static text that the kernel only reads; what a call that is
    // wrongly allowed does to this process does not matter.
    unsafe { libc::syscall(number, a, b, c, d, e) }
}

/// The answer of a system call.
pub(crate) fn result(value: i64) -> io::Result<()> {
    if value == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(crate) fn pointer(text: &'static CStr) -> i64 {
    text.as_ptr() as i64
}

/// Makes a process with these flags of `clone`; it ends at once.
pub(crate) fn clone_with(flags: i64) -> io::Result<()> {
    let child = call(libc::SYS_clone, [flags | i64::from(libc::SIGCHLD), 0, 0, 0, 0]);
    if child == 0 {
        // SAFETY: no preconditions.
        unsafe { libc::_exit(0) };
    }
    result(child)
}

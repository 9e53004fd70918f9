//! What commands leave behind: results on stdout, notes and logs on stderr, figures in files.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // They panic when nobody reads.

pub mod chart;
pub mod verdict;

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Prints a line.
///
/// # Errors
/// What the system says, such as that nobody reads any more (`canopy bench relay | head -1`).
pub fn print_line(line: impl Display) -> io::Result<()> {
    writeln!(io::stdout(), "{line}").map_err(|error| {
        io::Error::new(error.kind(), format!("cannot write to standard output: {error}"))
    })
}

/// Prints a line for whoever looks on. If nobody does, it is lost, and the command goes on.
pub fn print_note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Stderr for logs: what nobody reads is lost, and whoever logs never learns of it.
pub struct LogOutput;

impl Write for LogOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a command ended because nobody reads what it prints: no failure of its own.
pub fn nobody_reads(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

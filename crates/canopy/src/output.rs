//! What commands print on stdout.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Prints a line.
///
/// # Errors
/// What the system says, such as that nobody reads any more (`canopy bench relay | head -1`).
pub(crate) fn print_line(line: impl Display) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// Whether a command ended because nobody reads what it prints: no failure of its own.
pub(crate) fn nobody_reads(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

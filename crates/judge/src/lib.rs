//! What must hold of a relay, seen from outside: the books on its counters and its answers, and
//! the oracle that says which deliveries must, may and must not come about; and what would be a fair
//! share of a budget ([`fair`]).
//!
//! The simulator, the fuzzer and the crowds on real sockets all judge with it, so that a rule that
//! is mended is mended for all three. It is told what happened, with times of one clock; it never
//! looks into a relay's tables, and nothing in it grows with time.
#![forbid(unsafe_code)]

mod between;
mod books;
mod conduct;
pub mod fair;
mod interest;
mod limited;
mod oracle;
mod rules;
mod seats;
mod secrets;
mod side;
mod standing;
mod tally;
mod threads;
mod window;

pub use books::{Books, Limits, Page};
pub use oracle::{Carriage, Oracle, Received};
pub use rules::Rules;
pub use seats::Seats;
pub use secrets::Secrets;
pub use side::Side;
pub use tally::{Gap, Tally};
pub use window::Publish;

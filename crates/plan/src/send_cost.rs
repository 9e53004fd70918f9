//! What it costs to send one update to many receivers (Groupcast §6.1).

use serde::{Deserialize, Serialize};
use std::fmt;

/// S(N, b) = a + xN + yNb: the time for sending b bytes to N receivers. The paper's form (eq. 7) has
/// no a. Times are milliseconds where a [`Server`](crate::Server) uses them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SendCost {
    /// a: for an update, whoever gets it.
    pub per_message: f64,
    /// x: for each receiver.
    pub per_receiver: f64,
    /// y: for each receiver and byte.
    pub per_byte: f64,
}

impl SendCost {
    /// User-groupcast on the paper's Linux/i386 machine (eq. 8): a system call for each receiver.
    pub const PAPER_OLD: SendCost = SendCost::paper(6.02e-3, 8.69e-7);
    /// Kernel-groupcast on that machine (eq. 9): one for all.
    pub const PAPER_NEW: SendCost = SendCost::paper(2.16e-3, 2.12e-7);

    /// The paper's form (eq. 7).
    pub const fn paper(per_receiver: f64, per_byte: f64) -> SendCost {
        SendCost { per_message: 0.0, per_receiver, per_byte }
    }

    /// S(N, b).
    pub fn time(&self, receivers: f64, bytes: f64) -> f64 {
        self.per_message + self.per_user(bytes) * receivers
    }

    /// x + yb: one receiver more.
    pub fn per_user(&self, bytes: f64) -> f64 {
        self.per_receiver + self.per_byte * bytes
    }
}

impl fmt::Display for SendCost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SendCost { per_message, per_receiver, per_byte } = self;
        if *per_message != 0.0 {
            write!(out, "{per_message:.3e} + ")?;
        }
        write!(out, "{per_receiver:.3e}·N + {per_byte:.3e}·N·b")
    }
}

//! Rates, and what an endpoint promises not to exceed.

use serde::{Deserialize, Serialize};
use std::iter::Sum;
use std::ops::{Add, Sub};

/// A rate of traffic: two numbers, each provisioned by itself. Sums of whole numbers are exact up
/// to 2⁵³.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Bits a second, or whatever unit the limits are in.
    pub bits: f64,
    /// Packets a second.
    pub packets: f64,
}

impl Rate {
    /// Nothing.
    pub const ZERO: Rate = Rate { bits: 0.0, packets: 0.0 };
    /// More than anybody asks for.
    pub const UNLIMITED: Rate = Rate { bits: f64::INFINITY, packets: f64::INFINITY };

    /// The largest rate that an endpoint can promise: 2⁴² or 4.4 Tbit/s. Two thousand of them sum
    /// up exactly.
    pub const MOST: f64 = 4_398_046_511_104.0;

    /// A rate that is told in bits alone.
    pub const fn bits(bits: f64) -> Rate {
        Rate { bits, packets: 0.0 }
    }

    /// The smaller of each number.
    #[must_use]
    pub fn min(self, other: Rate) -> Rate {
        Rate { bits: self.bits.min(other.bits), packets: self.packets.min(other.packets) }
    }

    /// By how much it exceeds what is free, in shares of `scale`; 0 if it fits.
    pub(crate) fn excess(self, free: Rate, scale: Rate) -> f64 {
        // Rounding of sums must not make what just fits too much.
        let over = |needed: f64, free: f64, scale: f64| {
            if needed <= free * (1.0 + 1e-12) { 0.0 } else { (needed - free) / scale }
        };
        over(self.bits, free.bits, scale.bits) + over(self.packets, free.packets, scale.packets)
    }

    /// Rounded up to whole numbers from 0 to [`Rate::MOST`], which sums keep exactly.
    pub(crate) fn whole(self) -> Rate {
        let whole = |rate: f64| if rate > 0.0 { rate.ceil().min(Rate::MOST) } else { 0.0 };
        Rate { bits: whole(self.bits), packets: whole(self.packets) }
    }
}

impl Add for Rate {
    type Output = Rate;

    fn add(self, other: Rate) -> Rate {
        Rate { bits: self.bits + other.bits, packets: self.packets + other.packets }
    }
}

impl Sub for Rate {
    type Output = Rate;

    fn sub(self, other: Rate) -> Rate {
        Rate { bits: self.bits - other.bits, packets: self.packets - other.packets }
    }
}

impl Sum for Rate {
    fn sum<I: Iterator<Item = Rate>>(rates: I) -> Rate {
        rates.fold(Rate::ZERO, Add::add)
    }
}

/// What an endpoint promises not to exceed: four numbers (Forest §3.4.2's α and ω, each in bits
/// and in packets). A node that is no endpoint has none of either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// α: what it sends at most.
    pub send: Rate,
    /// ω: what it receives at most.
    pub receive: Rate,
}

impl Limits {
    /// Limits that are told in bits alone.
    pub const fn bits(send: f64, receive: f64) -> Limits {
        Limits { send: Rate::bits(send), receive: Rate::bits(receive) }
    }

    /// Rounded up to whole numbers from 0 to [`Rate::MOST`], which sums keep exactly.
    #[must_use]
    pub fn whole(self) -> Limits {
        Limits { send: self.send.whole(), receive: self.receive.whole() }
    }
}

impl Add for Limits {
    type Output = Limits;

    fn add(self, other: Limits) -> Limits {
        Limits { send: self.send + other.send, receive: self.receive + other.receive }
    }
}

impl Sub for Limits {
    type Output = Limits;

    fn sub(self, other: Limits) -> Limits {
        Limits { send: self.send - other.send, receive: self.receive - other.receive }
    }
}

impl Sum for Limits {
    fn sum<I: Iterator<Item = Limits>>(limits: I) -> Limits {
        limits.fold(Limits::default(), Add::add)
    }
}

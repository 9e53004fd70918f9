//! What is reserved of every link and relay, and what is free.
//!
//! A reservation is a [`Flow`]: from a relay over a link to its neighbour, between a relay and
//! one of its members, or room for a member or a comtree. Flows are booked together or not at all, so no account is ever overdrawn.

use crate::model::{Link, LinkId, Relay, RelayId};
use canopy_plan::Rate;
use core::fmt;
use std::collections::BTreeMap;

/// Something that can run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Account {
    /// A link, from this relay to the other end.
    Link(LinkId, RelayId),
    /// What a relay sends altogether.
    Out(RelayId),
    /// What a relay receives altogether.
    In(RelayId),
    /// A relay's places for members; one is a bit.
    Places(RelayId),
    /// A relay's room for comtrees; one is a bit.
    Comtrees(RelayId),
}

/// A change of what is reserved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flow {
    /// From a relay to another, over a link.
    Over(LinkId, RelayId, RelayId, Rate),
    /// From members to their relay.
    Up(RelayId, Rate),
    /// From a relay to its members.
    Down(RelayId, Rate),
    /// How many members a relay gains; negative if it loses them.
    Members(RelayId, f64),
    /// How many comtrees a relay gains; negative if it loses them.
    Comtrees(RelayId, f64),
}

impl Flow {
    /// The same, the other way: undoes it.
    pub(crate) fn inverse(self) -> Flow {
        let minus = |rate: Rate| Rate::ZERO - rate;
        match self {
            Flow::Over(link, from, to, rate) => Flow::Over(link, from, to, minus(rate)),
            Flow::Up(relay, rate) => Flow::Up(relay, minus(rate)),
            Flow::Down(relay, rate) => Flow::Down(relay, minus(rate)),
            Flow::Members(relay, count) => Flow::Members(relay, -count),
            Flow::Comtrees(relay, count) => Flow::Comtrees(relay, -count),
        }
    }
}

/// What an account lacks for what was asked of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lack {
    /// Which account.
    pub account: Account,
    /// What was asked for, beyond what is reserved.
    pub asked: Rate,
    /// What is free.
    pub free: Rate,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lack { account, asked, free } = self;
        match account {
            Account::Link(LinkId(link), RelayId(from)) => {
                write!(f, "link {link} from relay {from}")?
            }
            Account::Out(RelayId(relay)) => write!(f, "relay {relay}'s uplink, sending")?,
            Account::In(RelayId(relay)) => write!(f, "relay {relay}'s uplink, receiving")?,
            Account::Places(RelayId(relay)) => {
                return write!(f, "relay {relay}: {} places are free", free.bits.max(0.0));
            }
            Account::Comtrees(RelayId(relay)) => {
                let free = free.bits.max(0.0);
                return write!(f, "relay {relay}: room for {free} comtrees is free");
            }
        }
        write!(
            f,
            ": asked for {} bit/s and {} packets/s more, free are {} and {}",
            asked.bits,
            asked.packets,
            free.bits.max(0.0),
            free.packets.max(0.0)
        )
    }
}

/// An account: how much may be reserved, and how much is.
#[derive(Clone, Copy, Debug, Default)]
struct Balance {
    most: Rate,
    reserved: Rate,
}

/// The accounts of all links and relays.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    share: f64,
    accounts: BTreeMap<Account, Balance>,
    changes: Vec<(Account, Rate)>,
}

impl Ledger {
    /// An empty ledger, in which this share of a link's or an uplink's rate can be reserved.
    pub(crate) fn new(share: f64) -> Ledger {
        Ledger { share, accounts: BTreeMap::new(), changes: Vec::new() }
    }

    /// Opens a link's accounts, or changes how much can be reserved of it.
    pub(crate) fn open_link(&mut self, link: &Link) {
        for end in link.ends {
            self.open(Account::Link(link.id, end), link.rate, self.share);
        }
    }

    /// Closes a link's accounts. Nothing is reserved there any more.
    pub(crate) fn close_link(&mut self, link: &Link) {
        for end in link.ends {
            self.accounts.remove(&Account::Link(link.id, end));
        }
    }

    /// Closes a relay's accounts. Nothing is reserved there any more.
    pub(crate) fn close_relay(&mut self, relay: RelayId) {
        let own = [Account::Out, Account::In, Account::Places, Account::Comtrees];
        for account in own {
            self.accounts.remove(&account(relay));
        }
    }

    /// Opens a relay's accounts, or changes how much can be reserved of it.
    pub(crate) fn open_relay(&mut self, relay: &Relay) {
        self.open(Account::Out(relay.id), relay.uplink.send, self.share);
        self.open(Account::In(relay.id), relay.uplink.receive, self.share);
        let whole = |number: u32| Rate { bits: f64::from(number), packets: f64::INFINITY };
        self.open(Account::Places(relay.id), whole(relay.places), 1.0);
        self.open(Account::Comtrees(relay.id), whole(relay.comtrees), 1.0);
    }

    fn open(&mut self, account: Account, rate: Rate, share: f64) {
        // Whole numbers, so that what is reserved and given back leaves nothing.
        let part = |number: f64| (number * share).floor();
        let most = Rate { bits: part(rate.bits), packets: part(rate.packets) };
        self.accounts.entry(account).or_default().most = most;
    }

    /// What is reserved of an account.
    pub(crate) fn reserved(&self, account: Account) -> Rate {
        self.accounts.get(&account).map_or(Rate::ZERO, |balance| balance.reserved)
    }

    /// What is free of an account.
    pub(crate) fn free(&self, account: Account) -> Rate {
        self.accounts.get(&account).map_or(Rate::ZERO, |balance| balance.most - balance.reserved)
    }

    /// The accounts, with what may be reserved of each and what is.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Account, Rate, Rate)> + '_ {
        self.accounts.iter().map(|(account, balance)| (*account, balance.most, balance.reserved))
    }

    /// Books all of these flows, or none if an account of which more is asked would be overdrawn.
    pub(crate) fn book(&mut self, flows: &[Flow]) -> Result<(), Lack> {
        self.enter(flows);
        let lack =
            self.changes.iter().find_map(|(account, asked)| {
                let Balance { most, reserved } =
                    self.accounts.get(account).copied().unwrap_or_default();
                let free = most - (reserved - *asked);
                let lacks = |asked: f64, free: f64| asked > 0.0 && asked > free;
                (lacks(asked.bits, free.bits) || lacks(asked.packets, free.packets))
                    .then_some(Lack { account: *account, asked: *asked, free })
            });
        if let Some(lack) = lack {
            let undone: Vec<Flow> = flows.iter().map(|flow| flow.inverse()).collect();
            self.enter(&undone);
            return Err(lack);
        }
        Ok(())
    }

    /// Books these flows whatever is free: what gives back, and what was booked before.
    pub(crate) fn enter(&mut self, flows: &[Flow]) {
        self.changes.clear();
        for flow in flows {
            match *flow {
                Flow::Over(link, from, to, rate) => {
                    self.change(Account::Link(link, from), rate);
                    self.change(Account::Out(from), rate);
                    self.change(Account::In(to), rate);
                }
                Flow::Up(relay, rate) => self.change(Account::In(relay), rate),
                Flow::Down(relay, rate) => self.change(Account::Out(relay), rate),
                Flow::Members(relay, count) => {
                    self.change(Account::Places(relay), Rate::bits(count))
                }
                Flow::Comtrees(relay, count) => {
                    self.change(Account::Comtrees(relay), Rate::bits(count))
                }
            }
        }
    }

    fn change(&mut self, account: Account, rate: Rate) {
        let balance = self.accounts.entry(account).or_default();
        balance.reserved = balance.reserved + rate;
        match self.changes.iter_mut().find(|(of, _)| *of == account) {
            Some((_, all)) => *all = *all + rate,
            None => self.changes.push((account, rate)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Origin;

    const A: RelayId = RelayId(1);
    const B: RelayId = RelayId(2);

    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(0.9);
        let rate = Rate { bits: 100.0, packets: 100.0 };
        ledger.open_link(&Link {
            id: LinkId(7),
            ends: [A, B],
            rate,
            delay_us: 0,
            origin: Origin::Given,
            removing: false,
        });
        for relay in [A, B] {
            ledger.open(Account::Out(relay), Rate::bits(1000.0), 0.9);
            ledger.open(Account::In(relay), Rate::bits(1000.0), 0.9);
        }
        ledger
    }

    fn over(bits: f64) -> Flow {
        Flow::Over(LinkId(7), A, B, Rate::bits(bits))
    }

    #[test]
    fn nine_tenths_are_reserved_and_the_next_bit_is_refused_with_numbers() {
        let mut ledger = ledger();
        ledger.book(&[over(60.0), over(30.0)]).unwrap();
        let lack = ledger.book(&[over(1.0)]).unwrap_err();
        assert_eq!(
            lack.to_string(),
            "link 7 from relay 1: asked for 1 bit/s and 0 packets/s more, free are 0 and 90"
        );
        assert_eq!(ledger.free(Account::Link(LinkId(7), B)).bits, 90.0, "the other way is free");
        assert_eq!(ledger.reserved(Account::Out(A)).bits, 90.0);
    }

    #[test]
    fn what_is_refused_leaves_nothing_behind() {
        let mut ledger = ledger();
        let before: Vec<_> = ledger.all().collect();
        assert!(ledger.book(&[over(50.0), Flow::Down(A, Rate::bits(3.0)), over(41.0)]).is_err());
        assert_eq!(ledger.all().collect::<Vec<_>>(), before);
        ledger.book(&[over(90.0)]).unwrap();
        ledger.book(&[over(90.0).inverse(), over(80.0)]).unwrap();
        assert_eq!(ledger.reserved(Account::Link(LinkId(7), A)).bits, 80.0);
    }

    #[test]
    fn what_was_cut_below_its_reservations_gives_back_freely() {
        let mut ledger = ledger();
        ledger.book(&[over(80.0)]).unwrap();
        ledger.open(Account::Link(LinkId(7), A), Rate::bits(10.0), 0.9);
        ledger.book(&[over(-20.0)]).unwrap();
        assert!(ledger.book(&[over(1.0)]).is_err());
    }
}

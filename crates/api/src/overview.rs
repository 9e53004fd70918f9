//! What is reserved and free, and how the controller stands.

use crate::relays::name_of;
use canopy_control::{Account, Controller, Ignored, MemberState, NotLetIn};
use canopy_plan::Rate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Every account: what can be reserved of it, and what is.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Accounts {
    /// Links first, then relays.
    pub accounts: Vec<AccountView>,
}

/// Something that can run out.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct AccountView {
    /// What it is: `link`, `out` or `in` (all that a relay sends or receives), or `places`.
    pub kind: String,
    /// The relay: whose uplink or places it is, or from which the link leads.
    pub relay: String,
    /// The relay at the other end of the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The number of the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<u32>,
    /// How much can be reserved: places, comtrees, or bits and packets a second.
    pub most: Amount,
    /// How much is reserved.
    pub reserved: Amount,
    /// How much is free.
    pub free: Amount,
}

/// An amount of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Amount {
    /// Bits and packets a second.
    Rate {
        /// Bits a second.
        bits: u64,
        /// Packets a second.
        packets: u64,
    },
    /// Places for members.
    Places {
        /// How many.
        places: u64,
    },
    /// Comtrees.
    Comtrees {
        /// How many.
        comtrees: u64,
    },
}

/// How the controller stands.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// How often a controller was started on this store.
    pub life: u32,
    /// Whether all relays that are heard have what they are to have.
    pub settled: bool,
    /// How many relays are registered.
    pub relays: usize,
    /// How many worlds there are.
    pub worlds: usize,
    /// How many members are in them.
    pub members: usize,
    /// What of relays' words about the ways between them counted for nothing.
    #[serde(default)]
    pub ignored: IgnoredWords,
    /// How often somebody was not let in for want of room.
    #[serde(default)]
    pub not_let_in: RefusalCounts,
}

/// How often somebody was not let in because a link, a relay or a world had no room, since the controller started.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct RefusalCounts {
    /// All in all.
    pub refusals: u64,
    /// How many of these no event has told of, as there were too many worlds and places in one second.
    pub untold: u64,
}

/// How often something that relays have said of the ways between them counted for nothing, and why.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct IgnoredWords {
    /// The message could not be read.
    pub unreadable: u64,
    /// It answered what was not asked last.
    pub late: u64,
    /// It was of a relay of which nothing was asked.
    pub unasked: u64,
    /// It could not be true.
    pub unbelievable: u64,
}

/// Every account.
pub fn accounts(controller: &Controller) -> Accounts {
    let view = |(account, most, reserved): (Account, Rate, Rate)| {
        let (kind, relay, link) = match account {
            Account::Link(link, from) => ("link", from, Some(link)),
            Account::Out(relay) => ("out", relay, None),
            Account::In(relay) => ("in", relay, None),
            Account::Places(relay) => ("places", relay, None),
            Account::Comtrees(relay) => ("comtrees", relay, None),
        };
        let to = link.and_then(|link| controller.link(link)).map(|link| link.other(relay));
        let amount = |rate: Rate| match account {
            Account::Places(_) => Amount::Places { places: rate.bits as u64 },
            Account::Comtrees(_) => Amount::Comtrees { comtrees: rate.bits as u64 },
            _ => Amount::Rate { bits: rate.bits as u64, packets: rate.packets as u64 },
        };
        AccountView {
            kind: kind.to_owned(),
            relay: name_of(controller, relay),
            to: to.map(|to| name_of(controller, to)),
            link: link.map(|link| link.0),
            most: amount(most),
            reserved: amount(reserved),
            free: amount(most - reserved),
        }
    };
    Accounts { accounts: controller.accounts().map(view).collect() }
}

/// How the controller stands.
pub fn health(controller: &Controller) -> Health {
    let members = controller.members();
    let Ignored { unreadable, late, unasked, unbelievable } = controller.ignored();
    let NotLetIn { refusals, untold } = controller.not_let_in();
    Health {
        status: "ok".to_owned(),
        life: controller.life(),
        settled: controller.is_settled(),
        relays: controller.relays().count(),
        worlds: controller.worlds().count(),
        members: members.filter(|member| member.state != MemberState::Resting).count(),
        ignored: IgnoredWords { unreadable, late, unasked, unbelievable },
        not_let_in: RefusalCounts { refusals, untold },
    }
}

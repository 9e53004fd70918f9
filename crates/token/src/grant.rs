//! What a token grants, and what a delegated key may grant at most.

use crate::text::{parse_address, serde_as_text};
use canopy_wire::{Address, Comtree, Group, Level};
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// The most comtrees of a grant.
pub const MAX_COMTREES: usize = 8;
/// The most ranges of groups of a scope.
pub const MAX_RANGES: usize = 16;

/// What somebody may do in a world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The world's name.
    pub world: String,
    /// The one unicast address that the bearer gets; any free one if it is not named.
    #[serde(rename = "addr", default, skip_serializing_if = "Option::is_none", with = "address")]
    pub address: Option<Address>,
    /// The one site whose relays let the bearer in; those of all sites if it is not named. So whoever
    /// gives out portable addresses says at which relay one holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<u16>,
    /// What is granted on each comtree; nothing on others.
    pub comtrees: Vec<ComtreeGrant>,
    /// How much the bearer may send and be sent.
    #[serde(default, skip_serializing_if = "Budget::is_unspecified")]
    pub budget: Budget,
    /// What the bearer may do beyond taking part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Role>,
}

/// What is granted on one comtree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComtreeGrant {
    /// The comtree's identifier.
    #[serde(rename = "id", with = "comtree")]
    pub comtree: Comtree,
    /// What may be published.
    #[serde(rename = "pub", default, skip_serializing_if = "Scope::is_empty")]
    pub publish: Scope,
    /// What may be subscribed to.
    #[serde(rename = "sub", default, skip_serializing_if = "Scope::is_empty")]
    pub subscribe: Scope,
    /// To whom unicast may be sent.
    #[serde(rename = "to", default, skip_serializing_if = "Unicast::is_nobody")]
    pub unicast: Unicast,
}

/// Groups, up to a level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// The groups, at most [`MAX_RANGES`] ranges; none if there are none.
    pub groups: Vec<GroupRange>,
    /// The highest level; 0 is what everybody gets.
    #[serde(default, with = "level", skip_serializing_if = "is_lowest")]
    pub level: Level,
}

/// Neighbouring groups, both ends among them: `0-4095`, or `7` for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupRange {
    first: Group,
    last: Group,
}

/// To whom unicast may be sent: `any`, or one address, such as `1.64` (Forest's client comtrees).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unicast {
    /// To nobody.
    #[default]
    Nobody,
    /// To this address only.
    Only(Address),
    /// To everybody.
    Anybody,
}

/// The most that is sent, in both directions: bits and packets a second (the four numbers of
/// Forest §2.2). What is not named is the world's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Bits a second to the relay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_bits: Option<u64>,
    /// Packets a second to the relay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_packets: Option<u64>,
    /// Bits a second from the relay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_bits: Option<u64>,
    /// Packets a second from the relay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_packets: Option<u64>,
}

/// What somebody may do beyond taking part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// Restrict, mute and throw out members of the world.
    Server,
}

impl Grant {
    /// What is granted on a comtree.
    pub fn on(&self, comtree: Comtree) -> Option<&ComtreeGrant> {
        self.comtrees.iter().find(|grant| grant.comtree == comtree)
    }

    /// What of this is more than `ceiling` grants, in words.
    ///
    /// # Errors
    /// The first thing that is.
    pub fn is_within(&self, ceiling: &Grant) -> Result<(), String> {
        if self.world != ceiling.world {
            return Err(format!("world {:?}; {:?} is granted", self.world, ceiling.world));
        }
        if ceiling.address.is_some() && self.address != ceiling.address {
            return Err("another address".to_owned());
        }
        if ceiling.site.is_some() && self.site != ceiling.site {
            return Err("another site".to_owned());
        }
        for grant in &self.comtrees {
            let Some(most) = ceiling.on(grant.comtree) else {
                return Err(format!("comtree {}", grant.comtree.0));
            };
            if !grant.publish.is_within(&most.publish) {
                return Err(format!("publishing on comtree {}", grant.comtree.0));
            }
            if !grant.subscribe.is_within(&most.subscribe) {
                return Err(format!("subscribing on comtree {}", grant.comtree.0));
            }
            let reaches_more = !matches!(
                (grant.unicast, most.unicast),
                (Unicast::Nobody, _) | (_, Unicast::Anybody)
            );
            if reaches_more && grant.unicast != most.unicast {
                return Err(format!("unicast on comtree {}", grant.comtree.0));
            }
        }
        if !self.budget.is_within(&ceiling.budget) {
            return Err("budget".to_owned());
        }
        match self.roles.iter().find(|role| !ceiling.roles.contains(role)) {
            Some(role) => Err(format!("role {role:?}")),
            None => Ok(()),
        }
    }

    /// Whether it keeps to the limits of a grant.
    ///
    /// # Errors
    /// Which it exceeds.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.comtrees.is_empty() || self.comtrees.len() > MAX_COMTREES {
            return Err(format!("comtrees: 1 to {MAX_COMTREES} are allowed"));
        }
        for (place, grant) in self.comtrees.iter().enumerate() {
            if self.comtrees[..place].iter().any(|before| before.comtree == grant.comtree) {
                return Err(format!("comtrees: {} is there twice", grant.comtree.0));
            }
            if [&grant.publish, &grant.subscribe].iter().any(|at| at.groups.len() > MAX_RANGES) {
                return Err(format!("groups: at most {MAX_RANGES} ranges are allowed"));
            }
        }
        Ok(())
    }
}

impl Scope {
    /// All groups, at all levels.
    pub fn everything() -> Scope {
        let all = GroupRange { first: Group::new(0), last: Group::new(Group::MAX) };
        Scope { groups: vec![all], level: Level(u8::MAX) }
    }

    /// The same groups, at most up to a level.
    pub fn up_to(self, level: Level) -> Scope {
        Scope { level: self.level.min(level), ..self }
    }

    /// Whether it has no group.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Whether a group at a level is in it.
    pub fn allows(&self, group: Group, level: Level) -> bool {
        level <= self.level && self.has_group(group)
    }

    /// Whether a group is in it, at some level.
    pub fn has_group(&self, group: Group) -> bool {
        self.groups.iter().any(|range| range.contains(group))
    }

    /// Whether everything in it is in `other`, whose ranges may together cover one of its own.
    pub fn is_within(&self, other: &Scope) -> bool {
        let mut theirs = other.groups.clone();
        theirs.sort_unstable();
        let covers = |range: &GroupRange| {
            let mut next = range.first.number();
            for one in &theirs {
                if one.first.number() <= next && one.last.number() >= next {
                    next = one.last.number() + 1;
                }
            }
            next > range.last.number()
        };
        self.is_empty() || (self.level <= other.level && self.groups.iter().all(covers))
    }
}

impl GroupRange {
    /// From one group to another; `None` if the last comes before the first.
    pub fn new(first: Group, last: Group) -> Option<GroupRange> {
        (first <= last).then_some(GroupRange { first, last })
    }

    /// Whether the group is in it.
    pub fn contains(&self, group: Group) -> bool {
        (self.first..=self.last).contains(&group)
    }
}

impl fmt::Display for GroupRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl FromStr for GroupRange {
    type Err = String;

    fn from_str(text: &str) -> Result<GroupRange, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let ends = first.parse().ok().zip(last.parse().ok());
        let range = ends.and_then(|(first, last)| GroupRange::new(first, last));
        range.ok_or_else(|| {
            format!(
                "{text:?} names no groups; write first-last, such as 0-4095, up to {}",
                Group::MAX
            )
        })
    }
}

serde_as_text!(GroupRange);

impl Unicast {
    fn is_nobody(&self) -> bool {
        *self == Unicast::Nobody
    }

    /// Whether unicast to an address is allowed.
    pub fn allows(self, to: Address) -> bool {
        match self {
            Unicast::Nobody => false,
            Unicast::Only(address) => address == to,
            Unicast::Anybody => true,
        }
    }
}

impl fmt::Display for Unicast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unicast::Nobody => f.write_str("nobody"),
            Unicast::Only(address) => write!(f, "{address}"),
            Unicast::Anybody => f.write_str("any"),
        }
    }
}

impl FromStr for Unicast {
    type Err = String;

    fn from_str(text: &str) -> Result<Unicast, String> {
        match text {
            "nobody" => Ok(Unicast::Nobody),
            "any" => Ok(Unicast::Anybody),
            _ => parse_address(text).map(Unicast::Only),
        }
    }
}

serde_as_text!(Unicast);

impl Budget {
    fn is_unspecified(&self) -> bool {
        *self == Budget::default()
    }

    fn is_within(&self, ceiling: &Budget) -> bool {
        let within = |mine: Option<u64>, most: Option<u64>| {
            most.is_none_or(|most| mine.is_some_and(|mine| mine <= most))
        };
        within(self.up_bits, ceiling.up_bits)
            && within(self.up_packets, ceiling.up_packets)
            && within(self.down_bits, ceiling.down_bits)
            && within(self.down_packets, ceiling.down_packets)
    }
}

fn is_lowest(level: &Level) -> bool {
    *level == Level(0)
}

mod comtree {
    use super::{Comtree, Deserialize};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(comtree: &Comtree, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(comtree.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Comtree, D::Error> {
        u32::deserialize(from).map(Comtree)
    }
}

mod level {
    use super::{Deserialize, Level};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(level: &Level, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(level.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Level, D::Error> {
        u8::deserialize(from).map(Level)
    }
}

mod address {
    use super::{Address, Deserialize, parse_address};
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        address: &Option<Address>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => to.collect_str(address),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Address>, D::Error> {
        let text = String::deserialize(from)?;
        parse_address(&text).map(Some).map_err(D::Error::custom)
    }
}

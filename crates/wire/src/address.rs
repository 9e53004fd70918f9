//! Addresses inside a comtree (Forest §3.2).

use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

/// The portable sites. An endpoint of one may be at any relay of its comtree, so that whoever has the
/// address keeps it when it comes to another relay. No relay has such a site itself.
pub const PORTABLE_SITES: RangeInclusive<u16> = 0x7000..=0x7fff;

/// A comtree's identifier: flat, global, without meaning in its bits (Forest §3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comtree(pub u32);

/// A 32-bit address: unicast (15-bit site, 16-bit endpoint) or, with the high bit set, a group.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u32);

/// A multicast group of one comtree: 31 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(u32);

/// An affinity: a subscription at level L receives the updates of level ≤ L
/// (federated games §3.1). A higher packet level is a more restricted audience.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(pub u8);

/// A number or text that names no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such group: groups are numbered from 0 to {}", Group::MAX)]
pub struct NoSuchGroup;

const GROUP_BIT: u32 = 1 << 31;

impl Address {
    /// No address: a participant before it has one, or "whomever this datagram reaches".
    pub const UNSPECIFIED: Address = Address(0);

    /// The unicast address of `endpoint` at `site`. The site's top bit is ignored.
    pub const fn unicast(site: u16, endpoint: u16) -> Address {
        Address(((site as u32 & 0x7fff) << 16) | endpoint as u32)
    }

    /// Whether this addresses a group.
    pub const fn is_group(self) -> bool {
        self.0 & GROUP_BIT != 0
    }

    /// The group this addresses, if it addresses one.
    pub const fn group(self) -> Option<Group> {
        if self.is_group() { Some(Group(self.0 & !GROUP_BIT)) } else { None }
    }

    /// The site of a unicast address.
    pub const fn site(self) -> u16 {
        (self.0 >> 16) as u16 & 0x7fff
    }

    /// Whether this is a unicast address of a portable site.
    pub const fn is_portable(self) -> bool {
        !self.is_group() && self.site() >= *PORTABLE_SITES.start()
    }

    /// The endpoint of a unicast address.
    pub const fn endpoint(self) -> u16 {
        self.0 as u16
    }
}

impl Group {
    /// The largest group number.
    pub const MAX: u32 = GROUP_BIT - 1;

    /// Group `number`. For numbers that are not known to fit, there is [`Group::try_from`].
    ///
    /// # Panics
    /// If `number` is more than [`Group::MAX`]; in a constant, the program does not compile.
    pub const fn new(number: u32) -> Group {
        assert!(number <= Self::MAX, "a group's number has 31 bits");
        Group(number)
    }

    /// The group whose number is the lower 31 bits of `word`, as the wire has it.
    pub const fn from_low_bits(word: u32) -> Group {
        Group(word & Self::MAX)
    }

    /// The group's number, 0 to [`Group::MAX`].
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The group as a destination address.
    pub const fn address(self) -> Address {
        Address(self.0 | GROUP_BIT)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group() {
            Some(group) => write!(f, "group {}", group.number()),
            None => write!(f, "{}.{}", self.site(), self.endpoint()),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.0)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl TryFrom<u32> for Group {
    type Error = NoSuchGroup;

    fn try_from(number: u32) -> Result<Group, NoSuchGroup> {
        if number > Self::MAX { Err(NoSuchGroup) } else { Ok(Group(number)) }
    }
}

/// Reads what `Display` writes: the number.
impl FromStr for Group {
    type Err = NoSuchGroup;

    fn from_str(text: &str) -> Result<Group, NoSuchGroup> {
        text.parse::<u32>().map_err(|_| NoSuchGroup)?.try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_bit_tells_groups_from_endpoints() {
        assert_eq!(Group::new(7).address().group(), Some(Group::new(7)));
        assert_eq!(Group::from_low_bits(u32::MAX).number(), Group::MAX);
        let address = Address::unicast(0xffff, 9);
        assert!(!address.is_group());
        assert_eq!((address.site(), address.endpoint()), (0x7fff, 9));
    }

    #[test]
    fn the_last_sites_are_portable_and_groups_are_of_no_site() {
        let is_portable = |site| Address::unicast(site, 64).is_portable();
        assert_eq!(
            [0, 1, 28_671, 28_672, 32_767].map(is_portable),
            [false, false, false, true, true]
        );
        assert!(!Address::UNSPECIFIED.is_portable());
        assert!(!Group::new(Group::MAX).address().is_portable());
        // The top bit of a site is ignored.
        assert!(is_portable(0xf000));
        assert!(PORTABLE_SITES.contains(&0x7fff) && !PORTABLE_SITES.contains(&0x6fff));
    }

    #[test]
    fn a_number_too_large_for_a_group_is_refused() {
        assert_eq!(Group::try_from(Group::MAX), Ok(Group::new(Group::MAX)));
        assert_eq!(Group::try_from(Group::MAX + 1), Err(NoSuchGroup));
        assert_eq!(Group::new(7).to_string().parse(), Ok(Group::new(7)));
        for text in ["", "-1", "group 7", "2147483648", "4294967303"] {
            assert_eq!(text.parse::<Group>(), Err(NoSuchGroup), "{text:?}");
        }
    }
}

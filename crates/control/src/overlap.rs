//! What the relays of a comtree surely have of its tree while a change of that is on its way to them.
//!
//! Until all relays have answered, some have the tree before and some the tree after, or what is told
//! between the two. What is the same on all of these is the *overlap*. It is stored with the tree, so a controller
//! that starts in the middle can tell relays first to let go of everything else, whatever they have been told so far:
//! old branches and new ones never form a circle then. It is forgotten once all relays have the tree.

use crate::codec::{CodecError, Coded, Reader, coded, coded_enum};
use crate::model::{LinkId, RelayId};
use crate::signal::{Branch, Role};
use canopy_plan::Rate;
use std::collections::BTreeMap;

/// The branches of each relay on a comtree.
pub(crate) type Picture = BTreeMap<RelayId, Vec<Branch>>;

/// What all trees have in common that relays may have now.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Overlap {
    /// The number of the last change that it is of, which is not stored: that ends it.
    pub(crate) number: u64,
    /// All relays that may have anything of the comtree, and the branches that they surely have.
    relays: BTreeMap<RelayId, Vec<Sure>>,
}

/// A branch of which a relay has had no other word.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sure {
    link: LinkId,
    kind: Kind,
}

/// What a branch is, as far as it matters for circles.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A link of the tree, whichever end is nearer to the root.
    OfTree,
    /// A link of the mesh, on some of the trees.
    OfMesh,
    StandbyParent,
    StandbyChild,
}

coded! {
    Sure { link, kind }
}
coded_enum!(Kind { OfTree = 0, OfMesh = 1, StandbyParent = 2, StandbyChild = 3 });

impl Sure {
    /// Nothing of a spare link: whoever has it brings nothing.
    fn of(branch: &Branch) -> Option<Sure> {
        let kind = match branch.role {
            Role::Parent | Role::NextParent | Role::Core | Role::Child => Kind::OfTree,
            Role::CorePeer | Role::NextPeer | Role::LastPeer => Kind::OfMesh,
            Role::StandbyParent => Kind::StandbyParent,
            Role::StandbyChild => Kind::StandbyChild,
            Role::Spare => return None,
        };
        Some(Sure { link: branch.link, kind })
    }

    /// What it is on two trees, if it may be told to relays that have one of them.
    fn and(self, other: Sure) -> Option<Sure> {
        let is_standing = |of: Kind| matches!(of, Kind::OfTree | Kind::OfMesh);
        match (self.kind, other.kind) {
            _ if self.link != other.link => None,
            (one, other) if one == other => Some(self),
            (one, other) if is_standing(one) && is_standing(other) => {
                Some(Sure { kind: Kind::OfMesh, ..self })
            }
            _ => None,
        }
    }

    /// The branch, of those that a relay has on the tree `after`; if it was on standby, it still is. A link of
    /// the tree may turn into one of the mesh: that opens circles, and closes none.
    fn on(self, after: &[Branch]) -> Option<Branch> {
        let next = *after.iter().find(|branch| branch.link == self.link)?;
        let standby = match (self.kind, Sure::of(&next)?.kind) {
            (Kind::OfTree, Kind::OfTree | Kind::OfMesh) | (Kind::OfMesh, Kind::OfMesh) => {
                return Some(next);
            }
            (Kind::OfTree | Kind::OfMesh, _) => return None,
            (Kind::StandbyParent, _) => Role::StandbyParent,
            (Kind::StandbyChild, _) => Role::StandbyChild,
        };
        let (send, receive) = (Rate::ZERO, Rate::ZERO);
        follows(standby, next.role).then_some(Branch { role: standby, send, receive, ..next })
    }
}

impl Overlap {
    /// The overlap of one change: what relays keep of the tree `before`, as far as it is the same `after`;
    /// and of all changes `earlier` that are still on their way.
    pub(crate) fn of(earlier: Option<&Overlap>, before: &Picture, after: &Picture) -> Overlap {
        let mut relays: BTreeMap<RelayId, Vec<Sure>> = BTreeMap::new();
        for (relay, branches) in before {
            let next = after.get(relay).map_or(&[][..], Vec::as_slice);
            let had =
                earlier.map(|earlier| earlier.relays.get(relay).map_or(&[][..], Vec::as_slice));
            let stays = branches.iter().filter_map(Sure::of).filter_map(|of| {
                let of = match had {
                    Some(had) => had.iter().find_map(|had| had.and(of))?,
                    None => of,
                };
                of.and(Sure::of(&of.on(next)?)?)
            });
            relays.insert(*relay, stays.collect());
        }
        for relay in earlier.iter().flat_map(|earlier| earlier.relays.keys()) {
            relays.entry(*relay).or_default();
        }
        Overlap { number: earlier.map_or(0, |earlier| earlier.number) + 1, relays }
    }

    /// The relays' branches in it, with what is reserved for them on the tree `after`, and its spare links: ways may have
    /// been found over them.
    pub(crate) fn picture(&self, after: &Picture) -> Picture {
        let mut picture: Picture = after.keys().map(|relay| (*relay, Vec::new())).collect();
        for (relay, branches) in &self.relays {
            let next = after.get(relay).map_or(&[][..], Vec::as_slice);
            let spare = next.iter().filter(|branch| branch.role == Role::Spare).copied();
            let mut branches: Vec<Branch> = branches.iter().filter_map(|of| of.on(next)).collect();
            branches.extend(spare);
            branches.sort_by_key(|branch| branch.link);
            picture.insert(*relay, branches);
        }
        picture
    }
}

/// Whether a standby branch leads up or down as before.
pub(crate) fn follows(standby: Role, next: Role) -> bool {
    match standby {
        Role::StandbyParent => matches!(next, Role::StandbyParent | Role::Parent),
        Role::StandbyChild => matches!(next, Role::StandbyChild | Role::Child),
        _ => false,
    }
}

impl Coded for Overlap {
    fn put(&self, out: &mut Vec<u8>) {
        (self.relays.len() as u64).put(out);
        for (relay, branches) in &self.relays {
            relay.put(out);
            branches.put(out);
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Overlap, CodecError> {
        let mut overlap = Overlap::default();
        for _ in 0..u64::take(from)? {
            let (relay, branches) = (Coded::take(from)?, Coded::take(from)?);
            overlap.relays.insert(relay, branches);
        }
        Ok(overlap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The branches of relay 1: links by number, each with a role.
    fn picture(branches: &[(u32, Role)]) -> Picture {
        let branch = |(link, role): &(u32, Role)| {
            let rate = if role.is_standby() { Rate::ZERO } else { Rate::bits(f64::from(*link)) };
            Branch { link: LinkId(*link), site: 2, role: *role, send: rate, receive: rate }
        };
        BTreeMap::from([(RelayId(1), branches.iter().map(branch).collect())])
    }

    const BEFORE: [(u32, Role); 4] =
        [(1, Role::Parent), (2, Role::Child), (3, Role::CorePeer), (4, Role::StandbyChild)];

    #[test]
    fn a_link_of_the_mesh_that_turns_into_one_of_the_tree_is_let_go() {
        let after = [(1, Role::Core), (2, Role::CorePeer), (3, Role::Child), (4, Role::Child)];
        let overlap = Overlap::of(None, &picture(&BEFORE), &picture(&after));
        let kept = [(1, Role::Core), (2, Role::CorePeer), (4, Role::StandbyChild)];
        assert_eq!(overlap.picture(&picture(&after)), picture(&kept));
        // What may be of the mesh at some relay is so in later changes, too.
        let last = after.map(|(link, _)| (link, Role::Child));
        let overlap = Overlap::of(Some(&overlap), &picture(&after), &picture(&last));
        assert_eq!(overlap.picture(&picture(&last)), picture(&[(1, Role::Child)]));
        assert_eq!(overlap.number, 2);
    }

    #[test]
    fn what_one_change_has_taken_is_not_sure_when_another_brings_it_back() {
        let [all, none] = [picture(&BEFORE), picture(&[])];
        let first = Overlap::of(None, &none, &none);
        let second = Overlap::of(Some(&first), &none, &all);
        let third = Overlap::of(Some(&second), &all, &all);
        assert_eq!(third.picture(&all), none);
        // A relay that is not on the tree any more lets go of everything.
        let gone = Overlap::of(Some(&third), &Picture::new(), &Picture::new());
        assert_eq!(gone.picture(&Picture::new()), none);
    }

    #[test]
    fn spare_links_stay_whatever_else_is_sure() {
        let after = picture(&[(1, Role::Parent), (5, Role::Spare)]);
        let overlap = Overlap::of(None, &picture(&[(1, Role::Child)]), &picture(&[]));
        assert_eq!(overlap.picture(&after)[&RelayId(1)], after[&RelayId(1)][1..]);
    }

    #[test]
    fn an_overlap_is_read_as_it_was_written_but_for_its_number() {
        let overlap = Overlap::of(None, &picture(&BEFORE), &picture(&BEFORE));
        let read = Overlap::of_bytes(&overlap.to_bytes());
        assert_eq!(read, Ok(Overlap { number: 0, ..overlap }));
        // One relay with one branch, of a kind that there is not.
        assert_eq!(Overlap::of_bytes(&[1, 1, 1, 7, 4]), Err(CodecError::Value("Kind")));
    }
}

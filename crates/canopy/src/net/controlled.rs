//! The overlay as a controller wants it: from items to links, comtrees and branches.

use super::{SharedNet, SharedStates};
use crate::settings::RelaySettings;
use canopy_control::{Item, ItemKey};
use canopy_node::{ChangeError, Health, RelayWatch};
use canopy_overlay::{Flooded, Members, Net, Said, Seen, changes, wanted};
use canopy_relay::{Change, ComtreeConfig, Refusal};
use canopy_session::PublicKey;
use canopy_wire::{Downlink, Suite, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// What a relay has by its controller's word.
#[derive(Clone)]
pub(crate) struct Controlled {
    /// What it has without.
    base: Net,
    net: SharedNet,
    members: Arc<Mutex<Members>>,
    watch: RelayWatch,
    /// The neighbours to whom the cable is cut.
    cut: Arc<Mutex<BTreeSet<PublicKey>>>,
    /// Whether updates may go out in cleartext.
    may_be_clear: bool,
}

impl Controlled {
    /// A relay that was just started with these settings.
    pub(crate) fn new(settings: &RelaySettings, net: SharedNet, watch: RelayWatch) -> Controlled {
        let may_be_clear = settings.may_be_clear;
        let (base, members, cut) = (net.get(), Arc::default(), Arc::default());
        Controlled { base, net, members, watch, cut, may_be_clear }
    }

    /// A detour has begun.
    pub(crate) fn count_detour(&self) {
        self.net.count_detour();
    }

    /// Cuts the cable to a neighbour, or mends it, from the next [`Controlled::apply`] on: whatever the
    /// controller says, there is no link then.
    pub(crate) fn set_cut(&self, neighbour: PublicKey, is_cut: bool) {
        let mut cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        if is_cut {
            cut.insert(neighbour)
        } else {
            cut.remove(&neighbour)
        };
    }

    /// Gives the data plane what `items` say, instead of what it has. It waits for data threads.
    ///
    /// # Errors
    /// Why that cannot be; then the data plane has what it had.
    pub(crate) fn apply(&self, items: &BTreeMap<ItemKey, Item>) -> Result<(), String> {
        let before = self.net.get();
        let mut wanted = wanted(&self.base, &before, items, group_suite())?;
        self.check_protection(&wanted)?;
        let cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cut.iter().for_each(|neighbour| wanted.remove_link(neighbour));
        let mut net = before.clone();
        let result = self.go(&mut net, &wanted);
        // Whoever is leaving takes nothing any more, and keeps nothing.
        if result.is_err()
            && self.watch.health() != Health::Draining
            && let Err(why) = self.go(&mut net, &before)
        {
            tracing::error!("what was applied in part could not be taken back: {why}");
        }
        net.names = wanted.names;
        self.net.set(net);
        result
    }

    /// The settings refuse cleartext where other machines can read it; a controller must not bring it either.
    fn check_protection(&self, wanted: &Net) -> Result<(), String> {
        let is_clear = |config: &&ComtreeConfig| config.downlink == Downlink::None;
        match wanted.comtrees.values().find(is_clear) {
            Some(ComtreeConfig { comtree, world, .. }) if !self.may_be_clear => Err(format!(
                "comtree {} of world {world}: other machines can reach this relay, and with downlink none \
                 updates go out in cleartext; give the world downlink member or group, or start the \
                 relay with --insecure",
                comtree.0
            )),
            _ => Ok(()),
        }
    }

    fn go(&self, net: &mut Net, wanted: &Net) -> Result<(), String> {
        for change in changes(net, wanted) {
            self.watch.apply(change.clone()).map_err(|error| error.to_string())?;
            net.took(&change);
        }
        Ok(())
    }

    /// Says something to a neighbour. It waits for the data thread that has the link.
    ///
    /// # Errors
    /// The data thread does not answer.
    pub(crate) fn say(&self, Said { to: key, comtree, search }: Said) -> Result<(), String> {
        // A link that has just gone takes nothing.
        let Some(thread) = self.net.get().links.get(&key).map(|link| link.thread) else {
            return Ok(());
        };
        let search = Change::Search { key, thread, comtree, search };
        self.watch.apply(search).map_err(|error| error.to_string())
    }

    /// Sends neighbours what relays say of their links. It waits for the data threads that have the links.
    ///
    /// # Errors
    /// A data thread does not answer.
    pub(crate) fn flood(&self, flooded: Vec<Flooded>) -> Result<(), String> {
        let mut threads = BTreeMap::<u16, Vec<_>>::new();
        self.net.with(|net| {
            for Flooded { to, packets } in flooded {
                // A link that has just gone takes nothing.
                let Some(link) = net.links.get(&to) else { continue };
                let of_thread = threads.entry(link.thread).or_default();
                of_thread.extend(packets.into_iter().map(|packet| (to, packet)));
            }
        });
        for (thread, packets) in threads {
            let send = Change::SendLinkStates { thread, packets };
            self.watch.apply(send).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// How many bits a second of each link are reserved for nothing, by the neighbour's key.
    pub(crate) fn free_bits(&self) -> BTreeMap<PublicKey, u64> {
        self.net.with(Net::free_bits)
    }

    /// Has pages show what relays say of their links.
    pub(crate) fn show(&self, states: SharedStates) {
        self.net.show(states);
    }

    /// Does to the data plane what a member's item says, beside its token. It waits for data threads.
    ///
    /// # Errors
    /// A data thread does not answer.
    pub(crate) fn apply_member(
        &self,
        now: Time,
        key: ItemKey,
        before: Option<&Item>,
        after: Option<&Item>,
    ) -> Result<(), String> {
        let members = || self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = members().changes(now, key, before, after);
        for change in changes {
            match self.watch.apply(change.clone()) {
                // Nobody has come with the address, or the comtree is gone with all that was on it.
                Ok(())
                | Err(ChangeError::Refused(
                    Refusal::UnknownAddress(..) | Refusal::UnknownComtree(_),
                )) => members().took(&change),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// How the links stand, and how many bits a second are sent over them, by the neighbour's key.
    pub(crate) fn links(&self) -> BTreeMap<PublicKey, (Seen, u64)> {
        let links = self.watch.status().links.into_iter();
        links.map(|link| (link.key, (Seen::from(&link), link.bits_out))).collect()
    }
}

/// The cipher that this processor is good at.
fn group_suite() -> Suite {
    if canopy_net::has_aes() { Suite::Aes128Gcm } else { Suite::ChaCha20Poly1305 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RelayArgs;
    use canopy_control::{Mode, Name};
    use canopy_node::{Command, RunningRelay};
    use canopy_wire::Comtree;

    /// The settings refuse what would be readable, and a controller cannot bring it either.
    #[test]
    fn a_controller_brings_cleartext_only_where_it_may_be() {
        let mut settings = RelaySettings::resolve(RelayArgs::somewhere(), "off").unwrap();
        let relay = RunningRelay::start(&settings.node).unwrap();
        let comtree = |downlink| Item::Comtree {
            id: Comtree(5),
            world: Name::new("arena").unwrap(),
            site: 1,
            mode: Mode::Immediate,
            downlink,
            levels: 1,
            sharing: canopy_control::Sharing::default(),
            branches: Vec::new(),
        };
        let downlinks = [
            canopy_control::Downlink::Member,
            canopy_control::Downlink::Group,
            canopy_control::Downlink::None,
        ];
        for may_be_clear in [false, true] {
            settings.may_be_clear = may_be_clear;
            for downlink in downlinks {
                let net = crate::net::begin(&settings, &relay).unwrap();
                let controlled = Controlled::new(&settings, net.clone(), relay.watch());
                let item = comtree(downlink);
                let applied = controlled.apply(&BTreeMap::from([(item.key(), item)]));
                let is_refused = downlink == canopy_control::Downlink::None && !may_be_clear;
                assert_eq!(applied.is_err(), is_refused, "{downlink:?}: {applied:?}");
                assert_eq!(net.get().comtrees.contains_key(&Comtree(5)), !is_refused);
                if let Err(why) = applied {
                    let says = |what: &&str| why.contains(*what);
                    assert!(["comtree 5", "arena", "--insecure"].iter().all(says), "{why}");
                }
                controlled.apply(&BTreeMap::new()).unwrap();
            }
        }
        relay.watch().command(Command::Stop);
        relay.join().unwrap();
    }
}

//! The overlay as a controller wants it: from items to links, comtrees and branches.

use super::SharedNet;
use canopy_control::{Item, ItemKey};
use canopy_node::{ChangeError, RelayWatch};
use canopy_overlay::{Net, Seen, changes, member_change, wanted};
use canopy_relay::{LinkStatus, Refusal};
use canopy_session::PublicKey;
use canopy_wire::Suite;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// What a relay has by its controller's word.
#[derive(Clone)]
pub(crate) struct Controlled {
    /// What it has without.
    base: Net,
    net: SharedNet,
    watch: RelayWatch,
    /// The neighbours to whom the cable is cut.
    cut: Arc<Mutex<BTreeSet<PublicKey>>>,
}

impl Controlled {
    /// A relay that was just started.
    pub(crate) fn new(net: SharedNet, watch: RelayWatch) -> Controlled {
        Controlled { base: net.get(), net, watch, cut: Arc::default() }
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
        let cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cut.iter().for_each(|neighbour| wanted.remove_link(neighbour));
        let mut net = before.clone();
        let result = self.go(&mut net, &wanted);
        if result.is_err()
            && let Err(why) = self.go(&mut net, &before)
        {
            tracing::error!("what was applied in part could not be taken back: {why}");
        }
        net.names = wanted.names;
        self.net.set(net);
        result
    }

    fn go(&self, net: &mut Net, wanted: &Net) -> Result<(), String> {
        for change in changes(net, wanted) {
            self.watch.apply(change.clone()).map_err(|error| error.to_string())?;
            net.took(&change);
        }
        Ok(())
    }

    /// Does to the data plane what a member's item says, beside its token. It waits for data threads.
    ///
    /// # Errors
    /// A data thread does not answer.
    pub(crate) fn apply_member(
        &self,
        key: ItemKey,
        before: Option<&Item>,
        after: Option<&Item>,
    ) -> Result<(), String> {
        let Some(change) = member_change(key, before, after) else { return Ok(()) };
        match self.watch.apply(change) {
            // Nobody has come with the address, or the comtree is gone with all that was on it.
            Ok(())
            | Err(ChangeError::Refused(Refusal::UnknownAddress(..) | Refusal::UnknownComtree(_))) => {
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// How the links stand, by the neighbour's key.
    pub(crate) fn links(&self) -> BTreeMap<PublicKey, Seen> {
        let one_way = |time: std::time::Duration| (time.as_micros() / 2) as u32;
        let seen = |link: LinkStatus| Seen {
            has_been_up: link.ups > 0,
            is_up: link.is_up,
            delay_us: link.round_trip.map_or(0, one_way),
        };
        self.watch.status().links.into_iter().map(|link| (link.key, seen(link))).collect()
    }
}

/// The cipher that this processor is good at.
fn group_suite() -> Suite {
    if canopy_net::has_aes() { Suite::Aes128Gcm } else { Suite::ChaCha20Poly1305 }
}

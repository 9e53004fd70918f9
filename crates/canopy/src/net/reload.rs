//! What the settings say of the overlay, given to a running relay: at its start, and again at each
//! SIGHUP.

use super::{Net, OfSettings, SharedNet};
use crate::settings::{RelayArgs, RelaySettings};
use crate::trust::{self, TrustPath};
use anyhow::Context;
use canopy_client::RelayKey;
use canopy_node::{RelayWatch, RunningRelay};
use canopy_overlay::changes;
use canopy_relay::{BranchRole, Budget, Change};
use canopy_session::PublicKey;
use tokio::signal::unix::Signal;

/// Gives a relay that has just been started its links and branches.
///
/// # Errors
/// If they cannot be: the error names what, and the remedy.
pub(crate) fn begin(settings: &RelaySettings, relay: &RunningRelay) -> anyhow::Result<SharedNet> {
    let net = Net::of(settings, &relay.key())?;
    let watch = relay.watch();
    for change in changes(&Net::at_start(settings), &net) {
        let what = told(&change, &net);
        tracing::debug!("{what}");
        watch.apply(change).context(what)?;
    }
    let shared = SharedNet::default();
    shared.set(net);
    Ok(shared)
}

/// Reads the settings again when it is told to, and gives the relay what has changed.
pub(crate) struct Reloads {
    /// What was given on the command line and in the environment.
    pub(crate) args: RelayArgs,
    /// What the relay was started with.
    pub(crate) settings: RelaySettings,
    /// What it has of the overlay.
    pub(crate) net: SharedNet,
    /// The file whose keys let in.
    pub(crate) trust: Option<TrustPath>,
    /// The relay.
    pub(crate) watch: RelayWatch,
    /// Its key.
    pub(crate) key: PublicKey,
}

impl Reloads {
    /// Reads the settings again at each of these signals, until the process ends.
    pub(crate) async fn follow(mut self, mut hangups: Signal) -> anyhow::Result<()> {
        while hangups.recv().await.is_some() {
            // It waits for the data threads, and the pages must not.
            self = tokio::task::spawn_blocking(move || {
                if let Err(error) = self.reload() {
                    tracing::error!("the settings were not taken, and nothing changes: {error:#}");
                }
                self
            })
            .await?;
        }
        Ok(())
    }

    /// Takes the settings as they are now.
    ///
    /// # Errors
    /// If there is a mistake in them; then nothing has changed.
    fn reload(&mut self) -> anyhow::Result<()> {
        let after = RelaySettings::resolve(self.args.clone(), "off")?;
        let before = self.net.get();
        let mut net = Net::of(&after, &self.key)?;
        self.follow_trust(&after)?;
        for warning in &after.warnings {
            tracing::warn!("{warning}");
        }
        for key in self.settings.fixed(&after) {
            tracing::warn!("{key} stays as it is; restart the relay to change it");
        }
        for comtree in net.keep_comtrees(&before) {
            tracing::warn!(
                comtree,
                "what its table says of it stays as it is, because its participants would lose their \
                 addresses; take it out and send SIGHUP, and then put it in and send SIGHUP again, or \
                 restart the relay"
            );
        }
        let changed = self.apply(before, &net);
        tracing::info!(changed, "took the settings again");
        Ok(())
    }

    /// Lets in by another file's keys from now on, if the settings name another.
    fn follow_trust(&self, after: &RelaySettings) -> anyhow::Result<()> {
        if let (Some(now), Some(next)) = (&self.trust, &after.trust)
            && now.get() != *next
        {
            // Who watches the file takes it.
            trust::read(next)?;
            now.set(next.clone());
        }
        Ok(())
    }

    /// Makes the relay's overlay what it is to be, as far as the data plane takes it. Returns how many
    /// changes it took.
    fn apply(&self, mut net: Net, wanted: &Net) -> usize {
        let steps = changes(&net, wanted);
        // Both know a neighbour that goes by its name.
        net.names.extend(wanted.names.clone());
        let mut taken = 0;
        for step in steps {
            let what = told(&step, &net);
            match self.watch.apply(step.clone()) {
                Ok(()) => {
                    taken += 1;
                    net.took(&step);
                    tracing::info!("{what}");
                }
                Err(error) => tracing::error!("{what}: not possible: {error}"),
            }
        }
        net.names.retain(|key, _| net.links.contains_key(key));
        self.net.set(net);
        taken
    }
}

/// A change as a log tells it.
fn told(change: &Change, net: &Net) -> String {
    match change {
        Change::AddComtree(config) => format!("comtree {} comes", config.comtree.0),
        Change::RemoveComtree(comtree) => format!("comtree {} goes", comtree.0),
        Change::AddLink(link) => {
            let (name, key) = (net.name(&link.key), RelayKey::new(link.key));
            let how = if link.calls { "calls" } else { "waits for the call of" };
            format!("link {name} comes: this relay {how} {} with the key {key}", link.path.remote)
        }
        Change::RemoveLink { key, .. } => format!("link {} goes", net.name(key)),
        Change::AddBranch(branch) => format!(
            "comtree {}: the branch over link {} comes, as {} of site {}",
            branch.id.comtree.0,
            net.name(&branch.id.link),
            role_name(branch.role),
            branch.site
        ),
        Change::RemoveBranch(id) => {
            format!("comtree {}: the branch over link {} goes", id.comtree.0, net.name(&id.link))
        }
        Change::SetBranchRole { branch, role } => format!(
            "comtree {}: the neighbour over link {} is {} from now on",
            branch.comtree.0,
            net.name(&branch.link),
            role_name(*role)
        ),
        Change::SetComtreeBudget { comtree, budget } => {
            format!("comtree {}: {} from now on", comtree.0, in_words(budget))
        }
        Change::SetBranchBudget { branch, budget } => format!(
            "comtree {}: over link {}, {} from now on",
            branch.comtree.0,
            net.name(&branch.link),
            in_words(budget)
        ),
        Change::SetLinkCapacity { key, capacity, .. } => format!(
            "link {}: capacity_bits = {}, capacity_packets = {} from now on",
            net.name(key),
            capacity.bits,
            capacity.updates
        ),
        Change::SetBranchGuarantee { branch, bits } => format!(
            "comtree {}: over link {}, guaranteed_bits = {bits} from now on",
            branch.comtree.0,
            net.name(&branch.link)
        ),
        Change::LimitSubscriptions(most) => {
            format!("max_subscriptions_per_participant is {most} from now on")
        }
        _ => "another change".to_owned(),
    }
}

/// A budget as a log tells it, in the settings' words.
fn in_words(budget: &Budget) -> String {
    let Budget { up_packets, up_bits, down_packets, down_bits } = budget;
    format!(
        "up_packets = {up_packets}, up_bits = {up_bits}, down_packets = {down_packets}, \
         down_bits = {down_bits}"
    )
}

/// A role as the settings write it.
pub(crate) fn role_name(role: BranchRole) -> &'static str {
    match role {
        BranchRole::Parent => "parent",
        BranchRole::NextParent => "next-parent",
        BranchRole::Core => "core",
        BranchRole::CorePeer => "core-peer",
        BranchRole::NextPeer => "next-peer",
        BranchRole::LastPeer => "last-peer",
        BranchRole::Child => "child",
        BranchRole::Standby => "standby",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_relay::ComtreeConfig;
    use canopy_wire::Comtree;

    #[test]
    fn a_comtree_that_stays_is_not_changed_and_named() {
        let net = |sites: &[(u32, u16)]| {
            let config =
                |(id, site): &(u32, u16)| (Comtree(*id), ComtreeConfig::new(Comtree(*id), *site));
            Net { comtrees: sites.iter().map(config).collect(), ..Net::default() }
        };
        let before = net(&[(1, 1), (2, 1), (3, 1)]);
        let mut after = net(&[(1, 1), (2, 9), (4, 9)]);
        assert_eq!(after.keep_comtrees(&before), [2]);
        assert_eq!(after, net(&[(1, 1), (2, 1), (4, 9)]));
    }
}

//! The channel over which a controller tells the areas of a world, for either client.

use super::question::{Asker, Terms};
use crate::ClientKey;
use crate::ask::Ask;
use crate::chance::Chance;
use crate::standing::Alert;
use canopy_areas::Areas;
use canopy_channel::{Channel, ChannelError, Pieces};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

/// How soon a follower whose channel has ended calls again.
const AGAIN: Duration = Duration::from_secs(1);
/// Reports that wait for a channel which takes no more; the client keeps what it has to say beyond these.
const REPORTS: usize = 4;

/// Follows the areas of a client's world.
pub(crate) struct Following {
    terms: watch::Receiver<Terms>,
    key: ClientKey,
}

impl Following {
    /// One for the client for which this one asks.
    pub(crate) fn beside(asker: &Asker) -> Following {
        Following { terms: asker.terms.subscribe(), key: asker.key.clone() }
    }

    /// Runs until it is dropped: once there are areas, a channel tells them, and is called again when it ends.
    pub(crate) async fn run<T: Future<Output = ()>>(
        mut self,
        tell: impl Fn(Alert) -> T,
    ) -> Infallible {
        let mut chance = Chance::of_system();
        // Whoever asks for the place lasts longer than this.
        let _ = self.terms.wait_for(|terms| terms.has_areas).await;
        loop {
            let ask = self.terms.borrow().ask.clone();
            // Without the controller nothing changes, and it is asked again.
            let _ = self.follow(&ask, &tell).await;
            sleep(AGAIN + chance.pause()).await;
        }
    }

    async fn follow<T: Future<Output = ()>>(
        &self,
        ask: &Ask,
        tell: &impl Fn(Alert) -> T,
    ) -> Result<(), ChannelError> {
        let Ok(channel) = ask.follow(&self.key).await else { return Ok(()) };
        let Channel { mut sender, mut receiver, .. } = channel;
        let (says, mut reports) = mpsc::channel(REPORTS);
        tell(Alert::Opened(says)).await;
        let mut pieces = Pieces::default();
        loop {
            tokio::select! {
                piece = receiver.receive() => {
                    let text = pieces.take(&piece?).map_err(|_| ChannelError::Forged)?;
                    let Some(text) = text else { continue };
                    let areas = Areas::from_text(&text).map_err(|_| ChannelError::Forged)?;
                    tell(Alert::Areas(areas)).await;
                }
                report = reports.recv() => {
                    let Some(report) = report else { return Ok(()) };
                    let text = serde_json::to_vec(&report).map_err(ChannelError::Text)?;
                    sender.send(&text).await?;
                }
            }
        }
    }
}

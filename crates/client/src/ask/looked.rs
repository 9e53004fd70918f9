//! The two questions of whoever joins: which relays to measure, and then for a place.

use super::{ANSWER_LIMIT, Ask, JoinError, Nearness, Place, Relays, measure};
use crate::ClientKey;
use canopy_channel::{Channel, ChannelError, Hello};
use std::time::Duration;

/// How near relays are, before a place is asked for.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    pub(crate) measured: Vec<Nearness>,
    /// The channel over which relays were asked for. It rests while they are measured, a fraction of a second, and
    /// saves the controller and the client another handshake.
    channel: Option<Channel>,
}

impl Ask {
    /// Measures for so long at most the relays that the controller names.
    ///
    /// # Errors
    /// The controller cannot be reached, or refuses.
    pub(crate) async fn look(&self, key: &ClientKey, most: Duration) -> Result<Looked, JoinError> {
        let mut channel = self.call(key).await?;
        let Relays { relays } = self.ask_over(&mut channel, &Hello::Relays).await?;
        let measured = measure(&relays, most).await;
        Ok(Looked { measured, channel: Some(channel) })
    }

    /// Asks for a place, as [`Ask::join`] does.
    ///
    /// # Errors
    /// The controller cannot be reached, or refuses.
    pub(crate) async fn enter(
        &self,
        key: &ClientKey,
        looked: Looked,
    ) -> Result<(Place, Vec<Nearness>), JoinError> {
        let Looked { measured, channel } = looked;
        let hello = Hello::Join(self.wish(&measured));
        let place = match channel {
            Some(mut channel) => match channel.ask(&hello, ANSWER_LIMIT).await {
                // It has ended meanwhile. If the question was heard, the answer to another is the same.
                Err(ChannelError::Ended | ChannelError::Io(_)) => self.ask(key, &hello).await?,
                answered => answered.map_err(|error| self.failed(error))?,
            },
            None => self.ask(key, &hello).await?,
        };
        Ok((place, measured))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RelayKey;
    use canopy_channel::Reply;
    use canopy_session::Identity;
    use serde_json::json;
    use tokio::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Joins through a controller that ends each channel after so many answers. Returns over how many
    /// channels it was asked for relays and for a place.
    async fn channels_of_a_join(answers: usize) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = Identity::new([9; 32]);
        let (address, known_by) = (listener.local_addr().unwrap(), RelayKey::new(*own.public()));
        let ask = Ask::new(address.to_string(), known_by, "lobby".to_owned());
        let key = ClientKey::from_seed([7; 32]);
        let serve = async {
            for channels in 1.. {
                let (stream, _) = listener.accept().await.unwrap();
                let mut channel = Channel::accept(stream, &own, LIMIT).await.unwrap();
                for _ in 0..answers {
                    let asked = channel.asked(LIMIT).await.unwrap();
                    let is_join = matches!(asked, Hello::Join(_));
                    let relay =
                        json!({ "name": "a", "address": "127.0.0.1:1", "key": "07".repeat(32) });
                    let answer = match asked {
                        Hello::Relays => json!({ "relays": [] }),
                        _ => {
                            json!({ "address": "1.64", "relay": relay, "token": "t", "comtrees": [] })
                        }
                    };
                    channel.reply(&Reply::Done(answer)).await.unwrap();
                    if is_join {
                        return channels;
                    }
                }
            }
            unreachable!("it joins")
        };
        let join = async {
            let looked = ask.look(&key, Duration::from_millis(1)).await.unwrap();
            ask.enter(&key, looked).await.unwrap()
        };
        let ((place, _), channels) = tokio::join!(join, serve);
        assert_eq!(place.address, "1.64");
        channels
    }

    #[tokio::test]
    async fn a_place_is_asked_for_over_the_channel_that_named_the_relays() {
        assert_eq!(channels_of_a_join(2).await, 1);
    }

    #[tokio::test]
    async fn a_channel_that_ends_while_relays_are_measured_keeps_nobody_from_joining() {
        assert_eq!(channels_of_a_join(1).await, 2);
    }
}

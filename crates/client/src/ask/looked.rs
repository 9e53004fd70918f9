//! The two questions of whoever joins: which relays to measure, and then for a place.

use super::patience::{Patience, may_be_mended};
use super::{ANSWER_LIMIT, Ask, JoinError, Nearness, Place, Relays, measure};
use crate::ClientKey;
use canopy_channel::{Channel, ChannelError, Hello};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// A channel rests for so long at most while relays are measured. The controller takes so many of one ip only, and
/// others behind the same address are to have room while relays leave hellos unanswered.
const RESTS: Duration = Duration::from_millis(100);

/// How near relays are, before a place is asked for.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    pub(crate) measured: Vec<Nearness>,
    /// The channel over which relays were asked for, if that was just now. It saves the controller and the client
    /// another handshake.
    channel: Option<Channel>,
}

impl Ask {
    /// Measures for so long at most the relays that the controller names.
    ///
    /// # Errors
    /// The controller cannot be reached, which no other try would mend, or refuses.
    pub(crate) async fn look(
        &self,
        key: &ClientKey,
        most: Duration,
        patience: &mut Patience,
    ) -> Result<Looked, JoinError> {
        let (channel, Relays { relays }) = self.ask_anew(key, &Hello::Relays, patience).await?;
        let measuring = measure(&relays, most);
        tokio::pin!(measuring);
        if let Ok(measured) = timeout(RESTS, &mut measuring).await {
            return Ok(Looked { measured, channel: Some(channel) });
        }
        drop(channel);
        Ok(Looked { measured: measuring.await, channel: None })
    }

    /// Asks for a place, as [`Ask::join`] does.
    ///
    /// # Errors
    /// The controller cannot be reached, which no other try would mend, or refuses.
    pub(crate) async fn enter(
        &self,
        key: &ClientKey,
        looked: Looked,
        patience: &mut Patience,
    ) -> Result<(Place, Vec<Nearness>), JoinError> {
        let Looked { measured, channel } = looked;
        let hello = Hello::Join(self.wish(&measured));
        let answered = match channel {
            Some(mut channel) => channel.ask(&hello, ANSWER_LIMIT).await,
            None => Err(ChannelError::Ended),
        };
        let place = match answered {
            // If the question was heard, the answer to another is the same.
            Err(error) if may_be_mended(&error) => self.ask_anew(key, &hello, patience).await?.1,
            answered => answered.map_err(|error| self.failed(error))?,
        };
        Ok((place, measured))
    }

    /// Asks over a new channel, and over another after a while if that comes to nothing: the controller may start again,
    /// or there are as many of this ip at the moment as it takes.
    pub(super) async fn ask_anew<T: DeserializeOwned>(
        &self,
        key: &ClientKey,
        hello: &Hello,
        patience: &mut Patience,
    ) -> Result<(Channel, T), JoinError> {
        loop {
            match self.try_to_ask(key, hello).await {
                Ok(answered) => return Ok(answered),
                Err(error) => {
                    let pause = patience.pause_after(error);
                    sleep(pause.map_err(|error| self.failed(error))?).await;
                }
            }
        }
    }

    async fn try_to_ask<T: DeserializeOwned>(
        &self,
        key: &ClientKey,
        hello: &Hello,
    ) -> Result<(Channel, T), ChannelError> {
        let mut channel = self.connect(key).await?;
        let answer = channel.ask(hello, ANSWER_LIMIT).await?;
        Ok((channel, answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RelayKey;
    use canopy_channel::Reply;
    use canopy_session::Identity;
    use serde_json::json;
    use tokio::net::{TcpListener, UdpSocket};

    const LIMIT: Duration = Duration::from_secs(10);

    /// Joins through a controller that ends so many channels at once, and the others after so many answers. Returns
    /// over how many channels it was asked for relays and for a place.
    async fn channels_of_a_join(at_once: usize, answers: usize) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = Identity::new([9; 32]);
        let (address, known_by) = (listener.local_addr().unwrap(), RelayKey::new(*own.public()));
        let ask = Ask::new(address.to_string(), known_by, "lobby".to_owned());
        let key = ClientKey::from_seed([7; 32]);
        let serve = async {
            for channels in 1.. {
                let (stream, _) = listener.accept().await.unwrap();
                if channels <= at_once {
                    continue;
                }
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
            let mut patience = Patience::new(LIMIT);
            let looked = ask.look(&key, Duration::from_millis(1), &mut patience).await.unwrap();
            ask.enter(&key, looked, &mut patience).await.unwrap()
        };
        let ((place, _), channels) = tokio::join!(join, serve);
        assert_eq!(place.address, "1.64");
        channels
    }

    #[tokio::test]
    async fn a_place_is_asked_for_over_the_channel_that_named_the_relays() {
        assert_eq!(channels_of_a_join(0, 2).await, 1);
    }

    #[tokio::test]
    async fn a_channel_that_ends_while_relays_are_measured_keeps_nobody_from_joining() {
        assert_eq!(channels_of_a_join(0, 1).await, 2);
    }

    /// As where many behind one address join at once: the controller takes no more of them for a moment.
    #[tokio::test]
    async fn a_channel_that_ends_at_once_is_made_again() {
        assert_eq!(channels_of_a_join(1, 2).await, 2);
    }

    #[tokio::test]
    async fn a_channel_does_not_wait_for_relays_that_do_not_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let own = Identity::new([9; 32]);
        let (address, known_by) = (listener.local_addr().unwrap(), RelayKey::new(*own.public()));
        let ask = Ask::new(address.to_string(), known_by, "lobby".to_owned());
        let key = ClientKey::from_seed([7; 32]);
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut channel = Channel::accept(stream, &own, LIMIT).await.unwrap();
            channel.asked(LIMIT).await.unwrap();
            let at = silent.local_addr().unwrap();
            let relay = json!({ "name": "a", "address": at, "key": "07".repeat(32) });
            channel.reply(&Reply::Done(json!({ "relays": [relay] }))).await.unwrap();
            channel.asked(LIMIT).await.map(|_| ())
        };
        let looks = async {
            let mut patience = Patience::new(LIMIT);
            let looked = ask.look(&key, LIMIT * 2, &mut patience);
            tokio::pin!(looked);
            // It still measures when its channel has ended.
            tokio::select! {
                _ = &mut looked => panic!("nothing answers"),
                ended = serve => ended,
            }
        };
        assert!(matches!(looks.await, Err(ChannelError::Ended)));
    }
}

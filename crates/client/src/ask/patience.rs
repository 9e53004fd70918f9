//! For how long a controller is asked again that cannot be reached, and after which pauses.

use super::JoinError;
use crate::chance::Chance;
use canopy_channel::ChannelError;
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::time::Instant;

/// The first pause, milliseconds. Up to as much again is added by chance, as all who have lost a controller look for it at
/// the same time. It doubles with each try, up to some three seconds.
const PAUSE_MS: u64 = 100;
const MOST_DOUBLINGS: u32 = 4;
/// Who is not let speak so often in a row has another controller's key, and not too many beside it at its ip: then, too,
/// the controller ends the channel without a word.
const MOST_ENDED: u32 = 5;

/// What somebody who joins has left of it.
#[derive(Debug)]
pub(crate) struct Patience {
    span: Duration,
    until: Instant,
    chance: Chance,
    tries: u32,
    /// How often in a row the other side has ended the channel.
    ended: u32,
    /// What the last try has met.
    last: Option<ChannelError>,
}

impl Patience {
    /// It lasts this long from now on.
    pub(crate) fn new(span: Duration) -> Patience {
        let (until, chance) = (Instant::now() + span, Chance::of_system());
        Patience { span, until, chance, tries: 0, ended: 0, last: None }
    }

    /// When it is over. What is asked is to be given up then.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// How long to wait for the next try, after one has met this.
    ///
    /// # Errors
    /// No other try can mend that.
    pub(super) fn pause_after(&mut self, error: ChannelError) -> Result<Duration, ChannelError> {
        self.ended = if has_ended(&error) { self.ended + 1 } else { 0 };
        if !may_be_mended(&error) || self.ended >= MOST_ENDED {
            return Err(error);
        }
        let doubled = PAUSE_MS << self.tries.min(MOST_DOUBLINGS);
        let pause = doubled + self.chance.below(doubled);
        self.tries += 1;
        self.last = Some(error);
        Ok(Duration::from_millis(pause))
    }

    /// It was over before the controller there had answered.
    pub(crate) fn over(&self, controller: &str) -> JoinError {
        let span = self.span.as_secs_f64();
        let why = match &self.last {
            Some(last) => {
                format!("{} tries within {span} s have failed, the last one: {last}", self.tries)
            }
            None => format!("it has not answered within {span} s"),
        };
        JoinError::Controller { controller: controller.to_owned(), why }
    }
}

/// Whether the other side has ended a channel that there was.
fn has_ended(error: &ChannelError) -> bool {
    match error {
        ChannelError::Ended => true,
        ChannelError::Io(error) => {
            let ended =
                [ErrorKind::ConnectionReset, ErrorKind::ConnectionAborted, ErrorKind::BrokenPipe];
            ended.contains(&error.kind())
        }
        _ => false,
    }
}

/// Whether another try may get further: a controller that is away, or the way to it, comes back. What it refuses, a key
/// that is another's and a name that nobody has stay as they are.
pub(super) fn may_be_mended(error: &ChannelError) -> bool {
    match error {
        ChannelError::Silent(_) => true,
        ChannelError::Io(error) if is_on_the_way(error) => true,
        error => has_ended(error),
    }
}

fn is_on_the_way(error: &io::Error) -> bool {
    let on_the_way = [
        ErrorKind::ConnectionRefused,
        ErrorKind::TimedOut,
        ErrorKind::HostUnreachable,
        ErrorKind::NetworkUnreachable,
        ErrorKind::NetworkDown,
        ErrorKind::AddrNotAvailable,
    ];
    // The system says nothing else about names: EAI_AGAIN in the words of glibc and of musl.
    let names = || {
        let said = error.to_string();
        said.contains("Temporary failure in name resolution") || said.ends_with(": Try again")
    };
    on_the_way.contains(&error.kind()) || names()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn refused() -> ChannelError {
        ChannelError::Io(ErrorKind::ConnectionRefused.into())
    }

    /// The pauses after so many tries that are all refused, and what is said of them at the end.
    fn pauses(tries: usize) -> (Vec<Duration>, String) {
        let mut patience = Patience::new(LIMIT);
        let pauses = (0..tries).map(|_| patience.pause_after(refused()).unwrap()).collect();
        (pauses, patience.over("there").to_string())
    }

    #[test]
    fn pauses_grow_and_differ_and_the_last_try_is_told() {
        let (first, told) = pauses(8);
        for (number, pause) in first.iter().enumerate() {
            let least = 100 << number.min(4);
            let millis = pause.as_millis();
            assert!((least..2 * least).contains(&millis), "{number}: {pause:?}");
        }
        assert!(told.contains("8 tries within 60 s") && told.contains("refused"), "{told}");
        assert_ne!(pauses(8).0, first);
    }

    #[test]
    fn only_what_another_try_may_mend_is_tried_again() {
        let of = |error: &str| ChannelError::Io(io::Error::other(error.to_owned()));
        let lookup = "failed to lookup address information";
        let temporary = of(&format!("{lookup}: Temporary failure in name resolution"));
        let nobody = of(&format!("{lookup}: Name or service not known"));
        let io = |kind: ErrorKind| ChannelError::Io(kind.into());
        let away = [ErrorKind::TimedOut, ErrorKind::HostUnreachable, ErrorKind::ConnectionReset];
        let silent = ChannelError::Silent(LIMIT);
        let mended = [refused(), silent, ChannelError::Ended, temporary];
        for error in mended.into_iter().chain(away.map(io)) {
            let told = error.to_string();
            assert!(Patience::new(LIMIT).pause_after(error).is_ok(), "{told}");
        }
        let (key, forged) = (ChannelError::NotTheController, ChannelError::Forged);
        let full = ChannelError::Refused("full".into());
        for error in [key, forged, full, nobody, io(ErrorKind::PermissionDenied)] {
            let told = error.to_string();
            assert!(Patience::new(LIMIT).pause_after(error).is_err(), "{told}");
        }
    }

    /// As with the key of another controller. Who finds one that starts again is refused in between.
    #[test]
    fn who_is_not_let_speak_gives_up_after_a_few_tries() {
        let mut patience = Patience::new(LIMIT);
        for _ in 0..3 {
            for _ in 1..MOST_ENDED {
                patience.pause_after(ChannelError::Ended).unwrap();
            }
            patience.pause_after(refused()).unwrap();
        }
        for _ in 1..MOST_ENDED {
            patience.pause_after(ChannelError::Ended).unwrap();
        }
        assert!(patience.pause_after(ChannelError::Ended).is_err());
    }
}

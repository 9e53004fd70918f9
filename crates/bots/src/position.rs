//! The payload of a walker's update.

use canopy_wire::Time;

/// The shortest payload in bytes that holds a position.
pub const MIN_PAYLOAD: usize = 28;

const MAGIC: [u8; 4] = *b"CPOS";

/// A walker's position, as its update carries it: magic, walker, number, time, x, y; big-endian;
/// what follows is filling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    /// The walker's index in the crowd.
    pub walker: u32,
    /// The update's number in the run.
    pub number: u32,
    /// When it was published, by the crowd's clock.
    pub published: Time,
    /// Metres.
    pub x: f32,
    /// Metres.
    pub y: f32,
}

impl Position {
    /// Writes the position to the front of `payload`, which has at least [`MIN_PAYLOAD`] bytes.
    pub fn encode(&self, payload: &mut [u8]) {
        payload[..4].copy_from_slice(&MAGIC);
        payload[4..8].copy_from_slice(&self.walker.to_be_bytes());
        payload[8..12].copy_from_slice(&self.number.to_be_bytes());
        payload[12..20].copy_from_slice(&self.published.as_nanos().to_be_bytes());
        payload[20..24].copy_from_slice(&self.x.to_be_bytes());
        payload[24..28].copy_from_slice(&self.y.to_be_bytes());
    }

    /// The number of the update, as the oracle counts, after `published` of them. In the payload
    /// numbers wrap after 4 billion; those on their way are told apart by the difference.
    pub(crate) fn id(&self, published: u64) -> Option<u64> {
        let back = (published as u32).wrapping_sub(self.number);
        published.checked_sub(back.into())
    }

    /// Reads a position, if this is one.
    pub fn decode(payload: &[u8]) -> Option<Position> {
        let (head, _) = payload.split_first_chunk::<MIN_PAYLOAD>()?;
        let word = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
        let time = head[12..20].iter().fold(0, |time, byte| time << 8 | u64::from(*byte));
        (head[..4] == MAGIC).then(|| Position {
            walker: u32::from_be_bytes(word(4)),
            number: u32::from_be_bytes(word(8)),
            published: Time::from_nanos(time),
            x: f32::from_be_bytes(word(20)),
            y: f32::from_be_bytes(word(24)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives() {
        let published = Time::from_millis(77);
        let position = Position { walker: 3, number: 9, published, x: -1.5, y: 2.25 };
        let mut payload = [0; 100];
        position.encode(&mut payload);
        assert_eq!(Position::decode(&payload), Some(position));
        assert_eq!((position.id(9), position.id(10), position.id(8)), (Some(9), Some(9), None));
        assert_eq!(position.id((1 << 32) + 3), Some(9));
        assert_eq!(Position::decode(&payload[..27]), None);
        assert_eq!(Position::decode(&[0; 100]), None);
    }
}

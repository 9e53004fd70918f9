//! Texts that are longer than a message: cut into pieces, and put together again.

use crate::MOST;

/// What is before a piece: whether another one follows.
const LAST: u8 = 0;
const MORE: u8 = 1;
/// The longest text that is put together, bytes.
const LONGEST: usize = 4 << 20;

/// The pieces of a text, each of which is a message.
pub fn pieces(text: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let count = text.len().div_ceil(MOST - 1).max(1);
    (0..count).map(move |number| {
        let from = number * (MOST - 1);
        let piece = &text[from..text.len().min(from + MOST - 1)];
        let head = if number + 1 == count { LAST } else { MORE };
        [&[head], piece].concat()
    })
}

/// Puts pieces together.
#[derive(Debug, Default)]
pub struct Pieces(Vec<u8>);

/// What came is no piece, or the text gets too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what came is no piece of a text of at most 4 MiB")]
pub struct NoPiece;

impl Pieces {
    /// Takes a piece. Returns the text if it was the last one.
    ///
    /// # Errors
    /// It is no piece, or the text is too long.
    pub fn take(&mut self, piece: &[u8]) -> Result<Option<Vec<u8>>, NoPiece> {
        let (head, piece) = piece.split_first().ok_or(NoPiece)?;
        if *head > MORE || self.0.len() + piece.len() > LONGEST {
            return Err(NoPiece);
        }
        self.0.extend_from_slice(piece);
        Ok((*head == LAST).then(|| std::mem::take(&mut self.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_what_it_was_whatever_its_length() {
        for len in [0, 1, MOST - 1, MOST, 2 * MOST - 2, 3 * MOST] {
            let text: Vec<u8> = (0..len).map(|place| place as u8).collect();
            let mut together = Pieces::default();
            let mut found = None;
            for piece in pieces(&text) {
                assert!(piece.len() <= MOST);
                assert_eq!(found, None, "the last piece says so");
                found = together.take(&piece).unwrap();
            }
            assert_eq!(found, Some(text), "{len}");
        }
    }

    #[test]
    fn what_is_no_piece_or_too_much_is_refused() {
        assert_eq!(Pieces::default().take(&[]), Err(NoPiece));
        assert_eq!(Pieces::default().take(&[2, 1]), Err(NoPiece));
        let piece = [vec![MORE], vec![0; MOST - 1]].concat();
        let mut together = Pieces::default();
        let refused = (0..100).find(|_| together.take(&piece).is_err());
        assert_eq!(refused, Some(LONGEST / (MOST - 1)));
    }
}

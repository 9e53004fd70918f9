//! What goes over a connection, cut into frames: the length of each, and then its bytes.

use crate::ChannelError;
use std::ops::Range;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes before each frame that say its length.
const PREFIX: usize = 2;
/// As many bytes are asked for at once, if they are there: a question, or several short messages.
const AHEAD: usize = 1024;

/// The frames that come over a connection.
#[derive(Debug)]
pub(crate) struct Frames<R> {
    read: R,
    /// What has come.
    buffer: Vec<u8>,
    /// How much of that was returned.
    taken: usize,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(crate) fn new(read: R) -> Frames<R> {
        Frames { read, buffer: Vec::new(), taken: 0 }
    }

    /// What it reads from.
    #[cfg(test)]
    pub(crate) fn into_inner(self) -> R {
        self.read
    }

    /// The next frame, of at most so many bytes. If this is given up halfway, nothing is lost: the next
    /// call goes on.
    pub(crate) async fn next(&mut self, most: usize) -> Result<&[u8], ChannelError> {
        loop {
            if let Some(frame) = self.find(most)? {
                return Ok(&self.buffer[frame]);
            }
            self.buffer.drain(..self.taken);
            self.taken = 0;
            // It grows as much as comes, not as much as is announced.
            self.buffer.reserve(AHEAD);
            if self.read.read_buf(&mut self.buffer).await? == 0 {
                return Err(ChannelError::Ended);
            }
        }
    }

    /// The next frame, if all of it has come already.
    pub(crate) fn ready(&mut self, most: usize) -> Result<Option<&[u8]>, ChannelError> {
        let found = self.find(most)?;
        Ok(found.map(|frame| &self.buffer[frame]))
    }

    /// Where the next frame is in what has come. It is taken by that.
    fn find(&mut self, most: usize) -> Result<Option<Range<usize>>, ChannelError> {
        let rest = &self.buffer[self.taken..];
        let Some(length) = rest.first_chunk() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes(*length));
        if length > most {
            return Err(ChannelError::TooLong(length));
        }
        if length == 0 {
            return Err(ChannelError::Forged);
        }
        if rest.len() < PREFIX + length {
            return Ok(None);
        }
        let from = self.taken + PREFIX;
        self.taken = from + length;
        Ok(Some(from..self.taken))
    }
}

/// Puts a frame behind others.
pub(crate) fn push_frame(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), ChannelError> {
    push_empty_frame(out, bytes.len())?.copy_from_slice(bytes);
    Ok(())
}

/// Puts a frame of this length behind others. Returns its bytes, which are to be filled.
pub(crate) fn push_empty_frame(out: &mut Vec<u8>, len: usize) -> Result<&mut [u8], ChannelError> {
    let length = u16::try_from(len).map_err(|_| ChannelError::TooLong(len))?;
    out.reserve(PREFIX + len);
    out.extend_from_slice(&length.to_be_bytes());
    let from = out.len();
    out.resize(from + len, 0);
    Ok(&mut out[from..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    fn frames(of: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        of.iter().for_each(|bytes| push_frame(&mut out, bytes).unwrap());
        out
    }

    #[tokio::test]
    async fn frames_are_cut_as_they_were_however_they_come() {
        let long = vec![7; 5 * AHEAD];
        let all: [&[u8]; 4] = [b"a", b"frame", &long, b"end"];
        let bytes = frames(&all);
        for piece in [1, 2, 3, AHEAD, bytes.len()] {
            let (read, mut write) = tokio::io::duplex(piece);
            let bytes = bytes.clone();
            tokio::spawn(async move { write.write_all(&bytes).await });
            let mut cut = Frames::new(read);
            for frame in all {
                assert_eq!(cut.next(usize::from(u16::MAX)).await.unwrap(), frame, "{piece}");
            }
            assert!(matches!(cut.next(1).await, Err(ChannelError::Ended)));
        }
    }

    #[tokio::test]
    async fn a_frame_that_is_empty_too_long_or_cut_off_is_an_error() {
        let next =
            async |bytes: Vec<u8>| Frames::new(bytes.as_slice()).next(4).await.map(<[u8]>::to_vec);
        assert!(matches!(next(frames(&[b""])).await, Err(ChannelError::Forged)));
        assert!(matches!(next(frames(&[b"abcde"])).await, Err(ChannelError::TooLong(5))));
        assert!(matches!(next(vec![0, 4, 1]).await, Err(ChannelError::Ended)));
        assert_eq!(next(frames(&[b"abcd"])).await.unwrap(), b"abcd");
        assert!(push_frame(&mut Vec::new(), &[0; 1 << 16]).is_err());
    }
}

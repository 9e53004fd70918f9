//! An input as a list of steps: each is one byte that names it and the bytes that it takes.

use canopy_wire::Kind;

/// A list of steps, each named in an input by its place in the list: new ones go to the end, for the
/// corpus has the numbers.
macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What may happen; behind each the bytes that it takes.
        #[derive(Clone, Copy, Debug)]
        enum Step { $($(#[$doc])* $name,)* }
        const STEPS: &[Step] = &[$(Step::$name,)*];
    };
}
pub(crate) use steps;

/// The most steps of an input that are taken.
pub(crate) const MAX_STEPS: usize = 300;

/// The bytes of an input that are still to be taken; behind the end there are zeros.
pub(crate) struct Input<'a>(&'a [u8]);

/// Kinds of packets that came when there was a corpus, in the order in which they came.
const NEWER: [Kind; 3] = [Kind::WaySearch, Kind::LinkState, Kind::LinkStateAck];

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    /// The next step's name, out of all that there are; `None` at the end.
    pub(crate) fn step<T: Copy>(&mut self, names: &[T]) -> Option<T> {
        (!self.0.is_empty()).then(|| names[self.below(names.len())])
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// The byte that is taken next.
    pub(crate) fn peek(&self) -> u8 {
        self.0.first().copied().unwrap_or_default()
    }

    /// A number below `end`, which is at most 256.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// A kind of packet. Those that are newer than the corpus come last, as it has the numbers.
    pub(crate) fn kind(&mut self) -> Kind {
        let before = Kind::ALL.iter().filter(|kind| !NEWER.contains(kind));
        let kinds = before.chain(&NEWER);
        let at = self.below(Kind::ALL.len());
        kinds.copied().nth(at).unwrap_or(Kind::WaySearch)
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// The next `len` bytes, or as many as are left.
    pub(crate) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Up to three bytes of `datagram` changed, and its length if the input says so.
    pub(crate) fn alter(&mut self, datagram: &mut Vec<u8>) {
        let how = self.byte();
        for _ in 0..how & 3 {
            let (at, mask) = (usize::from(self.word()), self.byte());
            if let Some(count) = datagram.len().checked_sub(1) {
                datagram[at % (count + 1)] ^= mask;
            }
        }
        match how >> 2 & 3 {
            1 => datagram.truncate(self.byte().into()),
            2 => datagram.resize(datagram.len() + self.below(256), 0),
            _ => {}
        }
    }
}

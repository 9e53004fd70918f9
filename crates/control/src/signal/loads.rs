//! What a relay sends over its links, for whoever looks on: nothing is decided by it.
//!
//! Controllers of releases that do not know this message ignore it.

use crate::codec::{CodecError, Coded, Reader, coded};
use crate::model::{LinkId, MOST_LINKS};

/// What a relay sends over one of its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLoad {
    /// Which.
    pub link: LinkId,
    /// Bits of UDP payload in the last second that was measured.
    pub bits_out: u64,
}

coded! {
    LinkLoad { link, bits_out }
}

/// As many as a relay has links.
pub(super) fn take(from: &mut Reader<'_>) -> Result<Vec<LinkLoad>, CodecError> {
    let all = Vec::take(from)?;
    if all.len() > MOST_LINKS {
        return Err(CodecError::Value("loads"));
    }
    Ok(all)
}

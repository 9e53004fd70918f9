//! The maps that user space and the kernel's programs share.

use aya::maps::MapData;
use std::io;
use std::path::Path;

/// The pinned maps that user space writes to.
pub(crate) struct Maps {
    pub(crate) slots: MapData,
    pub(crate) triggers: MapData,
}

impl Maps {
    /// Opens those of the installation in `folder`, whose user is `owner`.
    pub(crate) fn open(folder: &Path, owner: u32) -> io::Result<Maps> {
        let open = |name| {
            MapData::from_pin(folder.join(name)).map_err(|error| {
                let why = format!(
                    "it is installed for user {owner}, and not for this one ({error}); remove it \
                     and install it again with --user"
                );
                io::Error::other(why)
            })
        };
        Ok(Maps { slots: open("slots")?, triggers: open("triggers")? })
    }
}

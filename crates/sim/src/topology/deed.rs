//! What an operator may do.

/// Something that an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// A world moves to another tree.
    MoveWorld,
    /// A link of a world's tree is removed.
    RemoveLink,
    /// A link between two nodes is given again once it is gone.
    GiveLink(usize),
    /// A relay takes nobody new, and worlds without members there leave it.
    Drain,
    /// It takes members again.
    Undrain(usize),
}

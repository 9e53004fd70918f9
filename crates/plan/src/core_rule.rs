//! Rules that say which nodes of a comtree are its core, whatever its tree.

/// Which nodes of a comtree are its core.
#[derive(Clone, Debug, PartialEq)]
pub enum CoreRule {
    /// None: provisioning is min{α, ω} everywhere.
    None,
    /// The root alone.
    Center,
    /// The root and its neighbours in the tree.
    CenterAndNeighbours,
    /// Every node.
    All,
    /// These, and what lies between them.
    Nodes(Vec<usize>),
    /// The smallest core that no endpoint is further from than this.
    Within(Reach),
}

/// How far an endpoint may be from the nearest core node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reach {
    /// Links.
    pub hops: u32,
    /// Kilometres; infinite for no limit.
    pub length: f64,
}

impl CoreRule {
    /// The nodes that the rule names itself.
    pub(crate) fn nodes(&self) -> &[usize] {
        if let CoreRule::Nodes(nodes) = self { nodes } else { &[] }
    }

    /// Whether the core depends on where the root is.
    pub(crate) fn follows_root(&self) -> bool {
        matches!(self, CoreRule::Center | CoreRule::CenterAndNeighbours)
    }

    /// Whether the core depends on more of the tree than its root.
    pub(crate) fn follows_shape(&self) -> bool {
        matches!(self, CoreRule::CenterAndNeighbours | CoreRule::Within(_))
    }
}

//! Worlds move to other trees.

use crate::body::name;
use crate::problem::Problem;
use crate::relays::name_of;
use crate::worlds::{WorldView, world};
use canopy_control::{Controller, MovePlan, TreeAsk, TreeHop};
use canopy_plan::Method;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Which trees a world is moved to.
#[derive(Clone, Debug, Default, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MoveAsk {
    /// The relay that is to be the root of its trees; without it, the best is found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// How its trees are chosen; without it, the least costly is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(inline)]
    pub method: Option<TreeMethod>,
    /// For the method `stretch`, and only there: how far a relay may be from the root, in lengths of the
    /// direct way, 1 to 100; without it, 1.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stretch: Option<f64>,
}

/// How a tree is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TreeMethod {
    /// A shortest-path tree.
    Spt,
    /// A minimum spanning tree.
    Mst,
    /// Prim's algorithm with a bound on the stretch.
    Stretch,
    /// Like a spanning tree near the root, like a shortest-path tree further out.
    Hybrid,
    /// The least costly of the others and of local searches from each.
    Best,
}

impl From<TreeMethod> for Method {
    fn from(method: TreeMethod) -> Method {
        match method {
            TreeMethod::Spt => Method::Spt,
            TreeMethod::Mst => Method::Mst,
            TreeMethod::Stretch => Method::Stretch,
            TreeMethod::Hybrid => Method::Hybrid,
            TreeMethod::Best => Method::Best,
        }
    }
}

/// What a move of a world would do.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct MovePlans {
    /// One plan for each comtree.
    pub comtrees: Vec<MovePlanView>,
}

/// What a move of a comtree would do.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct MovePlanView {
    /// Its number on the wire.
    pub id: u32,
    /// What its tree costs now: the reserved bits a second of each link, both ways, times its length in
    /// kilometres of fibre.
    pub cost: f64,
    /// What the tree would cost that it would move to.
    pub planned_cost: f64,
    /// How many of its relays would hang on another, become the root, or join or leave a meshed core.
    pub hung: usize,
    /// The tree that it would move to, each relay behind the one above it.
    pub tree: Vec<PlannedHop>,
}

/// How a relay would hang on a comtree.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct PlannedHop {
    /// The relay's name.
    pub relay: String,
    /// The name of the relay above; nothing at the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<String>,
    /// The number of the link that leads there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<u32>,
}

/// Moves all comtrees of a world to other trees, without loss. The answer is the world as it is when that
/// begins; it takes some seconds for each relay that gets another parent.
///
/// # Errors
/// There is no such world or relay, it is on its way already, a value is not allowed, or a link has too
/// little left for what is on the way.
pub fn move_world(
    controller: &mut Controller,
    of: &str,
    ask: &MoveAsk,
) -> Result<WorldView, Problem> {
    let ask = asked(controller, ask)?;
    controller.move_world(&name("world", of)?, ask)?;
    world(controller, of)
}

/// What [`move_world`] would do now. Nothing changes.
///
/// # Errors
/// As there.
pub fn plan_move(
    controller: &mut Controller,
    of: &str,
    ask: &MoveAsk,
) -> Result<MovePlans, Problem> {
    let ask = asked(controller, ask)?;
    let plans = controller.plan_move(&name("world", of)?, ask)?;
    let relay = |id| name_of(controller, id);
    let hop = |hop: &TreeHop| PlannedHop {
        relay: relay(hop.relay),
        above: hop.above.map(|(above, _)| relay(above)),
        link: hop.above.map(|(_, link)| link.0),
    };
    let view = |plan: &MovePlan| {
        let MovePlan { comtree, cost, planned_cost, hung, ref tree } = *plan;
        let tree = tree.iter().map(hop).collect();
        // A sum of nothing is minus zero.
        MovePlanView {
            id: comtree.0,
            cost: cost + 0.0,
            planned_cost: planned_cost + 0.0,
            hung,
            tree,
        }
    };
    Ok(MovePlans { comtrees: plans.iter().map(view).collect() })
}

fn asked(controller: &Controller, ask: &MoveAsk) -> Result<TreeAsk, Problem> {
    let root = ask.root.as_deref().map(|root| name("root", root)).transpose()?;
    let root = root.map(|root| controller.relay_named(&root)).transpose()?.map(|relay| relay.id);
    let method = ask.method.map_or(TreeAsk::default().method, Method::from);
    Ok(TreeAsk { root, method, stretch: stretch(method, ask.stretch)? })
}

/// In hundredths.
fn stretch(method: Method, asked: Option<f64>) -> Result<u16, Problem> {
    match asked {
        None => Ok(TreeAsk::default().stretch),
        Some(_) if method != Method::Stretch => {
            let what = "only the method stretch has a stretch";
            Err(Problem::value("stretch", what, "leave it out, or ask for the method stretch"))
        }
        Some(stretch) if (1.0..=100.0).contains(&stretch) => Ok((stretch * 100.0).round() as u16),
        Some(stretch) => {
            let what = format!("{stretch} is no stretch");
            Err(Problem::value("stretch", what, "write a number from 1 to 100, such as 1.2"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_for_one_method_and_a_number_in_its_range() {
        let refused = |method, asked| stretch(method, Some(asked)).unwrap_err().error.what;
        assert_eq!(refused(Method::Best, 1.5), "only the method stretch has a stretch");
        for wrong in [0.9, 101.0, f64::NAN, f64::INFINITY, -1.0] {
            assert!(refused(Method::Stretch, wrong).contains("is no stretch"), "{wrong}");
        }
        assert_eq!(stretch(Method::Stretch, Some(2.5)), Ok(250));
        assert_eq!(stretch(Method::Spt, None), Ok(120));
    }
}

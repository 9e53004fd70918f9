//! Why no tree fits what is free.

use super::Choice;
use crate::demand::Demand;
use crate::provision::Side;
use crate::rate::Rate;

/// How sure it is that there is no tree.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Certainty {
    /// Every tree was looked at.
    All,
    /// Only some were.
    Searched,
    /// None was found that keeps this stretch.
    Within(f64),
}

/// Names a bottleneck that no tree can avoid, if one node or one missing link is it; else the link
/// at which the nearest tree fails.
pub(super) fn explain(demand: &Demand<'_>, nearest: &Choice, certainty: Certainty) -> String {
    if let Some(bottleneck) = bottleneck(demand) {
        return format!("no tree fits what is free: {bottleneck}");
    }
    let how = match certainty {
        Certainty::All => "no tree fits what is free".to_owned(),
        Certainty::Searched => {
            "no tree was found that fits what is free, though there may be one".to_owned()
        }
        Certainty::Within(bound) => format!(
            "no tree of stretch {bound} was found that fits what is free; one without a bound may, \
             see the method 'best'"
        ),
    };
    let network = demand.network();
    let below = crate::provision::sides_below(&nearest.tree, demand.limits(), &nearest.core);
    let all = below[nearest.tree.root()];
    let worst = nearest.tree.hops().max_by(|a, b| {
        let excess = |hop: &crate::tree::Hop| {
            demand.excess(hop.link, hop.below, &below[hop.below], &(all - below[hop.below]))
        };
        excess(a).total_cmp(&excess(b))
    });
    let Some(hop) = worst else { return how };
    let [up, down] = network.links()[hop.link].free_from(hop.below);
    let needed = nearest.capacities[hop.below];
    let name = |node: usize| &network.nodes()[node].name;
    format!(
        "{how}; the nearest lacks most on the link {}–{}: it needs {} and {} back, and {} and {} \
         are free. Free more there, or lower the endpoints' limits",
        name(hop.below),
        name(hop.above),
        in_words(needed.up),
        in_words(needed.down),
        in_words(up),
        in_words(down),
    )
}

/// An endpoint that all its links together cannot serve: whatever the tree, they must carry what
/// it sends and receives.
fn bottleneck(demand: &Demand<'_>) -> Option<String> {
    let network = demand.network();
    let side = |node: usize| Side::of(demand.limits()[node], false);
    let all: Side = demand.endpoints().iter().fold(Side::default(), |sum, node| sum + side(*node));
    demand.endpoints().iter().find_map(|node| {
        let (own, rest) = (side(*node), all - side(*node));
        let links = network.neighbours(*node).iter();
        let free = links.fold([Rate::ZERO; 2], |[out, into], (_, link)| {
            let [up, down] = network.links()[*link].free_from(*node);
            [out + up, into + down]
        });
        let needed = [own.needed_towards(&rest), rest.needed_towards(&own)];
        let name = &network.nodes()[*node].name;
        let way = ["send", "receive"];
        (0..2).find(|way| needed[*way].excess(free[*way], needed[*way] + Rate::bits(1e-9)) > 0.0).map(|index| {
            format!(
                "{name} is to {} {}, and on all its links together {} is free. Free more there, or \
                 lower its limits",
                way[index],
                in_words(needed[index]),
                in_words(free[index]),
            )
        })
    })
}

fn in_words(rate: Rate) -> String {
    let number = |number: f64| {
        if number.is_infinite() { "any number of".to_owned() } else { number.to_string() }
    };
    match rate {
        Rate { bits, packets } if packets == 0.0 && bits.is_finite() => bits.to_string(),
        Rate { bits, packets } => format!("{} bits and {} packets", number(bits), number(packets)),
    }
}

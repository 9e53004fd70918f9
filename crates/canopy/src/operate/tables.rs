//! Worlds as tables. Writing to a String cannot fail.

use canopy_api::{
    ChannelView, ComtreeView, HopView, LinkShare, MemberView, MovePlanView, PeerView, PlannedHop,
    WorldView,
};
use std::fmt::Write;

/// The worlds, one a line.
pub(super) fn table(worlds: &[WorldView]) -> String {
    if worlds.is_empty() {
        return "no worlds; create one with `canopy world create NAME`".to_owned();
    }
    let mut text = format!(
        "{:<24} {:<8} {:>8} {:>8} {:>7} {:<12} {:<9} {:>10} {:>12} {:<12}\n",
        "world",
        "is",
        "members",
        "comtrees",
        "relays",
        "mode",
        "downlink",
        "Mbit/s up",
        "Mbit/s down",
        "broken"
    );
    for world in worlds {
        let is = if world.closing { "closing" } else { "open" };
        let mode = world.tick_ms.map_or("immediate".to_owned(), |tick| format!("every {tick} ms"));
        let downlink = format!("{:?}", world.downlink).to_lowercase();
        let relays = world.comtrees.iter().map(|comtree| comtree.tree.len()).max().unwrap_or(0);
        let broken = world.comtrees.iter().filter(|comtree| comtree.broken.is_some()).count();
        let _ = writeln!(
            text,
            "{:<24} {is:<8} {:>8} {:>8} {relays:>7} {mode:<12} {downlink:<9} {:>10.3} {:>12.3} {:<12}",
            world.name,
            world.members,
            world.comtrees.len(),
            world.budget.up_bits as f64 / 1e6,
            world.budget.down_bits as f64 / 1e6,
            if broken == 0 { "-".to_owned() } else { format!("{broken} comtrees") }
        );
    }
    text
}

/// What members of a world get who cannot be sent everything.
pub(super) fn sharing(text: &mut String, world: &WorldView) {
    let WorldView { floor_ms, levels_first, comtree_budget: of, .. } = world;
    let order = if *levels_first { "lower levels first" } else { "all levels alike" };
    let _ =
        writeln!(text, "over a budget: an update of each publisher every {floor_ms} ms, {order}");
    let numbers = [
        (of.up_bits, "bit/s up"),
        (of.up_packets, "updates/s up"),
        (of.down_bits, "bit/s down"),
        (of.down_packets, "updates/s down"),
    ];
    let said = numbers.iter().filter(|(number, _)| *number > 0);
    let said: Vec<String> = said.map(|(number, unit)| format!("{number} {unit}")).collect();
    if !said.is_empty() {
        let _ = writeln!(text, "members of a comtree together, per relay: {}", said.join(", "));
    }
}

pub(super) fn channels(text: &mut String, channels: &[ChannelView]) {
    for ChannelView { name, first, groups } in channels {
        let last = u64::from(*first) + u64::from(*groups) - 1;
        let _ = writeln!(text, "channel {name}: groups {first} to {last}");
    }
}

pub(super) fn tree(text: &mut String, comtree: &ComtreeView, why: bool) {
    let _ = writeln!(
        text,
        "\n{:>10}  {:<16} {:>8} {:<5} {:<16} {:>6} {:>9} {:>10} {:>12} {:>9} {:>9}",
        "comtree",
        "relay",
        "members",
        "core",
        "above",
        "link",
        "delay ms",
        "Mbit/s up",
        "Mbit/s down",
        "free up",
        "free down"
    );
    let mut head = comtree.id.to_string();
    if comtree.tree.is_empty() {
        let _ = writeln!(text, "{head:>10}  - it has no members");
    }
    for hop in &comtree.tree {
        let HopView { relay, members, core, above, link, reserved, peers, outside } = hop;
        let (above, core) = (above.as_deref().unwrap_or("-"), if *core { "yes" } else { "no" });
        let link = link.map_or("-".to_owned(), |link| link.to_string());
        let _ =
            write!(text, "{head:>10}  {relay:<16} {members:>8} {core:<5} {above:<16} {link:>6}");
        if let Some(of) = reserved {
            share(text, of);
        }
        for PeerView { relay, link, reserved } in peers {
            let _ = write!(text, "\n{:>43}  {relay:<16} {link:>6}", "peer");
            share(text, reserved);
        }
        if let Some(outside) = outside {
            let _ = write!(text, "\n{:>10}  {relay} is not in the core: {outside}", "");
        }
        text.push('\n');
        head.clear();
    }
    if why && !comtree.why.is_empty() {
        let cost = comtree.cost / 1e6;
        let _ = writeln!(text, "{:>10}  costs {cost:.3} Mbit/s · km; why: {}", "", comtree.why);
    }
    if let Some(kept) = comtree.kept.as_ref().filter(|_| why) {
        let _ = writeln!(text, "{:>10}  last look: {kept}", "");
    }
    if let Some(broken) = &comtree.broken {
        let _ = writeln!(text, "{:>10}  broken: {broken}", "");
    }
}

fn share(text: &mut String, share: &LinkShare) {
    let delay = f64::from(share.delay_us) / 1e3;
    let rates = [share.up_bits, share.down_bits, share.free_up_bits, share.free_down_bits];
    let [up, down, free_up, free_down] = rates.map(|bits| bits as f64 / 1e6);
    let _ = write!(text, " {delay:>9.3} {up:>10.3} {down:>12.3} {free_up:>9.3} {free_down:>9.3}");
}

/// What moves of comtrees would do.
pub(super) fn plans(comtrees: &[MovePlanView]) -> String {
    let mut text = String::new();
    for MovePlanView { id, cost, planned_cost, hung, tree } in comtrees {
        let [now, then] = [cost, planned_cost].map(|cost| cost / 1e6);
        let saved = if *cost > 0.0 { (1.0 - planned_cost / cost) * 100.0 } else { 0.0 };
        let _ = writeln!(
            text,
            "comtree {id}: costs {now:.3} Mbit/s · km, and would cost {then:.3}, {saved:.1} % less; \
             relays that would have another place: {hung}"
        );
        let _ = writeln!(text, "{:>10}  {:<16} {:<16} {:>6}", "", "relay", "above", "link");
        for PlannedHop { relay, above, link } in tree {
            let above = above.as_deref().unwrap_or("-");
            let link = link.map_or("-".to_owned(), |link| link.to_string());
            let _ = writeln!(text, "{:>10}  {relay:<16} {above:<16} {link:>6}", "");
        }
    }
    text
}

pub(super) fn list(text: &mut String, members: &[MemberView], more: bool) {
    let _ = writeln!(
        text,
        "\n{:<12} {:<20} {:<16} {:<8} {:>10} {:>12}  {:<20}",
        "member", "subject", "relay", "is", "Mbit/s up", "Mbit/s down", "until"
    );
    for member in members {
        let [up, down] = [member.budget.up_bits, member.budget.down_bits].map(|b| b as f64 / 1e6);
        let MemberView { address, subject, relay, state, until, .. } = member;
        // Somebody else has chosen it, and it is not to look like another line.
        let subject = subject.escape_debug().to_string();
        let _ = writeln!(
            text,
            "{address:<12} {subject:<20} {relay:<16} {state:<8} {up:>10.3} {down:>12.3}  {until:<20}"
        );
    }
    if more {
        text.push_str("there are more members; a thousand are listed at most\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_api::{Budget, ComtreeBudget, CoreRule, Mode, Protection};

    fn world() -> WorldView {
        let hop = |relay: &str, above: Option<&str>| canopy_api::HopView {
            relay: relay.to_owned(),
            members: 2,
            core: above.is_none(),
            above: above.map(str::to_owned),
            link: above.map(|_| 4),
            reserved: above.map(|_| canopy_api::LinkShare {
                delay_us: 1500,
                up_bits: 1_000_000,
                down_bits: 2_000_000,
                free_up_bits: 9_000_000,
                free_down_bits: 8_000_000,
            }),
            peers: Vec::new(),
            outside: None,
        };
        WorldView {
            name: "lobby".to_owned(),
            id: 1,
            channels: vec![ChannelView { name: "chat".to_owned(), first: 0, groups: 16 }],
            levels: 0,
            mode: Mode::Periodic,
            tick_ms: Some(50),
            downlink: Protection::Group,
            budget: Budget::default(),
            core: CoreRule::Center,
            floor_ms: 500,
            levels_first: true,
            comtree_budget: ComtreeBudget { down_bits: 9, ..ComtreeBudget::default() },
            closing: false,
            members: 3,
            comtrees: vec![ComtreeView {
                id: 16,
                tree: vec![hop("a", None), hop("b", Some("a"))],
                cost: 2.5e6,
                why: "it costs the least".to_owned(),
                kept: Some("it stays: the best tree found costs 3 % less".to_owned()),
                broken: Some("no link leads to c".to_owned()),
            }],
        }
    }

    fn words(text: &str) -> Vec<Vec<&str>> {
        text.lines().map(|line| line.split_whitespace().collect()).collect()
    }

    #[test]
    fn a_world_has_a_line_and_each_relay_of_its_trees_has_one() {
        let world = world();
        let mut text = table(std::slice::from_ref(&world));
        sharing(&mut text, &world);
        channels(&mut text, &world.channels);
        tree(&mut text, &world.comtrees[0], true);
        for wanted in [
            "lobby open 3 1 2 every 50 ms group 0.256 4.000 1 comtrees",
            "over a budget: an update of each publisher every 500 ms, lower levels first",
            "members of a comtree together, per relay: 9 bit/s down",
            "channel chat: groups 0 to 15",
            "16 a 2 yes - -",
            "b 2 no a 4 1.500 1.000 2.000 9.000 8.000",
            "costs 2.500 Mbit/s · km; why: it costs the least",
            "last look: it stays: the best tree found costs 3 % less",
            "broken: no link leads to c",
        ] {
            let wanted: Vec<&str> = wanted.split(' ').collect();
            assert!(words(&text).contains(&wanted), "no {wanted:?} in\n{text}");
        }
        let mut text = String::new();
        tree(&mut text, &world.comtrees[0], false);
        assert!(!text.contains("why") && !text.contains("look"), "{text}");
        assert!(text.contains("broken"), "{text}");
        assert!(table(&[]).contains("canopy world create"));
    }
}
